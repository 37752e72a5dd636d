# SPDX-License-Identifier: Apache-2.0
"""The time line against a short oracle that walks millisecond by millisecond."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from timekeeper import timeline
from timekeeper.ledger import entries
from timekeeper.records import Claim, Grant, Records, Rule, Withdrawal
from timekeeper.timeline import advance, begin, run_out

SHORT = {"hour": 40, "day": 100, "week": 150, "month": 230}


def short_bounds(instant: int, period: str, zone: str) -> tuple[int, int] | None:
    """Periods of some milliseconds, so that the oracle may walk through many; zones shift them."""
    if period == "none":
        return None
    length, shift = SHORT[period], len(zone)
    start = (instant - shift) // length * length + shift
    return start, start + length


@pytest.fixture(autouse=True)
def _short_periods(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timeline, "bounds", short_bounds)


def rounded(exact: Fraction) -> int:
    return (exact + Fraction(1, 2)).__floor__()


@dataclass
class Oracle:
    """Walks the time line in steps of one millisecond, with none of the shortcuts."""

    records: Records
    balance: int = 0
    buckets: list[list[object]] = field(default_factory=list)
    exhausted: bool = False
    debt: int = 0
    used: int = 0
    over: int = 0
    charged: Counter[str] = field(default_factory=Counter)
    unpaid: Counter[str] = field(default_factory=Counter)
    overdrawn: int = 0
    credit: int = 0
    open: bool = True
    so_far: dict[str, tuple[int, Fraction]] = field(default_factory=dict)
    looked: dict[str, tuple[int, Fraction]] = field(default_factory=dict)

    def left(self) -> int:
        return sum(bucket[1] for bucket in self.buckets)

    def spendable(self) -> int:
        return self.left() - self.overdrawn + self.credit if self.open else 0

    def take(self, amount: int) -> None:
        for bucket in sorted(self.buckets, key=lambda b: (b[3], b[2] is None, b[2] or 0, b[0] != "period")):
            part = min(bucket[1], amount)
            bucket[1] -= part
            amount -= part
        self.overdrawn += amount

    def walk(self, begin_at: int, until: int) -> Oracle:
        rules = {rule.since: rule for rule in self.records.rules[1:] if rule.since > begin_at}
        rule = [r for r in self.records.rules if r.since <= begin_at or r is self.records.rules[0]][-1]
        period = short_bounds(begin_at, rule.period, rule.zone)
        mine = ["period", rule.amount, period and period[1], 0]
        total = rule.amount
        self.buckets = [mine]
        self.credit, self.open = rule.credit, rule.open
        self.exhausted = self.spendable() <= 0
        for t in range(begin_at + 1, until + 1):
            self.consume(t)
            if self.spendable() <= 0:
                self.exhausted = True
            raised = False
            self.buckets = [b for b in self.buckets if b is mine or b[2] != t]
            over, new = mine[2] == t, rules.get(t)
            if new and not over and (new.period, new.zone) == (rule.period, rule.zone):
                spent, total = total - mine[1], total - rule.amount + new.amount
                left = max(0, total - spent)
                raised, mine[1], rule = left > mine[1], left, new
            elif new or over:
                kept = min(mine[1], rule.rollover) if over else 0
                rule = new or rule
                period = short_bounds(t, rule.period, rule.zone)
                mine[1:3] = [rule.amount + kept, period and period[1]]
                total, raised, self.used, self.over = rule.amount + kept, rule.amount + kept > 0, 0, 0
            raised = raised or rule.credit > self.credit or (rule.open and not self.open)
            self.credit, self.open = rule.credit, rule.open
            for grant in self.records.grants:
                if grant.since == t:
                    self.buckets.append([grant.key, grant.amount, grant.until, grant.priority])
                    raised = True
            self.take(sum(w.amount for w in self.records.withdrawals if w.at == t))
            if raised:
                owed, self.overdrawn = self.overdrawn, 0
                self.take(owed)
                paid = min(self.debt, max(self.left() - self.overdrawn, 0))
                self.debt -= paid
                self.take(paid)
            if raised and self.spendable() > 0:
                self.exhausted = False
            if self.spendable() <= 0:
                self.exhausted = True
        steps = self.steps(until + 1)
        self.exhausted = self.exhausted or sum(steps.values()) > self.spendable()
        return self

    def steps(self, t: int) -> dict[str, int]:
        """Return each claim's charge for the millisecond that ends at t."""
        steps = {}
        for claim in self.records.claims:
            if claim.start < t and (claim.end is None or t <= claim.end):
                _, before = self.so_far.get(claim.key, (0, Fraction(0)))
                now = before + self.price(claim, t - 1)
                self.looked[claim.key] = (t, now)
                steps[claim.key] = rounded(now) - rounded(before)
        return steps

    def price(self, claim: Claim, t: int) -> Fraction:
        """Return the claim's rate in the millisecond that begins at t."""
        return [Fraction(n, d) for since, n, d in ((claim.start, claim.num, claim.den), *claim.turns) if since <= t][-1]

    def consume(self, t: int) -> None:
        """Charge the millisecond that ends at t."""
        steps = self.steps(t)
        total = sum(steps.values())
        if not self.exhausted and total > self.spendable():
            self.exhausted = True
        if self.exhausted:
            self.over += total
            self.debt += total if self.records.carry else 0
            self.unpaid.update(steps)
        else:
            self.used += total
            self.take(total)
            self.charged.update(steps)
        self.so_far |= self.looked


rates = st.sampled_from([(1, 1), (1, 2), (1, 3), (2, 3), (7, 10), (9, 4), (4, 1), (1, 100), (0, 1), (15 * 256, 40960)])


@st.composite
def histories(draw: st.DrawFn) -> Records:
    claims = []
    for index in range(draw(st.integers(0, 5))):
        start = draw(st.integers(1000, 1200))
        end = draw(st.one_of(st.none(), st.integers(0, 200)))
        num, den = draw(rates)
        at = sorted(draw(st.lists(st.integers(start + 1, start + 150), max_size=2, unique=True)))
        turns = tuple((turn, *draw(rates)) for turn in at)
        claims.append(Claim(f"pod-{index}", start, None if end is None else start + end, num, den, turns))
    amounts = st.integers(0, 200)
    periods, zones = st.sampled_from(["none", *SHORT]), st.sampled_from(["UTC", "Asia/Kolkata"])
    few = st.sampled_from([0, 0, 0, 7, 60])
    shut = st.sampled_from([True, True, True, False])
    rules = [Rule(0, draw(amounts), draw(periods), draw(zones), draw(few), draw(few), draw(shut))]
    for since in sorted(draw(st.sets(st.integers(1000, 1300), max_size=3))):
        same = draw(st.booleans())
        last = rules[-1]
        rules.append(
            Rule(
                since,
                draw(amounts),
                last.period if same else draw(periods),
                last.zone if same else draw(zones),
                draw(few),
                draw(few),
                draw(shut),
            )
        )
    grants = []
    for index, since in enumerate(draw(st.lists(st.integers(1000, 1300), max_size=3))):
        until = draw(st.one_of(st.none(), st.integers(1, 150)))
        grants.append(
            Grant(
                f"grant-{index}",
                draw(st.integers(1, 120)),
                since,
                None if until is None else since + until,
                priority=draw(st.integers(-1, 1)),
            )
        )
    moves = st.tuples(st.integers(1000, 1300), st.integers(1, 80))
    withdrawals = [
        Withdrawal(f"w{i}", n, at, "withdrawal") for i, (at, n) in enumerate(draw(st.lists(moves, max_size=2)))
    ]
    grants.sort(key=lambda grant: (grant.since, grant.key))
    return Records(claims, rules, grants, carry=draw(st.booleans()), withdrawals=withdrawals)


def totals(records: Records, outcome: timeline.Outcome) -> tuple[Counter[str], Counter[str]]:
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
        assert state.balance >= -max(rule.credit for rule in records.rules)
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
    for anchor in whole.anchors:
        rest = advance(anchor, records, until)
        assert rest.state == whole.state
        assert sorted(rest.postings) == sorted(p for p in whole.postings if p.at > anchor.at)


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
    if records.carry:
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


def test_debt_is_taken_from_the_next_allowance_only_where_it_is_carried() -> None:
    claims = [Claim("a", 100, 150, 1, 1)]
    grants = [Grant("g", 100, 200, None)]
    rule = [Rule(0, 10, "none", "UTC")]
    forgiven = Records(claims, rule, grants)
    carried = Records(claims, rule, grants, carry=True)
    assert advance(begin(forgiven, 300), forgiven, 300).state.balance == 100
    outcome = advance(begin(carried, 300), carried, 300)
    assert (outcome.state.balance, outcome.state.debt) == (60, 0)
    assert [p.amount for p in outcome.postings if p.kind == "debt"] == [40]
