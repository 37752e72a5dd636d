# SPDX-License-Identifier: Apache-2.0
"""Instants that lie ahead of the timekeeper's clock: nothing settles beyond now, and what had settled comes back."""

from __future__ import annotations

from collections.abc import Collection

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.databases import Databases
from support.openings import opening

from slicekeeper.clock import CLOCK_SKEW_MS
from slicekeeper.config.policy import BudgetPolicy, NamespacePolicy
from timekeeper.api.views.workload import workload_views
from timekeeper.core.budget_record import Rule
from timekeeper.core.posting import Posting
from timekeeper.ledger import hierarchy, settlement, workload
from timekeeper.ledger.account import AccountRef
from timekeeper.ledger.books import Books
from timekeeper.ledger.verify import verify
from timekeeper.ledger.workload import Closing, Opening
from timekeeper.store import accounts, audit_chain, bookings, workloads
from timekeeper.store.db.database import Database
from timekeeper.store.db.engine import make_engine

T0 = 1_767_225_600_000
MINUTE = 60_000
POLICY = NamespacePolicy(budget=BudgetPolicy(amount="100s", period="hour"))


def apply(books: Books, openings: Collection[Opening], closings: Collection[Closing], now: int) -> None:
    workload.apply(books, openings, closings, {o.namespace: POLICY for o in openings}, now)


def valid_postings(books: Books, name: str) -> list[Posting]:
    with books.database.reading() as session:
        known = accounts.require_name(session, books.cluster, name)
        return sorted(b.posting for b in bookings.valid(session, known.id, None))


def settled_until(books: Books) -> int:
    with books.database.reading() as session:
        return max((known.settled_at for known in accounts.all_accounts(session)), default=0)


def ended_at(books: Books, uid: str) -> int | None:
    with books.database.reading() as session:
        return workloads.by_uid(session, [uid])[uid].ended_at


def two_under_one(books: Books) -> None:
    rule = Rule(T0, 150_000, "none", "UTC")
    hierarchy.put_parent_budget(books, "lab", "team", rule, actor="me", if_match=None)
    for name in ("red", "blue"):
        hierarchy.set_parent(books, AccountRef(f"uid-{name}", name, POLICY), "lab", reason="r", actor="me", now=T0)


@pytest.mark.parametrize("ahead", [1_000, 20 * MINUTE, 10 * 365 * 24 * 60 * MINUTE])
def test_an_end_in_the_future_settles_nobody_beyond_now(books: Books, ahead: int) -> None:
    two_under_one(books)
    apply(books, [opening("skewed", T0, 1, "red"), opening("neighbour", T0, 1, "blue")], [], T0)
    now = T0 + 10_000
    apply(books, [], [Closing("skewed", now + ahead, "finished", ("clock-skew",))], now)
    assert settled_until(books) == now
    states = {name: books.require(name).at(now) for name in ("red", "blue")}
    assert [(state.balance, state.over_budget) for state in states.values()] == [(90_000, False), (90_000, False)]
    assert books.require_parent("lab").at(now).balance == 130_000
    apply(books, [], [Closing("neighbour", now + 5_000, "finished")], now + 5_000)
    assert books.require("blue").at(now + 5_000).balance == 85_000


def test_what_is_charged_of_an_end_in_the_future_grows_until_then_and_is_booked(books: Books) -> None:
    apply(books, [opening("a", T0)], [Closing("a", T0 + 30_000, "finished")], T0 + 10_000)

    def charged(now: int) -> int:
        with books.database.reading() as session:
            rows = workloads.page(session, "default", None, None, 10)
        return workload_views(books, rows, now)[0].charged_ms

    assert [charged(T0 + at) for at in (10_000, 20_000, 30_000, 40_000)] == [10_000, 20_000, 30_000, 30_000]
    standing = books.require("team")
    assert standing.due(T0 + 10_000) == T0 + 30_000, "so that the controller books it then"
    settlement.settle(books, [standing.account.id], T0 + 30_000)
    assert [(p.at, p.amount) for p in valid_postings(books, "team") if p.kind == "charge"] == [(T0 + 30_000, 30_000)]


def test_a_budget_that_runs_out_before_an_end_in_the_future_is_told_so_in_time(books: Books) -> None:
    apply(books, [opening("a", T0, 10)], [Closing("a", T0 + 30_000, "finished")], T0 + 5_000)
    standing = books.require("team")
    assert standing.due(T0 + 5_000) == T0 + 10_000
    assert standing.at(T0 + 10_000).over_budget


pods = st.tuples(st.integers(0, 50_000), st.integers(0, 40_000), st.sampled_from([1, 2, 3]))


@settings(max_examples=15, deadline=None)
@given(st.lists(pods, min_size=1, max_size=5), st.lists(st.integers(1, 60_000), max_size=5), st.data())
def test_ends_told_ahead_of_time_end_in_the_ledger_of_ends_told_in_time(
    databases: Databases, histories: list[tuple[int, int, int]], looks: list[int], data: st.DataObject
) -> None:
    spans = {f"pod-{i}": (T0 + s, T0 + s + n, d) for i, (s, n, d) in enumerate(histories)}
    told = {uid: data.draw(st.integers(start, end)) for uid, (start, end, _) in spans.items()}
    found = []
    for ahead in (True, False):
        with databases.migrated() as url:
            database = Database(make_engine(url))
            books = Books(database, "default", carry=False)
            news = [(start, uid, 0) for uid, (start, _, _) in spans.items()]
            news += [(told[uid] if ahead else end, uid, 1) for uid, (_, end, _) in spans.items()]
            news += [(T0 + at, "", 2) for at in looks]
            for now, uid, kind in sorted(news, key=lambda one: (one[0], one[2])):
                if kind == 2:
                    settlement.settle(books, [p.account.id for p in books.standings()], now)
                elif kind == 0:
                    apply(books, [opening(uid, now, spans[uid][2])], [], now)
                else:
                    apply(books, [], [Closing(uid, spans[uid][1], "finished")], now)
                assert settled_until(books) <= now
            last = T0 + 200_000
            settlement.settle(books, [p.account.id for p in books.standings()], last)
            found.append((valid_postings(books, "team"), books.require("team").at(last)))
            assert verify(database.engine, carry=False).differences == []
            database.close()
    assert found[0] == found[1]


@pytest.mark.parametrize("ahead", [20 * MINUTE, 40 * 24 * 60 * MINUTE])
def test_a_ledger_that_was_settled_into_the_future_comes_back(books: Books, ahead: int) -> None:
    two_under_one(books)
    apply(books, [opening("a", T0, 1, "red"), opening("b", T0, 1, "blue")], [], T0 + 1_000)
    settlement.settle(books, [books.require("red").account.id], T0 + ahead)
    assert books.require("blue").at(T0 + 10_000).over_budget, "as an older release left it"
    settlement.reverse_future(books, T0 + 10_000)
    assert settled_until(books) == T0 + 10_000
    for name in ("red", "blue"):
        state = books.require(name).at(T0 + 10_000)
        assert (state.balance, state.over_budget) == (90_000, False)
        assert all(posting.at <= T0 + 10_000 for posting in valid_postings(books, name))
    assert verify(books.database.engine, carry=False).differences == []
    apply(books, [], [Closing("a", T0 + 20_000, "finished")], T0 + 20_000)
    assert books.require("red").at(T0 + 20_000).balance == 80_000


def test_any_change_brings_a_ledger_back(books: Books) -> None:
    apply(books, [opening("a", T0)], [], T0)
    settlement.settle(books, [books.require("team").account.id], T0 + 50 * MINUTE)
    apply(books, [], [Closing("a", T0 + 20_000, "finished")], T0 + 20_000)
    assert settled_until(books) == T0 + 20_000
    assert books.require("team").at(T0 + 20_000).balance == 80_000


def test_a_budget_that_was_settled_into_the_future_before_it_got_a_parent_comes_back_for_good(books: Books) -> None:
    apply(books, [opening("a", T0, 1, "red")], [], T0)
    settlement.settle(books, [books.require("red").account.id], T0 + 50 * MINUTE)
    two_under_one(books)
    apply(books, [], [Closing("a", T0 + 20_000, "finished")], T0 + 20_000)
    settlement.reverse_future(books, T0 + 20_000)
    assert settled_until(books) == T0 + 20_000
    assert books.require("red").at(T0 + 20_000).balance == 80_000


def test_what_another_replica_settled_a_moment_ahead_stays(books: Books) -> None:
    apply(books, [opening("a", T0)], [], T0)
    known = books.require("team").account
    settlement.settle(books, [known.id], T0 + CLOCK_SKEW_MS)
    settlement.settle(books, [known.id], T0 + 1)
    settlement.reverse_future(books, T0 + 1)
    assert settled_until(books) == T0 + CLOCK_SKEW_MS


def test_ends_that_an_older_release_took_from_the_future_are_held(books: Books) -> None:
    apply(books, [opening("a", T0), opening("fine", T0)], [Closing("a", T0 + 60 * MINUTE, "finished")], T0 + 1_000)
    apply(books, [], [Closing("fine", T0 + 2_000, "finished")], T0 + 2_000)
    for _ in range(2):
        settlement.reverse_future(books, T0 + 2_000)
    latest = T0 + 2_000 + CLOCK_SKEW_MS
    assert (ended_at(books, "a"), ended_at(books, "fine")) == (latest, T0 + 2_000)
    with books.database.reading() as session:
        assert workloads.by_uid(session, ["a"])["a"].flags == "clock-skew"
        (told,) = audit_chain.page(session, "default", "team", 0, 10)
    assert told.action == "end-held"
    settlement.settle(books, [books.require("team").account.id], latest + 1)
    assert sum(p.amount for p in valid_postings(books, "team") if p.key == "a") == latest - T0
