# SPDX-License-Identifier: Apache-2.0
"""A namespace's time line: what its pods are charged, from which account, at every instant. A pure function of records.

Records are claims (pods), rules (budget amount per period) and grants; what comes out is the state at an instant and
the postings that the ledger must hold up to there. It never matters when anybody looked: `advance` from any earlier
state gives the same as from the beginning, so callers keep states as anchors and go on from one.

A claim's cumulative charge is `round_half_up(rate × milliseconds)`, and a part of it is a difference of two such
values: cutting a claim anywhere moves nothing. A namespace is exhausted from the instant at which nothing is left,
or at the start of the first millisecond whose charge would exceed what is left. It stays so until an allowance comes:
a grant, a new period, a raised amount. Charges of exhausted time go to the over-budget account.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction

import msgspec

from timekeeper.periods import bounds
from timekeeper.records import Claim, Grant, Posting, PostingKind, Records, Rule, Withdrawal


class Bucket(msgspec.Struct):
    """An allowance and what is left of it. The period's is booked when the first pod may draw on it."""

    key: str
    amount: int
    left: int
    expires: int | None
    booked: bool
    priority: int = 0


class State(msgspec.Struct):
    """Where a namespace stands at `at`, everything that happened at that instant included."""

    at: int
    period_start: int | None
    period: Bucket
    grants: list[Bucket]
    exhausted: bool
    since: int
    """When `exhausted` last changed."""
    cut: int
    """When the charges' account or the period last changed: no posting goes across it."""
    debt: int = 0
    used: int = 0
    """Charged to the budget in this period."""
    over: int = 0
    """Metered over budget in this period."""
    granted: int = 0
    """Grants that began in this period."""
    overdrawn: int = 0
    """Drawn beyond all allowances: on credit, or by a withdrawal that late knowledge left without cover."""

    @property
    def balance(self) -> int:
        """GPU-milliseconds left; below zero what is owed back."""
        return self.period.left + sum(bucket.left for bucket in self.grants) - self.overdrawn

    def copy(self) -> State:
        """Return a state that may be changed without changing this one."""
        return msgspec.structs.replace(
            self, period=msgspec.structs.replace(self.period), grants=[msgspec.structs.replace(b) for b in self.grants]
        )


@dataclass(frozen=True, slots=True)
class Outcome:
    """The state at the instant asked for, the postings settled since the state before, and anchors on the way."""

    state: State
    postings: list[Posting]
    anchors: list[State]


def begin(records: Records, at: int) -> State:
    """Return the state before anything happened: just before the first record's instant, or at `at`."""
    later = [rule.since for rule in records.rules[1:]]
    moved = [*(g.since for g in records.grants), *(w.at for w in records.withdrawals)]
    firsts = [*(c.start for c in records.claims), *moved, *later]
    at = min([at, *(first - 1 for first in firsts)])
    rule = rule_at(records.rules, at)
    start, end = bounds(at, rule.period, rule.zone) or (None, None)
    return State(
        at=at,
        period_start=start,
        period=_period_bucket(rule, start, end),
        grants=[],
        exhausted=rule.amount + rule.credit == 0 or not rule.open,
        since=at if start is None else start,
        cut=at,
    )


def advance(state: State, records: Records, until: int, *, every: int = 0, settled: int = 0) -> Outcome:
    """Return the outcome at `until` from an earlier state, which is left as it is.

    All records that differ from those `state` was made of must begin after `state.at`. Anchors are taken after each
    `every` boundaries (0: none) that lie before `settled`.
    """
    run = _Run(state, records)
    anchors: list[State] = []
    passed = 0
    while (boundary := run.next_boundary(until)) is not None:
        run.move(boundary)
        run.apply()
        passed += 1
        if every and passed >= every and boundary < settled:
            run.close_window()
            run.look_ahead()
            anchors.append(run.state.copy())
            passed = 0
    run.move(until)
    run.close_window()
    run.look_ahead()
    return Outcome(run.state, run.postings, anchors)


_FORECAST_PERIODS = {"none": 1, "hour": 2, "day": 2, "week": 2, "month": 12, "year": 2}


def run_out(state: State, records: Records) -> int | None:
    """Return when a namespace that has time left will be exhausted if its open claims go on; None: not foreseeable."""
    going_on = [c for c in records.claims if c.end is None]
    run = _Run(state, Records(going_on, records.rules, records.grants, withdrawals=records.withdrawals))
    if state.exhausted or not going_on:
        return None
    furthest = state.at + 400 * 86_400_000
    periods = 0
    while (boundary := run.next_boundary(furthest)) is not None:
        run.move(boundary)
        if run.state.exhausted and run.state.since < boundary:
            return run.state.since
        periods += boundary == run.state.period.expires
        if periods > _FORECAST_PERIODS[run.rule.period]:
            return None
        run.apply()
        if run.state.exhausted:
            return run.state.since
    if run.rule.period == "none":
        run.move(furthest)
    return run.state.since if run.state.exhausted else None


def next_turn(state: State, records: Records) -> int | None:
    """Return the next instant at which an allowance comes or goes by itself."""
    instants = (
        [r.since for r in records.rules] + [g.since for g in records.grants] + [w.at for w in records.withdrawals]
    )
    instants += [b.expires for b in (state.period, *state.grants) if b.expires is not None]
    return min((instant for instant in instants if instant > state.at), default=None)


def rule_at(rules: Sequence[Rule], at: int) -> Rule:
    """Return the rule in force at an instant."""
    return next((rule for rule in reversed(rules) if rule.since <= at), rules[0])


def _period_bucket(rule: Rule, start: int | None, end: int | None) -> Bucket:
    return Bucket(f"period:{'none' if start is None else start}", rule.amount, rule.amount, end, booked=False)


class _Run:
    """One passage along the time line.

    A window is a stretch in which allowances don't change. Within it only the exact sum of the rates is followed;
    the pods' rounded charges are added up where the sum comes near what is left, and when the window closes. So a
    boundary costs little, however many pods run.
    """

    def __init__(self, state: State, records: Records) -> None:
        self.state = state.copy()
        self.records = records
        self.postings: list[Posting] = []
        self.rule = rule_at(records.rules, state.at)
        claims = [c for c in records.claims if c.end is None or (c.end > c.start and c.end > state.at)]
        self.active = {c.key: c for c in claims if c.start <= state.at}
        self._starts: dict[int, list[Claim]] = {}
        self._ends: dict[int, list[Claim]] = {}
        self._turns: dict[int, list[Claim]] = {}
        for claim in claims:
            if claim.start > state.at:
                self._starts.setdefault(claim.start, []).append(claim)
            if claim.end is not None:
                self._ends.setdefault(claim.end, []).append(claim)
            for turn, _, _ in claim.turns:
                if turn > state.at:
                    self._turns.setdefault(turn, []).append(claim)
        self._rules = {rule.since: rule for rule in records.rules if rule.since > state.at}
        self._grants: dict[int, list[Grant]] = {}
        for grant in records.grants:
            if grant.since > state.at:
                self._grants.setdefault(grant.since, []).append(grant)
        self._withdrawals: dict[int, list[Withdrawal]] = {}
        for withdrawal in records.withdrawals:
            if withdrawal.at > state.at:
                self._withdrawals.setdefault(withdrawal.at, []).append(withdrawal)
        moved = {*self._rules, *self._grants, *self._withdrawals}
        instants: Iterable[int] = {*self._starts, *self._ends, *self._turns, *moved}
        self._instants = sorted(instants, reverse=True)
        self._rate = Fraction(0)
        for claim in self.active.values():
            self._rate += claim.rate(state.at)
        self._open_window()

    # The window

    def _open_window(self) -> None:
        self._from = self.state.at
        self._base = {key: claim.gross(self._from) for key, claim in self.active.items()}
        self._ended = 0
        self._estimate = Fraction(0)
        self._available = self.state.balance + self.rule.credit

    def _spent(self, at: int) -> int:
        return self._ended + sum(claim.gross(at) - self._base[key] for key, claim in self.active.items())

    def close_window(self) -> None:
        """Draw what was spent since the window opened from the allowances, and open the next."""
        state, spent = self.state, self._spent(self.state.at)
        if state.exhausted:
            state.over += spent
            state.debt += spent if self.records.carry else 0
        else:
            state.used += spent
            self._draw(spent)
        self._open_window()

    def _draw(self, amount: int) -> None:
        """Take an amount from the allowances: by priority, and of those the one that expires first. Then on credit."""
        buckets = [self.state.period, *self.state.grants]
        for bucket in sorted(buckets, key=lambda b: (b.priority, b.expires is None, b.expires or 0)):
            part = min(bucket.left, amount)
            bucket.left -= part
            amount -= part
        self.state.overdrawn += amount

    # Time

    def next_boundary(self, until: int) -> int | None:
        """Return the next instant, up to `until`, at which anything changes; None where there is none."""
        state = self.state
        while self._instants and self._instants[-1] <= state.at:
            self._instants.pop()
        expiries = [b.expires for b in state.grants if b.expires is not None]
        known = min([*self._instants[-1:], *expiries], default=None)
        self._skip_idle_periods(until if known is None else min(known, until))
        found = min((i for i in (known, state.period.expires) if i is not None), default=None)
        return found if found is not None and found <= until else None

    def _skip_idle_periods(self, to: int) -> None:
        """Pass over periods in which nothing can happen, so that a year of idle hours costs one step."""
        state = self.state
        end = state.period.expires
        owed = state.debt or state.overdrawn or self.rule.rollover
        if end is None or end >= to or self.active or owed or state.period.booked:
            return
        if state.exhausted and self.rule.amount:
            return  # the next period restores it, at its very start
        start, after = bounds(to, self.rule.period, self.rule.zone) or (None, None)
        if start is not None and start > end:
            state.period_start, state.period = start, _period_bucket(self.rule, start, after)
            state.used = state.over = state.granted = 0
            state.cut = state.at = start
            self._open_window()

    def move(self, to: int) -> None:
        """Go on to an instant before which nothing changes by itself but the balance."""
        state = self.state
        if self.active and not state.exhausted and to > state.at:
            estimate = self._estimate + self._rate * (to - state.at)
            if self._ended + estimate + len(self.active) >= self._available and self._spent(to) >= self._available:
                state.at = self._crossing(state.at, to)
                self.close_window()
                self._turn_over(exhausted=True)
            self._estimate = estimate
        state.at = to

    def look_ahead(self) -> None:
        """Find out whether the millisecond that begins now would exceed what is left: then it is over at this instant.

        So a state is complete, and what is settled from it on lies after it.
        """
        state = self.state
        near = self._ended + self._estimate + self._rate + len(self.active) >= self._available
        if self.active and not state.exhausted and near and self._spent(state.at + 1) > self._available:
            self.close_window()
            self._turn_over(exhausted=True)

    def _crossing(self, before: int, after: int) -> int:
        """Return when nothing is left, or the start of the first millisecond that would exceed what is left.

        Less than what is left is spent at `before`, at least as much at `after`.
        """
        while after - before > 1:
            middle = (before + after) // 2
            before, after = (before, middle) if self._spent(middle) >= self._available else (middle, after)
        return after if self._spent(after) == self._available else before

    # What happens at an instant

    def apply(self) -> None:
        """Apply everything that happens at this instant."""
        state, at = self.state, self.state.at
        for claim in self._ends.get(at, ()):
            self._end(claim)
        expired = [b for b in state.grants if b.expires == at]
        over = state.period.expires == at
        rule, grants, withdrawals = self._rules.get(at), self._grants.get(at, []), self._withdrawals.get(at, [])
        self._turn(at)
        if over or expired or rule or grants or withdrawals:
            self.close_window()
            for bucket in expired:
                self._expire(bucket)
                state.grants.remove(bucket)
            raised = self._renew(over, rule) if over or rule else False
            for grant in grants:
                state.grants.append(
                    Bucket(grant.key, grant.amount, grant.amount, grant.until, booked=True, priority=grant.priority)
                )
                state.granted += grant.amount
                self._post(grant.kind, grant.key, at, grant.amount)
                raised = True
            for withdrawal in withdrawals:
                self._book_period()
                self._draw(withdrawal.amount)
                self._post(withdrawal.kind, withdrawal.key, at, withdrawal.amount)
            self._judge(raised)
        for claim in self._starts.get(at, ()):
            self.active[claim.key] = claim
            self._base[claim.key] = 0
            self._rate += claim.rate(at)
        if self.active:
            self._book_period()

    def _turn(self, at: int) -> None:
        """Have new prices hold from now on; what ran before is posted at the old ones."""
        turned = [claim for claim in self._turns.get(at, ()) if claim.key in self.active]
        if turned:
            self._cut()
        for claim in turned:
            self._rate += claim.rate(at) - claim.rate(at - 1)

    def _end(self, claim: Claim) -> None:
        del self.active[claim.key]
        self._rate -= claim.rate(self.state.at - 1)
        self._estimate -= claim.exact(self.state.at) - claim.exact(max(claim.start, self._from))
        self._ended += claim.gross(self.state.at) - self._base.pop(claim.key)
        self._post_charge(claim)

    def _renew(self, over: bool, rule: Rule | None) -> bool:
        """Begin a new period or rule; return whether there is more to spend than before."""
        state, old = self.state, self.state.period
        before = self.rule
        same = rule is not None and (rule.period, rule.zone) == (before.period, before.zone) and not over
        self.rule = rule or before
        opened = self.rule.credit > before.credit or (self.rule.open and not before.open)
        if same:
            amount = old.amount - before.amount + self.rule.amount
            left = max(0, amount - (old.amount - old.left))
            change, old.left, old.amount = left - old.left, left, amount
            if old.booked and change:
                self._post("adjustment", old.key, state.at, change)
            return change > 0 or opened
        self._cut()
        self._expire(old)
        start, end = bounds(state.at, self.rule.period, self.rule.zone) or (None, None)
        state.period_start, state.period = start, _period_bucket(self.rule, start, end)
        kept = min(old.left, before.rollover) if over else 0
        state.period.amount += kept
        state.period.left += kept
        state.used = state.over = state.granted = 0
        return state.period.amount > 0 or opened

    def _judge(self, raised: bool) -> None:
        """Settle what is owed, and decide anew whether the namespace is exhausted."""
        state = self.state
        if raised and state.overdrawn:
            self._book_period()
            owed, state.overdrawn = state.overdrawn, 0
            self._draw(owed)
        if raised and state.debt:
            self._book_period()
            paid = min(state.debt, max(state.balance, 0))
            state.debt -= paid
            self._draw(paid)
            if paid:
                self._post("debt", f"debt:{state.at}", state.at, paid)
        may_spend = self.rule.open and state.balance + self.rule.credit > 0
        if state.exhausted and raised and may_spend:
            self._turn_over(exhausted=False)
        elif not state.exhausted and not may_spend:
            self._turn_over(exhausted=True)
        self._open_window()

    def _turn_over(self, *, exhausted: bool) -> None:
        self._cut()
        self.state.exhausted = exhausted
        self.state.since = self.state.at

    def _cut(self) -> None:
        for claim in self.active.values():
            self._post_charge(claim)
        self.state.cut = self.state.at

    def _book_period(self) -> None:
        bucket = self.state.period
        if not bucket.booked:
            bucket.booked = True
            self._post("allowance", bucket.key, self.state.at, bucket.amount)

    def _expire(self, bucket: Bucket) -> None:
        if bucket.booked:
            self._post("expiry", bucket.key, self.state.at, bucket.left)

    def _post_charge(self, claim: Claim) -> None:
        start, at = max(claim.start, self.state.cut), self.state.at
        if at > start:
            kind: PostingKind = "over-budget" if self.state.exhausted else "charge"
            self.postings.append(Posting(at, kind, claim.key, start, claim.gross(at) - claim.gross(start)))

    def _post(self, kind: PostingKind, key: str, start: int, amount: int) -> None:
        if amount:
            self.postings.append(Posting(self.state.at, kind, key, start, amount))
