# SPDX-License-Identifier: Apache-2.0
"""Forecast when budgets will be used up if the pods that run now continue. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

from slicekeeper.units import MS_PER_DAY, Instant
from timekeeper.core.account import AccountId
from timekeeper.core.budget_record import Forest
from timekeeper.core.budget_state import BudgetState
from timekeeper.core.timeline import Run

_PERIODS_AHEAD = {"none": 1, "hour": 2, "day": 2, "week": 2, "month": 12, "year": 2}
_DAYS_AHEAD = 400
_STEPS = 20_000
"""The maximum effort of a forecast: boundaries times budgets."""


def run_outs(states: Mapping[AccountId, BudgetState], forest: Forest) -> dict[AccountId, Instant]:
    """Return when budgets that have time left, and all above them too, will have none if open claims continue.

    A budget that is not in the answer has none already, has no running pods, or cannot be predicted.
    """
    going_on = {
        key: replace(records, claims=[c for c in records.claims if c.goes_on(states[key].at)], debts=())
        for key, records in forest.records.items()
    }
    run = Run(states, Forest(going_on, forest.links))
    found: dict[AccountId, Instant] = {}
    used = {one.key for key, records in going_on.items() if records.claims for one in run.lines[key].chain}
    waiting = {key: line for key, line in run.lines.items() if key in used and not line.state.over_budget}
    furthest = Instant(run.at + _DAYS_AHEAD * MS_PER_DAY)
    periods: Counter[AccountId] = Counter()

    def note(before: Instant) -> None:
        for key, line in list(waiting.items()):
            if line.state.over_budget and line.state.since < before:
                found[key] = waiting.pop(key).state.since

    for _ in range(max(_STEPS // len(run.lines), 50)):
        boundary = run.next_boundary(furthest)
        if boundary is None or not waiting:
            break
        run.move(boundary)
        note(boundary)
        periods.update(key for key, line in run.lines.items() if line.state.period.expires == boundary)
        spent = {key for key, line in run.lines.items() if periods[key] > _PERIODS_AHEAD[line.rule.period]}
        for key in [key for key, line in waiting.items() if all(one.key in spent for one in line.chain)]:
            del waiting[key]
        run.apply()
        note(Instant(boundary + 1))
    else:
        return found
    if waiting:
        run.move(furthest)
        note(Instant(furthest + 1))
    return found
