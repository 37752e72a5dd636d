# SPDX-License-Identifier: Apache-2.0
"""gpu-manager: our own resources by default, but a share without `vcuda-core-limit` never grows beyond its request."""

from __future__ import annotations

from typing import Final

from slicekeeper import names
from slicekeeper.gpu.foreign_request import ConvertedShare, Reading, ReferenceGpu, gpu_containers, whole
from slicekeeper.kube.objects import Pod
from slicekeeper.units import CORES_PER_GPU, whole_quantity

_CORE: Final = "tencent.com/vcuda-core"
_MEMORY: Final = "tencent.com/vcuda-memory"


def read(pod: Pod, gpu: ReferenceGpu, reading: Reading) -> None:
    """Read a pod written for gpu-manager; our own rules refuse what gpu-manager would refuse."""
    del gpu  # such a pod always states both amounts
    annotations = pod.metadata.annotations
    elastic = whole_quantity(annotations.get(names.CORE_LIMIT))
    for path, name, amounts in gpu_containers(pod, (_CORE, _MEMORY)):
        before = len(reading.violations)
        core, blocks = (whole(reading, name, path, amounts, key) for key in (_CORE, _MEMORY))
        if len(reading.violations) > before or not core:
            continue
        said = elastic is not None and core <= elastic <= CORES_PER_GPU
        if core >= CORES_PER_GPU or not blocks or said or names.limit_annotation(name) in annotations:
            reading.shares[name] = ConvertedShare(core, blocks)
        else:
            reading.shares[name] = ConvertedShare(core, blocks, min(max(elastic or core, core), CORES_PER_GPU))
