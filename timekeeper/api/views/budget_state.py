# SPDX-License-Identifier: Apache-2.0
"""Determine a budget's state, its name on the wire, and the sentence that says why."""

from __future__ import annotations

from slicekeeper.config.policy import NamespacePolicy
from slicekeeper.units import EPOCH, Instant, format_duration, format_instant
from slicekeeper.wire.timekeeper import State
from timekeeper.core import timeline
from timekeeper.core.accounting_period import accounting_period
from timekeeper.core.budget_record import Records
from timekeeper.core.budget_state import BudgetState, rule_at
from timekeeper.core.threshold_crossing import crossed
from timekeeper.ledger.budget_rule import policy_rule
from timekeeper.ledger.standing import BudgetStanding
from timekeeper.store.accounts import BudgetAccount


def state_at(standing: BudgetStanding | None, policy: NamespacePolicy, now: Instant) -> BudgetState:
    """Return a namespace's state; one without an account is at the beginning of its policy's budget."""
    if standing is not None:
        return standing.at(now)
    return timeline.begin(Records([], [policy_rule(policy.budget, EPOCH)]), now)


def running_period(standing: BudgetStanding | None, state: BudgetState) -> tuple[Instant | None, Instant | None]:
    """Return since when the state's usage counts, and when its period ends; None: always, and never.

    After a change of the budget that is another period than that of the calendar.
    """
    if standing is None or not state.period.booked:  # no pod has drawn on it: it follows the calendar
        return state.period_start, state.period.expires
    rules = standing.tree_standing.forest.records[standing.account.id].rules
    known = [rules[0], *(rule for rule in rules[1:] if rule.since <= state.at)]
    if all(rule.period != "none" for rule in known):
        return accounting_period(known, state.at)[0], state.period.expires
    # Accounts without periods are sealed by the month, but their usage counts on.
    start = state.period_start if state.counts_since is None else state.counts_since
    return start, state.period.expires


def state_name(standing: BudgetStanding | None, state: BudgetState, policy: NamespacePolicy) -> State:
    """Return the state's name on the wire."""
    if standing is not None and standing.rule.status != "active":
        return standing.rule.status
    if standing is not None and state.barred is not None:
        above = rule_at(standing.tree_standing.forest.records[state.barred].rules, state.at)
        return "exhausted" if above.status == "active" else above.status
    if state.over_budget:
        return "exhausted"
    if state.balance <= 0:
        return "overdraft"
    percent = min(policy.budget.thresholds, default=0)
    return "warning" if percent and state.used * 100 >= state.to_spend * percent else "ok"


def state_reason(
    name: State, standing: BudgetStanding, state: BudgetState, policy: NamespacePolicy, bound: BudgetAccount
) -> str:
    """Return why a budget is in a state, empty if it is `ok`; `bound` is the budget that has the least left."""
    since = format_instant(state.since)
    above = state.barred is not None and standing.rule.status == "active"
    whose = f"the budget of {bound.title}" if above else "the budget"
    if name in ("suspended", "closed"):
        return f"{whose} is {name} since {since}"
    if name == "exhausted":
        return f"nothing is left of {whose} since {since}"
    if name == "overdraft":
        left = format_duration(standing.rule.rule.credit + state.balance)
        return f"the budget is used up; {left} of credit is left"
    if name == "warning":
        found = crossed(state, policy.budget.thresholds, is_open=True)
        return f"more than {max(found, default=0)} % of the budget is used"
    return ""
