# SPDX-License-Identifier: Apache-2.0
"""KubeShare 2.0: labels `sharedgpu/gpu_request`, `gpu_limit`, `gpu_mem` (bytes) and `gpu_model` on ordinary pods.

A group (`group_name`, `group_headcount`, `group_threshold`) becomes a gang: as many of its pods as headcount times
threshold are placed together.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Any, Final

from slicekeeper import names
from slicekeeper.gpu.foreign_request import ConvertedShare, Reading, ReferenceGpu, gpu_containers, percent_of
from slicekeeper.gpu.request_annotations import MAX_GANG
from slicekeeper.kube.objects import Pod
from slicekeeper.units import CORES_PER_GPU, parse_quantity, whole_quantity

_PREFIX: Final = "sharedgpu/"
_REQUEST: Final = _PREFIX + "gpu_request"
_LIMIT: Final = _PREFIX + "gpu_limit"
_MEMORY: Final = _PREFIX + "gpu_mem"
_MODEL: Final = _PREFIX + "gpu_model"
_WHOLE: Final = "nvidia.com/gpu"
_IGNORED: Final = {
    _PREFIX + "priority": "the namespace's budget determines the class",
    _PREFIX + "min_available": "a gang's size is its headcount times its threshold",
}
_GROUP: Final = _PREFIX + "group_name"
_HEADCOUNT: Final = _PREFIX + "group_headcount"
_THRESHOLD: Final = _PREFIX + "group_threshold"


def read(pod: Pod, gpu: ReferenceGpu, reading: Reading) -> None:
    """Read a pod of KubeShare's: its first container has the share; a request of 0 is background work."""
    labels = pod.metadata.labels
    if not pod.spec.containers or not (_REQUEST in labels or _LIMIT in labels or _MEMORY in labels):
        return
    name = pod.spec.containers[0].name
    if not _says_how_much(pod, labels, reading, name):
        return
    background = labels.get(_REQUEST, "0") in ("0", "0.0")
    compute = _compute(labels, reading, name, background=background)
    if compute is None:
        return
    core, limit = compute
    reading.ignores(labels, _IGNORED)
    if _MODEL in labels:
        reading.annotations[names.GPU_MODEL] = str(labels[_MODEL])
    _read_group(labels, reading, name)
    if background:
        reading.annotations[names.GPU_CLASS] = names.BACKGROUND
        reading.notes.append(f"{name}: without {_REQUEST} it is background work")
    if core >= CORES_PER_GPU:
        reading.shares[name] = ConvertedShare(core)
        return
    mib = None
    if _MEMORY in labels:
        size = whole_quantity(labels[_MEMORY])
        if size is None or size <= 0:
            _refuse(reading, name, labels, _MEMORY, "it must be a whole number of bytes", "1073741824")
            return
        mib = Fraction(size, 1 << 20)
    share = gpu.share(reading, name, _field(_MEMORY), core=core, mib=mib)
    if share is not None:
        reading.shares[name] = ConvertedShare(share.core, share.blocks, min(limit, CORES_PER_GPU))


def _compute(
    labels: Mapping[str, Any], reading: Reading, container: str, *, background: bool
) -> tuple[int, int] | None:
    """Return request and limit in percent of a GPU; None if one is refused. Background work requests the least."""
    core: int | None = 1
    if not background:
        core = percent_of(reading, container, _field(_REQUEST), labels[_REQUEST], f'{_REQUEST}: "0.5"')
    limit = core
    if _LIMIT in labels:
        limit = percent_of(reading, container, _field(_LIMIT), labels[_LIMIT], f'{_LIMIT}: "1.0"')
    if core is None or limit is None:
        return None
    if limit < core:
        _refuse(reading, container, labels, _LIMIT, f"it must be at least {_REQUEST}", "1.0")
        return None
    return core, limit


def _says_how_much(pod: Pod, labels: Mapping[str, Any], reading: Reading, container: str) -> bool:
    """Return whether the labels name compute and there is no other request; refuse the pod otherwise."""
    if not (_REQUEST in labels or _LIMIT in labels):
        rule = f"memory is part of a share: name its compute too, by {_REQUEST} and {_LIMIT}"
        reading.refuse(container, _field(_MEMORY), labels[_MEMORY], rule, f'{_REQUEST}: "0.5"')
    for path, name, amounts in gpu_containers(pod, (_WHOLE,)):
        if whole_quantity(amounts[_WHOLE]) != 0:
            rule = "KubeShare's labels already say what the pod requests; leave one of the two out"
            reading.refuse(name, f"{path}[{_WHOLE}]", amounts[_WHOLE], rule, f"{_REQUEST} alone")
    return not reading.violations


def _read_group(labels: Mapping[str, Any], reading: Reading, container: str) -> None:
    """Read a group. Without a headcount or a threshold its pods are placed one by one, as KubeShare does it."""
    if _GROUP not in labels:
        return
    if _HEADCOUNT not in labels or _THRESHOLD not in labels:
        reading.ignores(
            labels, {_GROUP: f"without {_HEADCOUNT} and {_THRESHOLD} each of its pods is placed separately"}
        )
        return
    count = whole_quantity(labels[_HEADCOUNT])
    if count is None or not 1 <= count <= MAX_GANG:
        rule = f"it must be a whole number of pods from 1 to {MAX_GANG}"
        _refuse(reading, container, labels, _HEADCOUNT, rule, "8")
        return
    try:
        part = parse_quantity(labels[_THRESHOLD])
    except ValueError:
        part = Fraction(-1)
    if not 0 < part <= 1:
        rule = "it must be the part of the group's pods that are placed together, above 0 and at most 1"
        _refuse(reading, container, labels, _THRESHOLD, rule, "1.0")
        return
    size = int(count * part + Fraction(1, 2))  # KubeShare rounds like this
    if size < 2:
        reading.notes.append(f"{_GROUP}: a gang needs at least 2 pods")
        return
    reading.annotations[names.GANG] = str(labels[_GROUP])
    reading.annotations[names.GANG_SIZE] = str(size)


def _field(label: str) -> str:
    return f"metadata.labels[{label}]"


def _refuse(reading: Reading, container: str, labels: Mapping[str, Any], label: str, rule: str, example: str) -> None:
    """Refuse a label's value; `example` is one that passes."""
    reading.refuse(container, _field(label), labels[label], rule, f'{label}: "{example}"')
