# SPDX-License-Identifier: Apache-2.0
"""Carry a late change over a stretch of time in which it moves balances and nothing else. Pure.

A pod that becomes known a month late is paid from the budgets of its namespace and of those above. As long as these
have enough left, and no allowance of theirs begins or ends, all other pods are charged as before: then the states at
the end of a stretch follow from those that were computed before the change, and no pod of it is looked at again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from slicekeeper.units import GpuMilliseconds, Instant
from timekeeper.core.account import AccountId
from timekeeper.core.accumulated_charge import Claim
from timekeeper.core.budget_line import carried_at
from timekeeper.core.budget_record import Forest
from timekeeper.core.budget_state import BudgetState, rule_at
from timekeeper.core.hierarchy import chain

States = Mapping[AccountId, BudgetState]


@dataclass(frozen=True, slots=True)
class ChangedClaim:
    """A pod's claim before and after a late record; None: there was none."""

    budget: AccountId
    before: Claim | None
    after: Claim | None

    @property
    def versions(self) -> list[Claim]:
        """Those that claim anything."""
        return [c for c in (self.before, self.after) if c is not None and (c.end is None or c.end > c.start)]

    def over_by(self, at: Instant) -> bool:
        """Return whether both claims have ended at an instant."""
        return all(c.end is not None and c.end <= at for c in self.versions)


@dataclass(frozen=True, slots=True)
class Stretch:
    """The time between two checkpoints, and the states there that were computed before the change.

    `runs_across(budget, since, at)` is whether a pod of the budget began before `since` and ended after `at`. `margin`
    is more than all pods together can be charged for a millisecond.
    """

    forest: Forest
    first: States
    last: States
    changed: Sequence[ChangedClaim]
    runs_across: Callable[[AccountId, Instant, Instant], bool]
    margin: int

    @property
    def start(self) -> Instant:
        """The instant of the first checkpoint."""
        return next(iter(self.first.values())).at

    @property
    def end(self) -> Instant:
        """The instant of the last checkpoint."""
        return next(iter(self.last.values())).at

    def carry(self, states: States) -> dict[AccountId, BudgetState] | None:
        """Return the states at the end that follow from changed ones at the start; None: the change may do more.

        If there are some, no posting of the stretch differs from those before the change.
        """
        if any(map(self._within, self._instants())):
            return None
        running = [one for one in self.changed if self._runs(one)]
        more = self._charged_more(states, running)
        paying = {key for one in running for key in chain(self.forest.links, one.budget, self.start)}
        moved = paying | {key for key, state in states.items() if state != self.first[key]}
        if any(self.first[key].cut != self.last[key].cut for key in paying):
            return None
        if not all(self._only_balances_move(key, states[key], more.get(key, 0)) for key in moved):
            return None
        return {
            key: self._moved(key, states[key], more.get(key, 0)) if key in moved else state
            for key, state in self.last.items()
        }

    def _within(self, at: Instant) -> bool:
        return self.start < at <= self.end

    def _instants(self) -> list[Instant]:
        """Return the instants of what must not happen in the stretch, whichever budget it concerns.

        A refund is paid back to all budgets above, and the changed pods neither begin, end nor change their rate.
        """
        found = [link.since for link in self.forest.links]
        for records in self.forest.records.values():
            found += [grant.since for grant in records.grants if grant.kind == "refund"]
        for claim in (claim for one in self.changed for claim in one.versions):
            found += [claim.start, *(at for at, _, _ in claim.rate_changes)]
            found += [] if claim.end is None else [claim.end]
        return found

    def _runs(self, one: ChangedClaim) -> bool:
        return any(claim.start <= self.start and claim.goes_on(self.start) for claim in one.versions)

    def _charged_more(self, states: States, running: Sequence[ChangedClaim]) -> dict[AccountId, int]:
        """Return how much more the changed pods are charged in the stretch than before, by budget."""
        found: dict[AccountId, int] = {}
        for one in running:
            line = chain(self.forest.links, one.budget, self.start)
            stop = next((key for key in line if states[key].exhausted), None)
            before, after = (
                0 if c is None else c.gross(self.end) - c.gross(self.start) for c in (one.before, one.after)
            )
            for key in line if stop is None else {line[0], stop}:
                found[key] = found.get(key, 0) + after - before
        return found

    def _only_balances_move(self, key: AccountId, state: BudgetState, more: int) -> bool:
        """Return whether a budget has the same allowances all the time, and remains exhausted or not."""
        first, last, records = self.first[key], self.last[key], self.forest.records[key]
        changes = [*(rule.since for rule in records.rules), *(grant.since for grant in records.grants)]
        changes += [*(withdrawal.at for withdrawal in records.withdrawals), *(debt.since for debt in records.debts)]
        for allowance in (first.period, *first.grants, state.period, *state.grants):
            changes += [] if allowance.expires is None else [allowance.expires]
        if any(map(self._within, changes)) or not (first.period.booked and state.period.booked):
            return False
        if not first.exhausted == last.exhausted == state.exhausted or first.barred != state.barred:
            return False
        if first.cut != state.cut and self.runs_across(key, max(first.cut, state.cut), self.start):
            return False  # of such a pod, less or more has been posted than before
        left = state.balance + rule_at(records.rules, self.start).credit - (last.used - first.used + max(more, 0))
        return state.exhausted or left > self.margin

    def _moved(self, key: AccountId, state: BudgetState, more: int) -> BudgetState:
        """Return a budget's state at the end: what was spent in the stretch is drawn from what there is now."""
        first, last, state = self.first[key], self.last[key], state.copy()
        used, over, debt = last.used - first.used, last.over - first.over, last.debt - first.debt
        if state.over_budget:
            over += more
            debt += more if state.exhausted and carried_at(self.forest.records[key].debts, self.start) else 0
        else:
            used += more
        state.draw(used)
        state.at, state.barred = last.at, last.barred
        state.used = GpuMilliseconds(state.used + used)
        state.over, state.debt = GpuMilliseconds(state.over + over), GpuMilliseconds(state.debt + debt)
        state.since = state.since if last.since == first.since else last.since
        state.cut = state.cut if last.cut == first.cut else last.cut
        return state
