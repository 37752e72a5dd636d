# SPDX-License-Identifier: Apache-2.0
"""Forecast when budgets will be used up if the pods that run now continue. Pure.

A forecast is exact as far as it looks, and looks only as far as a bounded effort permits: it is made again after each
change of a budget's records or period, on behalf of callers who wait for it. Periods that certainly suffice, and
cycles that repeat, are not walked through one by one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from slicekeeper.units import MS_PER_DAY, MS_PER_HOUR, GpuMilliseconds, Instant
from timekeeper.core.account import AccountId
from timekeeper.core.accumulated_charge import Claim
from timekeeper.core.budget_record import Forest, Records
from timekeeper.core.budget_state import Allowance, BudgetState, rule_at
from timekeeper.core.hierarchy import parents_at
from timekeeper.core.repetition import Repetition
from timekeeper.core.timeline import Run

_AHEAD: Final = 400 * MS_PER_DAY
_STEPS: Final = 3_000
"""The effort of a forecast: instants at which something happens, times budgets that pods draw on."""

_BOUNDARIES: Final = 6
"""How many ends of periods are looked at in any case, however many budgets there are."""

_LONGEST: Final = {
    "hour": MS_PER_HOUR,
    "day": 26 * MS_PER_HOUR,
    "week": 7 * MS_PER_DAY + 2 * MS_PER_HOUR,
    "month": 31 * MS_PER_DAY + 2 * MS_PER_HOUR,
    "year": 366 * MS_PER_DAY + 2 * MS_PER_HOUR,
}
"""No period is longer, whatever clock changes it contains."""

_SCALE: Final = 2**20
_PLENTY: Final = GpuMilliseconds(2**80)


@dataclass(frozen=True)
class Forecast:
    """When budgets will have nothing left, of those that have now, or when one above them will have nothing."""

    run_outs: dict[AccountId, Instant]
    until: Instant | None
    """How far it looked; None: nothing will happen later than what it found."""


def forecast(states: Mapping[AccountId, BudgetState], forest: Forest) -> Forecast:
    """Return when budgets that have time left, and all above them too, will have none if open claims continue."""
    states, forest = _drawn_on(states, forest)
    if not states:
        return Forecast({}, None)
    waiting = {key for key, state in states.items() if not state.over_budget}
    states, forest = _without_ample_periods(states, forest)
    run, repetition = Run(states, forest), Repetition(forest)
    found: dict[AccountId, Instant] = {}
    furthest = Instant(run.at + _AHEAD)

    def note(before: Instant) -> None:
        for key in list(waiting):
            state = run.lines[key].state
            if state.over_budget and state.since < before:
                found[key] = state.since
                waiting.remove(key)

    moves = boundaries = 0
    while waiting and (boundary := run.next_boundary(furthest)) is not None:
        if moves * len(states) > _STEPS and boundaries >= _BOUNDARIES:
            return Forecast(found, run.at)
        before = run.moves
        run.move(boundary)
        note(boundary)
        run.apply()
        note(Instant(boundary + 1))
        moves, boundaries = moves + run.moves - before, boundaries + 1
        if waiting:
            run = repetition.skip(run, furthest) or run
    if waiting:
        run.move(furthest)
        note(Instant(furthest + 1))
    return Forecast(found, furthest if waiting else None)


def _drawn_on(states: Mapping[AccountId, BudgetState], forest: Forest) -> tuple[dict[AccountId, BudgetState], Forest]:
    """Return the budgets that claims which go on are charged to, or may be, and only those claims."""
    claims = {key: [c for c in mine.claims if c.goes_on(states[key].at)] for key, mine in forest.records.items()}
    at = min((state.at for state in states.values()), default=Instant(0))
    pairs = {*parents_at(forest.links, at).items()}
    pairs |= {(link.child, link.parent) for link in forest.links if link.since > at and link.parent is not None}
    refunded = {
        key
        for key, mine in forest.records.items()
        if any(grant.kind == "refund" and grant.since > at for grant in mine.grants)
    }
    kept, found = set[AccountId](), refunded | {key for key, mine in claims.items() if mine}
    while found:
        kept |= found
        found = {parent for child, parent in pairs if child in found} - kept
    records = {key: replace(mine, claims=claims[key]) for key, mine in forest.records.items() if key in kept}
    links = [link for link in forest.links if link.child in kept and (link.parent is None or link.parent in kept)]
    return {key: states[key] for key in records}, Forest(records, links)


def _without_ample_periods(
    states: dict[AccountId, BudgetState], forest: Forest
) -> tuple[dict[AccountId, BudgetState], Forest]:
    """Replace periods by an allowance without an end in budgets whose pods can't use up any of them.

    Their periods then end without consequence, and no boundary of the forecast is spent on them.
    """
    at = next(iter(states.values())).at
    if any(link.since > at for link in forest.links):
        return states, forest
    above = parents_at(forest.links, at)
    rates, pods = Counter[AccountId](), Counter[AccountId]()
    for key, mine in forest.records.items():
        rate = sum(map(_highest_rate, mine.claims))
        up: AccountId | None = key
        while up is not None:
            rates[up] += rate
            pods[up] += len(mine.claims)
            up = above.get(up)
    new_states, records = dict(states), dict(forest.records)
    for key, mine in forest.records.items():
        if _is_ample(states[key], mine, rates[key], pods[key]):
            rule = replace(rule_at(mine.rules, at), period="none", anchor=None)
            new_states[key] = state = states[key].copy()
            state.period, state.grants = Allowance("period:none", _PLENTY, _PLENTY, None, booked=True), []
            records[key] = replace(mine, rules=[rule], grants=[g for g in mine.grants if g.kind == "refund"])
    return new_states, Forest(records, forest.links)


def _highest_rate(claim: Claim) -> int:
    """Return the highest rate that a claim will have, in parts of a GPU (`_SCALE`), rounded up."""
    turns = ((claim.num, claim.den), *((num, den) for _, num, den in claim.rate_changes))
    return max(-(-num * _SCALE // den) for num, den in turns)


def _is_ample(state: BudgetState, mine: Records, rate: int, pods: int) -> bool:
    """Return whether a budget's pods, at their highest rates, leave something of this period and of all later ones."""
    rule, ends = rule_at(mine.rules, state.at), state.period.expires
    if ends is None or state.exhausted or state.debt or state.overdrawn or not rule.open:
        return False
    if mine.withdrawals or any(later.since > state.at for later in mine.rules):
        return False

    def most(length: int) -> int:  # each pod's charge is rounded
        return rate * length // _SCALE + 1 + pods

    return most(ends - state.at) < state.balance and most(_LONGEST[rule.period]) < rule.amount
