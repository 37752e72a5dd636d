# SPDX-License-Identifier: Apache-2.0
"""Replicas whose clocks are apart, by seconds or by an hour: what is written later holds, and soon."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.databases import Databases
from support.openings import opening

from slicekeeper.clock import CLOCK_SKEW_MS
from slicekeeper.config.policy import BudgetPolicy, NamespacePolicy
from timekeeper.core.budget_record import Rule
from timekeeper.core.posting import Posting
from timekeeper.core.refusal import Conflicting
from timekeeper.ledger import hierarchy, settlement, workload
from timekeeper.ledger.account import AccountRef
from timekeeper.ledger.books import Books
from timekeeper.ledger.debt import follow_debt
from timekeeper.ledger.rate import follow_settings, set_rate
from timekeeper.ledger.verify import verify
from timekeeper.ledger.workload import Closing
from timekeeper.store import accounts, bookings, hierarchy_links
from timekeeper.store.db.database import Database
from timekeeper.store.db.engine import make_engine

T0 = 1_767_225_600_000
SECOND, HOUR = 1_000, 3_600_000
POLICY = NamespacePolicy(budget=BudgetPolicy(amount="1000h", period="none"))
TEAM = AccountRef("uid-team", "team", POLICY)
aparts = pytest.mark.parametrize("apart", [2 * SECOND, HOUR])


@pytest.fixture
def replica(books: Books, database_url: str) -> Iterator[Books]:
    """Give the books of a second replica on the same database; its clock is ahead."""
    database = Database(make_engine(database_url))
    yield Books(database, books.cluster, carry=False)
    database.close()


def parent(books: Books, name: str, at: int = T0, kind: Any = "team") -> None:
    hierarchy.put_parent_budget(books, name, kind, Rule(at, 10**10, "none", "UTC"), actor="me", if_match=None)


def under(books: Books, child: AccountRef | str, above: str | None, at: int) -> bool:
    place = AccountRef(accounts.parent_uid(child), child, POLICY) if isinstance(child, str) else child
    return hierarchy.set_parent(books, place, above, reason="r", actor="me", now=at)


def run(books: Books, uid: str, start: int, end: int | None = None, model: str = "") -> None:
    closings = [Closing(uid, end, "finished")] if end else []
    workload.apply(books, [opening(uid, start, 1, model=model)], closings, {"team": POLICY}, end or start)


def charged(books: Books, name: str) -> int:
    with books.database.reading() as session:
        places = {place.name: place for place in accounts.all_accounts(session)}
        return bookings.balances(session, places[name].id)["charged"]


def charges(books: Books) -> list[Posting]:
    with books.database.reading() as session:
        found = [b.posting for p in accounts.all_accounts(session) for b in bookings.valid(session, p.id, None)]
    return sorted(p for p in found if p.kind == "charge")


def above(books: Books) -> list[str]:
    return [known.name for known in books.require("team").above]


# Parents


@aparts
def test_a_later_move_holds_although_a_clock_ahead_wrote_the_one_before(
    books: Books, replica: Books, apart: int
) -> None:
    for name in ("lab", "shop"):
        parent(books, name)
    run(books, "early", T0, T0 + 10 * SECOND)
    run(books, "pod", T0 + 10 * SECOND)
    assert under(books, TEAM, "lab", T0 + 20 * SECOND)
    now = T0 + 100 * SECOND
    settlement.settle(books, [books.require("team").account.id], now)
    before = charges(books)
    for clock, book, to in ((apart, replica, None), (0, books, "shop"), (apart, replica, "lab"), (0, books, None)):
        now += 10 * SECOND
        assert under(book, TEAM, to, now + clock)
        assert not under(book, TEAM, to, now + clock)
        settlement.settle(replica, [books.require("team").account.id], now + apart)
        for one in (books, replica):
            assert above(one) == ([to] if to else [])
    assert set(before) <= set(charges(books)), "nothing that was charged changes"
    last = now + 2 * HOUR
    workload.apply(books, [], [Closing("pod", last, "finished")], {}, last)
    assert charged(books, "team") == last - T0
    assert charged(books, "lab") + charged(books, "shop") <= now + CLOCK_SKEW_MS - (T0 + 20 * SECOND)


@aparts
def test_a_move_in_that_was_written_ahead_is_asked_for_again(books: Books, replica: Books, apart: int) -> None:
    parent(books, "lab")
    run(books, "pod", T0)
    now = T0 + 10 * SECOND
    assert under(replica, TEAM, "lab", now + apart)
    again = under(books, TEAM, "lab", now)
    assert again is (apart > CLOCK_SKEW_MS), "one within what clocks may differ holds soon by itself"
    last = now + 2 * HOUR
    workload.apply(books, [], [Closing("pod", last, "finished")], {}, last)
    assert charged(books, "lab") == last - now - (0 if again else apart)


@aparts
def test_what_left_ahead_of_time_has_left_where_something_else_is_put_under_it(
    books: Books, replica: Books, apart: int
) -> None:
    """`lower` is under `upper` until that move out holds: both at once would be a ring."""
    for name in ("upper", "lower"):
        parent(books, name)
    run(books, "pod", T0)
    assert under(books, TEAM, "lower", T0 + SECOND)
    assert under(books, "lower", "upper", T0 + SECOND)
    now = T0 + 10 * SECOND
    assert under(replica, "lower", None, now + apart)
    assert under(books, "upper", "lower", now)
    held = now if apart > CLOCK_SKEW_MS else now + apart
    last = now + 2 * HOUR
    workload.apply(books, [], [Closing("pod", last, "finished")], {}, last)
    assert charged(books, "upper") == held - (T0 + SECOND)
    assert charged(books, "lower") == last - (T0 + SECOND)


def test_the_parent_that_a_clock_ahead_named_is_charged_nothing(books: Books, replica: Books) -> None:
    parent(books, "lab")
    run(books, "pod", T0)
    now = T0 + 10 * SECOND
    assert under(replica, TEAM, "lab", now + HOUR)
    settlement.settle(replica, [replica.require("team").account.id], now + HOUR + 30 * SECOND)
    assert charged(books, "lab") == 0
    assert under(books, TEAM, None, now)
    last = now + 2 * HOUR
    workload.apply(books, [], [Closing("pod", last, "finished")], {}, last)
    assert (charged(books, "lab"), charged(books, "team")) == (0, last - T0)


_NAMES = ("a", "b", "c", "d")
_moves = st.lists(
    st.tuples(
        st.sampled_from([0, 0, 0, 2 * SECOND, HOUR, 2 * HOUR]),
        st.sampled_from([*_NAMES, "team"]),
        st.sampled_from([*_NAMES, None]),
        st.integers(0, 20 * SECOND),
    ),
    max_size=10,
)


@settings(max_examples=15, deadline=None)
@given(moves=_moves)
@example(moves=[(0, "a", "b", 0), (HOUR, "a", None, 0), (0, "b", "a", 0), (0, "team", "b", 1)])
@example(moves=[(0, "a", "b", 0), (HOUR, "a", "c", 0), (0, "b", "d", 0), (0, "d", "a", 0), (0, "team", "b", 1)])
def test_no_ring_of_parents_ever_comes_to_exist(
    databases: Databases, moves: list[tuple[int, str, str | None, int]]
) -> None:
    with databases.migrated() as url:
        books = Books(Database(make_engine(url)), "default", carry=False)
        try:
            for name in _NAMES:
                parent(books, name)
            run(books, "pod", T0)
            now, wanted = T0 + SECOND, dict[str, str]()
            for clock, child, to, pause in moves:
                now += pause
                try:
                    under(books, TEAM if child == "team" else child, to, now + clock)
                except Conflicting:
                    continue
                wanted.pop(child, None)
                if to is not None:
                    wanted[child] = to
                settlement.settle(books, [books.require("team").account.id], now + clock)
            now += SECOND
            for standing in [*books.parents(), books.require("team")]:
                held = [known.name for known in standing.above]
                assert held[:1] == [wanted[standing.account.name]][:1] if standing.account.name in wanted else not held
            never_a_ring(books)
            workload.apply(books, [], [Closing("pod", now + 3 * HOUR, "finished")], {}, now + 3 * HOUR)
            assert charged(books, "team") == now + 3 * HOUR - T0
            assert verify(books.database.engine, carry=False).differences == []
        finally:
            books.database.close()


def never_a_ring(books: Books) -> None:
    with books.database.reading() as session:
        keys = [place.id for place in accounts.all_accounts(session)]
        links = hierarchy_links.tree(session, keys, None).links
    parents: dict[int, int | None] = {}
    for link in links:
        parents[link.child] = link.parent
        for key in keys:
            seen, at = [key], parents.get(key)
            while at is not None:
                assert at not in seen
                seen.append(at)
                at = parents.get(at)
    assert all(one.since <= other.since for one, other in pairwise(links))


# Rates


@aparts
def test_a_rate_is_corrected_although_a_clock_ahead_wrote_the_one_before(
    books: Books, replica: Books, apart: int
) -> None:
    price: dict[str, Any] = {"since": None, "reason": "r", "actor": "me"}
    run(books, "pod", T0, model="A100")
    set_rate(books, "A100", Fraction(2), now=T0 + 10 * SECOND, **price)
    now = T0 + 100 * SECOND
    settlement.settle(books, [books.require("team").account.id], now)
    before = charges(books)
    scheduled = now + 2 * HOUR
    set_rate(books, "A100", Fraction(3), now=now, **{**price, "since": scheduled})
    ahead, _ = set_rate(replica, "A100", Fraction(9), now=now + apart, **price)
    settlement.settle(replica, [books.require("team").account.id], now + apart)
    since, made = set_rate(books, "A100", Fraction(4), now=now, **price)
    assert (since, made) == (ahead + 1 if apart <= CLOCK_SKEW_MS else now, True)
    assert set_rate(books, "A100", Fraction(4), now=now, **price) == (since, False)
    assert set(before) <= set(charges(books)), "nothing that was charged changes"
    last = now + 3 * HOUR
    workload.apply(books, [], [Closing("pod", last, "finished")], {}, last)
    owed = 10 * SECOND + 2 * (min(since, ahead) - T0 - 10 * SECOND) + 4 * (scheduled - since) + 3 * (last - scheduled)
    assert charged(books, "team") == owed + (9 if since > ahead else 0)


@aparts
def test_a_rate_that_was_written_ahead_is_asked_for_again(books: Books, replica: Books, apart: int) -> None:
    price: dict[str, Any] = {"since": None, "reason": "r", "actor": "me"}
    ahead, _ = set_rate(replica, "A100", Fraction(9), now=T0 + apart, **price)
    expected = (ahead, False) if apart <= CLOCK_SKEW_MS else (T0, True)
    assert set_rate(books, "A100", Fraction(9), now=T0, **price) == expected


@aparts
def test_the_settings_rates_follow_the_later_write(books: Books, replica: Books, apart: int) -> None:
    run(books, "pod", T0, model="A100")
    now = T0 + 10 * SECOND
    follow_settings(replica, {"A100": Fraction(9)}, now + apart)
    for _ in range(3):
        follow_settings(books, {"A100": Fraction(2)}, now)
    last = now + 2 * HOUR
    workload.apply(books, [], [Closing("pod", last, "finished")], {}, last)
    late = 0 if apart > CLOCK_SKEW_MS else apart
    assert charged(books, "team") == 10 * SECOND + late + (9 - 2 if late else 0) + 2 * (last - now - late)


# Debt


@aparts
@pytest.mark.parametrize("carry", [False, True])
def test_what_becomes_of_debts_follows_the_later_word(books: Books, replica: Books, apart: int, carry: bool) -> None:
    now = T0 + 10 * SECOND
    follow_debt(Books(books.database, "default", carry=False), T0)
    follow_debt(Books(replica.database, "default", carry=True), now + apart)
    mine = Books(books.database, "default", carry=carry)
    for _ in range(2):
        follow_debt(mine, now)
    tight = NamespacePolicy(budget=BudgetPolicy(amount="10s", period="none"))
    start = now + 2 * SECOND + SECOND
    workload.apply(mine, [opening("pod", start, 1)], [], {"team": tight}, start)
    workload.apply(mine, [], [Closing("pod", start + 40 * SECOND, "finished")], {}, start + 40 * SECOND)
    assert mine.require("team").at(start + 40 * SECOND).debt == (30 * SECOND if carry else 0)
