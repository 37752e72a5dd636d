# SPDX-License-Identifier: Apache-2.0
"""KAI: a share by the annotations `gpu-fraction` or `gpu-memory` (MiB), whole GPUs by `nvidia.com/gpu`."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Any, Final

from slicekeeper.config.foreign_dialects import DIALECTS
from slicekeeper.gpu.foreign_request import ConvertedShare, Reading, ReferenceGpu, gpu_containers, whole
from slicekeeper.kube.objects import Pod
from slicekeeper.units import CORES_PER_GPU, parse_quantity, whole_quantity

_FRACTION: Final = "gpu-fraction"
_MEMORY: Final = "gpu-memory"
_DEVICES: Final = "gpu-fraction-num-devices"
_CONTAINER: Final = "gpu-fraction-container-name"
_WHOLE: Final = "nvidia.com/gpu"
_IGNORED: Final = {
    "kai.scheduler/queue": "the namespace's budget takes the place of a queue's share",
    "kai.scheduler/": "only KAI's scheduler reads it",
}


def read(pod: Pod, gpu: ReferenceGpu, reading: Reading) -> None:
    """Read a pod written for KAI: one container has the share, the named one or the first."""
    _read_shares(pod, gpu, reading)
    if reading.shares:
        reading.ignores(pod.metadata.labels, _IGNORED)
        reading.ignores(pod.metadata.annotations, _IGNORED)


def _read_shares(pod: Pod, gpu: ReferenceGpu, reading: Reading) -> None:
    annotations = pod.metadata.annotations
    key = next((key for key in (_FRACTION, _MEMORY) if key in annotations), "")
    if not key:
        _whole_gpus(pod, reading)
        return
    if not _is_alone(pod, annotations, key, reading):
        return
    name = _container(pod, annotations, reading)
    if name is None:
        return
    share = (_fraction if key == _FRACTION else _memory)(annotations[key], name, gpu, reading)
    if share is not None:
        reading.shares[name] = share


def _is_alone(pod: Pod, annotations: Mapping[str, Any], key: str, reading: Reading) -> bool:
    """Return whether the share under `key` is the pod's only request, and of one GPU; refuse the pod otherwise."""
    if key == _FRACTION and _MEMORY in annotations:
        rule = f"{_FRACTION} already states the share; leave one of the two out"
        reading.refuse_annotation(annotations, _MEMORY, rule, f'{_FRACTION}: "0.5"')
        return False
    if annotations.get(_DEVICES, "1") != "1":
        rule = "shares of several GPUs in one container are not supported: request a share of one"
        reading.refuse_annotation(annotations, _DEVICES, rule, f'{_DEVICES}: "1"')
        return False
    for beside, container, amounts in gpu_containers(pod, (_WHOLE,)):
        if whole_quantity(amounts[_WHOLE]) != 0:
            rule = "a pod may request whole GPUs or a share, not both"
            reading.refuse(container, f"{beside}[{_WHOLE}]", amounts[_WHOLE], rule, f"{key} alone")
            return False
    return True


def _fraction(value: object, container: str, gpu: ReferenceGpu, reading: Reading) -> ConvertedShare | None:
    """Return a share that is stated as a part of a GPU; None if it is refused."""
    path = f"metadata.annotations[{_FRACTION}]"
    try:
        part = parse_quantity(value)
    except ValueError:
        part = Fraction(0)
    if not 0 < part < 1:
        rule = "it must be a number between 0 and 1; whole GPUs are requested in limits"
        reading.refuse(container, path, value, rule, f'{_FRACTION}: "0.5"')
        return None
    return gpu.share(reading, container, path, part=part)


def _memory(value: object, container: str, gpu: ReferenceGpu, reading: Reading) -> ConvertedShare | None:
    """Return a share that is stated in MiB of memory; None if it is refused."""
    path = f"metadata.annotations[{_MEMORY}]"
    mib = whole_quantity(value)
    if mib is None or mib <= 0:
        reading.refuse(container, path, value, "it must be a whole number of MiB", f'{_MEMORY}: "4096"')
        return None
    return gpu.share(reading, container, path, mib=Fraction(mib))


def _container(pod: Pod, annotations: Mapping[str, Any], reading: Reading) -> str | None:
    known = [(each.container.name, each.kind) for each in pod.spec.placed()]
    first = next((name for name, kind in known if kind == "app"), None)
    if _CONTAINER not in annotations:
        return first
    wanted = annotations[_CONTAINER]
    if not any(name == wanted for name, _ in known):
        rule = "the pod has no container of that name"
        reading.refuse_annotation(annotations, _CONTAINER, rule, f"{_CONTAINER}: {first or 'main'}")
        return None
    return str(wanted)


def _whole_gpus(pod: Pod, reading: Reading) -> None:
    """Read whole GPUs of a pod for KAI's scheduler; in other pods they are requests to NVIDIA's plugin."""
    if pod.spec.scheduler_name not in DIALECTS["kai"].schedulers:
        return
    for path, name, amounts in gpu_containers(pod, (_WHOLE,)):
        count = whole(reading, name, path, amounts, _WHOLE)
        if count:
            reading.shares[name] = ConvertedShare(count * CORES_PER_GPU)
