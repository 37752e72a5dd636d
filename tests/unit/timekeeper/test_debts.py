# SPDX-License-Identifier: Apache-2.0
"""Time over budget under `timekeeper.debt`: a ledger that runs may change it, and what was before stays as it was."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from sqlalchemy import text
from support.openings import opening

from slicekeeper.config.policy import BudgetPolicy, NamespacePolicy
from timekeeper.core.budget_record import Rule
from timekeeper.ledger import hierarchy, movement, seal, workload
from timekeeper.ledger.account import AccountRef
from timekeeper.ledger.books import Books
from timekeeper.ledger.debt import follow_debt
from timekeeper.ledger.explain import explain
from timekeeper.ledger.movement import Order
from timekeeper.ledger.verify import verify
from timekeeper.ledger.workload import Closing
from timekeeper.store import accounts, audit_chain, bookings
from timekeeper.store.db.database import Database
from timekeeper.store.db.engine import make_engine

T0 = 1_767_225_600_000
HOUR = 3_600_000
POLICY = NamespacePolicy(budget=BudgetPolicy(amount="10s", period="hour"))
TEAM = AccountRef("uid-team", "team", POLICY)


def with_debt(books: Books, setting: str) -> Books:
    """Return books of a process that was started with another setting."""
    return Books(books.database, "default", carry=setting == "carry")


def begin(books: Books, uid: str, start: int, now: int | None = None) -> None:
    workload.apply(books, [opening(uid, start)], [], {"team": POLICY}, start if now is None else now)


def end(books: Books, uid: str, at: int, now: int | None = None) -> None:
    workload.apply(books, [], [Closing(uid, at, "finished")], {}, at if now is None else now)


def grant(books: Books, amount: int, now: int) -> None:
    movement.grant(books, TEAM, Order(amount, "r", str(now), b"", "me", now), valid_from=now, valid_to=None)


def collected(books: Books, name: str = "team") -> list[int]:
    """Return what was taken from allowances for time over budget, in order."""
    with books.database.reading() as session:
        key = next(place.id for place in accounts.all_accounts(session) if place.name == name)
        found = [one.posting for one in bookings.valid(session, key, None)]
    return [posting.amount for posting in sorted(found) if posting.kind == "debt"]


def differences(books: Books) -> list[str]:
    """Return what `verify` finds, whatever the setting of who asks."""
    engine = books.database.engine
    found = verify(engine, carry=False).differences
    assert found == verify(engine, carry=True).differences
    return found


def test_who_begins_to_carry_collects_nothing_that_was_forgiven(books: Books) -> None:
    follow_debt(books, T0)
    begin(books, "a", T0)  # over budget from 10 s on
    carrying = with_debt(books, "carry")
    follow_debt(carrying, T0 + 30_000)
    assert carrying.require("team").at(T0 + 40_000).debt == 10_000
    end(carrying, "a", T0 + 45_000)
    grant(carrying, 100_000, T0 + 50_000)
    assert collected(books) == [15_000]
    assert carrying.require("team").at(T0 + 50_000).balance == 85_000
    assert books.require("team").at(T0 + 50_000).balance == 85_000  # the ledger says so, not the reader's setting
    assert differences(books) == []
    lines = list(explain(books.database.engine, "default", "team", T0 + 50_000, carry=False))
    assert lines[-1].balance_ms == 85_000


def test_who_begins_to_forgive_is_still_owed_what_was_owed(books: Books) -> None:
    carrying = with_debt(books, "carry")
    follow_debt(carrying, T0)
    begin(carrying, "a", T0)
    follow_debt(books, T0 + 30_000)
    end(books, "a", T0 + 45_000)
    grant(books, 5_000, T0 + 50_000)
    grant(books, 100_000, T0 + 60_000)
    assert collected(books) == [5_000, 15_000]
    assert books.require("team").at(T0 + 60_000).debt == 0
    assert differences(books) == []


def test_late_knowledge_is_owed_by_the_rule_of_its_own_time_also_behind_a_seal(books: Books) -> None:
    follow_debt(books, T0)
    begin(books, "a", T0)
    end(books, "a", T0 + 10_000)
    seal.seal_due(books, 0, T0 + 2 * HOUR)
    carrying = with_debt(books, "carry")
    follow_debt(carrying, T0 + 2 * HOUR)
    begin(carrying, "found-late", T0 + 10_000, T0 + 3 * HOUR)
    end(carrying, "found-late", T0 + 60_000, T0 + 3 * HOUR)
    assert carrying.require("team").at(T0 + 3 * HOUR).debt == 0
    assert carrying.require("team").at(T0 + 3 * HOUR).balance == 10_000
    assert collected(books) == []
    assert differences(books) == []


def test_above_it_is_the_lowest_budget_without_room_that_owes(books: Books) -> None:
    follow_debt(books, T0)
    rule = Rule(T0, 4_000, "hour", "UTC")
    hierarchy.put_parent_budget(books, "physics", "team", rule, actor="me", if_match=None)
    hierarchy.set_parent(books, TEAM, "physics", reason="r", actor="me", now=T0)
    begin(books, "a", T0 + 1_000)  # physics has nothing left from 5 s on
    carrying = with_debt(books, "carry")
    follow_debt(carrying, T0 + 6_000)
    end(carrying, "a", T0 + 9_000)
    states = carrying.require("team").tree_standing.at(T0 + 10_000)
    assert {carrying.require("team").account.id: 0, carrying.require_parent("physics").account.id: 3_000} == {
        key: state.debt for key, state in states.items()
    }
    begin(carrying, "b", T0 + HOUR)
    assert (collected(books, "physics"), collected(books)) == ([3_000], [])
    end(carrying, "b", T0 + HOUR + 500)
    assert differences(books) == []


def test_the_first_word_holds_from_the_start_and_changes_nothing(books: Books) -> None:
    """As in a ledger that was kept before a timekeeper led."""
    before = with_debt(books, "carry")
    begin(before, "a", T0)
    end(before, "a", T0 + 40_000)
    grant(before, 10_000, T0 + 50_000)
    engine = books.database.engine
    assert verify(engine, carry=True).differences == []
    assert verify(engine, carry=False).differences != []
    for now in (60_000, 70_000):
        follow_debt(with_debt(books, "carry"), T0 + now)
    assert collected(books) == [10_000]
    assert differences(books) == []
    with books.database.reading() as session:
        assert session.execute(text("SELECT effective_at, debt FROM debt_rule")).all() == [(0, "carry")]
        assert audit_chain.page(session, "default", "", 0, 9)[-1].action == "grant"


def test_each_change_is_in_the_audit_log_and_verify_misses_it_where_it_is_not(books: Books) -> None:
    follow_debt(books, T0)
    for setting in ("carry", "carry", "forgive"):
        follow_debt(with_debt(books, setting), T0 + 1_000)
    with books.database.reading() as session:
        told = [(r.action, r.actor, r.detail) for r in audit_chain.page(session, "default", "", 0, 9)]
    assert told == [
        ("debt", "settings", f'{{"debt":"carry","effectiveAt":{T0 + 1_000}}}'),
        ("debt", "settings", f'{{"debt":"forgive","effectiveAt":{T0 + 1_001}}}'),
    ]
    assert differences(books) == []


def test_verify_finds_a_rule_that_was_put_in_by_hand(database_url: str) -> None:
    books = Books(Database(make_engine(database_url)), "default", carry=False)
    follow_debt(books, T0)
    begin(books, "a", T0)
    end(books, "a", T0 + 40_000)
    grant(books, 50_000, T0 + 50_000)
    put = f"INSERT INTO debt_rule VALUES ('default', {T0 + 20_000}, 'carry')"
    books.database.write(lambda session: session.execute(text(put)) and None)
    found = "\n".join(differences(books))
    assert f"debt rule of {T0 + 20_000} is not in the audit log" in found
    assert "missing: " in found
    books.database.close()


def test_clusters_in_one_database_have_each_their_own(books: Books) -> None:
    other = Books(books.database, "other", carry=True)
    for one in (books, other):
        follow_debt(one, T0)
        begin(one, f"{one.cluster}-a", T0)
        end(one, f"{one.cluster}-a", T0 + 40_000)
        grant(one, 50_000, T0 + 50_000)
    assert [one.require("team").at(T0 + 50_000).balance for one in (books, other)] == [50_000, 20_000]
    assert differences(books) == []


def test_two_that_follow_at_once_write_one_change(database_url: str) -> None:
    first = Books(Database(make_engine(database_url)), "default", carry=False)
    replicas = [Books(Database(make_engine(database_url)), "default", carry=True) for _ in range(3)]
    follow_debt(first, T0)
    begin(first, "a", T0)
    with ThreadPoolExecutor(3) as threads:
        list(threads.map(lambda books: follow_debt(books, T0 + 20_000), replicas))
    with first.database.reading() as session:
        assert session.execute(text("SELECT count(*) FROM debt_rule")).scalar_one() == 2
    end(first, "a", T0 + 25_000)
    assert first.require("team").at(T0 + 25_000).debt == 5_000
    assert differences(first) == []
    for books in (first, *replicas):
        books.database.close()
