# SPDX-License-Identifier: Apache-2.0
"""What the state of a namespace's budget means for a new GPU pod: a refusal, or warnings."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from slicekeeper import names
from slicekeeper.errors import Violation
from slicekeeper.gpu.request import PodRequest
from slicekeeper.kube.objects import PodSpec
from slicekeeper.untyped_json import show
from webhook.budget_standing import Standing
from webhook.pod_priority import class_name
from webhook.review_inputs import Case, ClusterContext

_WHEN_LAST_KNOWN: Final = " when the timekeeper last answered, and stays so until it answers again"


def refusal(case: Case) -> list[Violation]:
    """Return the reason for which the budget does not admit the pod; empty if it does."""
    standing = case.standing
    if standing.unknown and case.policy.stale == "deny":
        return [
            Violation(
                code="budget-unknown",
                field="metadata.namespace",
                value=show(case.namespace),
                rule="the namespace's budget is currently unknown, and its policy admits no GPU pods until it is known",
                example="the same manifest, once the timekeeper answers again",
            )
        ]
    if standing.hard and standing.over_budget:
        return [
            Violation(
                code="budget-exhausted",
                field="metadata.namespace",
                value=show(case.namespace),
                rule=f"{_condition(standing)}, and its budget is enforced hard"
                + (f" ({standing.reason})" if standing.reason else "")
                + (_WHEN_LAST_KNOWN if standing.stale else ""),
                example=f"the same manifest, {_remedy(case)}",
            )
        ]
    return []


def _condition(standing: Standing) -> str:
    if standing.stopped:
        return f"the namespace's GPU budget is {standing.stopped}"
    return "the namespace has no GPU budget left"


def _remedy(case: Case) -> str:
    """Return when the budget admits pods again, or where they are admitted."""
    stopped, above = case.standing.stopped, case.standing.stopped_above
    whose = f"slicekeeper parent status {above}" if above else f"slicekeeper budget status {case.namespace}"
    if stopped == "suspended":
        return f"after an administrator has resumed the budget: {whose} active"
    if stopped == "closed":
        return "in another namespace: a closed budget is never opened again"
    return "after a grant or in the next period"


def warnings(spec: PodSpec, request: PodRequest, case: Case, cluster: ClusterContext) -> Iterator[str]:
    """Yield what the user of an admitted GPU pod should know: the budget is spent, stale or unknown."""
    namespace, standing, over = case.namespace, case.standing, case.over_budget
    if standing.unknown:
        taken = "over budget" if over else "in budget"
        yield f"the GPU budget of namespace {namespace} is currently unknown; the pod is treated as {taken}"
    if standing.stale:
        yield f"namespace {namespace} was over its GPU budget{_WHEN_LAST_KNOWN}"
    if over and request.gpu_class != names.BACKGROUND:
        name = class_name(case, cluster, over=True)
        because = f"namespace {namespace} is over its GPU budget"
        if standing.stopped:
            because = f"the GPU budget of namespace {namespace} is {standing.stopped}"
        yield (
            f"{because}: the pod gets priority class {name} "
            "and leftover GPU time, and may be evicted for pods in budget"
        )
        named = spec.priority_class_name
        if named in case.policy.allowed_priority_classes:
            yield f"priority class {named} is not kept while namespace {namespace} is over its GPU budget"
