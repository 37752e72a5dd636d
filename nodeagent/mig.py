# SPDX-License-Identifier: Apache-2.0
"""The MIG slices of a GPU, as NVML describes them.

The administrator or NVIDIA's MIG manager makes and removes them; nothing here does. A slice that shares its GPU
instance, and so its memory, with another one is left out: no hardware keeps the two from each other's memory.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any, Final

import pynvml

from nodeagent.nvml_call import ask
from slicekeeper.gpu.inventory import MigSlice

_PROFILES: Final = (
    pynvml.NVML_GPU_INSTANCE_PROFILE_8_SLICE,
    pynvml.NVML_GPU_INSTANCE_PROFILE_7_SLICE,
    pynvml.NVML_GPU_INSTANCE_PROFILE_6_SLICE,
    pynvml.NVML_GPU_INSTANCE_PROFILE_4_SLICE,
    pynvml.NVML_GPU_INSTANCE_PROFILE_3_SLICE,
    pynvml.NVML_GPU_INSTANCE_PROFILE_2_SLICE,
    pynvml.NVML_GPU_INSTANCE_PROFILE_1_SLICE,
)
"""The largest slice of a GPU is all of it."""


@dataclass(frozen=True)
class SliceFound:
    """A slice, and the driver's identifiers of it."""

    handle: Any
    index: int
    """Its number on its GPU; numbers may be missing."""
    of: MigSlice


def slices_of(handle: Any) -> tuple[list[SliceFound], frozenset[str]]:
    """Return the slices of a GPU in MIG mode that may be given out, and the UUIDs of the others."""
    all_of_it = _compute_slices(handle)
    found: list[tuple[int, SliceFound]] = []
    left_out: set[str] = set()
    sharing: Counter[int | None] = Counter()
    for index in range(ask(pynvml.nvmlDeviceGetMaxMigDeviceCount, handle) or 0):
        device = ask(pynvml.nvmlDeviceGetMigDeviceHandleByIndex, handle, index)
        uuid = ask(pynvml.nvmlDeviceGetUUID, device) if device is not None else None
        if not uuid:
            continue
        attributes = ask(pynvml.nvmlDeviceGetAttributes, device)
        instance = ask(pynvml.nvmlDeviceGetGpuInstanceId, device)
        sharing[instance] += 1
        compute = int(attributes.computeInstanceSliceCount) if attributes is not None else 0
        if instance is None or not 0 < compute <= all_of_it or not attributes.memorySizeMB:
            left_out.add(uuid)
            continue
        profile = (ask(pynvml.nvmlDeviceGetName, device) or "").partition(" MIG ")[2]
        mig = MigSlice(uuid, attributes.memorySizeMB, compute, all_of_it, profile)
        found.append((instance, SliceFound(device, index, mig)))
    left_out |= {one.of.uuid for instance, one in found if sharing[instance] > 1}
    return [one for instance, one in found if sharing[instance] == 1], frozenset(left_out)


def _compute_slices(handle: Any) -> int:
    """Return how many compute slices a GPU has; 0 if unknown."""
    answers = (ask(pynvml.nvmlDeviceGetGpuInstanceProfileInfo, handle, profile, 1) for profile in _PROFILES)
    return max((int(answer.sliceCount) for answer in answers if answer is not None), default=0)
