# SPDX-License-Identifier: Apache-2.0
"""The names with which pods request GPUs of other GPU sharing systems: such pods are sent to the webhook."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

DialectName = Literal["gpu-manager", "gpushare", "hami", "kai", "kubeshare", "volcano-vgpu"]

HAMI_PRIORITY: Final = "nvidia.com/priority"
"""HAMi's resource that asks for no GPU, but says how important the container is."""


@dataclass(frozen=True)
class Dialect:
    """The fields of a pod from which one system reads the request."""

    resources: tuple[str, ...] = ()
    annotations: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    schedulers: tuple[str, ...] = ()
    """Its scheduler's names; a pod that is converted is placed by ours."""


DIALECTS: Final[dict[str, Dialect]] = {
    "gpu-manager": Dialect(resources=("tencent.com/vcuda-core", "tencent.com/vcuda-memory")),
    "gpushare": Dialect(
        resources=("aliyun.com/gpu-mem", "aliyun.com/gpu-core.percentage", "aliyun.com/gpu-count"),
        schedulers=("gpushare-scheduler",),
    ),
    "hami": Dialect(
        resources=(
            "nvidia.com/gpu",
            "nvidia.com/gpumem",
            "nvidia.com/gpumem-percentage",
            "nvidia.com/gpucores",
            HAMI_PRIORITY,
        ),
        schedulers=("hami-scheduler", "4pd-scheduler"),
    ),
    "kai": Dialect(
        resources=("nvidia.com/gpu",),
        annotations=("gpu-fraction", "gpu-memory"),
        schedulers=("kai-scheduler", "runai-scheduler"),
    ),
    "kubeshare": Dialect(
        labels=("sharedgpu/gpu_request", "sharedgpu/gpu_limit", "sharedgpu/gpu_mem"),
        schedulers=("kubeshare-scheduler",),
    ),
    "volcano-vgpu": Dialect(
        resources=(
            "volcano.sh/vgpu-number",
            "volcano.sh/vgpu-memory",
            "volcano.sh/vgpu-memory-percentage",
            "volcano.sh/vgpu-cores",
            "volcano.sh/gpu-number",
            "volcano.sh/gpu-memory",
        ),
        schedulers=("volcano",),
    ),
}
