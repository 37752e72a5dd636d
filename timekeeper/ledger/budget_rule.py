# SPDX-License-Identifier: Apache-2.0
"""A budget's rule: the policy's, the instant from which another applies, its version, and its form in the audit log."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from slicekeeper.clock import CLOCK_SKEW_MS
from slicekeeper.config.policy import BudgetPolicy
from slicekeeper.units import Instant
from timekeeper.core.budget_record import Rule
from timekeeper.store.budget_rules import RuleRow

ANY_VERSION: Final = "*"
"""One of the versions that a budget may have: any version, but the budget must exist."""

SET: Final = "set"
"""The reason of a budget that is set without one."""

Change = Rule | Callable[[Rule], Rule]
"""A new rule for a budget, or a function that makes it from the one in force."""


def policy_rule(budget: BudgetPolicy, since: Instant) -> Rule:
    """Return the rule of a policy's default budget."""
    return Rule(
        since,
        budget.amount_ms,
        budget.period,
        budget.time_zone,
        budget.credit_ms,
        budget.rollover_ms,
        anchor=budget.anchor_ms,
    )


def rule_detail(rule: Rule) -> dict[str, str | int]:
    """Return a rule for the audit log."""
    fields: dict[str, str | int] = {
        "amountMs": rule.amount,
        "period": rule.period,
        "timeZone": rule.zone,
        "creditMs": rule.credit,
        "rolloverMs": rule.rollover,
    }
    if rule.anchor is not None:
        fields["anchorMs"] = rule.anchor
    if rule.used == "reset":
        fields["newPeriod"] = "true"
    return fields


def not_before(rule: Rule, now: Instant) -> Instant:
    """Return when a new rule begins: not before the one in force, although a clock ahead of ours may have written that.

    A rule that is further ahead than clocks may differ was written by a wrong clock: it never takes effect.
    """
    return max(now, rule.since) if rule.since <= now + CLOCK_SKEW_MS else now


def version_of(row: RuleRow) -> str:
    """Return the entity tag of a budget: it changes when the rule does, not when time is spent."""
    return policy_version(row.rule) if row.source == "policy" else f'"{row.source}-{row.id}"'


def policy_version(rule: Rule) -> str:
    """Return the entity tag of a budget that follows the policy: the same before its account is opened as after."""
    parts = (rule.status, rule.amount, rule.period, rule.zone, rule.credit, rule.rollover, rule.anchor)
    return f'"policy-{"-".join(map(str, parts))}"'
