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
                rule="the namespace has no GPU budget left, and its budget is enforced hard"
                + (f" ({standing.reason})" if standing.reason else "")
                + (_WHEN_LAST_KNOWN if standing.stale else ""),
                example="the same manifest, after a grant or in the next period",
            )
        ]
    return []


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
        yield (
            f"namespace {namespace} is over its GPU budget: the pod gets priority class {name} "
            "and leftover GPU time, and may be evicted for pods in budget"
        )
        named = spec.priority_class_name
        if named in case.policy.allowed_priority_classes:
            yield f"priority class {named} is not kept while namespace {namespace} is over its GPU budget"
