# SPDX-License-Identifier: Apache-2.0
"""Compute the fraction of GPUs that a pod is charged for, by model, before rates. Pure, exact fractions.

`max`: per GPU the larger of the pod's share of compute and of memory there · `mean`: their mean · `core`: compute
alone · `quota`: by the namespace's ResourceQuota (`quota_weight`); without a quota `max`, with a flag. A whole GPU
counts as one under the first three, whatever memory was requested, and so does one that the scheduler keeps for the pod
alone (`sharing: exclusive`): others cannot use the rest. For the same reason a MIG slice counts with its own size, and
not with that of the request.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from types import MappingProxyType
from typing import Any, Literal

from slicekeeper import names
from slicekeeper.gpu.devices import part_of, part_of_slice
from slicekeeper.gpu.inventory import Gpu, is_slice
from slicekeeper.gpu.request import GpuRequest, PodRequest
from slicekeeper.kube.pod_manifest import annotations_of, sharing_mode
from slicekeeper.units import CORES_PER_GPU
from timekeeper.core import quota_weight

Weight = Literal["max", "mean", "core", "quota"]

GPU_UNKNOWN = "gpu-unknown"
"""Flag: no inventory has the GPU, so its memory is not known and compute alone is charged; or it is not known what
fraction of a GPU a device of NVIDIA's plugin is."""


@dataclass(frozen=True)
class Metering:
    """GPUs that a pod is charged for before rates, by model; the GPUs' UUIDs, and flags for what was assumed."""

    shares: Mapping[str, Fraction]
    gpus: tuple[str, ...]
    flags: tuple[str, ...]


@dataclass
class GpuShare:
    """A pod's share of one GPU; `memory` None: unknown, because the GPU is."""

    core: Fraction = Fraction(0)
    memory: Fraction | None = Fraction(0)
    model: str = ""

    def fraction(self, weight: Weight) -> Fraction:
        """Return the part of the GPU that is charged."""
        if self.memory is None or weight == "core":
            return self.core
        return (self.core + self.memory) / 2 if weight == "mean" else max(self.core, self.memory)


def of_slice(gpu: Gpu) -> GpuShare:
    """Return the fraction that a MIG slice is of its GPU; both are given as `inventory.by_uuid` returns them."""
    part = part_of_slice(gpu.mig[0], gpu.memory_mib)
    return GpuShare(part.core, part.memory, gpu.model)


def meter(
    pod: Mapping[str, Any],
    request: PodRequest,
    *,
    inventory: Mapping[str, Gpu],
    weight: Weight,
    background: Fraction,
    quota: quota_weight.Quota | None = None,
    device_model: str = "",
    device_labels: Mapping[str, str] = MappingProxyType({}),
) -> Metering:
    """Return the charge of a bound pod; `inventory` has MIG slices as `inventory.by_uuid` returns them.

    `device_model` is the model of the GPUs that NVIDIA's own plugin allocates on the pod's node, empty if unknown, and
    `device_labels` are the node's labels, which determine what fraction of a GPU a device is. GPUs of an unknown model
    count under the empty name.
    """
    shares, flags = _shares(pod, request, inventory)
    of_devices = Fraction(0)
    for resource, count in request.held_devices.items():
        part = part_of(resource, device_labels)
        of_devices += count * GpuShare(part.core, part.memory).fraction(weight)
        if not part.known:
            flags.add(GPU_UNKNOWN)
    if weight == "quota" and quota is None and request.requests:
        flags.add(quota_weight.MISSING)
    if weight == "quota" and quota is not None:
        by_model = _spread(quota_weight.factor(request, quota), shares)
    else:
        by_model = {}
        for share in shares.values():
            by_model[share.model] = by_model.get(share.model, Fraction(0)) + share.fraction(weight)
    if request.held_devices:
        by_model[device_model] = by_model.get(device_model, Fraction(0)) + of_devices
    if request.gpu_class == names.BACKGROUND:
        by_model = {model: share * background for model, share in by_model.items()}
    known = tuple(uuid for uuid in shares if not uuid.startswith("?"))
    return Metering(by_model, known, tuple(sorted(flags)))


def _shares(
    pod: Mapping[str, Any], request: PodRequest, inventory: Mapping[str, Gpu]
) -> tuple[dict[str, GpuShare], set[str]]:
    """Return the pod's share of each of its GPUs; a GPU that no record names gets a name with `?`."""
    annotations = annotations_of(pod)
    alone = sharing_mode(pod) == names.EXCLUSIVE
    shares: dict[str, GpuShare] = {}
    flags: set[str] = set()
    for wanted in request.requests:
        value = annotations.get(names.gpu_annotation(wanted.container), "")
        chosen = [uuid for uuid in str(value).split(",") if uuid][: wanted.gpus]
        chosen += [f"?{wanted.container}/{index}" for index in range(len(chosen), wanted.gpus)]
        for uuid in chosen:
            gpu = inventory.get(uuid)
            share = shares.setdefault(uuid, GpuShare(model=gpu.model if gpu else ""))
            if gpu is None:
                flags.add(GPU_UNKNOWN)
            if alone:
                share.core = share.memory = Fraction(1)
                continue
            if gpu is not None and is_slice(gpu.uuid):
                shares[uuid] = of_slice(gpu)
                continue
            share.core += Fraction(min(wanted.core, CORES_PER_GPU), CORES_PER_GPU)
            _add_memory(share, wanted, gpu)
    return shares, flags


def _add_memory(share: GpuShare, wanted: GpuRequest, gpu: Gpu | None) -> None:
    if not wanted.is_fraction:
        part = Fraction(1)
    elif gpu is not None:
        part = Fraction(wanted.memory_mib, gpu.memory_mib)
    else:
        share.memory = None
        return
    share.memory = None if share.memory is None else share.memory + part


def _spread(factor: Fraction, shares: Mapping[str, GpuShare]) -> dict[str, Fraction]:
    """Distribute a factor of the whole pod over the models of its GPUs, by compute."""
    core = sum((s.core for s in shares.values()), Fraction(0))
    if not core:
        return {"": factor}
    spread: dict[str, Fraction] = {}
    for share in shares.values():
        spread[share.model] = spread.get(share.model, Fraction(0)) + factor * share.core / core
    return spread
