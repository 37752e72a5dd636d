# SPDX-License-Identifier: Apache-2.0
"""Budgets under each other: the joint time line against an oracle that walks it by milliseconds, and exact splits."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import timeline_oracle
from support.timeline_oracle import (
    SHORT,
    YEAR,
    ForestOracle,
    bounds_with_a_clock_change,
    forests,
    short_bounds,
    steady_forests,
)

from slicekeeper.units import Instant
from timekeeper.core import budget_state as budget_core
from timekeeper.core import forecast as forecast_core
from timekeeper.core import repetition
from timekeeper.core.accumulated_charge import Claim
from timekeeper.core.budget_record import Debt, Forest, Link, Records, Rule
from timekeeper.core.forecast import forecast
from timekeeper.core.hierarchy import chain
from timekeeper.core.posting import Posting
from timekeeper.core.timeline import TimelineOutcome, advance, begin_all


@pytest.fixture(autouse=True)
def _short_periods(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget_core, "bounds", short_bounds)


def whole(forest: Forest, until: int) -> TimelineOutcome:
    return advance(begin_all(forest, until), forest, until)


def charged(forest: Forest, outcome: TimelineOutcome, kind: str) -> Counter[str]:
    """Return each pod's charges of a kind: posted, and of the stretch that is still open."""
    found: Counter[str] = Counter()
    for key, records in forest.records.items():
        state = outcome.states[key]
        for posting in outcome.postings[key]:
            if posting.kind == kind and not posting.key.startswith("child:"):
                found[posting.key] += posting.amount
        for claim in records.claims:
            open_now = claim.start < state.at and (claim.end is None or claim.end > state.at)
            if open_now and state.over_budget == (kind == "over-budget"):
                found[claim.key] += claim.gross(state.at) - claim.gross(max(claim.start, state.cut))
    return +found


@settings(max_examples=200, deadline=None)
@given(forests(), st.integers(1000, 1450))
def test_budgets_under_each_other_are_what_a_walk_by_milliseconds_gives(forest: Forest, until: int) -> None:
    start = begin_all(forest, until)
    outcome = advance(start, forest, until)
    oracle = ForestOracle(forest).walk(min(state.at for state in start.values()), until)
    want = {
        kind: +sum((getattr(b, name) for b in oracle.budgets.values()), Counter[str]())
        for kind, name in (("charge", "charged"), ("over-budget", "unpaid"))
    }
    assert {kind: charged(forest, outcome, kind) for kind in want} == want
    for key, budget in oracle.budgets.items():
        state = outcome.states[key]
        stop = oracle.stop(key)
        assert (key, state.exhausted, state.barred) == (key, budget.exhausted, None if stop == key else stop)
        assert (key, state.balance, state.debt) == (key, budget.left() - budget.overdrawn, budget.debt)
        if any(claim.end is None for claim in forest.records[key].claims):
            assert (key, state.used, state.over) == (key, budget.used, budget.over)


def test_what_is_used_up_is_exhausted_though_one_below_turns_at_the_same_instant() -> None:
    team = Records([Claim("p", 1000, None, 2, 1)], [Rule(0, 5, "none", "UTC")], debts=[Debt(0, carry=True)])
    lab = Records([], [Rule(0, 4, "none", "UTC")], debts=[Debt(0, carry=True)])
    states = whole(Forest({1: team, 20: lab}, [Link(1, 20, 999)]), 1005).states
    assert (states[1].exhausted, states[1].barred, states[20].exhausted) == (False, 20, True)
    assert (states[1].balance, states[20].balance, states[1].debt, states[20].debt) == (1, 0, 0, 6)


@settings(max_examples=100, deadline=None)
@given(forests(), st.integers(1000, 1400), st.lists(st.integers(1000, 1400), max_size=4))
def test_it_does_not_matter_when_anybody_looked(forest: Forest, until: int, looks: list[int]) -> None:
    at_once = whole(forest, until)
    states, postings = begin_all(forest, until), {key: list[Posting]() for key in forest.records}
    for look in sorted({*(look for look in looks if look <= until), until}):
        if look < max(state.at for state in states.values()):
            continue
        outcome = advance(states, forest, look)
        states = outcome.states
        for key, mine in outcome.postings.items():
            postings[key] += mine
    assert {k: sorted(p) for k, p in postings.items()} == {k: sorted(p) for k, p in at_once.postings.items()}
    assert states == at_once.states


@settings(max_examples=60, deadline=None)
@given(forests(), st.integers(1000, 1400))
def test_settling_goes_on_from_any_anchor(forest: Forest, until: int) -> None:
    outcome = advance(begin_all(forest, until), forest, until, every=1, settled=until)
    for checkpoint in outcome.checkpoints:
        rest = advance(begin_all(forest, until) | checkpoint, forest, until)
        assert rest.states == outcome.states
        at = next(iter(checkpoint.values())).at
        then = advance(begin_all(forest, until), forest, at).states
        assert checkpoint == {key: then[key] for key in checkpoint}
        for key, mine in rest.postings.items():
            assert sorted(mine) == sorted(p for p in outcome.postings[key] if p.at > at)


def test_an_anchor_where_one_period_ends_has_the_others_of_that_instant() -> None:
    """Nothing happens in any budget; the first one's hours are passed over up to the end, beyond the second's day."""
    rules = {1: Rule(0, 5, "hour", "UTC"), 2: Rule(0, 5, "day", "UTC")}
    forest = Forest({key: Records([], [rule], opened=10) for key, rule in rules.items()}, [Link(1, 2, 20)])
    for checkpoint in advance(begin_all(forest, 180), forest, 180, every=1, settled=180).checkpoints:
        at = checkpoint[1].at
        assert checkpoint == advance(begin_all(forest, 180), forest, at).states
        assert all(state.period.expires is None or state.period.expires > at for state in checkpoint.values())
        assert all(state.period_start is None or state.period_start <= at for state in checkpoint.values())


@settings(max_examples=60, deadline=None)
@given(forests(), st.integers(1000, 1400))
def test_a_budget_above_consumed_what_those_below_were_charged_meanwhile(forest: Forest, until: int) -> None:
    outcome = whole(forest, until)
    below: Counter[tuple[int, int]] = Counter()
    for key in forest.records:
        for posting in outcome.postings[key]:
            # A posting belongs to the parent the budget had while it ran, not to the one it has at its end.
            if posting.kind in ("charge", "refund"):
                sign, at = (1, posting.at - 1) if posting.kind == "charge" else (-1, posting.at)
                for up in chain(forest.links, key, at)[1:2]:
                    below[up, posting.at] += sign * posting.amount
    mine: Counter[tuple[int, int]] = Counter()
    for key in forest.records:
        for posting in outcome.postings[key]:
            if posting.kind == "charge" and posting.key.startswith("child:"):
                mine[key, posting.at] += posting.amount
            elif posting.kind == "refund" and any(
                posting.key == g.key for k, r in forest.records.items() if k != key for g in r.grants
            ):
                mine[key, posting.at] -= posting.amount
    assert {k: n for k, n in mine.items() if n} == {k: n for k, n in below.items() if n}


def check_forecast(forest: Forest, now: int, horizon: int) -> None:
    """Compare a forecast with a walk by milliseconds."""
    start = begin_all(forest, now)
    states = advance(start, forest, now).states
    seen = forecast(states, forest)
    above = ForestOracle(forest).ever_above
    oracle = ForestOracle(forest).walk(min(state.at for state in start.values()), horizon, begun=now)
    drawn_on = {up for key, mine in forest.records.items() for c in mine.claims if c.goes_on(now) for up in above(key)}
    for key in drawn_on:
        state = states[key]
        happens = next((at for at in oracle.run_outs.get(key, ()) if at >= now), None)
        foreseen = seen.run_outs.get(key)
        if state.over_budget:
            assert foreseen is None
        elif foreseen is not None:
            assert (key, happens) == (key, foreseen if foreseen <= horizon else None)
        elif happens is not None:
            assert seen.until is not None
            assert happens > seen.until


@settings(max_examples=40, deadline=None)
@given(forests(), st.integers(1000, 1300))
def test_the_forecast_is_when_it_happens(forest: Forest, now: int) -> None:
    check_forecast(forest, now, 1_600)


@settings(max_examples=60, deadline=None)
@given(steady_forests(), st.integers(1030, 1100), st.sampled_from([0, 3_000]))
def test_a_forecast_for_short_periods_below_long_ones_is_when_it_happens(forest: Forest, now: int, steps: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        for module in (budget_core, timeline_oracle):
            name = "bounds" if module is budget_core else "short_bounds"
            patch.setattr(module, name, bounds_with_a_clock_change)
        patch.setattr(forecast_core, "_STEPS", steps)
        patch.setattr(forecast_core, "_LONGEST", {**SHORT, "year": YEAR})
        patch.setattr(repetition, "_CHECK_EVERY_MS", 200)
        patch.setattr(forecast_core, "_AHEAD", 3_000)
        check_forecast(forest, now, 2_600)


HOUR = 3_600_000


def hours_below_a_year(amount: int, rates: list[tuple[int, int]]) -> Forest:
    """Return budgets of half an hour by the hour, below one by the year, with a pod in each."""
    opened = 1_790_000_000_000 // HOUR * HOUR
    pods = {key: Claim(f"p{key}", opened + key * 1_000, None, *rate) for key, rate in enumerate(rates, 1)}
    records = {key: Records([pod], [Rule(0, HOUR // 2, "hour", "UTC")], opened=opened) for key, pod in pods.items()}
    records[20] = Records([], [Rule(0, amount, "year", "UTC")], opened=opened)
    return Forest(records, [Link(key, 20, opened + 1) for key in pods])


def test_a_year_is_forecast_exactly_through_thousands_of_hours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    forest = hours_below_a_year(2_000 * HOUR, [(1, 1), (3, 2), (2, 7), (1, 3)])
    states = whole(forest, 1_790_000_300_000).states
    seen = forecast(states, forest)
    assert (seen.run_outs.keys(), seen.until) == ({1, 2, 3, 4, 20}, None)
    at = seen.run_outs[20]
    assert at - 1_790_000_300_000 > 1_000 * HOUR
    assert advance(states, forest, Instant(at - 1)).states[20].exhausted is False
    assert (advance(states, forest, at).states[20].exhausted, seen.run_outs[1] < at) == (True, True)


def test_a_forecast_that_is_too_much_work_says_how_far_it_looked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    forest = hours_below_a_year(1_000 * HOUR, [(81_563, 81_559)] * 9)  # no two hours have the same roundings
    now = 1_790_000_300_000
    seen = forecast(whole(forest, now).states, forest)
    assert seen.run_outs.keys() == set(range(1, 10))
    assert seen.until is not None
    assert seen.until > now + 5 * HOUR


@settings(max_examples=60, deadline=None)
@given(forests(), st.integers(1000, 1400))
def test_a_budget_that_stands_alone_is_settled_alike_with_others_or_without(forest: Forest, until: int) -> None:
    alone = Forest(forest.records)
    together = whole(alone, until)
    for key, records in forest.records.items():
        single = Forest({key: records})
        found = whole(single, until)
        assert (found.states[key], sorted(found.postings[key])) == (
            together.states[key],
            sorted(together.postings[key]),
        )
