# SPDX-License-Identifier: Apache-2.0
"""Volcano's vGPU plugin: `volcano.sh/vgpu-number` with `vgpu-memory`, `vgpu-memory-percentage` and `vgpu-cores`.

Its older plugin has only `volcano.sh/gpu-memory` for shares, and `gpu-number` for whole GPUs.
"""

from __future__ import annotations

from typing import Final

from slicekeeper.gpu.foreign_request import Reading, ReferenceGpu
from slicekeeper.kube.objects import Pod
from webhook.foreign.vgpu import VgpuNames, read_vgpus

_NAMES: Final = VgpuNames(
    "volcano.sh/vgpu-number",
    "volcano.sh/vgpu-memory",
    "volcano.sh/vgpu-memory-percentage",
    "volcano.sh/vgpu-cores",
    mode="volcano.sh/vgpu-mode",
)
_OLDER: Final = VgpuNames("volcano.sh/gpu-number", "volcano.sh/gpu-memory")
_IGNORED: Final = {
    "scheduling.k8s.io/group-name": "each pod of the group is placed by itself",
    "scheduling.volcano.sh/queue-name": "the namespace's budget takes the place of a queue's share",
    "volcano.sh/queue-name": "the namespace's budget takes the place of a queue's share",
}


def read(pod: Pod, gpu: ReferenceGpu, reading: Reading) -> None:
    """Read a pod written for Volcano."""
    read_vgpus(pod, _NAMES, gpu, reading)
    read_vgpus(pod, _OLDER, gpu, reading)
    if reading.shares:
        reading.ignores(pod.metadata.annotations, _IGNORED)
