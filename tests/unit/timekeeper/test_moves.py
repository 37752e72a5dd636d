# SPDX-License-Identifier: Apache-2.0
"""Budgets that move in the hierarchy: under a parent, out and in again, at odd instants, with late knowledge."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.databases import Databases
from support.openings import opening

from slicekeeper.config.policy import BudgetPolicy, NamespacePolicy
from timekeeper.core.budget_record import Rule
from timekeeper.core.budget_state import BudgetState
from timekeeper.core.posting import Posting
from timekeeper.core.refusal import Conflicting
from timekeeper.ledger import hierarchy, movement, settlement, workload
from timekeeper.ledger.account import AccountRef
from timekeeper.ledger.books import Books
from timekeeper.ledger.movement import Order
from timekeeper.ledger.verify import verify
from timekeeper.ledger.workload import Closing
from timekeeper.store import accounts, bookings
from timekeeper.store.db.database import Database
from timekeeper.store.db.engine import make_engine

T0 = 1_835_388_000_000
HOUR, MINUTE = 3_600_000, 60_000
POLICY = NamespacePolicy(budget=BudgetPolicy(amount="20m", period="hour"))
PLACES = {name: AccountRef(f"uid-{name}", name, POLICY) for name in ("red", "blue")}
PLACES |= {name: AccountRef(accounts.parent_uid(name), name, POLICY) for name in ("lab", "school")}


def parent(books: Books, name: str, amount: int, *, period: Any = "none", at: int = T0) -> None:
    kind: Any = "team" if name == "lab" else "organisation"
    hierarchy.put_parent_budget(books, name, kind, Rule(at, amount, period, "UTC"), actor="me", if_match=None)


def move(books: Books, name: str, above: str | None, at: int) -> None:
    hierarchy.set_parent(books, PLACES[name], above, reason="r", actor="me", now=at)


def run(books: Books, uid: str, start: int, end: int | None, now: int, *, name: str = "red", share: int = 1) -> None:
    begun = opening(uid, start, Fraction(1, share), name)
    workload.apply(books, [begun], [] if end is None else [Closing(uid, end, "finished")], {name: POLICY}, now)


def order(amount: int, key: str, now: int) -> Order:
    return Order(amount, "why", key, f"{amount}".encode(), "me", now)


def valid_postings(books: Books, name: str) -> list[Posting]:
    with books.database.reading() as session:
        known = next(place for place in accounts.all_accounts(session) if place.name == name)
        return sorted(one.posting for one in bookings.valid(session, known.id, None))


def test_what_was_due_before_a_move_is_booked(books: Books) -> None:
    """A transfer books the hour's allowance; nothing was settled when the hour ended and the namespace moved."""
    start = 1_835_389_800_000
    parent(books, "school", 1691, at=start)
    movement.grant(books, PLACES["red"], order(11_135, "1", start), valid_from=start, valid_to=None)
    movement.transfer(books, PLACES["red"], PLACES["blue"], order(338, "2", start + 166), valid_to=None)
    now = start + 166 + 1_921 + 3_628_800
    move(books, "red", "school", now)
    missed = Posting(T0 + HOUR, "expiry", f"period:{T0}", T0 + HOUR, 20 * MINUTE - 338)
    assert missed in valid_postings(books, "red")
    assert verify(books.database.engine, carry=False).differences == []
    for above, later in ((None, 1), ("school", HOUR), (None, HOUR), ("school", 3 * HOUR)):
        move(books, "red", above, now := now + later)
        assert verify(books.database.engine, carry=False).differences == []


@pytest.mark.parametrize("late", [True, False])
@pytest.mark.parametrize("every", [1, 256])
def test_a_namespace_goes_under_a_team_out_and_in_again(
    books: Books, monkeypatch: pytest.MonkeyPatch, every: int, late: bool
) -> None:
    monkeypatch.setattr(settlement, "CHECKPOINT_EVERY", every)
    monkeypatch.setattr(settlement, "CHECKPOINT_LAG_MS", 1_000)
    parent(books, "lab", 90 * MINUTE, at=T0)
    parent(books, "school", 90 * MINUTE, period="hour", at=T0)
    move(books, "lab", "school", T0)
    run(books, "a", T0 + 1_000, None, T0 + 1_000)
    for step, above in enumerate(("lab", None, "lab", "school", "lab", None), start=1):
        move(books, "red", above, T0 + step * HOUR // 2)  # every second of them just when an hour ends
        if late:
            run(books, f"late-{step}", T0 + 2_000, T0 + 3_000 + step, T0 + step * HOUR // 2, share=3)
        assert verify(books.database.engine, carry=False).differences == []
    workload.apply(books, [], [Closing("a", T0 + 4 * HOUR, "finished")], {}, T0 + 4 * HOUR)
    assert verify(books.database.engine, carry=False).differences == []


def test_a_move_by_a_clock_that_lags_behind_leaves_no_anchor_of_before(
    books: Books, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settlement, "CHECKPOINT_EVERY", 1)
    monkeypatch.setattr(settlement, "CHECKPOINT_LAG_MS", 0)
    parent(books, "lab", 50 * MINUTE, period="hour")
    move(books, "red", "lab", T0 + 1)
    run(books, "a", T0 + 1_000, None, T0 + 1_000)
    run(books, "b", T0 + 1_000, None, T0 + 1_000, name="blue")
    move(books, "blue", "lab", T0 + 2_000)
    settlement.settle(books, [place.account.id for place in books.standings()], T0 + 3 * HOUR)
    move(books, "red", None, T0 + HOUR + 5)
    assert verify(books.database.engine, carry=False).differences == []
    run(books, "late", T0 + 2 * HOUR, T0 + 2 * HOUR + 60_000, T0 + 4 * HOUR, name="blue")
    assert verify(books.database.engine, carry=False).differences == []


def states(books: Books, now: int) -> dict[str, BudgetState]:
    return {p.account.name: p.at(now) for p in (*books.standings(), *books.parents())}


steps = st.lists(
    st.one_of(
        st.tuples(st.just("move"), st.sampled_from(["red", "blue"]), st.sampled_from([None, "lab", "school"])),
        st.tuples(st.just("move"), st.just("lab"), st.sampled_from([None, "school"])),
        st.tuples(st.just("pod"), st.sampled_from(["red", "blue"]), st.integers(0, 4 * HOUR)),
        st.tuples(st.just("end"), st.integers(0, 9), st.integers(0, 3 * HOUR)),
        st.tuples(st.just("adjust"), st.sampled_from(sorted(PLACES)), st.integers(-MINUTE, MINUTE).filter(bool)),
        st.tuples(st.just("pass"), st.integers(1, 2 * HOUR), st.none()),
        st.tuples(st.just("next hour"), st.sampled_from([-1, 0, 1]), st.none()),
        st.tuples(st.just("clock behind"), st.integers(1, HOUR), st.none()),
    ),
    min_size=3,
    max_size=16,
)


@settings(max_examples=12, deadline=None)
@given(steps, st.sampled_from([1, 2, 256]), st.sampled_from([0, 1_000, 600_000]))
@example(
    steps=[
        ("move", "red", None),
        ("next hour", 1, None),
        ("end", 5, 7),
        ("move", "lab", "school"),
        ("move", "lab", "school"),
        ("next hour", 0, None),
        ("next hour", -1, None),
        ("pass", 219_812, None),
        ("adjust", "lab", 925),
        ("adjust", "lab", MINUTE),
        ("move", "lab", "school"),
        ("next hour", -1, None),
        ("pod", "red", 152),
    ],
    every=1,
    lag=0,
)  # at a midnight, an anchor had the team's budget in a later hour
def test_any_moves_end_in_what_the_records_say(databases: Databases, steps: Any, every: int, lag: int) -> None:
    with databases.migrated() as url, pytest.MonkeyPatch.context() as patch:
        patch.setattr(settlement, "CHECKPOINT_EVERY", every)
        patch.setattr(settlement, "CHECKPOINT_LAG_MS", lag)
        patch.setattr(settlement, "CHECKPOINTS_KEPT", 3)
        patch.setattr(hierarchy, "CHECKPOINT_LAG_MS", lag)
        books = Books(Database(make_engine(url)), "default", carry=False)
        aside = Database(make_engine(url))
        try:
            parent(books, "lab", 30 * MINUTE, period="hour", at=T0)
            parent(books, "school", HOUR, period="day", at=T0)
            now, newest, pods = T0 + 10, T0 + 10, list[tuple[str, int, str]]()
            for kind, one, two in steps:
                if kind == "move":
                    move(books, one, two, now)
                elif kind == "pod":
                    pods.append((f"pod-{len(pods)}", now - two, one))
                    run(books, pods[-1][0], now - two, None, now, name=one, share=len(pods))
                elif kind == "end" and pods:
                    uid, start, _ = pods[one % len(pods)]
                    workload.apply(books, [], [Closing(uid, min(start + two, now), "finished")], {}, now)
                elif kind == "adjust":
                    try:
                        movement.adjust(books, PLACES[one], order(two, f"{now}-{two}-{one}", now))
                    except Conflicting:
                        continue
                elif kind == "pass":
                    now += one
                elif kind == "next hour":
                    now = (now // HOUR + 1) * HOUR + one
                elif kind == "clock behind":
                    now -= one
                newest = max(now, newest)
                fresh = Books(aside, "default", carry=False)  # which remembers nothing
                assert states(books, newest) == states(fresh, newest)
            assert verify(books.database.engine, carry=False).differences == []
        finally:
            books.database.close()
            aside.close()


def test_two_clocks_never_close_a_ring_and_the_later_move_holds(books: Books) -> None:
    """A team is put under another one by a fast clock, taken out, and the other one put under it by a slow clock."""
    for name in ("one", "two"):
        hierarchy.put_parent_budget(books, name, "team", Rule(T0, HOUR, "none", "UTC"), actor="me", if_match=None)
    teams = {name: AccountRef(accounts.parent_uid(name), name, POLICY) for name in ("one", "two")}
    move(books, "red", "two", T0 + 1)
    run(books, "a", T0 + 1_000, None, T0 + 1_000)
    for child, above, at in (
        ("one", "two", T0 + 9_000),
        ("one", None, T0 + 5_000),
        ("two", "one", T0 + 5_000),
        ("two", None, T0 + 5_000),
        ("one", "two", T0 + 5_000),
    ):
        hierarchy.set_parent(books, teams[child], above, reason="r", actor="me", now=at)
        standing = books.require_parent(child)
        assert [known.name for known in standing.above] == ([] if above is None else [above])
    move(books, "red", "one", T0 + 5_000)
    workload.apply(books, [], [Closing("a", T0 + 12_000, "finished")], {}, T0 + 12_000)
    with books.database.reading() as session:
        used = {p.name: bookings.balances(session, p.id)["charged"] for p in accounts.all_accounts(session)}
    assert used == {"red": 11_000, "two": 11_000, "one": 3_000}
