# SPDX-License-Identifier: Apache-2.0
"""Determine a budget's state, and its name on the wire."""

from __future__ import annotations

from typing import Final

from slicekeeper.config.policy import NamespacePolicy
from slicekeeper.units import EPOCH, Instant
from slicekeeper.wire.timekeeper import State
from timekeeper.core import timeline
from timekeeper.core.budget import BudgetState, rule_at
from timekeeper.core.record import Records
from timekeeper.core.threshold import limit_of
from timekeeper.ledger.budget_rule import policy_rule
from timekeeper.ledger.standing import BudgetStanding

TRIES: Final = 5
"""How often bookings and standings are read at most, until nothing was settled between the two reads."""


def state_at(standing: BudgetStanding | None, policy: NamespacePolicy, now: Instant) -> BudgetState:
    """Return a namespace's state; one without an account is at the beginning of its policy's budget."""
    if standing is not None:
        return standing.at(now)
    return timeline.begin(Records([], [policy_rule(policy.budget, EPOCH)]), now)


def state_name(standing: BudgetStanding | None, state: BudgetState, policy: NamespacePolicy) -> State:
    """Return the state's name on the wire."""
    if standing is not None and standing.rule.status != "active":
        return "suspended"
    if standing is not None and state.barred is not None:
        above = rule_at(standing.tree_standing.forest.records[state.barred].rules, state.at)
        return "exhausted" if above.open else "suspended"
    if state.over_budget:
        return "exhausted"
    if state.balance <= 0:
        return "overdraft"
    percent = min(policy.budget.thresholds, default=0)
    return "warning" if percent and state.used * 100 >= limit_of(state) * percent else "ok"
