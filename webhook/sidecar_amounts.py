# SPDX-License-Identifier: Apache-2.0
"""The sidecar's CPU and memory in one pod: those of the policy, unless its pod or its namespace demands others.

A pod without any request stays BestEffort, so there the sidecar has none. In a pod with amounts of its own
(`spec.resources`) it requests only what its containers leave, else 0: raising the pod's amounts instead would make a
second `kubectl apply` of the same file fail. The 0 is written, so that no LimitRange puts its default there. Between
the minimum and the maximum of a LimitRange it moves; what no amount satisfies is refused here, because the API server's
refusal would name neither the sidecar nor a remedy.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import Any

from slicekeeper import names
from slicekeeper.config.resource_names import is_named
from slicekeeper.config.settings import Resources
from slicekeeper.errors import Violation
from slicekeeper.kube.objects import PodSpec
from slicekeeper.kube.pod_amounts import (
    COUNTED,
    amount_of,
    has_own_amounts,
    is_best_effort,
    limited_together,
    requested_by,
    requested_together,
)
from slicekeeper.units import is_zero, parse_quantity
from slicekeeper.untyped_json import show
from webhook.limit_range_watch import Limits

_NONE = "0"


def fitted(sidecar: dict[str, Any], spec: PodSpec, limits: Sequence[Limits]) -> dict[str, Any]:
    """Return the sidecar with the amounts that it gets in a pod, under the limits of the pod's namespace."""
    own = sidecar["resources"]["limits"]
    if is_best_effort(spec) and not has_own_amounts(spec):
        rest = {resource: amount for resource, amount in own.items() if resource not in COUNTED}
        return {**sidecar, "resources": {"limits": rest, "requests": rest} if rest else {}}
    most, requests = dict(own), dict(own)
    for resource in COUNTED:
        amount = _between(own[resource], resource, limits)
        limit = amount_of(spec.resources.limits, resource)
        if limit is not None and limit < parse_quantity(amount):
            amount = spec.resources.limits[resource]
        room, limit_room = _room(spec, resource, limits)
        most[resource] = _NONE if limit_room is not None and limit_room < parse_quantity(amount) else amount
        requests[resource] = _NONE if room is not None and room < parse_quantity(amount) else amount
    return {**sidecar, "resources": {"limits": most, "requests": requests}}


def _between(amount: Any, resource: str, limits: Sequence[Limits]) -> Any:
    """Return the amount nearest to `amount` that LimitRanges allow a container."""
    of_container = [each for each in limits if each.kind == "Container"]
    for least in (each.least[resource] for each in of_container if resource in each.least):
        amount = max(amount, least, key=parse_quantity)
    for most in (each.most[resource] for each in of_container if resource in each.most):
        amount = min(amount, most, key=parse_quantity)
    return amount


def _room(spec: PodSpec, resource: str, limits: Sequence[Limits]) -> tuple[Fraction | None, Fraction | None]:
    """Return how much more the containers of a pod may request, and how much more their limits may be; None: any.

    The pod's own amount decides if it has one: Kubernetes counts it in place of its containers'. If the pod has only a
    limit, Kubernetes derives the request from the containers', which must stay below the limit.
    """
    most = [parse_quantity(each.most[resource]) for each in limits if each.kind == "Pod" and resource in each.most]
    own = requested_by(spec.resources, resource)
    if own is None and most:
        own = min(most)
    limit = min(most) if most and amount_of(spec.resources.limits, resource) is None else None
    return (
        None if own is None else own - requested_together(spec, resource),
        None if limit is None else limit - limited_together(spec, resource),
    )


def of_limit_ranges(
    spec: PodSpec, sidecar: dict[str, Any], limits: Sequence[Limits], resources: Resources
) -> Iterator[Violation]:
    """Yield the limits that the sidecar of a pod cannot satisfy; one that is there already is the API server's."""
    if _is_there(spec):
        return
    requests = fitted(sidecar, spec, limits)["resources"].get("requests", {})
    gpus = (resources.core, resources.memory, *resources.devices)
    for each in (each for each in limits if each.kind == "Container"):
        for resource, least in each.least.items():
            if is_named(resource, gpus) and not is_zero(least):
                rule = f"LimitRange {each.limit_range} demands {least} of each container, and the sidecar holds no GPU"
                yield _violation(resource, 0, rule, f"the same minimum in LimitRange {each.limit_range} with type: Pod")
            elif resource in requests and parse_quantity(requests[resource]) < parse_quantity(least):
                rule = f"LimitRange {each.limit_range} demands {least} of each container, and the pod leaves it less"
                yield _violation(resource, requests[resource], rule, _example(resource))
        for resource, ratio in each.ratio.items():
            if requests.get(resource) == _NONE:
                rule = f"LimitRange {each.limit_range} demands a request (maxLimitRequestRatio {ratio}), and the pod "
                yield _violation(resource, 0, f"{rule}leaves it nothing", _example(resource))


def warnings(spec: PodSpec, sidecar: dict[str, Any], limits: Sequence[Limits]) -> Iterator[str]:
    """Yield what the user of an admitted pod should know: a Guaranteed pod becomes Burstable."""
    if not _is_there(spec):
        for resource, amount in fitted(sidecar, spec, limits)["resources"].get("limits", {}).items():
            if amount == _NONE and resource in COUNTED:
                yield (
                    f"a LimitRange allows the pod no more {resource}, so {names.SIDECAR} has no limit of it: "
                    "the pod's QoS class cannot be Guaranteed"
                )


def _is_there(spec: PodSpec) -> bool:
    return any(container.name == names.SIDECAR for container in spec.init_containers)


def _example(resource: str) -> str:
    return f"containers that request less {resource}, or more {resource} in the pod's own spec.resources"


def _violation(resource: str, value: object, rule: str, example: str) -> Violation:
    return Violation(
        code="limit-range",
        container=names.SIDECAR,
        field=f"resources.requests[{resource}]",
        value=show(value),
        rule=rule,
        example=example,
    )
