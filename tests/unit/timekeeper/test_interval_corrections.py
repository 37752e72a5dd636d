# SPDX-License-Identifier: Apache-2.0
"""Intervals that are put right by hand, and refunds that never exceed what is charged net."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import text
from sqlalchemy.orm import Session
from support.databases import Databases
from support.openings import opening

from slicekeeper.config.policy import BudgetPolicy, NamespacePolicy
from slicekeeper.units import NO_TIME
from timekeeper.core.budget_record import Rule
from timekeeper.core.refusal import Conflicting, Unknown
from timekeeper.ledger import hierarchy, seal, workload
from timekeeper.ledger.account import AccountRef
from timekeeper.ledger.books import Books
from timekeeper.ledger.debt import follow_debt
from timekeeper.ledger.explain import explain
from timekeeper.ledger.interval_correction import RequestedInterval, correct
from timekeeper.ledger.movement import Order
from timekeeper.ledger.refund import refund_pod
from timekeeper.ledger.verify import verify
from timekeeper.ledger.workload import Closing
from timekeeper.store import accounts, bookings, workloads
from timekeeper.store.db.database import Database
from timekeeper.store.db.engine import make_engine

T0 = 1_767_225_600_000
MINUTE, HOUR = 60_000, 3_600_000
POLICY = NamespacePolicy(budget=BudgetPolicy(amount="20m", period="hour"))
TEAM = AccountRef("uid-team", "team", POLICY)


def run(
    books: Books,
    uid: str,
    start: int,
    end: int | None = None,
    *,
    now: int = 0,
    created: int | None = T0,
    share: Fraction = Fraction(1),
) -> None:
    begun = opening(uid, start, share)
    begun = type(begun)(**{**begun.__dict__, "created": created})
    closing = [] if end is None else [Closing(uid, end, "finished")]
    workload.apply(books, [begun], closing, {"team": POLICY}, now or end or start)


def team(session: Session) -> accounts.BudgetAccount:
    return accounts.require_name(session, "default", "team")


def put_right(
    books: Books, uid: str, start: int | None, end: int | None, now: int, *, key: str = "k", body: bytes = b""
) -> bool:
    return correct(
        books, team, RequestedInterval(uid, start, end, Order(NO_TIME, "the clock was wrong", key, body, "me", now))
    )


def sums(books: Books, *uids: str) -> list[tuple[int, int]]:
    with books.database.reading() as session:
        found = bookings.booked_by_pod(session, uids)
    return [found[uid] for uid in uids]


def refund(books: Books, uid: str, amount: int, now: int, key: str = "r") -> bool:
    order = Order(amount, "why", key, f"{amount}".encode(), "me", now)
    return refund_pod(books, TEAM, order, pod_uid=uid)


def test_an_end_and_a_start_are_put_right_and_the_neighbours_with_them(books: Books) -> None:
    run(books, "wrong", T0, T0 + 30 * MINUTE)
    run(books, "good", T0 + 12 * MINUTE, T0 + 22 * MINUTE, now=T0 + 30 * MINUTE)
    assert sums(books, "wrong", "good") == [(16 * MINUTE, 14 * MINUTE), (4 * MINUTE, 6 * MINUTE)]
    assert put_right(books, "wrong", T0 + 2 * MINUTE, T0 + 7 * MINUTE, T0 + 40 * MINUTE)
    assert sums(books, "wrong", "good") == [(5 * MINUTE, 0), (10 * MINUTE, 0)]
    assert books.require("team").at(T0 + 40 * MINUTE).balance == 5 * MINUTE
    assert not put_right(books, "wrong", T0 + 2 * MINUTE, T0 + 7 * MINUTE, T0 + 41 * MINUTE), "the same key"
    with pytest.raises(Conflicting, match="was already used for another request"):
        put_right(books, "wrong", T0, None, T0 + 41 * MINUTE, body=b"another")
    assert not put_right(books, "wrong", T0 + 2 * MINUTE, None, T0 + 41 * MINUTE, key="k2"), "nothing to change"
    causes = [line.cause for line in explain(books.database.engine, "default", "team", T0 + HOUR - 1, carry=False)]
    assert any("interval corrected by me: the clock was wrong" in cause for cause in causes)
    assert put_right(books, "wrong", None, T0 + 30 * MINUTE, T0 + 41 * MINUTE, key="k3"), "and back again"
    assert put_right(books, "wrong", T0, None, T0 + 41 * MINUTE, key="k4")
    assert sums(books, "wrong", "good") == [(16 * MINUTE, 14 * MINUTE), (4 * MINUTE, 6 * MINUTE)]


REQUESTS = st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from([0, -5_000, 7_000])), min_size=5, max_size=8)


def test_any_requests_are_executed_once_per_key_in_any_order(databases: Databases) -> None:
    @settings(max_examples=40 if databases.kind == "sqlite" else 5, deadline=None)
    @given(REQUESTS)
    def check(requests: list[tuple[str, int]]) -> None:
        with databases.migrated() as url:
            books = Books(Database(make_engine(url)), "default", carry=False)
            run(books, "a", T0, T0 + HOUR)
            end, sent = T0 + HOUR, dict[str, int]()
            for key, by in requests:
                new = key not in sent
                wanted = sent.setdefault(key, end + by)
                changes = new and by != 0
                assert put_right(books, "a", None, wanted, T0 + 2 * HOUR, key=key) == changes
                end = wanted if changes else end
                with books.database.reading() as session:
                    assert workloads.by_uid(session, ["a"])["a"].ended_at == end
            assert verify(books.database.engine, carry=False).differences == []
            books.database.close()

    check()


def test_what_the_pods_records_say_later_moves_nothing_that_was_put_right(books: Books) -> None:
    run(books, "a", T0, created=T0 - HOUR)
    assert put_right(books, "a", T0 + 5 * MINUTE, None, T0 + 10 * MINUTE)
    run(books, "a", T0, T0 + 8 * MINUTE, now=T0 + 11 * MINUTE)
    assert sums(books, "a") == [(3 * MINUTE, 0)]
    assert put_right(books, "a", None, T0 + 7 * MINUTE, T0 + 12 * MINUTE, key="k2")
    for _ in range(2):  # a restart tells all of it again
        run(books, "a", T0, T0 + 9 * MINUTE, now=T0 + 13 * MINUTE)
    assert sums(books, "a") == [(2 * MINUTE, 0)]
    with books.database.reading() as session:
        row = workloads.by_uid(session, ["a"])["a"]
    assert (row.started_at, row.ended_at, row.flags) == (T0 + 5 * MINUTE, T0 + 7 * MINUTE, "corrected")


def test_an_end_before_the_corrected_start_charges_nothing(books: Books) -> None:
    run(books, "a", T0)
    put_right(books, "a", T0 + 5 * MINUTE, None, T0 + 10 * MINUTE)
    run(books, "a", T0, T0 + 3 * MINUTE, now=T0 + 11 * MINUTE)
    assert sums(books, "a") == [(0, 0)]


@pytest.mark.parametrize(
    ("start", "end", "field", "told"),
    [
        (-1, None, "start", "was created at"),
        (31, None, "start", "before it begins"),
        (None, -1, "end", "before it begins"),
        (20, 10, "start", "before it begins"),
        (None, 36, "end", "seen to be over"),
        (None, 99_999_999, "end", "seen to be over"),
        (-999_999, -99_999, "start", "was created at"),
    ],
)
def test_an_interval_outside_the_pods_life_is_refused(
    books: Books, start: int | None, end: int | None, field: str, told: str
) -> None:
    run(books, "a", T0, T0 + 30 * MINUTE)
    instants = [None if at is None else T0 + at * MINUTE for at in (start, end)]
    with pytest.raises(Conflicting, match=told) as refused:
        put_right(books, "a", instants[0], instants[1], T0 + 10 * HOUR)
    assert (refused.value.field, refused.value.code) == (field, "interval-implausible")
    assert sums(books, "a") == [(20 * MINUTE, 10 * MINUTE)]


def test_a_pod_that_runs_has_no_end_to_put_right_and_a_strangers_none_at_all(books: Books) -> None:
    run(books, "a", T0)
    with pytest.raises(Conflicting, match="is still running"):
        put_right(books, "a", None, T0 + 1, T0 + 10)
    with pytest.raises(Conflicting, match="in the future"):
        put_right(books, "a", T0 + 11, None, T0 + 10)
    with pytest.raises(Unknown, match="team had no pod b"):
        put_right(books, "b", T0, None, T0 + 10)
    workload.apply(books, [opening("c", T0, 1, "other")], [], {"other": POLICY}, T0)
    with pytest.raises(Unknown, match="team had no pod c"):
        put_right(books, "c", T0, None, T0 + 10)


def test_a_sealed_period_is_put_right_by_corrections_in_the_open_one(books: Books) -> None:
    run(books, "a", T0, T0 + 30 * MINUTE)
    seal.seal_due(books, HOUR, T0 + 3 * HOUR)
    with books.database.reading() as session:
        sealed = session.execute(text("SELECT count(*) FROM txn WHERE effective_at <= :at"), {"at": T0 + HOUR}).scalar()
    assert put_right(books, "a", None, T0 + 5 * MINUTE, T0 + 9 * HOUR)
    assert sums(books, "a") == [(5 * MINUTE, 0)]
    with books.database.reading() as session:
        query = text("SELECT count(*) FROM txn WHERE effective_at <= :at")
        assert session.execute(query, {"at": T0 + HOUR}).scalar() == sealed
        assert session.execute(text("SELECT count(*) FROM txn WHERE corrects_at IS NOT NULL")).scalar_one() > 0


def test_what_is_owed_for_a_wrong_interval_is_owed_no_more(database_url: str) -> None:
    books = Books(Database(make_engine(database_url)), "default", carry=True)
    try:
        follow_debt(books, T0)
        hierarchy.put_parent_budget(books, "lab", "team", Rule(T0, 2 * HOUR, "day", "UTC"), actor="me", if_match=None)
        run(books, "a", T0, T0 + 40 * MINUTE)
        hierarchy.set_parent(books, TEAM, "lab", reason="r", actor="me", now=T0 + 41 * MINUTE)
        run(books, "b", T0 + HOUR, T0 + HOUR + MINUTE)
        assert books.require("team").at(T0 + HOUR + MINUTE).over_budget, "20 minutes are owed"
        assert put_right(books, "a", None, T0 + 10 * MINUTE, T0 + HOUR + 2 * MINUTE)
        state = books.require("team").at(T0 + HOUR + 2 * MINUTE)
        assert (state.debt, state.balance, state.over_budget) == (0, 19 * MINUTE, False)
        assert sums(books, "a", "b") == [(10 * MINUTE, 0), (MINUTE, 0)]
        assert books.require_parent("lab").at(T0 + HOUR + 2 * MINUTE).balance == 119 * MINUTE
        assert verify(books.database.engine, carry=True).differences == []
    finally:
        books.database.close()


# Refunds


def test_a_refund_never_exceeds_what_late_knowledge_leaves_charged(books: Books) -> None:
    run(books, "a", T0, T0 + 15 * MINUTE)
    assert refund(books, "a", 10 * MINUTE, T0 + 16 * MINUTE)
    assert refund(books, "a", 5 * MINUTE, T0 + 17 * MINUTE, "r2")
    assert books.require("team").at(T0 + 18 * MINUTE).balance == 20 * MINUTE
    run(books, "late", T0, T0 + 15 * MINUTE, now=T0 + 20 * MINUTE)
    # Together they spent the budget after 10 minutes: 10 of each are charged. The refunds come after that.
    assert sums(books, "a") == [(10 * MINUTE, 5 * MINUTE)]
    assert brought(books) == [10 * MINUTE, 0]
    assert books.require("team").at(T0 + 20 * MINUTE).balance == 10 * MINUTE
    with pytest.raises(Conflicting, match="at most 0"):
        refund(books, "a", 1, T0 + 21 * MINUTE, "r3")
    assert put_right(books, "late", None, T0 + MINUTE, T0 + 22 * MINUTE)
    assert brought(books) == [10 * MINUTE, 5 * MINUTE], "what is charged again is refunded again"
    assert books.require("team").at(T0 + 22 * MINUTE).balance == 19 * MINUTE


def brought(books: Books) -> list[int]:
    """Return what each refund brings, by the ledger's own entries."""
    query = (
        "SELECT g.id, COALESCE(SUM(e.amount_ms), 0) FROM budget_grant g "
        "LEFT JOIN txn t ON t.subject = 'refund:' || g.id LEFT JOIN account a ON a.namespace_id = g.namespace_id "
        "AND a.kind = 'budget' LEFT JOIN entry e ON e.txn_id = t.id AND e.account_id = a.id "
        "WHERE g.kind = 'refund' AND (t.kind IS NULL OR t.kind <> 'expiry') GROUP BY g.id ORDER BY g.id"
    )
    with books.database.reading() as session:
        return [int(amount) for _, amount in session.execute(text(query))]


def test_a_refund_never_exceeds_what_a_corrected_interval_leaves_charged_a_teams_neither(books: Books) -> None:
    hierarchy.put_parent_budget(books, "lab", "team", Rule(T0, HOUR, "day", "UTC"), actor="me", if_match=None)
    hierarchy.set_parent(books, TEAM, "lab", reason="r", actor="me", now=T0)
    run(books, "a", T0, T0 + 15 * MINUTE)
    refund(books, "a", 12 * MINUTE, T0 + 16 * MINUTE)
    with pytest.raises(Conflicting, match="seen to be over"):  # a refund is of a pod that had ended
        put_right(books, "a", None, T0 + 16 * MINUTE + 1, T0 + 20 * MINUTE, key="later")
    assert put_right(books, "a", None, T0 + 4 * MINUTE, T0 + 20 * MINUTE)
    assert books.require("team").at(T0 + 20 * MINUTE).balance == 20 * MINUTE
    assert books.require_parent("lab").at(T0 + 20 * MINUTE).balance == HOUR
    assert brought(books) == [4 * MINUTE]


def test_refunds_at_once_never_exceed_the_charge(database_url: str) -> None:
    made = [Books(Database(make_engine(database_url)), "default", carry=False) for _ in range(3)]
    try:
        run(made[0], "a", T0, T0 + 15 * MINUTE)

        def attempt(index: int) -> bool:
            try:
                return refund(made[index % 3], "a", 4 * MINUTE, T0 + 16 * MINUTE, f"r{index}")
            except Conflicting:
                return False

        with ThreadPoolExecutor(6) as threads:
            assert sum(threads.map(attempt, range(6))) == 3
        assert verify(made[0].database.engine, carry=False).differences == []
    finally:
        for books in made:
            books.database.close()


# What verify says


@pytest.fixture
def damaged(database_url: str) -> Iterator[Callable[[str], list[str]]]:
    books = Books(Database(make_engine(database_url)), "default", carry=False)
    run(books, "a", T0, T0 + 15 * MINUTE)
    refund(books, "a", 5 * MINUTE, T0 + 16 * MINUTE)
    put_right(books, "a", None, T0 + 10 * MINUTE, T0 + 17 * MINUTE)
    assert verify(books.database.engine, carry=False).differences == []

    def damage(statement: str) -> list[str]:
        books.database.write(lambda session: session.execute(text(statement)) and None)
        return verify(books.database.engine, carry=False).differences

    yield damage
    books.database.close()


@pytest.mark.parametrize(
    ("statement", "told"),
    [
        ("UPDATE budget_grant SET amount_ms = 600001 WHERE kind = 'refund'", "was refunded 600001, and its net charge"),
        ("UPDATE budget_grant SET taken_back_ms = 1", "of 300000 for pod a, refunds of 299999 count"),
        ("UPDATE interval_correction SET ended_at = ended_at - 1", "is not what its corrections say"),
        ("UPDATE interval_correction SET actor = 'none'", "correction 1 of the interval of pod a is not in the audit"),
        ("UPDATE interval_correction SET reason = 'none'", "correction 1 of the interval of pod a is not in the audit"),
        ("DELETE FROM audit WHERE action = 'interval'", "correction 1 of the interval of pod a is not in the audit"),
        ("DELETE FROM interval_correction", "the interval that it names is not there"),
        ("UPDATE workload SET ended_at = ended_at + 1", "is not what its corrections say"),
    ],
)
def test_verify_finds_what_was_tampered_with(damaged: Callable[[str], list[str]], statement: str, told: str) -> None:
    found = damaged(statement)
    assert any(told in one for one in found), found
