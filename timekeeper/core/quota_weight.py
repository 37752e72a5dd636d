# SPDX-License-Identifier: Apache-2.0
"""The weight `quota`: a pod is charged for the mean of its shares of its namespace's ResourceQuotas. Pure.

The service that Slicekeeper replaces charged like this. A quota with scopes counts only for the pods that it selects,
as for the API server.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from slicekeeper.config.settings import Resources
from slicekeeper.gpu.request import PodRequest
from slicekeeper.kube.objects import PodSpec, read
from slicekeeper.kube.pod_amounts import is_best_effort
from slicekeeper.units import parse_quantity
from slicekeeper.untyped_json import as_list, as_map

MISSING = "quota-missing"
"""Flag: weight `quota`, but no ResourceQuotas that select the pod limit both resources."""


@dataclass(frozen=True)
class Quota:
    """What ResourceQuotas allow of compute (percent) and memory (blocks)."""

    core: Fraction
    memory: Fraction


def quota_of(quotas: list[dict[str, Any]], pod: Mapping[str, Any], resources: Resources) -> Quota | None:
    """Return the tightest limit of each resource among the ResourceQuotas that select a pod; None if one has none."""
    found: dict[str, Fraction] = {}
    for quota in quotas:
        spec = as_map(quota.get("spec"))
        if not _selects(spec, pod):
            continue
        hard = as_map(spec.get("hard"))
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


def _selects(quota: Mapping[str, Any], pod: Mapping[str, Any]) -> bool:
    """Whether a ResourceQuota counts a pod: it must be in every scope of `scopes` and of `scopeSelector`."""
    scopes = [{"scopeName": name, "operator": "Exists"} for name in as_list(quota.get("scopes"))]
    selectors = as_list(as_map(quota.get("scopeSelector")).get("matchExpressions"))
    return all(_is_in_scope(pod, as_map(selector)) for selector in (*scopes, *selectors))


def _is_in_scope(pod: Mapping[str, Any], selector: Mapping[str, Any]) -> bool:
    """Whether a pod is in a scope, as the API server decides; none is in an unknown scope, or one of other objects."""
    spec, scope = as_map(pod.get("spec")), selector.get("scopeName")
    if scope == "PriorityClass":
        return _has_class(spec.get("priorityClassName") or None, selector)
    deadline = spec.get("activeDeadlineSeconds")
    is_in = {
        "Terminating": lambda: deadline is not None,
        "NotTerminating": lambda: deadline is None,
        "BestEffort": lambda: _is_best_effort(pod),
        "NotBestEffort": lambda: not _is_best_effort(pod),
        "CrossNamespacePodAffinity": lambda: _crosses_namespaces(as_map(spec.get("affinity"))),
    }.get(str(scope))
    return is_in is not None and is_in()


def _has_class(name: object, selector: Mapping[str, Any]) -> bool:
    """Whether a pod's priority class, None if it names none, is one that a scope selects."""
    values = as_list(selector.get("values"))
    match selector.get("operator"):
        case "In":
            return name is not None and name in values
        case "NotIn":
            return name is None or name not in values
        case "Exists":
            return name is not None
        case "DoesNotExist":
            return name is None
    return False


def _is_best_effort(pod: Mapping[str, Any]) -> bool:
    recorded = as_map(pod.get("status")).get("qosClass")
    return recorded == "BestEffort" if recorded else is_best_effort(read(pod.get("spec") or {}, PodSpec))


def _crosses_namespaces(affinity: Mapping[str, Any]) -> bool:
    """Whether a term of a pod's affinity to other pods, or of its anti-affinity, names namespaces."""
    for kind in ("podAffinity", "podAntiAffinity"):
        rules = as_map(affinity.get(kind))
        weighted = map(as_map, as_list(rules.get("preferredDuringSchedulingIgnoredDuringExecution")))
        terms = (
            *as_list(rules.get("requiredDuringSchedulingIgnoredDuringExecution")),
            *(one.get("podAffinityTerm") for one in weighted),
        )
        if any(term.get("namespaces") or term.get("namespaceSelector") is not None for term in map(as_map, terms)):
            return True
    return False


def factor(request: PodRequest, quota: Quota) -> Fraction:
    """Return the part of the quota that a pod is charged for; if it requests no memory, the part of the compute."""
    core, memory = request.core / quota.core, request.memory_blocks / quota.memory
    return (core + memory) / 2 if request.memory_blocks else core
