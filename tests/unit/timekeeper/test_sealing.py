# SPDX-License-Identifier: Apache-2.0
"""Sealed periods: nothing in them changes, and late knowledge comes to the same as an undisturbed run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test
from sqlalchemy import text
from support.databases import Databases
from support.openings import opening

from slicekeeper.config.policy import BudgetPolicy, NamespacePolicy
from timekeeper.core.budget_record import Rule
from timekeeper.core.posting import effect
from timekeeper.core.refusal import Conflicting
from timekeeper.ledger import movement, seal, settlement, workload
from timekeeper.ledger.account import AccountRef
from timekeeper.ledger.books import Books
from timekeeper.ledger.budget import set_budget
from timekeeper.ledger.debt import follow_debt
from timekeeper.ledger.explain import explain
from timekeeper.ledger.movement import Order
from timekeeper.ledger.verify import verify
from timekeeper.ledger.workload import Closing
from timekeeper.store import bookings, statements
from timekeeper.store.db.database import Database
from timekeeper.store.db.engine import make_engine

MINUTE = 60_000
HOUR = 60 * MINUTE
T0 = 1_774_746_000_000 - 30 * HOUR
"""30 hours before daylight saving begins in Berlin."""
POLICY = NamespacePolicy(budget=BudgetPolicy(amount="20m", period="hour", time_zone="Europe/Berlin"))
PLACE = AccountRef("uid-team", "team", POLICY)


def tell(books: Books, uid: str, start: int, end: int | None, now: int, share: Fraction = Fraction(1)) -> None:
    closings = [] if end is None else [Closing(uid, end, "finished")]
    workload.apply(books, [opening(uid, start, share)], closings, {"team": POLICY}, now)


def balances(books: Books) -> dict[Any, int]:
    with books.database.reading() as session:
        return bookings.balances(session, books.require("team").account.id)


def held(books: Books, until: int) -> list[Any]:
    """All that is effective up to an instant, entry by entry."""
    query = (
        "SELECT t.id, t.kind, t.subject, t.started_at, t.effective_at, t.booked_at, t.reverses, e.account_id,"
        " e.amount_ms FROM txn t LEFT JOIN entry e ON e.txn_id = t.id WHERE t.effective_at <= :until"
        " ORDER BY t.id, e.id"
    )
    with books.database.reading() as session:
        return [tuple(row) for row in session.execute(text(query), {"until": until})]


class Sealed(RuleBasedStateMachine):
    """Told late and sealed early; at the end the same records are told in time to other books, which seal nothing."""

    databases: Databases

    def __init__(self) -> None:
        super().__init__()
        self.made = self.databases.migrated()
        self.url = self.made.__enter__()
        self.books = Books(Database(make_engine(self.url)), "default", carry=False)
        self.now = T0
        self.pods: dict[str, tuple[int, int | None, Fraction]] = {}
        self.done: list[tuple[int, Callable[[Books, int], object]]] = []
        self.frozen: tuple[int, list[Any]] = (0, [])
        self.debts_are_carried_or_forgiven(carry=False)
        self.tell("pod-0", T0, None, Fraction(1, 2))

    def tell(self, uid: str, start: int, end: int | None, share: Fraction) -> None:
        self.pods[uid] = (start, end, share)
        tell(self.books, uid, start, end, self.now, share)

    def do(self, act: Callable[[Books, int], object]) -> None:
        self.done.append((self.now, act))
        act(self.books, self.now)

    @rule(by=st.one_of(st.integers(1, 5_000), st.integers(1, 40 * HOUR)))
    def time_passes(self, by: int) -> None:
        self.now += by

    @rule(ago=st.integers(0, 50 * HOUR), share=st.sampled_from([Fraction(1, 3), Fraction(1), Fraction(7, 4)]))
    def a_pod_is_noticed(self, ago: int, share: Fraction) -> None:
        self.tell(f"pod-{len(self.pods)}", self.now - ago, None, share)

    @precondition(lambda self: self.pods)
    @rule(data=st.data())
    def a_pod_is_told_again_or_has_ended(self, data: st.DataObject) -> None:
        uid = data.draw(st.sampled_from(sorted(self.pods)))
        start, end, share = self.pods[uid]
        self.tell(uid, start, data.draw(st.integers(start, self.now)) if end is None else end, share)

    @rule(amount=st.integers(1, 40 * MINUTE), lasts=st.one_of(st.none(), st.integers(1, 30 * HOUR)))
    def a_grant(self, amount: int, lasts: int | None) -> None:
        key = str(len(self.done))

        def act(books: Books, now: int) -> None:
            end = None if lasts is None else now + lasts
            movement.grant(books, PLACE, Order(amount, "r", key, b"", "me", now), valid_from=now, valid_to=end)

        self.do(act)

    @rule(
        amount=st.integers(0, 90 * MINUTE),
        period=st.sampled_from(["none", "hour", "day"]),
        credit=st.sampled_from([0, 5 * MINUTE]),
        rollover=st.sampled_from([0, 9 * MINUTE]),
    )
    def a_budget(self, amount: int, period: Any, credit: int, rollover: int) -> None:
        given = Rule(0, amount, period, "Europe/Berlin", credit, rollover)
        self.do(
            lambda books, now: set_budget(
                books, AccountRef("uid-team", "team", POLICY), replace(given, since=now), actor="me", if_match=None
            )
        )

    @rule(carry=st.booleans())
    def debts_are_carried_or_forgiven(self, carry: bool) -> None:
        self.do(lambda books, now: follow_debt(Books(books.database, "default", carry=carry), now))

    @rule(grace=st.sampled_from([0, HOUR, 24 * HOUR]))
    def periods_are_sealed(self, grace: int) -> None:
        seal.seal_due(self.books, grace, self.now)

    @rule()
    def another_process_takes_over(self) -> None:
        self.books.database.close()
        self.books = Books(Database(make_engine(self.url)), "default", carry=False)

    @invariant()
    def what_is_sealed_stays(self) -> None:
        until, before = self.frozen
        assert held(self.books, until) == before
        until = self.books.require("team").account.sealed_until
        self.frozen = until, held(self.books, until)

    def teardown(self) -> None:
        try:
            for uid, (start, end, share) in self.pods.items():
                self.tell(uid, start, end or self.now, share)
            self.what_is_sealed_stays()
            settlement.settle(self.books, [self.books.require("team").account.id], self.now)
            assert verify(self.books.database.engine, carry=False).differences == []
            self.statements_add_up()
            with self.databases.migrated() as url:
                calm = Books(Database(make_engine(url)), "default", carry=False)
                try:
                    self.undisturbed(calm)
                    assert balances(self.books) == balances(calm)
                    assert self.books.require("team").at(self.now) == calm.require("team").at(self.now)
                finally:
                    calm.database.close()
            self.the_balance_is_explained()
        finally:
            self.books.database.close()
            self.made.__exit__(None, None, None)

    def statements_add_up(self) -> None:
        edges = [0, *range(T0 - 60 * HOUR, self.now + 25 * HOUR, 12 * HOUR), self.now + 500 * HOUR]
        spans = list(pairwise(edges))
        with self.books.database.reading() as session:
            team = self.books.require("team").account.id
            openings = [statements.opening(session, team, at) for at in edges]
            parts = statements.totals(session, team, spans)
            (whole,) = statements.totals(session, team, [(edges[0], edges[-1])])
            pods = list(statements.charged(session, team, edges[0], edges[-1]))
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(statements, "_LONG", 0)
                paged: list[statements.Charged] = []
                while page := list(
                    statements.charged(
                        session, team, edges[0], edges[-1], after=paged[-1].pod_uid if paged else "", limit=2
                    )
                ):
                    paged += page
        assert paged == pods
        for (before, after), totals in zip(pairwise(openings), parts, strict=True):
            assert before + sum(effect(one.kind, one.amount) for one in totals) == after
        assert openings[-1] == balances(self.books)["budget"]
        assert sum(t.amount for t in whole) == sum(t.amount for totals in parts for t in totals)
        booked = balances(self.books)
        assert (sum(p.charged for p in pods), sum(p.over_budget for p in pods)) == (
            booked["charged"],
            booked["over-budget"],
        )

    def the_balance_is_explained(self) -> None:
        team = self.books.require("team")
        for at in (self.now, self.now + HOUR):
            lines = list(explain(self.books.database.engine, "default", "team", at, carry=False))
            assert (lines[-1].balance_ms if lines else 0) == team.at(at).balance

    def undisturbed(self, books: Books) -> None:
        history = list(self.done)
        for uid, (start, end, share) in self.pods.items():
            for at, told in ((start, None), (end or self.now, end or self.now)):
                history.append(
                    (at, lambda b, now, uid=uid, s=start, e=told, f=share: tell(b, uid, s, e, now, f))  # type: ignore[misc]
                )
        for at, act in sorted(history, key=lambda one: one[0]):
            act(books, at)
        settlement.settle(books, [books.require("team").account.id], self.now)


def test_a_sealed_period_never_changes_and_the_sums_are_those_of_an_undisturbed_run(databases: Databases) -> None:
    machine = type("SealedOn" + databases.kind, (Sealed,), {"databases": databases})
    examples = 15 if databases.kind == "sqlite" else 5  # the histories are the same, a server takes longer for each
    few = settings(
        max_examples=examples, stateful_step_count=20, deadline=None, suppress_health_check=list(HealthCheck)
    )
    run_state_machine_as_test(machine, settings=few)


@pytest.fixture
def books(database_url: str) -> Iterator[Books]:
    made = Books(Database(make_engine(database_url)), "default", carry=False)
    yield made
    made.database.close()


def rows(books: Books) -> list[tuple[str, str, int, int | None]]:
    query = "SELECT kind, subject, amount_ms, corrects_at FROM txn WHERE booked_at = :at ORDER BY id"
    with books.database.reading() as session:
        return [tuple(row) for row in session.execute(text(query), {"at": T0 + 9 * HOUR})]


def test_a_pod_that_is_known_late_is_charged_to_its_own_period_by_corrections_in_the_open_one(books: Books) -> None:
    tell(books, "a", T0, T0 + 5 * MINUTE, T0 + 5 * MINUTE)
    seal.seal_due(books, HOUR, T0 + 3 * HOUR)
    before = held(books, T0 + HOUR)
    assert balances(books)["expired"] == 15 * MINUTE
    tell(books, "late", T0 + 10 * MINUTE, T0 + 30 * MINUTE, T0 + 9 * HOUR)
    assert held(books, T0 + HOUR) == before
    exhausted = T0 + 25 * MINUTE
    assert rows(books) == [
        ("reversal", "period:" + str(T0), -15 * MINUTE, T0 + HOUR),
        ("charge", "late", 15 * MINUTE, exhausted),
        ("over-budget", "late", 5 * MINUTE, T0 + 30 * MINUTE),
    ]
    assert balances(books) == {
        "issued": -20 * MINUTE,
        "budget": 0,
        "charged": 20 * MINUTE,
        "expired": 0,
        "unfunded": -5 * MINUTE,
        "over-budget": 5 * MINUTE,
        "transferred": 0,
    }
    assert verify(books.database.engine, carry=False).differences == []


def test_an_explanation_begins_with_what_is_sealed(books: Books) -> None:
    whole = Rule(T0, HOUR, "none", "UTC")
    set_budget(books, AccountRef("uid-team", "team", POLICY), whole, actor="me", if_match=None)
    february = T0 + 31 * 24 * HOUR
    tell(books, "a", T0 + HOUR, T0 + HOUR + 5 * MINUTE, T0 + 2 * HOUR)
    tell(books, "b", february + HOUR, february + HOUR + MINUTE, february + 2 * HOUR)

    def explained() -> list[tuple[str, int, int]]:
        lines = explain(books.database.engine, "default", "team", february + 3 * HOUR, carry=False)
        return [(line.kind, line.amount_ms, line.balance_ms) for line in lines]

    before = explained()
    assert ("charge", -5 * MINUTE, 55 * MINUTE) in before
    seal.seal_due(books, HOUR, february + 2 * HOUR)
    assert explained() == [("sealed", 55 * MINUTE, 55 * MINUTE), ("charge", -MINUTE, 54 * MINUTE)]
    assert before[-1] == explained()[-1]


def test_a_request_seals_at_the_end_of_a_period_that_is_over_and_nowhere_else(books: Books) -> None:
    tell(books, "a", T0, None, T0)
    for until in (T0 + HOUR, T0 + 30 * MINUTE):
        with pytest.raises(Conflicting):
            seal.seal(books, books.require("team").account, until, reason="r", actor="me", now=T0 + 59 * MINUTE)
    for _ in range(2):
        seal.seal(books, books.require("team").account, T0 + HOUR, reason="r", actor="me", now=T0 + HOUR)
    assert books.require("team").account.sealed_until == T0 + HOUR
    with books.database.reading() as session:
        assert session.execute(text("SELECT count(*) FROM audit WHERE action = 'seal'")).scalar_one() == 1
        assert session.execute(text("SELECT count(*) FROM seal")).scalar_one() == 1


def test_without_periods_months_are_sealed(books: Books) -> None:
    whole = Rule(T0, HOUR, "none", "Europe/Berlin")
    set_budget(books, AccountRef("uid-team", "team", POLICY), whole, actor="me", if_match=None)
    april = 1_774_994_400_000  # 2026-03-31T22:00Z
    seal.seal_due(books, 24 * HOUR, april + 24 * HOUR - 1)
    assert books.require("team").account.sealed_until < april
    seal.seal_due(books, 24 * HOUR, april + 24 * HOUR)
    assert books.require("team").account.sealed_until == april


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE txn SET effective_at = effective_at + 36000000, corrects_at = effective_at WHERE id = 1",
        "UPDATE txn SET effective_at = 1 WHERE corrects_at IS NOT NULL",
        "UPDATE entry SET amount_ms = amount_ms * 2 WHERE txn_id = 2",
    ],
)
def test_verify_finds_a_change_of_what_is_sealed(books: Books, damage: str) -> None:
    tell(books, "a", T0, T0 + 5 * MINUTE, T0 + 5 * MINUTE)
    tell(books, "b", T0, T0 + 1 * MINUTE, T0 + 6 * MINUTE)
    seal.seal_due(books, 0, T0 + 2 * HOUR)
    tell(books, "late", T0, T0 + 1 * MINUTE, T0 + 3 * HOUR)
    assert verify(books.database.engine, carry=False).differences == []
    books.database.write(lambda session: session.execute(text(damage)) and None)
    found = verify(books.database.engine, carry=False).differences
    assert any("what was sealed" in one or "is sealed" in one for one in found), found
