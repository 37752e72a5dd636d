# SPDX-License-Identifier: Apache-2.0
"""A SharePod's request: KubeShare 1.0's annotations (`kubeshare/…`; `gemini/…` means the same), and 2.0's labels.

A SharePod has one share of one GPU, which its first container gets. A GPUID is a label that pods have in common, so
the scheduler's rule about affinity carries it: the first pod with it gets an idle GPU, others come to that one, and
with the last it is gone.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Any, Final

from slicekeeper import names
from slicekeeper.gpu import kubeshare
from slicekeeper.gpu.foreign_request import ConvertedShare, Reading, ReferenceGpu, percent_of
from slicekeeper.gpu.request_annotations import LABEL
from slicekeeper.kube.objects import Metadata, Pod, PodSpec
from slicekeeper.kube.objects import read as read_object
from slicekeeper.units import CORES_PER_GPU, parse_quantity, whole_quantity
from slicekeeper.untyped_json import as_map

PREFIXES: Final = ("kubeshare/", "gemini/")
GPUID_PREFIX: Final = "gpuid."
"""Before a GPUID in the affinity label: an id and a `sched_affinity` of one name are two things."""

_REQUEST, _LIMIT, _MEMORY, _GPUID = "gpu_request", "gpu_limit", "gpu_mem", "GPUID"
_SHARE: Final = {_REQUEST: "0.5", _LIMIT: "1.0", _MEMORY: "1073741824"}
"""The required annotations of every GPU SharePod, each with an example."""
_AFFINITIES: Final = {
    "sched_affinity": names.GPU_AFFINITY,
    "sched_anti-affinity": names.GPU_ANTI_AFFINITY,
    "sched_exclusion": names.GPU_EXCLUSION,
}
_KNOWN: Final = (*_SHARE, _GPUID, *_AFFINITIES)
_LABELS: Final = "sharedgpu/"


class _Annotations:
    """The annotations of a SharePod that mean something here, by the word after the prefix; empty ones are absent."""

    def __init__(self, annotations: Mapping[str, Any], reading: Reading, container: str) -> None:
        self.container = container
        self.reading = reading
        self._found: dict[str, tuple[str, str]] = {}
        for key, value in annotations.items():
            word = next((key.removeprefix(prefix) for prefix in PREFIXES if key.startswith(prefix)), None)
            if word is None or value == "":
                continue
            if word not in _KNOWN:
                self._refuse(key, value, f"no SharePod has it, but {', '.join(_KNOWN)}", f"{PREFIXES[0]}{_REQUEST}")
                continue
            other, before = self._found.setdefault(word, (key, str(value)))
            if before != str(value):
                self._refuse(key, value, f"{other} says {before}; leave one of them out", f"{key}: {before}")

    def __contains__(self, word: str) -> bool:
        return word in self._found

    def __bool__(self) -> bool:
        return bool(self._found)

    def get(self, word: str) -> str:
        """Return a value; empty if there is none."""
        return self._found.get(word, ("", ""))[1]

    def path(self, word: str) -> str:
        """Return the field that a value was read from, or should be in."""
        return f"metadata.annotations[{self._key(word)}]"

    def refuse(self, word: str, rule: str, example: str) -> None:
        """Record an error of a value."""
        self._refuse(self._key(word), self.get(word), rule, f"{self._key(word)}: {example}")

    def _key(self, word: str) -> str:
        prefix = next((key.removesuffix(said) for said, (key, _) in self._found.items()), PREFIXES[0])
        return self._found.get(word, (prefix + word, ""))[0]

    def _refuse(self, key: str, value: object, rule: str, example: str) -> None:
        self.reading.refuse(self.container, f"metadata.annotations[{key}]", value, rule, example)


def read(sharepod: Mapping[str, Any], container: str) -> Reading:
    """Return a SharePod's request for its first container, whose name is given."""
    reading = Reading()
    metadata = as_map(sharepod.get("metadata"))
    annotations, labels = as_map(metadata.get("annotations")), as_map(metadata.get("labels"))
    words = _Annotations(annotations, reading, container)
    if words:
        said_twice = next((key for key in labels if key.startswith(_LABELS)), None)
        if said_twice is not None:
            rule = "the annotations say what the SharePod asks for; leave the label out, or them"
            reading.refuse(container, f"metadata.labels[{said_twice}]", labels[said_twice], rule, words.path(_REQUEST))
        _read_share(words)
        _read_affinity(words)
    else:
        _read_labels(sharepod, labels, container, reading)
    for key, value in reading.annotations.items():
        if annotations.get(key, value) != value:
            rule = f"the SharePod says {value} of the same in KubeShare's words; leave one of them out"
            reading.refuse(container, f"metadata.annotations[{key}]", annotations[key], rule, f"{key}: {value}")
    return reading


def _read_labels(sharepod: Mapping[str, Any], labels: Mapping[str, Any], container: str, reading: Reading) -> None:
    """Read KubeShare 2.0's labels, which need not name the memory: here is no policy that says a GPU's."""
    memory = f"{_LABELS}{_MEMORY}"
    if not any(f"{_LABELS}{word}" in labels for word in _SHARE):
        return
    pod = Pod(Metadata(labels={memory: "1", **labels}), read_object(sharepod.get("spec") or {}, PodSpec))
    kubeshare.read(pod, ReferenceGpu(), reading)
    share = reading.shares.get(container)
    if share is not None and share.blocks is not None and memory not in labels:
        rule = "a SharePod with a share of a GPU must state its memory in bytes"
        reading.refuse(container, f"metadata.labels[{memory}]", "", rule, f'{memory}: "{_SHARE[_MEMORY]}"')


def _read_share(words: _Annotations) -> None:
    """Read a SharePod that is on a GPU: all of its words are checked before the first refusal counts."""
    reading, name = words.reading, words.container
    missing = [word for word in _SHARE if word not in words]
    for word in missing:
        words.refuse(word, "a SharePod on a GPU needs gpu_request, gpu_limit and gpu_mem", f'"{_SHARE[word]}"')
    request, limit = (None if word in missing else _part(words, word) for word in (_REQUEST, _LIMIT))
    size = whole_quantity(words.get(_MEMORY))
    if _MEMORY not in missing and (size is None or size <= 0):
        words.refuse(_MEMORY, "it must be a whole number of bytes above 0", f'"{_SHARE[_MEMORY]}"')
    if request is not None and limit is not None and limit < max(request, Fraction(1, CORES_PER_GPU)):
        words.refuse(_LIMIT, "it must be at least gpu_request, and at least 0.01", '"1.0"')
    if reading.violations or request is None or limit is None or size is None:
        return
    if request == 1:
        reading.shares[name] = ConvertedShare(CORES_PER_GPU)
        if _GPUID in words:
            words.refuse(_REQUEST, "a whole GPU is not shared, so a GPUID has no meaning; leave it out", '"0.9"')
        return
    core = 1
    if request == 0:
        reading.annotations[names.GPU_CLASS] = names.BACKGROUND
        reading.notes.append(f"{name}: with a gpu_request of 0 it is background work")
    else:
        core = percent_of(reading, name, words.path(_REQUEST), words.get(_REQUEST), _SHARE[_REQUEST]) or 1
    most = percent_of(reading, name, words.path(_LIMIT), words.get(_LIMIT), _SHARE[_LIMIT]) or 1
    share = ReferenceGpu().share(reading, name, words.path(_MEMORY), core=core, mib=Fraction(size, 1 << 20))
    if share is not None:
        reading.shares[name] = ConvertedShare(share.core, share.blocks, max(most, core))


def _part(words: _Annotations, word: str) -> Fraction | None:
    try:
        part = parse_quantity(words.get(word))
    except ValueError:
        part = Fraction(-1)
    if 0 <= part <= 1:
        return part
    words.refuse(word, "it must be a part of one GPU, from 0 to 1.0", f'"{_SHARE[word]}"')
    return None


def _read_affinity(words: _Annotations) -> None:
    for word, key in _AFFINITIES.items():
        if word in words:
            words.reading.annotations[key] = words.get(word)
            if not LABEL.fullmatch(words.get(word)):
                words.refuse(word, _label_rule(63), "red")
    if _GPUID not in words:
        return
    if "sched_affinity" in words:
        words.refuse(
            "sched_affinity", "pods with the same GPUID are on the same GPU anyway; leave one of the two out", '""'
        )
    label = GPUID_PREFIX + words.get(_GPUID)
    if not LABEL.fullmatch(label):
        words.refuse(_GPUID, _label_rule(63 - len(GPUID_PREFIX)), "xyz")
    words.reading.annotations[names.GPU_AFFINITY] = label


def _label_rule(most: int) -> str:
    return f"it must be a label: up to {most} letters, digits, '-', '_' or '.', a letter or digit at both ends"
