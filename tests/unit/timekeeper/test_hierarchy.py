# SPDX-License-Identifier: Apache-2.0
"""Teams and organisations in the books, on both databases: exact splits, moves, refusals; all of it is verified."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.charge_oracle import Interval, Tree
from support.databases import Databases
from support.openings import opening

from slicekeeper.config.policy import BudgetPolicy, NamespacePolicy
from timekeeper.core.budget_record import Rule
from timekeeper.core.refusal import (
    Conflicting,
    HierarchyCycle,
    HierarchyTooDeep,
    LedgerError,
    ParentRefused,
    ParentUnknown,
)
from timekeeper.ledger import coverage, hierarchy, movement, reservation, settlement, workload
from timekeeper.ledger.account import AccountRef
from timekeeper.ledger.books import Books
from timekeeper.ledger.budget import set_status
from timekeeper.ledger.explain import explain
from timekeeper.ledger.movement import Order
from timekeeper.ledger.refund import refund_pod
from timekeeper.ledger.verify import verify
from timekeeper.ledger.workload import Closing
from timekeeper.store import accounts, audit_chain, bookings
from timekeeper.store.db.database import Database
from timekeeper.store.db.engine import make_engine

T0 = 1_767_225_600_000
HOUR = 3_600_000
POLICY = NamespacePolicy(budget=BudgetPolicy(amount="100s", period="none", enforcement="safe"))
RED, BLUE = AccountRef("uid-red", "red", POLICY), AccountRef("uid-blue", "blue", POLICY)


def team(books: Books, name: str, amount: int, *, kind: Any = "team", period: Any = "none", at: int = T0) -> None:
    rule = Rule(at, amount, period, "UTC")
    assert hierarchy.put_parent_budget(books, name, kind, rule, actor="me", if_match=None)


def under(books: Books, child: AccountRef | str, parent: str | None, at: int = T0) -> bool:
    place = AccountRef(accounts.parent_uid(child), child, POLICY) if isinstance(child, str) else child
    return hierarchy.set_parent(books, place, parent, reason="r", actor="me", now=at)


def run(books: Books, uid: str, start: int, end: int | None = None, *, place: AccountRef = RED, share: int = 1) -> None:
    begun = opening(uid, start, share, place.name, model="A100")
    workload.apply(books, [begun], [Closing(uid, end, "finished")] if end else [], {place.name: POLICY}, end or start)


def end(books: Books, uid: str, at: int) -> None:
    workload.apply(books, [], [Closing(uid, at, "finished")], {}, at)


def order(amount: int, key: str, now: int) -> Order:
    return Order(amount, "why", key, f"{amount}".encode(), "me", now)


def posted(books: Books, uid: str) -> list[tuple[str, int, int, int]]:
    with books.database.reading() as session:
        places = accounts.all_accounts(session)
        found = [b.posting for p in places for b in bookings.valid(session, p.id, None) if b.posting.key == uid]
    return sorted(((p.kind, p.start - T0, p.at - T0, p.amount) for p in found), key=lambda p: p[1])


def consumed(books: Books, name: str) -> int:
    """Return what is booked as charged on a namespace, a team or an organisation."""
    with books.database.reading() as session:
        places = {place.name: place for place in accounts.all_accounts(session)}
        return bookings.balances(session, places[name].id)["charged"]


@settings(max_examples=8, deadline=None)
@given(data=st.data())
def test_late_and_reordered_knowledge_ends_in_what_an_independent_oracle_says(
    databases: Databases, data: st.DataObject
) -> None:
    names = ("red", "blue", "green")
    amounts = {name: data.draw(st.integers(1, 40_000), name) for name in (*names, "physics", "science")}
    parents = {"red": "physics", "blue": "physics", "green": "science", "physics": "science"}
    pods = data.draw(
        st.lists(
            st.tuples(st.sampled_from(names), st.integers(0, 20_000), st.integers(1, 20_000), st.integers(1, 3)),
            min_size=1,
            max_size=6,
        )
    )
    grants = data.draw(
        st.lists(
            st.tuples(st.integers(1, 30_000), st.sampled_from(sorted(amounts)), st.integers(1, 9_000)),
            max_size=3,
            unique_by=lambda grant: grant[0],
        )
    )
    intervals = [
        (name, Interval(f"pod-{n}", T0 + start, T0 + start + length, Fraction(1, den)))
        for n, (name, start, length, den) in enumerate(pods)
    ]
    told = data.draw(st.permutations(intervals))
    policies = {
        name: NamespacePolicy(budget=BudgetPolicy(amount=f"{amounts[name]}ms", period="none")) for name in names
    }
    with databases.migrated() as url:
        books = Books(Database(make_engine(url)), "default", carry=False)
        try:
            team(books, "physics", amounts["physics"], at=T0 - 1)
            team(books, "science", amounts["science"], kind="organisation", at=T0 - 1)
            for child in ("physics", *names):
                place = child if child == "physics" else AccountRef(f"uid-{child}", child, policies[child])
                under(books, place, parents[child], T0 - 1)
            for index, (since, name, amount) in enumerate(sorted(grants)):
                target = AccountRef(
                    f"uid-{name}" if name in names else accounts.parent_uid(name), name, policies.get(name, POLICY)
                )
                movement.grant(books, target, order(amount, f"{index}", T0), valid_from=T0 + since, valid_to=None)
            for step, (name, one) in enumerate(told):
                workload.apply(books, [opening(one.uid, one.start, one.rate, name)], [], policies, T0 + 50_000 + step)
            for _, one in reversed(told):
                workload.apply(books, [], [Closing(one.uid, one.end, "finished")], policies, T0 + 60_000)
            mine = {name: [i for n, i in intervals if n == name] for name in names}
            oracle = Tree(mine, amounts, parents, [(T0 + since, name, amount) for since, name, amount in grants])
            wanted, used = oracle.charges(), oracle.used
            with books.database.reading() as session:
                found = bookings.booked_by_pod(session, sorted(wanted))
            assert {uid: found[uid] for uid in wanted} == wanted
            assert {name: consumed(books, name) for name in amounts} == used
            assert verify(books.database.engine, carry=False).differences == []
        finally:
            books.database.close()


def test_a_team_that_runs_out_stops_all_its_namespaces_at_one_instant(books: Books) -> None:
    team(books, "physics", 30_000)
    assert under(books, RED, "physics")
    assert under(books, BLUE, "physics")
    run(books, "a", T0 + 1_000)
    run(books, "b", T0 + 1_000, place=BLUE, share=2)
    for name in ("red", "blue"):
        standing = books.require(name)
        assert standing.due(T0 + 1_000) == standing.run_out(T0 + 1_000) == T0 + 11_000
        assert standing.binding(T0 + 2_000)[0].name == "physics"
    end(books, "a", T0 + 15_000)
    end(books, "b", T0 + 15_000)
    assert posted(books, "a") == [("charge", 1_000, 11_000, 10_000), ("over-budget", 11_000, 15_000, 4_000)]
    assert posted(books, "b") == [("charge", 1_000, 11_000, 20_000), ("over-budget", 11_000, 15_000, 8_000)]
    assert [consumed(books, name) for name in ("red", "blue", "physics")] == [10_000, 20_000, 30_000]
    state = books.require("red").at(T0 + 15_000)
    assert (state.exhausted, state.over_budget, state.balance, state.since) == (False, True, 90_000, T0 + 11_000)
    known, above = books.require("red").binding(T0 + 15_000)
    assert (known.title, above.balance, above.over) == ("team physics", 0, 12_000)


def test_a_parents_period_and_grant_bring_running_pods_back_at_their_instant(books: Books) -> None:
    team(books, "chemistry", 1_000_000, kind="organisation")
    team(books, "physics", 10_000, period="hour")
    assert under(books, "physics", "chemistry")
    assert under(books, RED, "physics")
    run(books, "a", T0 + HOUR - 20_000)
    movement.grant(
        books,
        AccountRef(accounts.parent_uid("physics"), "physics", POLICY),
        order(3_000, "g", T0 + HOUR - 5_000),
        valid_from=T0 + HOUR - 5_000,
        valid_to=None,
    )
    end(books, "a", T0 + HOUR + 7_000)
    assert posted(books, "a") == [
        ("charge", HOUR - 20_000, HOUR - 10_000, 10_000),
        ("over-budget", HOUR - 10_000, HOUR - 5_000, 5_000),
        ("charge", HOUR - 5_000, HOUR - 2_000, 3_000),
        ("over-budget", HOUR - 2_000, HOUR, 2_000),
        ("charge", HOUR, HOUR + 7_000, 7_000),
    ]
    assert [consumed(books, name) for name in ("red", "physics", "chemistry")] == [20_000] * 3
    assert not books.require("red").at(T0 + HOUR + 7_000).over_budget


def test_what_was_charged_before_a_move_stays_with_the_old_parent(books: Books, monkeypatch: Any) -> None:
    monkeypatch.setattr(settlement, "CHECKPOINT_EVERY", 1)
    for name in ("physics", "chemistry"):
        team(books, name, 90_000)
    under(books, RED, "physics")
    run(books, "a", T0)
    assert under(books, RED, "chemistry", T0 + 4_000)
    assert not under(books, RED, "chemistry", T0 + 4_000)
    run(books, "late", T0 + 1_000, T0 + 3_000)
    assert under(books, RED, None, T0 + 9_000)
    run(books, "later", T0 + 8_000, T0 + 10_000)
    end(books, "a", T0 + 12_000)
    assert [consumed(books, name) for name in ("red", "physics", "chemistry")] == [16_000, 6_000, 6_000]
    assert [(s, e) for _, s, e, _ in posted(books, "a")] == [(0, 4_000), (4_000, 9_000), (9_000, 12_000)]


def test_a_refund_goes_up_the_chain(books: Books) -> None:
    team(books, "physics", 10_000)
    under(books, RED, "physics")
    run(books, "a", T0, T0 + 15_000)
    run(books, "b", T0 + 15_000)
    refund_pod(books, RED, order(2_000, "r", T0 + 16_000), pod_uid="a")
    end(books, "b", T0 + 20_000)
    assert posted(books, "b") == [
        ("over-budget", 15_000, 16_000, 1_000),
        ("charge", 16_000, 18_000, 2_000),
        ("over-budget", 18_000, 20_000, 2_000),
    ]
    assert consumed(books, "physics") == consumed(books, "red") == 10_000


def test_what_is_set_aside_in_one_namespace_is_not_free_in_another(books: Books) -> None:
    team(books, "physics", 10_000)
    for place in (RED, BLUE):
        under(books, place, "physics")
    run(books, "a", T0, T0 + 2_000)
    reservation.open_by_hand(books, RED, order(5_000, "r", T0 + 2_000), expires_at=T0 + HOUR)
    with pytest.raises(Conflicting, match="more than the 3000 GPU-ms that blue has free"):
        reservation.open_by_hand(books, BLUE, order(3_001, "r", T0 + 2_000), expires_at=T0 + HOUR)
    parent = AccountRef(accounts.parent_uid("physics"), "physics", POLICY)
    with pytest.raises(Conflicting, match="more than the 3000 GPU-ms that team physics has left and unreserved"):
        movement.adjust(books, parent, order(-3_001, "w", T0 + 2_000))
    with books.database.reading() as session:
        cover = coverage.known(session, books.require("blue"), T0 + 2_000)
    assert cover.free(books.require("blue").account.id)[0] == 3_000
    reservation.open_by_hand(books, BLUE, order(3_000, "s", T0 + 2_000), expires_at=T0 + HOUR)


def test_a_balance_is_explained_to_what_it_is_under_a_parent(books: Books) -> None:
    team(books, "physics", 10_000)
    under(books, RED, "physics")
    run(books, "a", T0)
    found = list(explain(books.database.engine, "default", "red", T0 + 30_000, carry=False))
    assert found[-1].balance_ms == books.require("red").at(T0 + 30_000).balance == 90_000
    for at, left, cause in ((T0 + 4_000, 6_000, "pod a (a) runs"), (T0 + 30_000, 0, "all under red from")):
        found = list(explain(books.database.engine, "default", "physics", at, carry=False, parent=True))
        assert (found[-1].balance_ms, found[-1].cause.startswith(cause)) == (left, True)


def test_a_suspended_parent_puts_all_below_over_budget(books: Books) -> None:
    team(books, "physics", 50_000)
    under(books, RED, "physics")
    run(books, "a", T0)
    physics = AccountRef(accounts.parent_uid("physics"), "physics", POLICY)
    set_status(books, physics, "suspended", reason="r", actor="me", now=T0 + 2_000)
    set_status(books, physics, "active", reason="r", actor="me", now=T0 + 5_000)
    end(books, "a", T0 + 6_000)
    assert [(kind, amount) for kind, _, _, amount in posted(books, "a")] == [
        ("charge", 2_000),
        ("over-budget", 3_000),
        ("charge", 1_000),
    ]


def test_what_is_no_hierarchy_is_refused_and_all_else_is_audited(books: Books) -> None:
    team(books, "science", 1, kind="organisation")
    for name in ("one", "two", "three"):
        team(books, name, 1)
    under(books, "one", "science")
    under(books, "two", "one")
    refused: list[tuple[Any, str]] = [
        (lambda: under(books, "one", "two"), HierarchyCycle.code),
        (lambda: under(books, "one", "one"), HierarchyCycle.code),
        (lambda: under(books, "science", "three"), ParentRefused.code),
        (lambda: under(books, RED, "nobody"), ParentUnknown.code),
        (lambda: under(books, "nobody", "one"), ParentUnknown.code),
        (lambda: team(books, "one", 1, kind="organisation"), ParentRefused.code),
    ]
    assert under(books, RED, "two")
    refused.append((lambda: under(books, "three", "two") and under(books, BLUE, "three"), HierarchyTooDeep.code))
    for act, code in refused:
        with pytest.raises(LedgerError) as error:
            act()
        assert error.value.code == code
    with books.database.reading() as session:
        rows = audit_chain.page(session, "default", "", 0, 99)
    assert [(row.action, row.namespace) for row in rows] == [
        ("organisation", "organisation science"),
        *(("team", f"team {name}") for name in ("one", "two", "three")),
        ("parent", "team one"),
        ("parent", "team two"),
        ("parent", "red"),
        ("parent", "team three"),
    ]


def test_writers_of_one_tree_wait_for_each_other_and_never_lose(database_url: str) -> None:
    replicas = [
        Books(Database(make_engine(database_url)), "default", carry=False)
        for _ in range(1 if database_url.startswith("sqlite") else 3)
    ]
    team(replicas[0], "science", 10**9, kind="organisation")
    team(replicas[0], "physics", 20_000)
    under(replicas[0], "physics", "science")
    places = [AccountRef(f"uid-space-{i}", f"space-{i}", POLICY) for i in range(4)]
    failed: list[BaseException] = []

    def work(index: int) -> None:
        books, place = replicas[index % len(replicas)], places[index % 4]
        try:
            under(books, place, "physics")
            run(books, f"pod-{index}", T0 + index * 100, T0 + 9_000, place=place)
        except BaseException as error:
            failed.append(error)

    with ThreadPoolExecutor(12) as threads:
        list(threads.map(work, range(24)))
    assert failed == []
    assert consumed(replicas[0], "physics") == sum(consumed(replicas[0], place.name) for place in places)
    assert consumed(replicas[0], "physics") == consumed(replicas[0], "science") <= 20_000
    assert verify(replicas[0].database.engine, carry=False).differences == []
    for books in replicas:
        books.database.close()
