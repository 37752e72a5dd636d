# SPDX-License-Identifier: Apache-2.0
"""The GPUs of a node as its agent publishes them: the annotation `slicekeeper.io/gpus`, a JSON list."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from typing import Annotated, Any, Final

import msgspec

from slicekeeper import names, typed_json
from slicekeeper.kube.pod_manifest import annotations_of
from slicekeeper.units import CORES_PER_GPU, MIB_PER_BLOCK

_MIG: Final = "MIG-"

MOST_LEFT: Final = 2
"""An adaptive pod gets a slice only if it is at most this many times its request, because it pays for all of it."""

_WORD = re.compile(r"[a-z0-9.]+")


class MigSlice(msgspec.Struct, frozen=True, rename="camel"):
    """A MIG device: a part of a GPU that the hardware isolates from the others, for one container.

    It has `compute` of the `of` compute slices of its GPU; `profile` is NVIDIA's name of its size, such as `3g.40gb`.
    `healthy` is False if it must get no container.
    """

    uuid: str
    memory_mib: Annotated[int, msgspec.Meta(gt=0)]
    compute: Annotated[int, msgspec.Meta(gt=0)]
    of: Annotated[int, msgspec.Meta(gt=0)]
    profile: str = ""
    healthy: bool = True

    @property
    def core(self) -> int:
        """Its compute in percent of its GPU, rounded down: a request in percent fits if it is not larger."""
        return CORES_PER_GPU * self.compute // self.of


class Gpu(msgspec.Struct, frozen=True, rename="camel"):
    """One GPU.

    `numa_node` is −1 if the machine has none; `links` maps another GPU's UUID to the number of direct links (NVLink) to
    it; GPUs with the same `pcie_switch` reach each other without the host's bridge (−1: unknown, or none does);
    `healthy` is False for a GPU that must get no new slice, and `trouble` is the reason. `mig` are its MIG slices: in
    MIG mode a GPU is not healthy as a whole, and only its slices are allocated.
    """

    uuid: str
    model: str
    memory_mib: Annotated[int, msgspec.Meta(gt=0)]
    numa_node: int = -1
    links: dict[str, int] = {}
    pcie_switch: int = -1
    healthy: bool = True
    trouble: str = ""
    mig: tuple[MigSlice, ...] = ()

    @property
    def core(self) -> int:
        """Its compute in percent."""
        return CORES_PER_GPU

    def model_of(self, part: Part) -> str:
        """Return the display name of a part of it: its model, followed by a slice's size."""
        return f"{self.model} MIG {part.profile}".rstrip() if isinstance(part, MigSlice) else self.model

    @property
    def parts(self) -> tuple[Gpu, ...] | tuple[MigSlice, ...]:
        """The devices of it that are allocated: itself, or its MIG slices."""
        return self.mig or (self,)


Part = Gpu | MigSlice
"""A device that is allocated."""


def is_slice(uuid: str) -> bool:
    """Whether a UUID is that of a MIG slice and not of a GPU, by the form that NVIDIA's driver gives it."""
    return uuid.startswith(_MIG)


def size_of(core: int, memory_mib: int, gpu_mib: int) -> int:
    """Return the larger of two parts of a GPU, its compute and its memory, in percent."""
    return max(core, memory_mib * CORES_PER_GPU // gpu_mib)


def holds(mig: MigSlice, gpu_mib: int, core: int, memory_mib: int, *, adaptive: bool) -> bool:
    """Whether a container with this request may get a slice of a GPU with `gpu_mib`."""
    if core > mig.core or memory_mib > mig.memory_mib:
        return False
    size = size_of(mig.core, mig.memory_mib, gpu_mib)
    return not adaptive or size <= MOST_LEFT * size_of(core, memory_mib, gpu_mib)


def by_uuid(gpu: Gpu) -> dict[str, Gpu]:
    """Return a GPU under its UUID, and under that of each of its slices with only that slice."""
    alone = {one.uuid: msgspec.structs.replace(gpu, uuid=one.uuid, mig=(one,)) for one in gpu.mig}
    return {gpu.uuid: gpu, **alone}


def slices(gpus: Iterable[Gpu]) -> dict[str, tuple[MigSlice, Gpu]]:
    """Return the MIG slices of some GPUs by UUID, each with its GPU."""
    return {one.uuid: (one, gpu) for gpu in gpus for one in gpu.mig}


def amounts(gpus: Iterable[Gpu], *, only_healthy: bool = False) -> tuple[int, int]:
    """Return how much compute, in percent, and how many blocks of memory some GPUs have together.

    For one in MIG mode it is the sum of its slices: nothing else of it can be allocated.
    """
    parts = [part for gpu in gpus for part in gpu.parts if part.healthy or not only_healthy]
    return sum(part.core for part in parts), sum(part.memory_mib // MIB_PER_BLOCK for part in parts)


def encode(gpus: list[Gpu]) -> str:
    """Return the annotation's value."""
    return msgspec.json.encode(gpus).decode()


def decode(value: str) -> list[Gpu]:
    """Return the GPUs of an annotation's value.

    Raises ValueError if an agent would not write it.
    """
    try:
        return typed_json.decode(value, list[Gpu])
    except msgspec.MsgspecError as error:
        raise ValueError(f"annotation {names.NODE_GPUS}: {error}") from error


def of_node(node: Mapping[str, Any]) -> list[Gpu]:
    """Return the GPUs of a Node object, none if no agent has published any.

    Raises ValueError if the annotation is damaged.
    """
    value = annotations_of(node).get(names.NODE_GPUS)
    return decode(value) if value else []


def readable_of(node: Mapping[str, Any]) -> list[Gpu]:
    """Return the GPUs of a Node object, none if the annotation is damaged: `slicekeeper check` names such a node."""
    try:
        return of_node(node)
    except ValueError:
        return []


def model_matches(asked: str, model: str) -> bool:
    """Whether a GPU of `model` matches a request: `A100` and `a100-sxm4` match `NVIDIA A100-SXM4-80GB`, `A10` does not.

    The requested words must appear in the model's name, one directly after the other.
    """
    wanted, there = _WORD.findall(asked.lower()), _WORD.findall(model.lower())
    return bool(wanted) and any(there[i : i + len(wanted)] == wanted for i in range(len(there)))


def is_wanted(model: str, asked: Collection[str]) -> bool:
    """Whether a GPU of `model` is one of the requested ones; every GPU is if no model is requested."""
    return not asked or any(model_matches(one, model) for one in asked)
