# SPDX-License-Identifier: Apache-2.0
"""The weight `quota`: a pod is charged for the mean of its shares of the namespace's ResourceQuota. Pure.

The service that Slicekeeper replaces charged like this.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from slicekeeper.config.settings import Resources
from slicekeeper.gpu.request import PodRequest
from slicekeeper.units import parse_quantity
from slicekeeper.untyped_json import as_map

MISSING = "quota-missing"
"""Flag: weight `quota`, but the namespace has no ResourceQuota of both resources."""


@dataclass(frozen=True)
class Quota:
    """A namespace's ResourceQuota of compute (percent) and memory (blocks)."""

    core: Fraction
    memory: Fraction


def quota_of(quotas: list[dict[str, Any]], resources: Resources) -> Quota | None:
    """Return the tightest ResourceQuota of both resources; None if no quota limits both."""
    found: dict[str, Fraction] = {}
    for quota in quotas:
        hard = as_map(as_map(quota.get("spec")).get("hard"))
        for resource in (resources.core, resources.memory):
            try:
                amount = parse_quantity(hard.get(f"requests.{resource}"))
            except ValueError:
                continue
            if amount > 0:
                found[resource] = min(amount, found.get(resource, amount))
    if len(found) < 2:
        return None
    return Quota(found[resources.core], found[resources.memory])


def factor(request: PodRequest, quota: Quota) -> Fraction:
    """Return the part of the quota that a pod is charged for; if it requests no memory, the part of the compute."""
    core, memory = request.core / quota.core, request.memory_blocks / quota.memory
    return (core + memory) / 2 if request.memory_blocks else core
