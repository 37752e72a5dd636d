# SPDX-License-Identifier: Apache-2.0
"""Budgets walked millisecond by millisecond, with none of the time line's shortcuts; and histories to walk."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any

from hypothesis import strategies as st

from timekeeper.core.accumulated_charge import Claim
from timekeeper.core.budget_record import Debt, Forest, GrantRecord, Link, Records, Rule, Withdrawal

SHORT = {"hour": 40, "day": 100, "week": 150, "month": 230}
YEAR = 1_100
CLOCK_CHANGE = 1_700


def short_bounds(instant: int, period: str, zone: str, anchor: int | None = None) -> tuple[int, int] | None:
    """Periods of some milliseconds, so that the oracle may walk through many; zones and anchors shift them."""
    if period == "none":
        return None
    length, shift = SHORT[period], len(zone) + (anchor or 0)
    start = (instant - shift) // length * length + shift
    return start, start + length


def bounds_with_a_clock_change(
    instant: int, period: str, zone: str, anchor: int | None = None
) -> tuple[int, int] | None:
    """Periods like those of `short_bounds`, and years; the clock is put forward by 13 ms at `CLOCK_CHANGE`."""
    if period == "none":
        return None
    length, shift = {**SHORT, "year": YEAR}[period], len(zone) + (anchor or 0)
    local = instant if instant < CLOCK_CHANGE else instant + 13
    start = (local - shift) // length * length + shift
    first, last = (at if at < CLOCK_CHANGE else max(at - 13, CLOCK_CHANGE) for at in (start, start + length))
    return first, last


def rounded(exact: Fraction) -> int:
    return (exact + Fraction(1, 2)).__floor__()


@dataclass
class Oracle:
    """Walks the time line in steps of one millisecond, with none of the shortcuts."""

    records: Records
    balance: int = 0
    buckets: list[list[Any]] = field(default_factory=list)
    exhausted: bool = False
    refunded: set[str] = field(default_factory=set)
    """The buckets that lapse with the running period."""
    debt: int = 0
    used: int = 0
    over: int = 0
    charged: Counter[str] = field(default_factory=Counter)
    unpaid: Counter[str] = field(default_factory=Counter)
    overdrawn: int = 0
    repaid: int = 0
    """Of what was owed: what the running period's amount has paid."""
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
            part = max(0, min(bucket[1], amount))
            bucket[1] -= part
            amount -= part
        self.overdrawn += amount

    def repay(self, amount: int) -> None:
        before = self.period[1]
        self.take(amount)
        self.repaid += before - self.period[1]

    def walk(self, begin_at: int, until: int) -> Oracle:
        self.start(begin_at)
        for t in range(begin_at + 1, until + 1):
            self.consume(t)
            self.turn(t)
        steps = self.steps(until + 1)
        self.exhausted = self.exhausted or sum(steps.values()) > self.spendable()
        return self

    def start(self, begin_at: int) -> None:
        rules = self.records.rules
        self.rule = rule = [r for r in rules if r.since <= begin_at or r is rules[0]][-1]
        opened = self.records.opened
        # What its first record begins, and not its opening, has no period before that one's.
        period = short_bounds(begin_at + (opened is None or opened > begin_at), *rule.calendar)
        self.period = ["period", rule.amount, period and period[1], 0]
        self.total = rule.amount
        self.buckets = [self.period]
        self.credit, self.open = rule.credit, rule.open
        self.exhausted = self.spendable() <= 0

    def turn(self, t: int, refunds: Sequence[GrantRecord] = ()) -> None:
        """Have allowances come and go at t; `refunds` are those of budgets below."""
        if self.spendable() <= 0:
            self.exhausted = True
        self.raised = False
        self.renew(t)
        mine = [*(g for g in self.records.grants if g.since == t), *(w for w in self.records.withdrawals if w.at == t)]
        for movement in sorted([*mine, *refunds], key=lambda movement: movement.number):
            if isinstance(movement, Withdrawal):
                self.take(movement.amount)
                continue
            until = self.period[2] if movement.kind == "refund" else movement.until
            self.buckets.append([movement.key, movement.amount, until, movement.priority])
            self.refunded |= {movement.key} if movement.kind == "refund" else set()
            self.raised = True
        if self.raised:
            owed, self.overdrawn = self.overdrawn, 0
            self.repay(owed)
            paid = min(self.debt, max(self.left() - self.overdrawn, 0))
            self.debt -= paid
            self.repay(paid)
        if self.raised and self.spendable() > 0:
            self.exhausted = False
        if self.spendable() <= 0:
            self.exhausted = True

    def renew(self, t: int) -> None:
        rule, mine = self.rule, self.period
        self.buckets = [b for b in self.buckets if b is mine or b[2] != t]
        over, at_once = mine[2] == t, [r for r in self.records.rules[1:] if r.since == t]
        new = at_once[-1] if at_once else None
        if new and not over and all(r.used != "reset" for r in at_once):
            self.change(new, t)
        elif new or over:
            kept = max(0, min(mine[1], rule.rollover)) if over else 0
            self.buckets = [b for b in self.buckets if b[0] not in self.refunded]
            self.rule = rule = new or rule
            period = short_bounds(t, *rule.calendar)
            mine[1:3] = [rule.amount + kept, period and period[1]]
            self.total, self.raised, self.used, self.over = rule.amount + kept, rule.amount + kept > 0, 0, 0
            self.repaid = 0
        rule = self.rule
        self.raised = self.raised or rule.credit > self.credit or (rule.open and not self.open)
        self.credit, self.open = rule.credit, rule.open

    def change(self, new: Rule, t: int) -> None:
        """Have another rule hold in the running period: what that has used counts in full."""
        rule, mine = self.rule, self.period
        spent, self.total = self.total - mine[1], self.total - rule.amount + new.amount
        mine[1] = self.total - spent
        if new.calendar != rule.calendar:
            period = short_bounds(t, *new.calendar)
            for bucket in self.buckets:
                if bucket is mine or bucket[0] in self.refunded:
                    bucket[2] = period and period[1]
        # What the period paid of what was owed stays paid as far as its amount has room for it beside all else.
        room = max(0, self.total - (self.total - mine[1] - self.repaid))
        owed_again = self.repaid - min(self.repaid, room)
        self.repaid -= owed_again
        self.overdrawn += owed_again
        mine[1] += owed_again
        self.raised, self.rule = new.amount > rule.amount, new

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
        return [
            Fraction(n, d) for since, n, d in ((claim.start, claim.num, claim.den), *claim.rate_changes) if since <= t
        ][-1]

    def carries(self, t: int) -> bool:
        """Whether the millisecond that begins at t is owed where it is over budget."""
        return [False, *(debt.carry for debt in self.records.debts if debt.since <= t)][-1]

    def consume(self, t: int) -> None:
        """Charge the millisecond that ends at t."""
        steps = self.steps(t)
        total = sum(steps.values())
        if not self.exhausted and total > self.spendable():
            self.exhausted = True
        if self.exhausted:
            self.over += total
            self.debt += total if self.carries(t - 1) else 0
            self.unpaid.update(steps)
        else:
            self.used += total
            self.take(total)
            self.charged.update(steps)
        self.so_far |= self.looked


rates = st.sampled_from([(1, 1), (1, 2), (1, 3), (2, 3), (7, 10), (9, 4), (4, 1), (1, 100), (0, 1), (15 * 256, 40960)])


@st.composite
def debts(draw: st.DrawFn) -> list[Debt]:
    """What becomes of time over budget: set at the start, then changed while pods run."""
    instants = [0, *sorted(draw(st.sets(st.integers(1000, 1300), max_size=2)))]
    first = draw(st.booleans())
    return [Debt(since, first ^ bool(index % 2)) for index, since in enumerate(instants)]


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
    used = st.sampled_from(["counts", "counts", "counts", "reset"])
    for since in sorted(draw(st.lists(st.integers(1000, 1300), max_size=4))):
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
                last.anchor if same else draw(st.sampled_from([None, None, 3])),
                draw(used),
            )
        )
    # Often all is moved at one instant; the numbers tell in which order.
    at_once = draw(st.booleans())
    instants = st.just(draw(st.integers(1000, 1250))) if at_once else st.integers(1000, 1300)
    numbers = st.integers(1, 99)
    grants = []
    for index, since in enumerate(draw(st.lists(instants, min_size=int(at_once), max_size=3))):
        until = draw(st.one_of(st.none(), st.integers(1, 150)))
        grants.append(
            GrantRecord(
                f"grant-{index}",
                draw(st.integers(1, 120)),
                since,
                None if until is None else since + until,
                priority=draw(st.integers(-1, 1)),
                kind=draw(st.sampled_from(["allowance", "refund"])),
                number=draw(numbers),
            )
        )
    moves = st.tuples(instants, st.integers(1, 80), numbers)
    withdrawals = [
        Withdrawal(f"w{i}", n, at, "withdrawal", number)
        for i, (at, n, number) in enumerate(draw(st.lists(moves, min_size=int(at_once), max_size=2)))
    ]
    grants.sort(key=lambda grant: (grant.since, grant.key))
    opened = draw(st.one_of(st.none(), st.integers(950, 1300)))
    return Records(claims, rules, grants, withdrawals=withdrawals, debts=draw(debts()), opened=opened)


NAMESPACES, TEAMS, ORGANISATION = (1, 2, 3), (10, 11), 20


@dataclass
class ForestOracle:
    """Budgets under each other, walked together: each has an oracle of its own, and a pod's time goes up the chain."""

    forest: Forest
    budgets: dict[int, Oracle] = field(default_factory=dict)
    parents: dict[int, int | None] = field(default_factory=dict)
    sums: Counter[tuple[int, int]] = field(default_factory=Counter)
    """Charged by (budget, the one below it)."""
    over: set[int] = field(default_factory=set)
    run_outs: dict[int, list[int]] = field(default_factory=dict)
    """When each budget, or one above it, had nothing left any more."""

    def chain(self, key: int) -> list[int]:
        found: list[int] = []
        up: int | None = key
        while up is not None:
            found.append(up)
            up = self.parents.get(up)
        return found

    def ever_above(self, key: int) -> set[int]:
        """Return a budget and all that are ever above it."""
        found = {key}
        while more := {link.parent for link in self.forest.links if link.child in found and link.parent} - found:
            found |= more
        return found

    def stop(self, key: int) -> int | None:
        return next((k for k in self.chain(key) if self.budgets[k].exhausted), None)

    def ask(self, steps: dict[int, dict[str, int]]) -> None:
        """Exhaust the budgets that cannot carry the millisecond, the lowest first."""
        for key in sorted(self.budgets, key=lambda k: -len(self.chain(k))):
            total = sum(
                sum(mine.values())
                for leaf, mine in steps.items()
                if key in self.chain(leaf) and self.stop(leaf) is None
            )
            if total > self.budgets[key].spendable():
                self.budgets[key].exhausted = True

    def charge(self, steps: dict[int, dict[str, int]], t: int) -> None:
        """Charge the millisecond that ends at t."""
        for leaf, mine in steps.items():
            total, stop, chain = sum(mine.values()), self.stop(leaf), self.chain(leaf)
            budget = self.budgets[leaf]
            if stop is None:
                for below, key in zip((None, *chain), chain, strict=False):
                    self.budgets[key].used += total
                    self.budgets[key].take(total)
                    if below is not None:
                        self.sums[key, below] += total
                budget.charged.update(mine)
            else:
                budget.unpaid.update(mine)
                for key in {leaf, stop}:
                    self.budgets[key].over += total
                self.budgets[stop].debt += total if self.budgets[stop].carries(t - 1) else 0
            budget.so_far |= budget.looked

    def look(self, at: int) -> None:
        """Note which budgets have nothing left since an instant."""
        for key in self.budgets:
            if self.stop(key) is None:
                self.over.discard(key)
            elif key not in self.over:
                self.over.add(key)
                self.run_outs.setdefault(key, []).append(at)

    def birth(self, key: int, until: int) -> int:
        """Return the instant before anything concerned a budget: its first period is the one around that."""
        mine = self.forest.records[key]
        firsts = [*(c.start for c in mine.claims), *(r.since for r in mine.rules[1:]), *(g.since for g in mine.grants)]
        firsts += [w.at for w in mine.withdrawals]
        firsts += [link.since for link in self.forest.links if key in (link.child, link.parent)]
        return min([until, *(first - 1 for first in firsts), until if mine.opened is None else mine.opened])

    def walk(self, begin_at: int, until: int, *, begun: int | None = None) -> ForestOracle:
        """Walk from an instant to another one; by `begun` (default: by the end), all budgets have."""
        self.budgets = {key: Oracle(records) for key, records in self.forest.records.items()}
        born = {key: self.birth(key, until if begun is None else begun) for key in self.budgets}
        for key, budget in self.budgets.items():
            budget.start(born[key])
        for t in range(begin_at + 1, until + 1):
            steps = {key: budget.steps(t) for key, budget in self.budgets.items()}
            self.ask(steps)
            self.look(t - 1)
            self.charge(steps, t)
            for budget in self.budgets.values():
                budget.exhausted = budget.exhausted or budget.spendable() <= 0
            self.parents |= {link.child: link.parent for link in self.forest.links if link.since == t}
            refunds: dict[int, list[GrantRecord]] = {}
            for key, budget in self.budgets.items():
                for grant in budget.records.grants:
                    for up in self.chain(key)[1:] if grant.since == t and grant.kind == "refund" else ():
                        refunds.setdefault(up, []).append(grant)
            for key, budget in self.budgets.items():
                if t > born[key]:
                    budget.turn(t, refunds.get(key, ()))
            self.look(t)
        self.ask({key: budget.steps(until + 1) for key, budget in self.budgets.items()})
        return self


@st.composite
def forests(draw: st.DrawFn) -> Forest:
    """Three namespaces, two teams, an organisation; they are put under each other while pods run."""
    owed = draw(debts())
    records = {}
    for key in (*NAMESPACES, *TEAMS, ORGANISATION):
        mine, pods = replace(draw(histories()), debts=owed), 3 if key in NAMESPACES else 0
        claims = [replace(claim, key=f"{key}/{claim.key}") for claim in mine.claims[:pods]]
        # No movements of two budgets have the same number, and only pods are refunded.
        grants = [replace(g, key=f"{key}/{g.key}", number=g.number * 100 + key) for g in mine.grants]
        grants = grants if pods else [replace(grant, kind="allowance") for grant in grants]
        withdrawals = [replace(w, number=w.number * 100 + key) for w in mine.withdrawals]
        records[key] = replace(mine, claims=claims, grants=grants, withdrawals=withdrawals)
    links = []
    above = {**dict.fromkeys(NAMESPACES, (None, *TEAMS, ORGANISATION)), **dict.fromkeys(TEAMS, (None, ORGANISATION))}
    for child, parents in above.items():
        instants = draw(st.sets(st.integers(990, 1300), max_size=2))
        links += [Link(child, draw(st.sampled_from(parents)), since) for since in instants]
    return Forest(records, sorted(links, key=lambda link: link.since))


@st.composite
def steady_forests(draw: st.DrawFn) -> Forest:
    """Pods that go on below budgets with short periods, which are below others with long ones."""
    few, owed = st.sampled_from([0, 0, 0, 7]), [Debt(0, draw(st.booleans()))]
    above = {1: 10, 2: draw(st.sampled_from([10, 20])), 3: 20, 10: 20}
    records = {}
    for key in (*above, 20):
        claims = []
        if key in NAMESPACES:
            starts = draw(st.lists(st.integers(1000, 1060), max_size=2))
            claims = [Claim(f"{key}/{index}", start, None, *draw(rates)) for index, start in enumerate(starts)]
        periods, most = (["hour", "hour", "day", "none"], 90) if key in NAMESPACES else (["day", "month", "year"], 900)
        zone = draw(st.sampled_from(["UTC", "Asia/Kolkata"]))
        period = draw(st.sampled_from([*periods, "none"]))
        rule = Rule(0, draw(st.integers(0, most)), period, zone, draw(few), draw(few))
        grants = []
        if draw(st.integers(0, 2)) == 0:
            since, until = draw(st.integers(1000, 1060)), draw(st.sampled_from([None, 1900]))
            grants = [
                GrantRecord(f"{key}/g", draw(st.integers(1, 400)), since, until, priority=draw(st.integers(-1, 1)))
            ]
        records[key] = Records(claims, [rule], grants, debts=owed, opened=990)
    return Forest(records, [Link(child, parent, 990) for child, parent in above.items()])
