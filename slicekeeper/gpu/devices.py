# SPDX-License-Identifier: Apache-2.0
"""Fractions of a GPU: NVIDIA's plugin offers whole GPUs, replicas of time-slicing or MPS, and MIG slices.

Exact fractions, from the resource's name and the labels that NVIDIA's GPU feature discovery writes on nodes. A replica
is one of `nvidia.com/gpu.replicas`. A MIG slice such as `mig-1g.10gb` has compute slices, of seven (on some models of
four), and memory in eighths of what its GPU has.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Final

from slicekeeper.gpu.inventory import MigSlice

PRODUCT: Final = "nvidia.com/gpu.product"
MEMORY: Final = "nvidia.com/gpu.memory"
"""In MiB; with MIG's strategy `single` it is the slice's and not the GPU's."""

_DOMAIN: Final = "nvidia.com/"
_SHARED: Final = ".shared"
_REPLICAS: Final = ".replicas"
_COMPUTE_SLICES: Final = 7
_MEMORY_SLICES: Final = 8
_FOUR_SLICES: Final = re.compile(r"\bA30\b|RTX-PRO-6000")
_PROFILE: Final = re.compile(r"mig-(?:([1-7])c\.)?([1-7])g\.([1-9][0-9]{0,3})gb\b")
_NAMED_MEMORY: Final = re.compile(r"\b([1-9][0-9]{0,3})GB\b")


@dataclass(frozen=True)
class DevicePart:
    """One device's fraction of a GPU's compute and memory; memory is None if the node does not publish it."""

    core: Fraction
    memory: Fraction | None
    known: bool = True
    """Whether no assumption was needed: an unknown part counts as a whole GPU, or by compute alone."""


WHOLE: Final = DevicePart(Fraction(1), Fraction(1))


def labels_of(node: Mapping[str, Any]) -> dict[str, str]:
    """Return the labels of a node that `part_of` and `model_of` read."""
    labels = (node.get("metadata") or {}).get("labels") or {}
    return {key: str(value) for key, value in labels.items() if key.startswith(_DOMAIN)}


def model_of(labels: Mapping[str, str]) -> str:
    """Return the model of a node's GPUs, without how they are divided; empty if no label names it."""
    return labels.get(PRODUCT, "").partition("-MIG-")[0].removesuffix("-SHARED")


def part_of(resource: str, labels: Mapping[str, str]) -> DevicePart:
    """Return the fraction of a GPU that one device of `resource` is on a node with `labels`."""
    shared, name = resource.endswith(_SHARED), resource.removesuffix(_SHARED)
    device = name.rpartition("/")[2]
    product, single, of_product = labels.get(PRODUCT, "").partition("-MIG-")
    if device.startswith("mig-"):
        part = _slice(device, product, _memory(labels))
    elif single:  # the strategy `single` offers slices under the name of whole GPUs
        device, part = "gpu", _slice(f"mig-{of_product}", product, None)
    else:
        device, part = "gpu", WHOLE
    label = f"{_DOMAIN}{device}{_REPLICAS}"
    replicas = _number(labels.get(label, ""))
    if replicas is None:
        return part if not shared and label not in labels else DevicePart(part.core, part.memory, known=False)
    memory = None if part.memory is None else part.memory / replicas
    return DevicePart(part.core / replicas, memory, part.known)


def _slice(profile: str, product: str, memory: int | None) -> DevicePart:
    found = _PROFILE.match(profile)
    if found is None:
        return DevicePart(Fraction(1), Fraction(1), known=False)
    slices, gigabytes = int(found[2]), int(found[3])
    own = Fraction(int(found[1]), slices) if found[1] else Fraction(1)  # compute instances share their slice's memory
    core = min(Fraction(slices, 4 if _FOUR_SLICES.search(product) else _COMPUTE_SLICES), Fraction(1)) * own
    named = _NAMED_MEMORY.search(product)
    total = memory if memory is not None else int(named[1]) * 1024 if named else None
    if total is None:
        return DevicePart(core, None, known=False)
    return DevicePart(core, _eighths(gigabytes * 1024, total) * own)


def part_of_slice(mig: MigSlice, gpu_mib: int) -> DevicePart:
    """Return the fraction of its GPU that a MIG slice allocated by Slicekeeper is."""
    return DevicePart(Fraction(mig.compute, mig.of), _eighths(mig.memory_mib, gpu_mib))


def _eighths(memory_mib: int, gpu_mib: int) -> Fraction:
    """Return a slice's memory in whole eighths of its GPU's, as the hardware divides it: the driver keeps some."""
    return Fraction(min(max(round(Fraction(memory_mib * _MEMORY_SLICES, gpu_mib)), 1), _MEMORY_SLICES), _MEMORY_SLICES)


def _memory(labels: Mapping[str, str]) -> int | None:
    return _number(labels.get(MEMORY, ""))


def _number(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 10 and int(text) > 0 else None
