# SPDX-License-Identifier: Apache-2.0
"""Find the cycle in which budgets repeat themselves while the same pods run, and skip many cycles at once. Pure.

A forecast of budgets by the hour below one by the year would otherwise walk through thousands of hours that are all
alike. Nothing is approximated: charges are rounded to whole GPU-milliseconds, so a cycle counts as one only if it has
whole GPU-milliseconds of each pod, begins and ends in the same state, and does nothing but draw on single allowances.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import gcd, lcm
from typing import Final, NamedTuple

from slicekeeper.units import MS_PER_DAY, GpuMilliseconds, Instant
from timekeeper.core.account import AccountId
from timekeeper.core.budget_record import Forest
from timekeeper.core.budget_state import BudgetState, period_allowance
from timekeeper.core.timeline import Run

_CHECK_EVERY_MS: Final = 14 * MS_PER_DAY
"""How far apart the ends of periods are looked up in the calendar; no zone changes its clock there and back within."""


class _Change(NamedTuple):
    """How one cycle changes a budget."""

    is_renewed: bool
    drawn: int
    """From the single allowance that it draws on, or on credit."""
    allowance: int | None
    """Which one: 0 is the period's, then come the grants; None: credit."""
    room: int
    """How much may still be drawn on that in the same way."""
    owed: int


class Repetition:
    """Looks for a cycle at boundaries of a run, at growing distances (Brent's algorithm)."""

    def __init__(self, forest: Forest) -> None:
        self._forest = forest
        self._restart()

    def _restart(self) -> None:
        self._before: dict[AccountId, BudgetState] | None = None
        self._passed, self._most = 0, 1

    def skip(self, run: Run, until: Instant) -> Run | None:
        """If a cycle has just been completed, return the run after as many like it as end before an instant."""
        self._passed += 1
        if self._before is not None and run.next_record == self._record:
            length = run.at - self._at
            if length % self._unit == 0:
                later = self._later(run, length, until)
                if later is not None:
                    self._restart()
                    return later
        elif self._before is not None:
            self._restart()
        if self._before is None or self._passed >= self._most:
            self._take(run)
        return None

    def _take(self, run: Run) -> None:
        """Compare later states with those of this instant, for twice as many boundaries as before."""
        run.complete()
        self._at, self._record = run.at, run.next_record
        self._before = {key: line.state.copy() for key, line in run.lines.items()}
        rates = [claim.rate(run.at) for line in run.lines.values() for claim in line.active.values()]
        self._unit = lcm(*(den // gcd(num, den) for num, den in rates))
        self._passed, self._most = 0, 2 * self._most

    def _later(self, run: Run, length: int, until: Instant) -> Run | None:
        run.complete()
        states = {key: line.state for key, line in run.lines.items()}
        changes: dict[AccountId, _Change] = {}
        for key, state in states.items():
            change = _change((self._before or {})[key], state, length, run.lines[key].rule.credit)
            if change is None:
                return None
            changes[key] = change
        ends = [allowance.expires for state in states.values() for allowance in state.grants]
        ends += [state.period.expires for key, state in states.items() if not changes[key].is_renewed]
        last = min(end - 1 for end in (until, run.next_record, *ends) if end is not None)
        times = (last - run.at) // length
        for change in changes.values():
            if change.drawn:
                times = min(times, change.room // change.drawn - 1)
        times = self._as_the_calendar_says(run, changes, length, times)
        if times < 1:
            return None
        return Run({key: _after(state, changes[key], length, times) for key, state in states.items()}, self._forest)

    def _as_the_calendar_says(self, run: Run, changes: Mapping[AccountId, _Change], length: int, times: int) -> int:
        """Return how many times the periods that are renewed in the cycle are as long as they were in it."""
        renewed = {
            (line.rule.calendar, line.state.period.expires): line.rule
            for key, line in run.lines.items()
            if changes[key].is_renewed
        }
        found, step = 0, max(_CHECK_EVERY_MS // length, 1)
        while found < times:
            there = min(found + step, times)
            for (_, end), rule in renewed.items():
                later = Instant((end or 0) + there * length)
                if period_allowance(rule, Instant(later - 1))[1].expires != later:
                    return found
            found = there
        return times


def _change(before: BudgetState, after: BudgetState, length: int, credit: int) -> _Change | None:
    """Return how a cycle changed a budget; None if it is not certain that another one changes it likewise."""
    ends = before.period.expires, after.period.expires
    is_renewed = ends[0] is not None and ends[1] == ends[0] + length
    if ends[0] != ends[1] and not is_renewed:
        return None
    if (before.exhausted, before.barred, before.period.booked, before.period.repaid, len(before.grants)) != (
        after.exhausted, after.barred, after.period.booked, after.period.repaid, len(after.grants)
    ):  # fmt: skip
        return None
    owed, overdrawn = after.debt - before.debt, after.overdrawn - before.overdrawn
    olds, news = [before.period, *before.grants], [after.period, *after.grants]
    drawn = {i: o.left - n.left for i, (o, n) in enumerate(zip(olds, news, strict=True)) if o.left != n.left}
    if owed < 0 or overdrawn < 0 or len(drawn) > 1 or any(amount < 0 for amount in drawn.values()):
        return None
    if not drawn and not overdrawn:
        return _Change(is_renewed, 0, None, 0, owed)
    if is_renewed and (overdrawn or 0 in drawn):
        return None  # what a period has depends on those before it
    if not drawn:
        return _Change(is_renewed, overdrawn, None, after.balance + credit, owed)
    ((allowance, amount),) = drawn.items()
    if after.overdrawn:
        return None
    return _Change(is_renewed, amount, allowance, news[allowance].left, owed)


def _after(state: BudgetState, change: _Change, length: int, times: int) -> BudgetState:
    """Return a budget's state after some cycles."""
    later = state.copy()
    later.at = Instant(state.at + times * length)
    later.debt = GpuMilliseconds(state.debt + times * change.owed)
    if change.is_renewed and later.period.expires is not None:
        later.period.expires = Instant(later.period.expires + times * length)
    drawn = times * change.drawn
    if change.allowance is None:
        later.overdrawn = GpuMilliseconds(later.overdrawn + drawn)
    else:
        allowance = [later.period, *later.grants][change.allowance]
        allowance.left = GpuMilliseconds(allowance.left - drawn)
    return later
