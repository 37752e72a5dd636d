# SPDX-License-Identifier: Apache-2.0
"""gpushare (Alibaba Cloud): `aliyun.com/gpu-mem`, in GiB or, in some clusters, in MiB.

The number of GPUs that a share is spread over is given by a label of the pod, or by a resource.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Final

from slicekeeper.gpu.foreign_request import ConvertedShare, Reading, ReferenceGpu, gpu_containers, whole
from slicekeeper.kube.objects import Pod
from slicekeeper.units import CORES_PER_GPU, whole_quantity

_MEMORY: Final = "aliyun.com/gpu-mem"
_CORES: Final = "aliyun.com/gpu-core.percentage"
_COUNT: Final = "aliyun.com/gpu-count"
_MOST_GIB: Final = 512
"""No GPU has more memory, so a larger number is in MiB."""


def read(pod: Pod, gpu: ReferenceGpu, reading: Reading) -> None:
    """Read a pod written for gpushare. If it does not request a percentage of compute, compute follows memory."""
    spread = pod.metadata.labels.get(_COUNT, "1")
    for path, name, amounts in gpu_containers(pod, (_MEMORY, _CORES, _COUNT)):
        before = len(reading.violations)
        memory, cores, count = (whole(reading, name, path, amounts, key) for key in (_MEMORY, _CORES, _COUNT))
        if len(reading.violations) > before or not (memory or cores or count):
            continue
        if not (memory or cores):
            rule = "it sets over how many GPUs a share is spread, but not how large the share is"
            reading.refuse(name, f"{path}[{_COUNT}]", count, rule, f"{_MEMORY}: 8")
            continue
        if (count or 1) > 1 or whole_quantity(spread) != 1:
            field, value = (f"{path}[{_COUNT}]", count) if (count or 1) > 1 else (f"metadata.labels[{_COUNT}]", spread)
            rule = "shares of several GPUs in one container are not supported: request a share of one"
            reading.refuse(name, field, value, rule, f"{_COUNT}: 1")
            continue
        if cores is not None and cores >= CORES_PER_GPU:
            if cores % CORES_PER_GPU:
                rule = "it must be a percentage of one GPU, or whole GPUs"
                reading.refuse(name, f"{path}[{_CORES}]", cores, rule, f"{_CORES}: 50")
                continue
            if memory:
                reading.notes.append(f"{name}: all compute of a GPU is a whole GPU, with all of its memory")
            reading.shares[name] = ConvertedShare(cores)
            continue
        mib = None
        if memory:
            in_gib = memory <= (gpu.memory_mib // 1024 if gpu.memory_mib else _MOST_GIB)
            mib = Fraction(memory * 1024 if in_gib else memory)
            reading.notes.append(f"{name}: {_MEMORY} {memory} is read as {'GiB' if in_gib else 'MiB'}")
        share = gpu.share(reading, name, path, core=cores or None, mib=mib)
        if share is not None:
            reading.shares[name] = share
