# SPDX-License-Identifier: Apache-2.0
"""Check the fields of a GPU pod's spec: node, scheduler, deadline, priority class."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from slicekeeper import names
from slicekeeper.errors import Violation
from slicekeeper.gpu.request import PodRequest
from slicekeeper.untyped import as_map, show
from webhook.mutation import DEFAULT_SCHEDULER
from webhook.review_inputs import Case, ClusterContext


def may_name_node(case: Case, cluster: ClusterContext, *, ours: bool) -> bool:
    """Whether a `nodeName` on a GPU pod breaks no rule.

    kubelet allocates devices of NVIDIA's plugin no matter how the pod was bound, and pods of NVIDIA's operator name
    their node. It matters for our shares and GPUs only.
    """
    return (not ours or cluster.webhook.allow_node_name) and not case.policy.reserves


def named_class(pod: Mapping[str, Any]) -> str:
    """Return the PriorityClass that a pod names, empty if it names none."""
    name = as_map(pod.get("spec")).get("priorityClassName")
    return name if isinstance(name, str) else ""


def of_spec(spec: Mapping[str, Any], request: PodRequest, case: Case, cluster: ClusterContext) -> Iterator[Violation]:
    """Yield the fields of a GPU pod's spec that prevent its placement, metering or class according to the policy."""
    policy = case.policy
    if as_map(spec.get("os")).get("name") == "windows":
        yield Violation(
            code="os-windows",
            field="spec.os.name",
            value=show("windows"),
            rule="shares of GPUs, their meter and their limiter are supported only on Linux",
            example="no spec.os",
        )
    if policy.reserves:
        yield from _deadline(spec)
    if spec.get("nodeName") and not may_name_node(case, cluster, ours=bool(request.requests)):
        yield Violation(
            code="node-name",
            field="spec.nodeName",
            value=show(spec["nodeName"]),
            rule="a GPU pod is placed by the scheduler, which keeps GPUs from being allocated twice",
            example="nodeSelector: {kubernetes.io/hostname: NODE}",
        )
    scheduler = spec.get("schedulerName")
    if request.requests and scheduler not in (None, "", DEFAULT_SCHEDULER, *cluster.schedulers):
        yield Violation(
            code="scheduler-name",
            field="spec.schedulerName",
            value=show(scheduler),
            rule="shares of GPUs are placed only by Slicekeeper's scheduler",
            example=f"schedulerName: {' or '.join(cluster.schedulers)}",
        )
    if request.requests and request.sharing not in policy.sharing:
        allowed = ", ".join(policy.sharing)
        yield Violation(
            code="sharing-not-allowed",
            field=f"metadata.annotations[{names.SHARING}]",
            value=show(request.sharing),
            rule=f"this namespace's policy allows {allowed or 'no sharing mode at all'}",
            example=f"{names.SHARING}: {policy.sharing[0]}" if policy.sharing else "a namespace that allows one",
        )
    if policy.mode == "enforce":
        yield from _priority_class(spec, case, cluster)


def _deadline(spec: Mapping[str, Any]) -> Iterator[Violation]:
    """Check the field that bounds how long a pod holds its GPUs.

    A Job's own `activeDeadlineSeconds` is another thing: it ends the Job with all its pods, counts from the Job's
    start, begins again when a suspended Job is resumed, may be raised at any time, and is not copied to the pods. A
    pod's can only ever be lowered, so what is set aside for it is enough.
    """
    deadline = spec.get("activeDeadlineSeconds")
    if deadline is None or deadline < 1:
        yield Violation(
            code="deadline-missing",
            field="spec.activeDeadlineSeconds",
            value=show(deadline),
            rule="this namespace's budget is enforced safe: a GPU pod starts when GPU time until its deadline is set "
            "aside, so the pod itself must have one (the same field of a Job's own spec bounds the Job and not its "
            "pods; pods of Deployments, StatefulSets and DaemonSets cannot have one)",
            example="activeDeadlineSeconds: 3600",
        )


def _priority_class(spec: Mapping[str, Any], case: Case, cluster: ClusterContext) -> Iterator[Violation]:
    """Check the class that the user names, and whether the classes that the webhook would set exist."""
    ours = (cluster.class_name(case, over=False), cluster.class_name(case, over=True))
    allowed = case.policy.allowed_priority_classes
    named = spec.get("priorityClassName")
    if named and named not in ours and named not in allowed and not cluster.classes.is_default(named):
        yield Violation(
            code="priority-class-not-allowed",
            field="spec.priorityClassName",
            value=show(named),
            rule="the webhook sets a GPU pod's priority class; this namespace's policy allows users "
            + (", ".join(allowed) if allowed else "no other"),
            example=f"priorityClassName: {allowed[0]}" if allowed else "no priorityClassName",
        )
    for name in ours:
        if cluster.classes.get(name) is None:
            yield Violation(
                code="priority-class-unknown",
                field="spec.priorityClassName",
                value=show(name),
                rule="the policy names a PriorityClass whose value the webhook does not know; an administrator must "
                "create it in the cluster or correct the policy",
                example=f"kubectl get priorityclass {name}",
            )
