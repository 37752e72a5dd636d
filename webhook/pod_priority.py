# SPDX-License-Identifier: Apache-2.0
"""The PriorityClass of a GPU pod: which one it gets, and which ones users may name."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from slicekeeper import names
from slicekeeper.errors import Violation
from slicekeeper.gpu.request import PodRequest
from slicekeeper.kube.objects import PodSpec
from slicekeeper.untyped_json import show
from webhook.json_patch import PatchBuilder
from webhook.manifest import Manifest
from webhook.review_inputs import Case, ClusterContext


def class_name(case: Case, cluster: ClusterContext, *, over: bool) -> str:
    """Return the name of the class that GPU pods get, in or over budget."""
    if over:
        return case.policy.over_budget_class or cluster.default_classes.over_budget.name
    return case.policy.in_budget_class or cluster.default_classes.in_budget.name


def may_be_replaced(name: str, case: Case, cluster: ClusterContext) -> bool:
    """Whether admission takes a pod that names this class, and may give it another one."""
    ours = (class_name(case, cluster, over=False), class_name(case, cluster, over=True))
    return not name or name in ours or name in case.policy.allowed_priority_classes or cluster.classes.is_default(name)


def numbers_without_class(cluster: ClusterContext) -> dict[str, Any]:
    """Return the priority and the preemption policy that the API server takes from a pod that names no class."""
    default = cluster.classes.default
    if default is None:
        return {"priority": 0, "preemptionPolicy": "PreemptLowerPriority"}
    return {"priority": default.value, "preemptionPolicy": default.preemption_policy}


def of_spec(spec: PodSpec, case: Case, cluster: ClusterContext) -> Iterator[Violation]:
    """Check the class that the user names, and whether the classes that the webhook would set exist."""
    allowed = case.policy.allowed_priority_classes
    named = spec.priority_class_name
    if not may_be_replaced(named, case, cluster):
        yield Violation(
            code="priority-class-not-allowed",
            field="spec.priorityClassName",
            value=show(named),
            rule="the webhook sets a GPU pod's priority class; this namespace's policy allows users "
            + (", ".join(allowed) if allowed else "no other"),
            example=f"priorityClassName: {allowed[0]}" if allowed else "no priorityClassName",
        )
    for over in (False, True):
        name = class_name(case, cluster, over=over)
        if cluster.classes.get(name) is None:
            yield Violation(
                code="priority-class-unknown",
                field="spec.priorityClassName",
                value=show(name),
                rule="the policy names a PriorityClass whose value the webhook does not know; an administrator must "
                "create it in the cluster or correct the policy",
                example=f"kubectl get priorityclass {name}",
            )


def set_class(patch: PatchBuilder, pod: Manifest, request: PodRequest, case: Case, cluster: ClusterContext) -> None:
    """Set the class with its exact numbers: the API server refuses a name whose numbers it did not write itself."""
    over = case.over_budget or request.gpu_class == names.BACKGROUND
    named, sent = pod.spec.priority_class_name, pod.sent["spec"]
    kept = not over and named in case.policy.allowed_priority_classes
    name = named if kept else class_name(case, cluster, over=over)
    patch.member(sent, "/spec", "priorityClassName", name)
    known = cluster.classes.get(name)
    if known is not None:
        patch.member(sent, "/spec", "priority", known.value)
        patch.member(sent, "/spec", "preemptionPolicy", known.preemption_policy)
