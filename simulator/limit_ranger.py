# SPDX-License-Identifier: Apache-2.0
"""kube-apiserver's plugin LimitRanger: a namespace's defaults for containers, its limits for containers and pods."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from fractions import Fraction
from functools import partial

from simulator.admission_plugins import all_containers
from simulator.api_errors import Denied
from simulator.store import Store
from slicekeeper.kube.client import LIMIT_RANGES, Object
from slicekeeper.kube.objects import PodSpec, ResourceAmounts, read
from slicekeeper.kube.pod_amounts import amount_of, limited_together, requested_together
from slicekeeper.units import parse_quantity


def set_defaults(store: Store, pod: Object, namespace: str) -> None:
    """Give each container what it does not name; the maximum if there is no default, and at last the minimum."""
    for entry in _entries(store, namespace, "Container"):
        limits = {**(entry.get("max") or {}), **(entry.get("default") or {})}
        requests = {**(entry.get("min") or {}), **limits, **(entry.get("defaultRequest") or {})}
        for container in all_containers(pod["spec"]):
            resources = container.setdefault("resources", {})
            for section, defaults in (("limits", limits), ("requests", requests)):
                if defaults:
                    resources[section] = {**defaults, **(resources.get(section) or {})}


def check(store: Store, pod: Object, namespace: str) -> None:
    """Refuse a pod outside its namespace's limits. Raises Denied, in the words of the API server."""
    spec = read(pod["spec"], PodSpec)
    wrong: list[str] = []
    for entry in _entries(store, namespace, "Container"):
        for each in spec.placed():
            wrong += _misfits(entry, "Container", partial(_of_container, each.container.resources))
    for entry in _entries(store, namespace, "Pod"):
        wrong += _misfits(entry, "Pod", partial(_of_pod, spec))
    if wrong:
        name = pod["metadata"].get("name", "")
        raise Denied(f'pods "{name}" is forbidden: {", ".join(dict.fromkeys(wrong))}')


def _of_container(resources: ResourceAmounts, section: str, resource: str) -> Fraction | None:
    return amount_of(resources.requests if section == "requests" else resources.limits, resource)


def _of_pod(spec: PodSpec, section: str, resource: str) -> Fraction:
    own = _of_container(spec.resources, section, resource)
    together = requested_together if section == "requests" else limited_together
    return together(spec, resource) if own is None else own


def _misfits(entry: Object, kind: str, amount: Callable[[str, str], Fraction | None]) -> Iterator[str]:
    for resource, value in (entry.get("min") or {}).items():
        found = amount("requests", resource)
        if found is None or found < parse_quantity(value):
            yield f"minimum {resource} usage per {kind} is {value}, but request is less"
    for resource, value in (entry.get("max") or {}).items():
        found = amount("limits", resource)
        if found is None or max(found, amount("requests", resource) or 0) > parse_quantity(value):
            yield f"maximum {resource} usage per {kind} is {value}, but limit is more"
    for resource, value in (entry.get("maxLimitRequestRatio") or {}).items():
        limit, request = amount("limits", resource), amount("requests", resource)
        if not limit or not request or limit / request > parse_quantity(value):
            yield f"{resource} max limit to request ratio per {kind} is {value}, but provided ratio is larger"


def _entries(store: Store, namespace: str, kind: str) -> Iterator[Object]:
    for limit_range in store.collection(LIMIT_RANGES, namespace)[0]:
        for entry in (limit_range.get("spec") or {}).get("limits") or []:
            if entry.get("type") == kind:
                yield entry
