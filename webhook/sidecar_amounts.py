# SPDX-License-Identifier: Apache-2.0
"""The sidecar's CPU and memory in one pod: those of the policy, unless they would change or exceed what the pod has.

A pod without any request stays BestEffort, so there the sidecar has none. In a pod with amounts of its own
(`spec.resources`) it requests only what its containers leave, else 0: raising the pod's amounts instead would make a
second `kubectl apply` of the same file fail. The 0 is written, so that no LimitRange puts its default there.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from slicekeeper.kube.pod_amounts import COUNTED, amount_of, is_best_effort, requested_by, requested_together
from slicekeeper.units import parse_quantity


def fitted(sidecar: dict[str, Any], spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return the sidecar with the amounts that it gets in a pod."""
    own = sidecar["resources"]["limits"]
    if is_best_effort(spec):
        rest = {resource: amount for resource, amount in own.items() if resource not in COUNTED}
        return {**sidecar, "resources": {"limits": rest, "requests": rest} if rest else {}}
    limits, requests = dict(own), dict(own)
    for resource in COUNTED:
        limit, whole = amount_of(spec, "limits", resource), requested_by(spec, resource)
        if limit is not None and limit < parse_quantity(own[resource]):
            limits[resource] = requests[resource] = spec["resources"]["limits"][resource]
        if whole is not None and whole - requested_together(spec, resource) < parse_quantity(requests[resource]):
            requests[resource] = "0"
    return {**sidecar, "resources": {"limits": limits, "requests": requests}}
