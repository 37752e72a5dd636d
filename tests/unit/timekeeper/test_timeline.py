# SPDX-License-Identifier: Apache-2.0
"""The time line against a short oracle that walks millisecond by millisecond."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.timeline_oracle import Oracle, histories, rounded, short_bounds

from timekeeper.core import budget_state as budget_core
from timekeeper.core import forecast, timeline
from timekeeper.core.accumulated_charge import Claim
from timekeeper.core.budget_record import Debt, Forest, GrantRecord, Records, Rule
from timekeeper.core.budget_state import BudgetState
from timekeeper.core.posting import Posting, entries
from timekeeper.core.timeline import begin


@pytest.fixture(autouse=True)
def _short_periods(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget_core, "bounds", short_bounds)


@dataclass
class Outcome:
    """What becomes of a budget without a parent."""

    state: BudgetState
    postings: list[Posting]
    checkpoints: list[BudgetState]


def advance(state: BudgetState, records: Records, until: int, *, every: int = 0, settled: int = 0) -> Outcome:
    found = timeline.advance({1: state}, Forest({1: records}), until, every=every, settled=settled)
    return Outcome(found.states[1], found.postings[1], [checkpoint[1] for checkpoint in found.checkpoints])


def run_out(state: BudgetState, records: Records) -> int | None:
    return forecast.forecast({1: state}, Forest({1: records})).run_outs.get(1)


def totals(records: Records, outcome: Outcome) -> tuple[Counter[str], Counter[str]]:
    """Return each claim's charges by account: postings, and the stretch that is still open."""
    charged: Counter[str] = Counter()
    over: Counter[str] = Counter()
    for posting in outcome.postings:
        if posting.kind in ("charge", "over-budget"):
            (charged if posting.kind == "charge" else over)[posting.key] += posting.amount
    state = outcome.state
    for claim in records.claims:
        if claim.start < state.at and (claim.end is None or claim.end > state.at):
            part = claim.gross(state.at) - claim.gross(max(claim.start, state.cut))
            (over if state.exhausted else charged)[claim.key] += part
    return charged, over


def without_zeros(counter: Counter[str]) -> dict[str, int]:
    return {key: amount for key, amount in counter.items() if amount}


@settings(max_examples=250, deadline=None)
@given(histories(), st.integers(1000, 1450))
def test_the_time_line_is_what_a_walk_by_milliseconds_gives(records: Records, until: int) -> None:
    start = begin(records, until)
    outcome = advance(start, records, until)
    oracle = Oracle(records).walk(start.at, until)
    charged, over = totals(records, outcome)
    assert without_zeros(charged) == without_zeros(oracle.charged)
    assert without_zeros(over) == without_zeros(oracle.unpaid)
    state = outcome.state
    assert (state.exhausted, state.debt) == (oracle.exhausted, oracle.debt)
    assert state.balance == oracle.left() - oracle.overdrawn
    if not records.withdrawals:
        lowered = sum(max(0, before.amount - after.amount) for before, after in pairwise(records.rules))
        assert state.balance >= -max(rule.credit for rule in records.rules) - lowered
    if any(claim.end is None for claim in records.claims):
        assert (state.used, state.over) == (oracle.used, oracle.over)


@settings(max_examples=150, deadline=None)
@given(histories(), st.integers(1000, 1400), st.lists(st.integers(1000, 1400), max_size=4))
def test_it_does_not_matter_when_anybody_looked(records: Records, until: int, looks: list[int]) -> None:
    at_once = advance(begin(records, until), records, until)
    state, postings = begin(records, until), []
    for look in sorted({*(look for look in looks if look <= until), until}):
        if look < state.at:
            continue
        outcome = advance(state, records, look)
        state, postings = outcome.state, postings + outcome.postings
    assert sorted(postings) == sorted(at_once.postings)
    assert state == at_once.state


@settings(max_examples=100, deadline=None)
@given(histories(), st.integers(1000, 1400))
def test_settling_goes_on_from_any_anchor(records: Records, until: int) -> None:
    whole = advance(begin(records, until), records, until, every=1, settled=until)
    for checkpoint in whole.checkpoints:
        assert checkpoint == advance(begin(records, until), records, checkpoint.at).state
        rest = advance(checkpoint, records, until)
        assert rest.state == whole.state
        assert sorted(rest.postings) == sorted(p for p in whole.postings if p.at > checkpoint.at)


@settings(max_examples=100, deadline=None)
@given(histories(), st.integers(1200, 1600))
def test_postings_cover_an_interval_exactly_and_sum_to_its_charge(records: Records, until: int) -> None:
    ended = [replace(claim, end=claim.end or claim.start + 77) for claim in records.claims]
    records = replace(records, claims=ended)
    outcome = advance(begin(records, until), records, until)
    for claim in ended:
        mine = sorted(p for p in outcome.postings if p.key == claim.key and p.kind in ("charge", "over-budget"))
        if claim.end is None or claim.end > until:
            continue
        edges = [claim.start, *(p.at for p in mine)]
        assert [p.start for p in mine] == edges[:-1]
        assert edges[-1] == claim.end
        price = Oracle(records).price
        exact = sum((price(claim, t) for t in range(claim.start, claim.end)), Fraction(0))
        assert sum(p.amount for p in mine) == rounded(exact)


@settings(max_examples=100, deadline=None)
@given(histories(), st.integers(1000, 1500))
def test_every_posting_sums_to_zero_and_the_budget_account_is_the_balance(records: Records, until: int) -> None:
    ended = [replace(claim, end=min(claim.end or until, until)) for claim in records.claims if claim.start <= until]
    records = replace(records, claims=ended)
    outcome = advance(begin(records, until), records, until)
    accounts: Counter[str] = Counter()
    for posting in outcome.postings:
        assert sum(amount for _, amount in entries(posting)) == 0
        accounts.update(dict(entries(posting)))
    unbooked = 0 if outcome.state.period.booked else outcome.state.period.left
    assert accounts["budget"] == outcome.state.balance - unbooked
    assert accounts["unfunded"] == -accounts["over-budget"] + sum(
        p.amount for p in outcome.postings if p.kind == "debt"
    )
    if all(debt.carry for debt in records.debts):
        assert outcome.state.debt == -accounts["unfunded"]


@settings(max_examples=100, deadline=None)
@given(histories(), st.integers(1000, 1300))
def test_the_forecast_is_when_it_happens(records: Records, now: int) -> None:
    state = advance(begin(records, now), records, now).state
    going_on = replace(records, claims=[c for c in records.claims if c.start <= now and (c.end is None or c.end > now)])
    going_on = replace(going_on, claims=[replace(c, end=None) for c in going_on.claims])
    foreseen = run_out(state, going_on)
    later = advance(state, going_on, now + 3_000)
    if foreseen is None:
        return
    assert not state.exhausted
    at = advance(state, going_on, foreseen).state
    assert (at.exhausted, at.since) == (True, foreseen)
    assert not advance(state, going_on, foreseen - 1).state.exhausted
    assert later.state.at == now + 3_000


def test_four_quarters_of_a_gpu_for_an_hour_are_one_gpu_hour() -> None:
    claims = [Claim(f"pod-{i}", 1_000_000, 4_600_000, 1, 4) for i in range(4)]
    records = Records(claims, [Rule(0, 3_600_000, "none", "UTC")])
    outcome = advance(begin(records, 5_000_000), records, 5_000_000)
    assert sum(p.amount for p in outcome.postings if p.kind == "charge") == 3_600_000
    # Each pod's charge is rounded half up, so the last millisecond of each is charged two milliseconds before the end.
    assert sum(p.amount for p in outcome.postings if p.kind == "over-budget") == 0
    assert (outcome.state.exhausted, outcome.state.since) == (True, 4_599_998)


def test_a_crossing_splits_at_the_first_millisecond_that_would_exceed() -> None:
    records = Records([Claim("a", 100, None, 9, 4)], [Rule(0, 11, "none", "UTC")])
    state = advance(begin(records, 200), records, 200).state
    # 9/4 a millisecond: 2, 5, 7, 9, 11 after one to five of them; the sixth would make it 14.
    assert (state.exhausted, state.since, state.balance) == (True, 105, 0)


def test_idle_periods_cost_nothing_and_leave_nothing_in_the_ledger() -> None:
    records = Records([Claim("a", 10, 20, 1, 1), Claim("b", 400_010, 400_020, 1, 1)], [Rule(0, 15, "hour", "UTC")])
    outcome = advance(begin(records, 500_000), records, 500_000)
    assert Counter(p.kind for p in outcome.postings) == {"charge": 2, "allowance": 2, "expiry": 2}


def test_a_rule_that_begins_with_a_period_after_idle_ones_is_followed_alike_whenever_anybody_looked() -> None:
    records = Records([], [Rule(0, 5, "hour", "UTC"), Rule(163, 5, "day", "UTC", used="reset")], opened=10)
    looked = advance(advance(begin(records, 170), records, 130).state, records, 170)
    assert looked.state == advance(begin(records, 170), records, 170).state


def test_debt_is_taken_from_the_next_allowance_only_where_it_is_carried() -> None:
    claims = [Claim("a", 100, 150, 1, 1)]
    grants = [GrantRecord("g", 100, 200, None)]
    rule = [Rule(0, 10, "none", "UTC")]
    forgiven = Records(claims, rule, grants)
    carried = Records(claims, rule, grants, debts=[Debt(0, carry=True)])
    assert advance(begin(forgiven, 300), forgiven, 300).state.balance == 100
    outcome = advance(begin(carried, 300), carried, 300)
    assert (outcome.state.balance, outcome.state.debt) == (60, 0)
    assert [p.amount for p in outcome.postings if p.kind == "debt"] == [40]


@pytest.mark.parametrize(("carry", "owed"), [((False, True), 30), ((True, False), 10), ((True, False, True), 10 + 15)])
def test_time_over_budget_is_owed_as_the_rule_of_its_own_time_says(carry: tuple[bool, ...], owed: int) -> None:
    debts = [Debt(since, one) for since, one in zip((0, 120, 135), carry, strict=False)]
    records = Records(
        [Claim("a", 100, 150, 1, 1)], [Rule(0, 10, "none", "UTC")], [GrantRecord("g", 100, 200, None)], (), debts
    )
    outcome = advance(begin(records, 300), records, 300)
    assert (outcome.state.balance, outcome.state.debt, outcome.state.over) == (100 - owed, 0, 40)
    assert [p.amount for p in outcome.postings if p.kind == "debt"] == [owed]
    looked = advance(advance(begin(records, 300), records, 120).state, records, 300)
    assert looked.state == outcome.state
