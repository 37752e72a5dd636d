# SPDX-License-Identifier: Apache-2.0
"""The ledger under arbitrary histories, on both databases, over a change of daylight saving and a leap day.

The machine tells the books of pods late, twice and out of order, moves GPU time, sets prices, lets the clock jump and
has another process take over. A model that knows only what was told says what must come of it.
"""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from sqlalchemy import text
from support.databases import Databases
from support.openings import opening

from slicekeeper.config.policy import BudgetPolicy, NamespacePolicy
from timekeeper.core.budget_record import Rule
from timekeeper.core.refusal import BalanceInsufficient, Conflicting, IntervalImplausible, RefundAboveCharge
from timekeeper.ledger import hierarchy, interval_correction, movement, settlement, stretch, workload
from timekeeper.ledger.account import AccountRef
from timekeeper.ledger.books import Books
from timekeeper.ledger.budget import set_budget, set_status
from timekeeper.ledger.debt import follow_debt
from timekeeper.ledger.interval_correction import RequestedInterval
from timekeeper.ledger.movement import Order
from timekeeper.ledger.rate import set_rate
from timekeeper.ledger.refund import refund_pod
from timekeeper.ledger.verify import verify
from timekeeper.ledger.workload import Closing
from timekeeper.store import accounts, bookings
from timekeeper.store.db.database import Database
from timekeeper.store.db.engine import make_engine

MINUTE = 60_000
STARTS = {
    "daylight saving begins": 1_774_746_000_000 - 90 * MINUTE,  # 2026-03-29T01:00Z in Berlin
    "a leap day": 1_835_395_200_000 - 90 * MINUTE,  # 2028-02-29T00:00Z
}
POLICY = NamespacePolicy(budget=BudgetPolicy(amount="20m", period="hour", time_zone="Europe/Berlin"))
PLACES = {name: AccountRef(f"uid-{name}", name, POLICY) for name in ("team", "other")}
PARENTS = {name: AccountRef(accounts.parent_uid(name), name, POLICY) for name in ("lab", "school")}
places, amounts = st.sampled_from(sorted(PLACES)), st.integers(1, 30 * MINUTE)
behind = st.sampled_from([0, 0, 0, 2_000, 5 * MINUTE])
"""By how much the clock of the replica lags that takes a request."""
prices = st.sampled_from([Fraction(1), Fraction(3, 2), Fraction(1, 3), Fraction(0)])


class Ledger(RuleBasedStateMachine):
    databases: Databases

    def __init__(self) -> None:
        super().__init__()
        self.made = self.databases.migrated()
        self.url = self.made.__enter__()
        self.patched = pytest.MonkeyPatch()
        self.books = Books(Database(make_engine(self.url)), "default", carry=False)
        self.now = 0
        self.orders = 0
        self.pods: dict[str, tuple[str, int, int | None, Fraction]] = {}
        self.prices: list[tuple[int, Fraction]] = []
        self.refunded: Counter[str] = Counter()
        self.corrected: set[str] = set()
        self.gross = 0
        self.made_parents: set[str] = set()
        self.links: list[tuple[int, str, str | None]] = []

    @initialize(start=st.sampled_from(sorted(STARTS)), every=st.sampled_from([1, 2, 256]))
    def begin(self, start: str, every: int) -> None:
        self.now = STARTS[start]
        self.patched.setattr(settlement, "CHECKPOINT_EVERY", every)
        self.patched.setattr(settlement, "CHECKPOINT_LAG_MS", 0)
        self.patched.setattr(stretch, "MOST_GPUS", 10)
        follow_debt(self.books, self.now)

    @rule(by=st.one_of(st.integers(1, 5_000), st.integers(1, 90 * MINUTE)))
    def time_passes(self, by: int) -> None:
        self.now += by

    @rule(
        name=places,
        ago=st.integers(0, 40 * MINUTE),
        share=st.sampled_from([Fraction(1, 3), Fraction(1), Fraction(7, 4)]),
    )
    def a_pod_is_noticed(self, name: str, ago: int, share: Fraction) -> None:
        uid = f"pod-{len(self.pods)}"
        self.pods[uid] = (name, self.now - ago, None, share)
        self.tell(uid)

    @precondition(lambda self: self.pods)
    @rule(data=st.data())
    def a_pod_is_told_again_or_has_ended(self, data: st.DataObject) -> None:
        uid = data.draw(st.sampled_from(sorted(self.pods)))
        name, start, end, share = self.pods[uid]
        if end is None:
            self.pods[uid] = (name, start, data.draw(st.integers(start, self.now)), share)
        self.tell(uid)

    def tell(self, uid: str) -> None:
        name, start, end, share = self.pods[uid]
        closings = [] if end is None else [Closing(uid, end, "finished")]
        workload.apply(self.books, [opening(uid, start, share, name, model="A100")], closings, {name: POLICY}, self.now)

    def order(self, amount: int) -> Order:
        """Return a request that was never made before."""
        self.orders += 1
        return Order(amount, "why", str(self.orders), str(amount).encode(), "me", self.now)

    def twice(self, work: Any, allowed: str = "") -> bool:
        """Do a thing twice, which is once; return whether it was done."""
        try:
            first = work()
        except Conflicting as refusal:
            if refusal.code != allowed:
                raise
            return False
        if work() or not first:
            raise AssertionError("a repeated request was booked again, or a new one was not")
        return True

    @rule(
        name=places,
        amount=amounts,
        lasts=st.one_of(st.none(), st.integers(1, 90 * MINUTE)),
        priority=st.integers(-1, 1),
    )
    def a_grant(self, name: str, amount: int, lasts: int | None, priority: int) -> None:
        order, end = self.order(amount), None if lasts is None else self.now + lasts
        self.twice(
            lambda: movement.grant(
                self.books, PLACES[name], order, valid_from=order.now, valid_to=end, priority=priority
            )
        )

    @rule(amount=amounts, back=st.booleans())
    def a_transfer(self, amount: int, back: bool) -> None:
        order, (source, target) = self.order(amount), sorted(PLACES, reverse=back)
        self.twice(
            lambda: movement.transfer(self.books, PLACES[source], PLACES[target], order, valid_to=None),
            BalanceInsufficient.code,
        )

    @rule(name=places, amount=amounts, sign=st.sampled_from([1, -1]))
    def an_adjustment(self, name: str, amount: int, sign: int) -> None:
        order = self.order(sign * amount)
        self.twice(lambda: movement.adjust(self.books, PLACES[name], order), BalanceInsufficient.code)

    @precondition(lambda self: any(end is not None for _, _, end, _ in self.pods.values()))
    @rule(data=st.data(), amount=amounts)
    def a_refund(self, data: st.DataObject, amount: int) -> None:
        uid = data.draw(st.sampled_from(sorted(uid for uid, pod in self.pods.items() if pod[2] is not None)))
        order = self.order(amount)
        place = PLACES[self.pods[uid][0]]
        if self.twice(lambda: refund_pod(self.books, place, order, pod_uid=uid), RefundAboveCharge.code):
            self.refunded[uid] += amount

    @precondition(lambda self: any(end is not None for _, _, end, _ in self.pods.values()))
    @rule(data=st.data(), by=st.sampled_from([-7_000, 11_000]))
    def an_interval_is_corrected_and_all_of_that_repeated(self, data: st.DataObject, by: int) -> None:
        uid = data.draw(st.sampled_from(sorted(uid for uid, pod in self.pods.items() if pod[2] is not None)))
        requests = []
        for move in (0, by, 0):  # the first and the last change nothing
            name, start, end, share = self.pods[uid]
            wanted = RequestedInterval(uid, start, (end or 0) + move, self.order(0))
            try:
                assert self.correct(name, wanted) == (move != 0)
            except IntervalImplausible:
                continue
            requests.append(wanted)
            self.pods[uid] = (name, start, wanted.end, share)
            self.corrected.add(uid)
            self.gross = 0
        for wanted in data.draw(st.permutations(requests)):
            assert not self.correct(self.pods[uid][0], wanted)

    def correct(self, name: str, wanted: RequestedInterval) -> bool:
        return interval_correction.correct(
            self.books, lambda session: accounts.require_name(session, "default", name), wanted
        )

    @rule(rate=prices, ahead=st.integers(0, 30 * MINUTE))
    def a_price(self, rate: Fraction, ahead: int) -> None:
        since = self.now + ahead
        if all(at != since for at, _ in self.prices):
            set_rate(self.books, "A100", rate, since=since, reason="r", actor="me", now=self.now)
            self.prices.append((since, rate))

    @rule(carry=st.booleans())
    def debts_are_carried_or_forgiven(self, carry: bool) -> None:
        follow_debt(Books(self.books.database, "default", carry=carry), self.now)

    @rule(
        name=places,
        amount=amounts,
        period=st.sampled_from(["none", "hour", "day", "month"]),
        credit=st.sampled_from([0, 5 * MINUTE]),
        rollover=st.sampled_from([0, 9 * MINUTE]),
        zone=st.sampled_from(["Europe/Berlin", "Asia/Kolkata"]),
        used=st.sampled_from(["counts", "counts", "reset"]),
        behind=behind,
    )
    def a_budget(
        self, name: str, amount: int, period: Any, credit: int, rollover: int, zone: str, used: Any, behind: int
    ) -> None:
        rule = Rule(self.now - behind, amount, period, zone, credit, rollover, used=used)
        set_budget(self.books, AccountRef(f"uid-{name}", name, POLICY), rule, actor="me", if_match=None)

    @rule(name=places, status=st.sampled_from(["active", "suspended"]), behind=behind)
    def a_status(self, name: str, status: Any, behind: int) -> None:
        now = self.now - behind
        set_status(self.books, AccountRef(f"uid-{name}", name, POLICY), status, reason="r", actor="me", now=now)
        assert self.books.require(name).rule.status == status

    @rule(name=st.sampled_from(sorted(PARENTS)), amount=amounts, period=st.sampled_from(["none", "hour", "day"]))
    def a_parents_budget(self, name: str, amount: int, period: Any) -> None:
        rule, kind = Rule(self.now, amount, period, "Europe/Berlin"), "team" if name == "lab" else "organisation"
        hierarchy.put_parent_budget(self.books, name, kind, rule, actor="me", if_match=None)  # type: ignore[arg-type]
        self.made_parents.add(name)

    @precondition(lambda self: self.made_parents)
    @rule(data=st.data(), amount=amounts)
    def a_parents_grant(self, data: st.DataObject, amount: int) -> None:
        place, order = PARENTS[data.draw(st.sampled_from(sorted(self.made_parents)))], self.order(amount)
        self.twice(lambda: movement.grant(self.books, place, order, valid_from=order.now, valid_to=None))

    @precondition(lambda self: self.made_parents)
    @rule(data=st.data(), name=places)
    def a_namespace_is_put_under(self, data: st.DataObject, name: str) -> None:
        above = data.draw(st.sampled_from([None, *sorted(self.made_parents)]))
        if hierarchy.set_parent(self.books, PLACES[name], above, reason="r", actor="me", now=self.now):
            self.links.append((self.last_link(), name, above))

    @precondition(lambda self: len(self.made_parents) == 2)
    @rule(above=st.sampled_from([None, "school"]))
    def the_lab_is_put_under(self, above: str | None) -> None:
        if hierarchy.set_parent(self.books, PARENTS["lab"], above, reason="r", actor="me", now=self.now):
            self.links.append((self.last_link(), "lab", above))

    def last_link(self) -> int:
        """Return since when the last link applies: later than now if a movement was accepted at this instant."""
        with self.books.database.reading() as session:
            query = text("SELECT effective_at FROM membership ORDER BY id DESC LIMIT 1")
            return int(session.execute(query).scalar_one())

    def above(self, name: str, at: int) -> list[str]:
        """Return what a budget stood under at an instant."""
        found: list[str] = []
        up = [parent for since, child, parent in self.links if child == name and since <= at][-1:]
        while up and up[0] is not None:
            found.append(up[0])
            up = [parent for since, child, parent in self.links if child == found[-1] and since <= at][-1:]
        return found

    @invariant()
    def a_parents_consumption_is_that_of_those_below(self) -> None:
        wanted: Counter[str] = Counter()
        with self.books.database.reading() as session:
            everyone = accounts.all_accounts(session)
            booked = {p.name: bookings.balances(session, p.id)["charged"] for p in everyone if p.kind != "namespace"}
            for place in everyone:
                for one in bookings.valid(session, place.id, None) if place.kind == "namespace" else ():
                    posting = one.posting
                    if posting.kind in ("charge", "refund"):
                        ran = posting.kind == "charge"
                        for name in self.above(place.name, posting.at - ran):
                            wanted[name] += posting.amount if ran else -posting.amount
        assert booked == {name: wanted[name] for name in booked}

    @rule()
    def another_process_takes_over(self) -> None:
        self.books.database.close()
        self.books = Books(Database(make_engine(self.url)), "default", carry=False)

    def owed(self, start: int, end: int, share: Fraction) -> int:
        """Return a pod's charge, from each stretch at one price, rounded once."""
        edges = sorted({start, end, *(at for at, _ in self.prices if start < at < end)})
        total = Fraction(0)
        for since, until in pairwise(edges):
            rate = max(((at, r) for at, r in self.prices if at <= since), default=(0, Fraction(1)))[1]
            total += share * rate * (until - since)
        return (total + Fraction(1, 2)).__floor__()

    @invariant()
    def every_ended_pod_is_charged_what_it_owes(self) -> None:
        with self.books.database.reading() as session:
            found = bookings.booked_by_pod(session, sorted(self.pods))
            moved = session.execute(text("SELECT sum(balance_ms) FROM account WHERE kind = 'transferred'")).scalar()
            total = session.execute(text("SELECT sum(balance_ms) FROM account")).scalar()
        ended = {uid: pod for uid, pod in self.pods.items() if pod[2] is not None}
        wanted = {uid: self.owed(start, end or 0, share) for uid, (_, start, end, share) in ended.items()}
        assert {uid: sum(found[uid]) for uid in ended} == wanted
        assert all(self.refunded[uid] <= wanted[uid] for uid in ended.keys() - self.corrected)
        assert (moved or 0, total or 0) == (0, 0)
        assert sum(wanted.values()) >= self.gross
        self.gross = sum(wanted.values())

    @invariant()
    def balances_hold(self) -> None:
        for standing in self.books.standings():
            with self.books.database.reading() as session:
                known = accounts.find_name(session, "default", standing.account.name)
                booked = bookings.balances(session, standing.account.id)
            assert known == standing.account
            assert booked["charged"] + booked["over-budget"] >= 0

    def teardown(self) -> None:
        try:
            assert verify(self.books.database.engine, carry=False).differences == []
        finally:
            self.patched.undo()
            self.books.database.close()
            self.made.__exit__(None, None, None)


def test_any_history_ends_in_the_ledger_that_its_records_say(databases: Databases) -> None:
    machine = type("LedgerOn" + databases.kind, (Ledger,), {"databases": databases})
    examples = 12 if databases.kind == "sqlite" else 4  # the histories are the same, a server takes longer for each
    few = settings(
        max_examples=examples, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
    )
    run_state_machine_as_test(machine, settings=few)
