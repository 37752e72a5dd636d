# SPDX-License-Identifier: Apache-2.0
"""What is set aside stays covered until its end, whatever expires meanwhile; on both databases."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.databases import Databases
from support.openings import opening

from slicekeeper.config.policy import BudgetPolicy, NamespacePolicy
from timekeeper.core import timeline
from timekeeper.core.budget_record import Forest, GrantRecord, Link, Records, Rule
from timekeeper.core.coverage import Cover, Gap, ReservedTime, planned
from timekeeper.core.pod_need import Need
from timekeeper.core.refusal import Conflicting
from timekeeper.ledger import hierarchy, movement, reservation, workload
from timekeeper.ledger.account import AccountRef
from timekeeper.ledger.books import Books
from timekeeper.ledger.budget import set_budget
from timekeeper.ledger.movement import Order
from timekeeper.ledger.verify import verify
from timekeeper.ledger.workload import Closing
from timekeeper.store.db.database import Database
from timekeeper.store.db.engine import make_engine

T0 = 1_767_225_600_000
HOUR = 3_600_000
POLICY = NamespacePolicy(budget=BudgetPolicy(amount="10s", period="hour", enforcement="safe"))
TEAM, OTHER = AccountRef("uid-team", "team", POLICY), AccountRef("uid-other", "other", POLICY)


def order(amount: int, key: str, now: int = T0) -> Order:
    return Order(amount, "why", key, f"{amount}".encode(), "me", now)


def grant(books: Books, amount: int, until: int | None, *, priority: int = 0, key: str = "g") -> None:
    movement.grant(books, TEAM, order(amount, key), valid_from=T0, valid_to=until, priority=priority)


def bind(books: Books, uid: str, at: int, amount: int, span: int) -> None:
    """Have a pod hold GPUs from now on that cost `amount` in `span`."""
    workload.apply(books, [opening(uid, at, Fraction(amount, span))], [], {"team": POLICY}, at)


def uncovered(books: Books, now: int) -> int:
    standing = books.require("team")
    state = standing.at(now)
    held = reservation.reserved(books, now)[standing.account.id]
    return held - state.balance - standing.rule.rule.credit


def test_what_expires_before_a_pods_end_is_not_set_aside_for_what_comes_after(books: Books) -> None:
    grant(books, 100_000, T0 + 60_000)
    long = Need(70_000, 120_000)
    assert not reservation.open_for_pod(books, TEAM, "p", "p", long, T0), "half of it comes after the grant's end"
    assert reservation.open_for_pod(books, TEAM, "q", "q", Need(70_000, 60_000), T0)
    with pytest.raises(Conflicting, match=r"amountMs: 20000 GPU-ms would be missing from 2026-01-01T00:01:00.000Z on"):
        reservation.open_by_hand(books, TEAM, order(30_000, "h"), expires_at=T0 + 60_001)
    row, _ = reservation.open_by_hand(books, TEAM, order(40_000, "i"), expires_at=T0 + 60_000)
    assert row.amount_ms == 40_000


def test_a_grant_that_expires_after_hundreds_of_periods_covers_nothing_later(books: Books) -> None:
    end = T0 + 300 * HOUR
    grant(books, 100_000, end)
    with pytest.raises(Conflicting, match=r"amountMs: 40000 GPU-ms would be missing from 2026-01-13T12:00:00.000Z on"):
        reservation.open_by_hand(books, TEAM, order(50_000, "h"), expires_at=end + 1)
    reservation.open_by_hand(books, TEAM, order(50_000, "i"), expires_at=end)


def test_the_next_period_covers_what_it_brings_and_not_more(books: Books) -> None:
    grant(books, 20_000, None)
    now = T0 + HOUR - 10_000
    assert reservation.open_for_pod(books, TEAM, "p", "p", Need(30_000, 20_000), now), "10 s come with the next hour"
    grant(books, 20_000, T0 + HOUR, priority=-1, key="g2")
    assert not reservation.open_for_pod(books, TEAM, "q", "q", Need(20_000, 80_000), now)
    assert reservation.open_for_pod(books, TEAM, "q", "q", Need(20_000, 10_000), now)


def test_nothing_is_taken_out_that_is_needed_when_the_rest_has_expired(books: Books) -> None:
    set_budget(books, TEAM, Rule(T0, 0, "none", "UTC"), actor="me", if_match=None)
    grant(books, 10_000, None, priority=-1)
    grant(books, 10_000, T0 + 60_000, key="g2")
    reservation.open_by_hand(books, TEAM, order(8_000, "h"), expires_at=T0 + 90_000)
    with pytest.raises(Conflicting, match="would lack 8000 GPU-ms from 2026-01-01T00:01:00.000Z on"):
        movement.adjust(books, TEAM, order(-10_000, "a"))
    with pytest.raises(Conflicting, match="would lack 1 GPU-ms"):
        movement.transfer(books, TEAM, OTHER, order(2_001, "t"), valid_to=None)
    movement.transfer(books, TEAM, OTHER, order(2_000, "t2"), valid_to=None)
    assert books.require("team").at(T0).balance == 18_000


def test_a_parents_expiring_grant_covers_nothing_later_either(books: Books) -> None:
    hierarchy.put_parent_budget(books, "lab", "team", Rule(T0, 1_000, "none", "UTC"), actor="me", if_match=None)
    hierarchy.set_parent(books, TEAM, "lab", reason="r", actor="me", now=T0)
    lab = AccountRef(":lab", "lab", POLICY)
    movement.grant(books, lab, order(50_000, "g"), valid_from=T0, valid_to=T0 + 60_000)
    assert not reservation.open_for_pod(books, TEAM, "p", "p", Need(10_000, 90_000), T0)
    assert reservation.open_for_pod(books, TEAM, "p", "p", Need(10_000, 60_000), T0)


@settings(max_examples=8, deadline=None)
@given(data=st.data())
def test_whoever_started_on_a_reservation_finishes_in_budget(databases: Databases, data: st.DataObject) -> None:
    amounts, spans = st.integers(1, 40_000), st.integers(1, 3 * HOUR)
    with databases.migrated() as url:
        books = Books(Database(make_engine(url)), "default", carry=False)
        try:
            rule = Rule(
                T0,
                data.draw(amounts),
                data.draw(st.sampled_from(["none", "hour", "day"])),
                "UTC",
                data.draw(st.sampled_from([0, 3_000])),
                data.draw(st.sampled_from([0, 5_000])),
            )
            set_budget(books, TEAM, rule, actor="me", if_match=None)
            for number, (amount, until, priority) in enumerate(
                data.draw(st.lists(st.tuples(amounts, st.none() | spans, st.integers(-1, 1)), max_size=3))
            ):
                grant(books, amount, until and T0 + until, priority=priority, key=f"g{number}")
            ends: dict[str, int] = {}
            now = T0
            for number in range(data.draw(st.integers(1, 6))):
                now += data.draw(st.integers(0, HOUR))
                done = {uid: end for uid, end in ends.items() if end <= now}
                workload.apply(books, [], [Closing(uid, end, "finished") for uid, end in done.items()], {}, now)
                ends = {uid: end for uid, end in ends.items() if uid not in done}
                amount, span, uid = data.draw(amounts), data.draw(spans), f"p{number}"
                kind = data.draw(st.sampled_from(["pod", "pod", "early", "by-hand", "take"]))
                try:
                    if kind == "by-hand":
                        reservation.open_by_hand(books, TEAM, order(amount, uid, now), expires_at=now + span)
                    elif kind == "take":
                        movement.adjust(books, TEAM, order(-amount, uid, now))
                    elif reservation.open_for_pod(books, TEAM, uid, uid, Need(amount, span), now):
                        bind(books, uid, now, amount, span)
                        ends[uid] = now + (span if kind == "pod" else data.draw(st.integers(1, span)))
                except Conflicting:
                    pass
            watched: list[Any] = sorted({now, *ends.values(), *(T0 + hour * HOUR for hour in range(30))})
            for at in (instant for instant in watched if instant >= now):
                closing = [Closing(uid, end, "finished") for uid, end in ends.items() if end <= at]
                workload.apply(books, [], closing, {}, at)
                ends = {uid: end for uid, end in ends.items() if end > at}
                state = books.require("team").at(at)
                assert state.over == 0, "a pod with time set aside ran over budget"
                assert uncovered(books, at) <= 0
            assert verify(books.database.engine, carry=False).differences == []
        finally:
            books.database.close()


# The pure decision: one namespace below a team, no database


@st.composite
def two_budgets(draw: st.DrawFn) -> Cover:
    """A namespace, key 1, below a team, key 2, shortly after both have begun."""
    amounts, records = st.integers(0, 40_000), {}
    for key in (1, 2):
        rule = Rule(
            T0,
            draw(amounts),
            draw(st.sampled_from(["none", "hour", "day"])),
            "UTC",
            draw(st.sampled_from([0, 3_000])),
            draw(st.sampled_from([0, 5_000])),
        )
        spans = st.none() | st.integers(2, 3 * HOUR)
        grants = [
            GrantRecord(f"grant:{key}.{number}", amount, T0 + 1, until and T0 + until, priority=priority)
            for number, (amount, until, priority) in enumerate(
                draw(st.lists(st.tuples(st.integers(1, 40_000), spans, st.integers(-1, 1)), max_size=3))
            )
        ]
        records[key] = Records([], [rule], grants)
    forest = Forest(records, [Link(1, 2, T0 + 1)])
    return Cover(timeline.advance(timeline.begin_all(forest, T0), forest, T0 + 1).states, forest, [])


def later(cover: Cover, at: int) -> Cover:
    """Return the same budgets at an instant, if all that have time set aside run from now on and nothing else does."""
    claims = [one.claim for one in cover.reserved if one.claim is not None]
    before = cover.forest.records
    forest = Forest({**before, 1: replace(before[1], claims=claims)}, cover.forest.links)
    return Cover(timeline.advance(cover.states, forest, at).states, forest, cover.reserved)


def left(cover: Cover, key: int) -> int:
    return max(cover.states[key].balance + cover.forest.records[key].rules[-1].credit, 0)


@settings(max_examples=300, deadline=None)
@given(cover=two_budgets(), data=st.data())
def test_time_is_set_aside_exactly_if_it_stays_covered(cover: Cover, data: st.DataObject) -> None:
    amounts, spans = st.integers(1, 40_000), st.integers(1, 3 * HOUR)
    for number in range(data.draw(st.integers(1, 5))):
        amount, span = data.draw(amounts), data.draw(spans)
        if data.draw(st.booleans()):
            more = planned(f"pod{number}", 1, amount, span, cover.at)
        else:
            more = ReservedTime(1, amount, until=cover.at + span)
        gap = cover.lack(more)
        wider = Cover(cover.states, cover.forest, [*cover.reserved, more])
        if gap is None:
            cover = wider
        elif gap.at > cover.at:
            there = later(wider, gap.at)
            assert gap == Gap(gap.budget, gap.at, there.reserved_in(gap.budget) - left(there, gap.budget))
            assert gap.amount > 0
        else:
            assert gap.amount == amount - cover.free(1)[0] > 0
    ends = [one.until if one.claim is None else one.claim.end for one in cover.reserved]
    expiries = [grant.until for key in (1, 2) for grant in cover.forest.records[key].grants]
    watched = {*ends, *expiries, *(T0 + hour * HOUR for hour in range(1, 5)), T0 + 24 * HOUR}
    for at in sorted(instant for instant in watched if instant is not None and instant > cover.at):
        there = later(cover, at)
        assert [state.over for state in there.states.values()] == [0, 0], "a pod with time set aside ran over budget"
        assert all(there.reserved_in(key) <= left(there, key) for key in (1, 2))
