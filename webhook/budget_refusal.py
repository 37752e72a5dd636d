# SPDX-License-Identifier: Apache-2.0
"""Refuse GPU pods because of their namespace's budget: it is spent and enforced hard, or is unknown."""

from __future__ import annotations

from slicekeeper.errors import Violation
from slicekeeper.untyped_json import show
from webhook.review_inputs import Case
from webhook.warnings import WHEN_LAST_KNOWN


def refused_by_budget(case: Case) -> list[Violation]:
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
                + (WHEN_LAST_KNOWN if standing.stale else ""),
                example="the same manifest, after a grant or in the next period",
            )
        ]
    return []
