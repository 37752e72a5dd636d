# SPDX-License-Identifier: Apache-2.0
"""Compute how much GPU time must be reserved so that a pod can finish. Pure, exact.

A pod holds its GPUs from its binding until its containers have ended. Kubelet ends them when `activeDeadlineSeconds`
have passed since the pod's `startTime`, when kubelet first sees the pod, and then grants the pod's grace period. So at
most `deadline + grace + margin` pass; the margin covers the time from the binding to `startTime`, kubelet's delays and
its rounding to whole seconds. Which GPU it gets is not known yet: the most expensive possibility counts, every
container on a GPU of its own, of the least memory, or on the largest MIG slice that it might get, at the highest rate
that is set for now or later.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from math import ceil
from typing import Any, Final

from slicekeeper import names
from slicekeeper.gpu.inventory import Gpu, holds, is_slice, is_wanted
from slicekeeper.gpu.request import GpuRequest, PodRequest
from slicekeeper.units import MS_PER_SECOND, GpuMilliseconds, Instant
from slicekeeper.untyped_json import as_map
from timekeeper.core import charged_fraction, quota_weight
from timekeeper.core.rate import RateBook

DEFAULT_GRACE_SECONDS: Final = 30
LONGEST_SECONDS: Final = 2**31 - 1
"""The API server's limit of `activeDeadlineSeconds`. The grace has none, and with a longer one no number would fit."""

_ANY_MODEL: Final = "*"


@dataclass(frozen=True)
class Need:
    """The most that a pod needs: GPU-milliseconds, and milliseconds for which it holds its GPUs."""

    amount: GpuMilliseconds
    span: int


def span_of(pod: Mapping[str, Any], margin_ms: int) -> int | None:
    """Return for how long a pod holds its GPUs at most, in milliseconds; None if it has no deadline."""
    spec = as_map(pod.get("spec"))
    deadline, grace = spec.get("activeDeadlineSeconds"), spec.get("terminationGracePeriodSeconds")
    if not isinstance(deadline, int) or deadline < 1:
        return None
    seconds = deadline + (grace if isinstance(grace, int) and grace >= 0 else DEFAULT_GRACE_SECONDS)
    return min(seconds, LONGEST_SECONDS) * MS_PER_SECOND + margin_ms


def need_of(
    request: PodRequest,
    span: int,
    *,
    gpus: Collection[Gpu],
    book: RateBook,
    weight: charged_fraction.Weight,
    background: Fraction,
    quota: quota_weight.Quota | None,
    now: Instant,
    device_nodes: Collection[Mapping[str, str]] = (),
) -> Need | None:
    """Return the need of a request for `span` milliseconds on any of `gpus`; None if it can run on none of them.

    `device_nodes` are the labels of the nodes that have NVIDIA's own devices.
    """
    pod = _placed(request)
    rates = []
    for gpu_of in (*_smallest_by_model(request, gpus), *_slices_by_model(request, gpus, weight)):
        for labels in device_nodes if request.held_devices and device_nodes else ({},):
            metering = charged_fraction.meter(
                pod,
                request,
                inventory=gpu_of,
                weight=weight,
                background=background,
                quota=quota,
                device_model=_ANY_MODEL,
                device_labels=labels,
            )
            by_model = (share * _highest(book, model, now) for model, share in metering.shares.items())
            rates.append(sum(by_model, Fraction(0)))
    return Need(GpuMilliseconds(ceil(max(rates) * span)), span) if rates else None


def _highest(book: RateBook, model: str, now: Instant) -> Fraction:
    return book.highest_of_all(now) if model == _ANY_MODEL else book.highest(model, now)


def _placed(request: PodRequest) -> Mapping[str, Any]:
    """Return a pod with that request, as if the scheduler had given each container GPUs with names of its own."""
    annotations = {names.gpu_annotation(wanted.container): ",".join(_gpu_names(wanted)) for wanted in request.requests}
    if request.sharing == "exclusive":
        annotations[names.SHARING_MODE] = "exclusive"
    return {"metadata": {"annotations": annotations}}


def _gpu_names(wanted: GpuRequest) -> list[str]:
    return [f"{wanted.container}/{index}" for index in range(wanted.gpus)]


def _smallest_by_model(request: PodRequest, gpus: Collection[Gpu]) -> Iterator[dict[str, Gpu]]:
    """Yield for each model that the pod might get the GPU with the least memory, under the names of `_placed`."""
    if request.sharing == names.MIG:
        return
    if not request.requests:  # NVIDIA's plugin allocates the GPUs, of any model
        yield {}
        return
    fitting = [
        gpu
        for gpu in gpus
        if request.gpu_uuid in ("", gpu.uuid) and is_wanted(gpu.model, request.gpu_models) and not is_slice(gpu.uuid)
    ]
    # The last of a model is kept: on the GPU with the least memory, a container's memory is the largest part of it.
    smallest = {gpu.model: gpu for gpu in sorted(fitting, key=lambda gpu: gpu.memory_mib, reverse=True)}
    for gpu in smallest.values():
        yield dict.fromkeys((name for wanted in request.requests for name in _gpu_names(wanted)), gpu)


def _slices_by_model(
    request: PodRequest, gpus: Collection[Gpu], weight: charged_fraction.Weight
) -> Iterator[dict[str, Gpu]]:
    """Yield for each model the most expensive MIG slice that each container might get, if all of them might get one."""
    adaptive = request.sharing == names.ADAPTIVE
    if request.affinity or not (adaptive or request.sharing == names.MIG):
        return
    slices = [gpu for gpu in gpus if is_slice(gpu.uuid) and is_wanted(gpu.model, request.gpu_models)]
    if is_slice(request.gpu_uuid):
        slices = [gpu for gpu in slices if gpu.uuid == request.gpu_uuid]
    for model in {gpu.model for gpu in slices}:
        chosen: dict[str, Gpu] = {}
        for wanted in request.requests:
            able = [
                gpu
                for gpu in slices
                if gpu.model == model
                and wanted.is_fraction
                and holds(gpu.mig[0], gpu.memory_mib, wanted.core, wanted.memory_mib, adaptive=adaptive)
            ]
            if not able:
                break
            chosen[f"{wanted.container}/0"] = max(able, key=lambda gpu: charged_fraction.of_slice(gpu).fraction(weight))
        else:
            yield chosen
