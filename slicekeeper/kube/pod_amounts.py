# SPDX-License-Identifier: Apache-2.0
"""CPU and memory in a pod's manifest, by Kubernetes' rules: what its containers request, and amounts of its own.

The scheduler, which sees running pods, has to consider their status too: `scheduler/cpu_memory.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any, Final

from slicekeeper.gpu.effective_request import effective_request
from slicekeeper.gpu.pod_manifest import containers
from slicekeeper.units import parse_quantity
from slicekeeper.untyped_json import as_map

COUNTED: Final = ("cpu", "memory")
"""The resources that decide the QoS class."""

_HUGE_PAGES: Final = "hugepages-"


def can_be_pods_own(resource: str) -> bool:
    """Whether a pod as a whole may have an amount of a resource in `spec.resources`."""
    return resource in COUNTED or resource.startswith(_HUGE_PAGES)


def amount_of(holder: Mapping[str, Any], section: str, resource: str) -> Fraction | None:
    """Return an amount in the `requests` or `limits` of a container, or of a pod's spec for the pod's own.

    None if there is none, or it is no quantity, which the API server refuses anyway.
    """
    try:
        return parse_quantity(as_map(as_map(holder.get("resources")).get(section))[resource])
    except (KeyError, ValueError):
        return None


def requested_by(holder: Mapping[str, Any], resource: str) -> Fraction | None:
    """Return the request of a container, or of a pod itself: its limit if it has none."""
    amount = amount_of(holder, "requests", resource)
    return amount_of(holder, "limits", resource) if amount is None else amount


def requested_together(spec: Mapping[str, Any], resource: str) -> Fraction:
    """Return what the containers of a pod request together."""
    return _together(spec, resource, lambda container: requested_by(container, resource))


def limited_together(spec: Mapping[str, Any], resource: str) -> Fraction:
    """Return the sum of the limits of a pod's containers, as far as they have one."""
    return _together(spec, resource, lambda container: amount_of(container, "limits", resource))


def _together(
    spec: Mapping[str, Any], resource: str, amount: Callable[[Mapping[str, Any]], Fraction | None]
) -> Fraction:
    amounts = ((kind, {resource: amount(container) or Fraction(0)}) for _, kind, container in containers(spec))
    return effective_request(amounts).get(resource, Fraction(0))


def has_own_amounts(spec: Mapping[str, Any]) -> bool:
    """Whether a pod as a whole has amounts: they then decide in place of its containers'."""
    own = as_map(spec.get("resources"))
    return any(map(can_be_pods_own, {**as_map(own.get("limits")), **as_map(own.get("requests"))}))


def is_best_effort(spec: Mapping[str, Any]) -> bool:
    """Whether neither a pod nor any of its containers requests CPU or memory: its QoS class is then BestEffort."""
    holders = [spec] if has_own_amounts(spec) else [container for _, _, container in containers(spec)]
    return not any(
        amount_of(holder, section, resource)
        for holder in holders
        for section in ("requests", "limits")
        for resource in COUNTED
    )
