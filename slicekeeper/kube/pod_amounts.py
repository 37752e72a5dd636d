# SPDX-License-Identifier: Apache-2.0
"""CPU and memory in a pod's manifest, by Kubernetes' rules: what its containers request, and amounts of its own.

The scheduler, which sees running pods, has to consider their status too: `scheduler/cpu_memory.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any, Final

from slicekeeper.kube.effective_request import effective_request
from slicekeeper.kube.objects import Container, PodSpec, ResourceAmounts
from slicekeeper.units import parse_quantity

COUNTED: Final = ("cpu", "memory")
"""The resources that decide the QoS class."""

_HUGE_PAGES: Final = "hugepages-"


def can_be_pods_own(resource: str) -> bool:
    """Whether a pod as a whole may have an amount of a resource in `spec.resources`."""
    return resource in COUNTED or resource.startswith(_HUGE_PAGES)


def amount_of(amounts: Mapping[str, Any], resource: str) -> Fraction | None:
    """Return an amount in the requests or limits of a container, or of a pod as a whole.

    None if there is none, or it is no quantity, which the API server refuses anyway.
    """
    try:
        return parse_quantity(amounts[resource])
    except (KeyError, ValueError):
        return None


def requested_by(resources: ResourceAmounts, resource: str) -> Fraction | None:
    """Return the request of a container, or of a pod itself: its limit if it has none."""
    amount = amount_of(resources.requests, resource)
    return amount_of(resources.limits, resource) if amount is None else amount


def requested_together(spec: PodSpec, resource: str) -> Fraction:
    """Return what the containers of a pod request together."""
    return _together(spec, resource, lambda container: requested_by(container.resources, resource))


def limited_together(spec: PodSpec, resource: str) -> Fraction:
    """Return the sum of the limits of a pod's containers, as far as they have one."""
    return _together(spec, resource, lambda container: amount_of(container.resources.limits, resource))


def _together(spec: PodSpec, resource: str, amount: Callable[[Container], Fraction | None]) -> Fraction:
    amounts = ((each.kind, {resource: amount(each.container) or Fraction(0)}) for each in spec.placed())
    return effective_request(amounts).get(resource, Fraction(0))


def has_own_amounts(spec: PodSpec) -> bool:
    """Whether a pod as a whole has amounts: they then decide in place of its containers'."""
    return any(map(can_be_pods_own, spec.resources.amounts))


def is_best_effort(spec: PodSpec) -> bool:
    """Whether neither a pod nor any of its containers requests CPU or memory: its QoS class is then BestEffort."""
    holders = [spec.resources] if has_own_amounts(spec) else [each.container.resources for each in spec.placed()]
    return not any(
        amount_of(amounts, resource)
        for holder in holders
        for amounts in (holder.requests, holder.limits)
        for resource in COUNTED
    )
