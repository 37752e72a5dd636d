# SPDX-License-Identifier: Apache-2.0
"""Warnings about an admitted pod: its budget is spent, stale or unknown, or an annotation has no effect."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from slicekeeper import names
from slicekeeper.gpu.request import PodRequest
from webhook.pod_priority import class_name, named_class
from webhook.reserved_names import unknown_annotations
from webhook.review_inputs import Case, ClusterContext

WARNING_CHARACTERS: Final = 256
"""The API server truncates longer ones."""

WHEN_LAST_KNOWN: Final = " when the timekeeper last answered, and stays so until it answers again"


def warnings_of(pod: Mapping[str, Any], request: PodRequest, case: Case, cluster: ClusterContext) -> tuple[str, ...]:
    """Return the warnings for an admitted GPU pod."""
    found = []
    namespace, standing = case.namespace, case.standing
    over = case.over_budget
    for key, known in unknown_annotations(pod):
        meant = f"; did you mean {known}?" if known else ""
        found.append(f"annotation {key} has no effect in Slicekeeper{meant}")
    if standing.unknown:
        taken = "over budget" if over else "in budget"
        found.append(f"the GPU budget of namespace {namespace} is currently unknown; the pod is treated as {taken}")
    if standing.stale:
        found.append(f"namespace {namespace} was over its GPU budget{WHEN_LAST_KNOWN}")
    if over and request.gpu_class != names.BACKGROUND:
        name = class_name(case, cluster, over=True)
        found.append(
            f"namespace {namespace} is over its GPU budget: the pod gets priority class {name} "
            "and leftover GPU time, and may be evicted for pods in budget"
        )
        named = named_class(pod)
        if named in case.policy.allowed_priority_classes:
            found.append(f"priority class {named} is not kept while namespace {namespace} is over its GPU budget")
    return tuple(map(cut, found))


def cut(text: str) -> str:
    """Truncate a warning to the length that the API server accepts."""
    return text if len(text) <= WARNING_CHARACTERS else text[: WARNING_CHARACTERS - 3] + "..."
