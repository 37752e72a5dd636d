# SPDX-License-Identifier: Apache-2.0
"""Compute how much GPU time is free in budgets, and whether all that is reserved stays covered. Pure.

GPU time that is free now may not be there later: a grant or a period may expire before a pod has used it. So
`Cover.gap` follows the time line of everything that is reserved up to its end, as if pods that are not bound yet were
bound now, and as if nothing else drew on the budgets. Whenever an allowance begins or ends, the rest of the budget must
cover what is still reserved.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

from slicekeeper.units import EPOCH, MS_PER_DAY, NO_TIME, GpuMilliseconds, Instant
from timekeeper.core import timeline
from timekeeper.core.account import AccountId
from timekeeper.core.accumulated_charge import Claim
from timekeeper.core.budget_record import Forest
from timekeeper.core.budget_state import BudgetState, rule_at
from timekeeper.core.hierarchy import Tree, tree_of

_MAX_CHANGES: Final = 200
"""How many starts and ends of allowances are examined. After that, periods alone bring nothing new: each brings as much
as the one before, while what is reserved shrinks. So only as many starts and ends of grants and rules are examined, in
the next `_FURTHEST_MS`."""

_FURTHEST_MS: Final = 400 * MS_PER_DAY


@dataclass(frozen=True, slots=True)
class ReservedTime:
    """GPU time reserved in a budget: for a pod, as long as its claim lasts, or without one until an instant."""

    budget: AccountId
    amount: GpuMilliseconds
    claim: Claim | None = None
    until: Instant = EPOCH

    def rest(self, at: Instant) -> GpuMilliseconds:
        """Return the rest at an instant: less what the pod has been charged, and zero after its end."""
        if self.claim is None:
            return self.amount if at < self.until else NO_TIME
        return GpuMilliseconds(max(self.amount - self.claim.gross(at), 0))


def planned(key: str, budget: AccountId, amount: GpuMilliseconds, span: int, now: Instant) -> ReservedTime:
    """Return the reservation of a pod that is not bound yet, as if it were bound now and needed all of it."""
    return ReservedTime(budget, amount, Claim(key, now, Instant(now + max(span, 1)), amount, max(span, 1)))


@dataclass(frozen=True)
class Gap:
    """The budget, the instant and the amount in GPU-milliseconds by which reservations are not covered."""

    budget: AccountId
    at: Instant
    amount: GpuMilliseconds


@dataclass(frozen=True)
class Cover:
    """Budgets of one tree at an instant, and the GPU time that is reserved in them."""

    states: Mapping[AccountId, BudgetState]
    forest: Forest
    reserved: Sequence[ReservedTime]

    @property
    def at(self) -> Instant:
        """The instant."""
        return max(state.at for state in self.states.values())

    @cached_property
    def _tree(self) -> Tree:
        return tree_of(self.forest)

    def reserved_in(self, budget: AccountId, at: Instant | None = None) -> GpuMilliseconds:
        """Return what is reserved in a budget and below it, now or at a later instant."""
        below, at = set(self._tree.below(budget)), self.at if at is None else at
        return GpuMilliseconds(sum(one.rest(at) for one in self.reserved if one.budget in below))

    def free(self, budget: AccountId) -> tuple[GpuMilliseconds, AccountId]:
        """Return what may be reserved in a budget now, and which budget limits that: itself or one above."""
        free = []
        for key in self._tree.chain(budget):
            state, rule = self.states[key], self.forest.records[key].rules[-1]
            spendable = rule.open and not state.exhausted
            free.append((GpuMilliseconds(state.balance + rule.credit - self.reserved_in(key) if spendable else 0), key))
        return min(free)

    def most(self, budget: AccountId) -> GpuMilliseconds:
        """Return what could be reserved if nothing else were, now or in the next period; the least of the chain."""
        most = []
        for key in self._tree.chain(budget):
            state, rule = self.states[key], self.forest.records[key].rules[-1]
            granted = sum(allowance.left for allowance in state.grants)
            # A budget that is granted once has what is left of it.
            brought = state.balance if rule.period == "none" else rule.amount + rule.rollover + granted
            most.append(brought + rule.credit)
        return GpuMilliseconds(min(most))

    def lack(self, more: ReservedTime, *, alone: bool = False) -> Gap | None:
        """Return the first gap if `more` were reserved in addition, or `alone`; None if everything stays covered.

        The amount of a gap at this instant is that by which `more` exceeds what is free.
        """
        beside = replace(self, reserved=() if alone else self.reserved)
        free, tightest = beside.free(more.budget)
        if more.amount > free:
            return Gap(tightest, self.at, GpuMilliseconds(more.amount - free))
        return replace(beside, reserved=[*beside.reserved, more]).gap(self._tree.chain(more.budget))

    def gap(self, budgets: Collection[AccountId]) -> Gap | None:
        """Return the first gap, after this instant, in what covers the time reserved in some budgets and below."""
        claims: dict[AccountId, list[Claim]] = {}
        for one in self.reserved:
            if one.claim is not None:
                claims.setdefault(one.budget, []).append(one.claim)
        forest = Forest(
            {key: replace(self.forest.records[key], claims=claims.get(key, []), debts=()) for key in self.states},
            self.forest.links,
        )
        states = self.states
        for step in range(2 * _MAX_CHANGES):
            periods = step < _MAX_CHANGES
            changes = (timeline.next_allowance_change(states, forest, key, periods=periods) for key in budgets)
            at = min((change for change in changes if change is not None), default=None)
            if at is None or not any(one.rest(at) for one in self.reserved):
                return None
            if not periods and at > self.at + _FURTHEST_MS:
                return None
            states = timeline.advance(states, forest, at).states
            for key in sorted(budgets):
                rule = rule_at(forest.records[key].rules, at)
                left = max(states[key].balance + rule.credit, 0) if rule.open else 0
                missing = self.reserved_in(key, at) - left
                if missing > 0:
                    return Gap(key, at, GpuMilliseconds(missing))
        return None
