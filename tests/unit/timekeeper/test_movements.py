# SPDX-License-Identifier: Apache-2.0
"""Refunds, adjustments, transfers, prices, credit, rollover and status in the books; all of it is verified."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest
from sqlalchemy import delete, insert, select, text
from sqlalchemy.orm import Session
from support.openings import opening

from slicekeeper.config.policy import BudgetPolicy, NamespacePolicy
from timekeeper.core.budget_record import Rule, Status
from timekeeper.core.refusal import Conflicting, InstantOrder, Unknown
from timekeeper.ledger import hierarchy, movement, rate, reservation, seal, workload
from timekeeper.ledger.account import AccountRef
from timekeeper.ledger.books import Books
from timekeeper.ledger.budget import set_budget, set_status
from timekeeper.ledger.movement import Order
from timekeeper.ledger.refund import refund_pod
from timekeeper.ledger.verify import verify
from timekeeper.ledger.workload import Closing
from timekeeper.store import accounts, audit_chain, bookings, idempotent_rows
from timekeeper.store.db.database import Database
from timekeeper.store.db.engine import make_engine
from timekeeper.store.db.models import AuditRecord, BudgetGrant
from timekeeper.store.movements import other_side

T0 = 1_767_225_600_000
HOUR = 3_600_000
DAY_END = T0 + 24 * HOUR
POLICY = NamespacePolicy(budget=BudgetPolicy(amount="20s", period="hour"))
TEAM, OTHER = AccountRef("uid-team", "team", POLICY), AccountRef("uid-other", "other", POLICY)


def run(books: Books, uid: str, start: int, end: int | None = None, *, share: Fraction = Fraction(1)) -> None:
    begun = opening(uid, start, share, model="A100")
    workload.apply(books, [begun], [Closing(uid, end, "finished")] if end else [], {"team": POLICY}, end or start)


def order(amount: int, key: str, now: int) -> Order:
    return Order(amount, "why", key, f"{amount}".encode(), "me", now)


def charges(books: Books, uid: str) -> list[tuple[str, int, int, int]]:
    with books.database.reading() as session:
        known = accounts.find_name(session, "default", "team")
        assert known is not None
        found = [b.posting for b in bookings.valid(session, known.id, None) if b.posting.key == uid]
    return sorted((p.kind, p.start - T0, p.at - T0, p.amount) for p in found)


def test_charges_of_any_number_of_refunded_pods_are_read(books: Books) -> None:
    """One statement has so many parameters, and no more."""
    run(books, "a", T0, T0 + 15_000)
    uids = ["a", *map(str, range(70_000))]
    with books.database.reading() as session:
        found = bookings.booked_by_pod(session, uids)
    assert len(found) == len(uids)
    assert [uid for uid, booked in found.items() if booked.charged] == ["a"]


@pytest.mark.parametrize("late", [1, 500])
def test_a_grant_that_is_over_when_it_arrives_is_refused(books: Books, late: int) -> None:
    """By a clock behind ours it may begin up to a second ago, but it never ends before it counts."""
    with pytest.raises(InstantOrder, match="validTo"):
        movement.grant(books, TEAM, order(1, "k", T0), valid_from=T0 - 900, valid_to=T0 - late + 1)
    assert movement.grant(books, TEAM, order(1, "k", T0), valid_from=T0 - 900, valid_to=T0 + 1)


def test_a_refund_never_exceeds_the_charge_and_is_used_within_the_period(books: Books) -> None:
    run(books, "a", T0, T0 + 15_000)
    run(books, "b", T0 + 15_000)
    with pytest.raises(Conflicting, match="is still running"):
        refund_pod(books, TEAM, order(1, "k0", T0 + 16_000), pod_uid="b")
    with pytest.raises(Unknown):
        refund_pod(books, TEAM, order(1, "k0", T0 + 16_000), pod_uid="nobody")
    with pytest.raises(Conflicting, match="at most 15000"):
        refund_pod(books, TEAM, order(15_001, "k1", T0 + 16_000), pod_uid="a")
    assert refund_pod(books, TEAM, order(9_000, "k2", T0 + 16_000), pod_uid="a")
    assert not refund_pod(books, TEAM, order(9_000, "k2", T0 + 17_000), pod_uid="a")
    with pytest.raises(Conflicting, match="at most 6000"):
        refund_pod(books, TEAM, order(6_001, "k3", T0 + 16_000), pod_uid="a")
    assert books.require("team").at(T0 + 16_000).balance == 13_000
    assert books.require("team").run_out(T0 + 16_000) == T0 + 29_000
    assert books.require("team").at(T0 + HOUR).balance == 20_000


@pytest.mark.parametrize("parent", [False, True])
@pytest.mark.parametrize(
    ("first", "then", "used", "left"),
    [
        ("day", "month", "counts", {2: 100, 25: 100, 31 * 24: 100}),
        ("month", "day", "counts", {2: 100, 25: 100}),
        ("hour", "day", "counts", {2: 100, 25: 100}),
        ("none", "day", "counts", {2: 100, 25: 100}),
        ("day", "none", "counts", {2: 100, 25: 100, 31 * 24: 100}),
        ("day", "day", "reset", {0: 100, 2: 100, 25: 100}),
        ("none", "none", "reset", {0: 100, 2: 100}),
        ("month", "day", "reset", {0: 100, 2: 100, 25: 100}),
    ],
)
def test_a_refund_expires_with_the_period_it_is_booked_in_whenever_that_ends(
    books: Books, first: Any, then: Any, used: Any, left: dict[int, int], parent: bool
) -> None:
    def set_period(period: Any, now: int, used: Any = "counts") -> None:
        rule = Rule(now, 100_000, period, "UTC", used=used)
        set_budget(books, TEAM, rule, actor="me", if_match=None)
        if parent:
            hierarchy.put_parent_budget(books, "lab", "team", rule, actor="me", if_match=None)

    set_period(first, T0)
    if parent:
        hierarchy.set_parent(books, TEAM, "lab", reason="r", actor="me", now=T0 + 1)
    run(books, "a", T0 + 1_000, T0 + 51_000)
    refund_pod(books, TEAM, order(50_000, "k", T0 + 60_000), pod_uid="a")
    set_period(then, T0 + 120_000, used)
    standing = books.require_parent("lab") if parent else books.require("team")
    found = {hours: standing.at(T0 + hours * HOUR + 200_000).balance // 1_000 for hours in left}
    assert found == left
    assert verify(books.database.engine, carry=False).differences == []


def test_a_transfer_conserves_and_needs_cover(books: Books) -> None:
    run(books, "a", T0)
    assert movement.transfer(books, TEAM, OTHER, order(12_000, "k", T0 + 1_000), valid_to=None)
    assert not movement.transfer(books, TEAM, OTHER, order(12_000, "k", T0 + 2_000), valid_to=None)
    with pytest.raises(Conflicting, match="more than the 5000"):
        movement.transfer(books, TEAM, OTHER, order(6_000, "k2", T0 + 3_000), valid_to=None)
    assert books.require("team").at(T0 + 3_000).balance == 5_000
    assert books.require("other").at(T0 + 3_000).balance == 32_000
    with books.database.reading() as session:
        query = text("SELECT sum(balance_ms) FROM account WHERE kind = 'transferred'")
        assert session.execute(query).scalar_one() == 0


def set_amount(books: Books, ref: AccountRef, amount: int, now: int, used: Any = "counts") -> None:
    set_budget(books, ref, Rule(now, amount, "none", "UTC", used=used), actor="me", if_match=None)


def test_what_is_moved_within_one_millisecond_keeps_its_order(books: Books) -> None:
    """Ten seconds are lent and come back until an hour later: only these are there, and they expire."""
    third = AccountRef("uid-third", "third", POLICY)
    for ref, amount in ((TEAM, 10_000), (OTHER, 0), (third, 0)):
        set_amount(books, ref, amount, T0)
    now = T0 + 1_000
    movement.transfer(books, TEAM, OTHER, order(10_000, "there", now), valid_to=None)
    movement.transfer(books, OTHER, third, order(10_000, "and on", now), valid_to=None)
    movement.transfer(books, third, TEAM, order(10_000, "and back", now), valid_to=now + HOUR)
    balances = {
        at - now: [books.require(ref.name).at(at).balance for ref in (TEAM, OTHER, third)]
        for at in (now, now + HOUR - 1, now + HOUR)
    }
    assert balances == {0: [10_000, 0, 0], HOUR - 1: [10_000, 0, 0], HOUR: [0, 0, 0]}
    assert verify(books.database.engine, carry=False).differences == []


@pytest.mark.parametrize("behind", [0, 3_000])
def test_a_new_period_and_what_is_moved_keep_their_order_whatever_the_clocks_show(books: Books, behind: int) -> None:
    """`behind`: by how much the clock of the replica lags that takes the later request."""
    for ref in (TEAM, OTHER):
        set_amount(books, ref, 10_000, T0)
    now = T0 + 10_000
    movement.transfer(books, TEAM, OTHER, order(4_000, "before", now), valid_to=None)
    set_amount(books, TEAM, 10_000, now - behind, "reset")
    assert books.require("team").at(now + 1).balance == 10_000
    movement.transfer(books, TEAM, OTHER, order(3_000, "after", now - behind), valid_to=None)
    assert [books.require(name).at(now + 1).balance for name in ("team", "other")] == [7_000, 17_000]
    assert verify(books.database.engine, carry=False).differences == []


def test_a_refund_goes_up_the_chain_of_its_time_though_it_changes_in_that_millisecond(books: Books) -> None:
    for name in ("old", "new"):
        rule = Rule(T0, 20_000, "none", "UTC")
        hierarchy.put_parent_budget(books, name, "team", rule, actor="me", if_match=None)
    place = {"reason": "r", "actor": "me"}
    set_amount(books, TEAM, 20_000, T0)
    hierarchy.set_parent(books, TEAM, "old", now=T0 + 1, **place)
    run(books, "a", T0 + 1_000, T0 + 9_000)
    refund_pod(books, TEAM, order(3_000, "k", T0 + 10_000), pod_uid="a")
    hierarchy.set_parent(books, TEAM, "new", now=T0 + 10_000, **place)
    balances = [books.require_parent(name).at(T0 + 20_000).balance for name in ("old", "new")]
    assert balances == [15_000, 20_000]
    assert verify(books.database.engine, carry=False).differences == []


def test_an_adjustment_takes_what_is_left_and_not_more(books: Books) -> None:
    run(books, "a", T0, T0 + 1_000)
    assert movement.adjust(books, TEAM, order(-19_000, "k", T0 + 2_000))
    assert books.require("team").at(T0 + 2_000).exhausted
    with pytest.raises(Conflicting, match="more than the 0"):
        movement.adjust(books, TEAM, order(-1, "k2", T0 + 2_000))
    assert movement.adjust(books, TEAM, order(500, "k3", T0 + 2_000))
    assert books.require("team").at(T0 + 2_000).balance == 500


def test_what_was_moved_stands_when_late_knowledge_finds_less(books: Books) -> None:
    run(books, "a", T0, T0 + 1_000)
    assert movement.transfer(books, TEAM, OTHER, order(15_000, "k", T0 + 10_000), valid_to=None)
    run(books, "late", T0 + 1_000, T0 + 9_000)
    state = books.require("team").at(T0 + 10_000)
    assert (state.balance, state.exhausted) == (-4_000, True)
    assert books.require("team").at(T0 + HOUR).balance == 16_000


def test_a_new_price_splits_a_running_pod_exactly_whenever_it_is_noticed(books: Books) -> None:
    run(books, "a", T0, share=Fraction(1, 3))
    price: dict[str, Any] = {"since": T0 + 5_000, "reason": "r", "actor": "me"}
    for now, made in ((T0 + 1_000, True), (T0 + 2_000, False)):
        assert rate.set_rate(books, "A100", Fraction(3, 2), now=now, **price) == (T0 + 5_000, made)
    with pytest.raises(Conflicting):
        rate.set_rate(books, "A100", Fraction(2), since=T0 + 5_000, reason="r", actor="me", now=T0 + 2_000)
    run(books, "late", T0 + 4_000, T0 + 6_000)
    workload.apply(books, [], [Closing("a", T0 + 9_001, "finished")], {}, T0 + 20_000)
    # 5,000 × 1/3 + 4,001 × 1/2 = 3,667.17, rounded once.
    assert charges(books, "a") == [("charge", 0, 5_000, 1_667), ("charge", 5_000, 9_001, 2_000)]
    assert charges(books, "late") == [("charge", 4_000, 5_000, 1_000), ("charge", 5_000, 6_000, 1_500)]


def test_prices_of_the_settings_are_followed_where_they_change(books: Books) -> None:
    rate.follow_settings(books, {"A100": Fraction(2)}, T0)
    run(books, "a", T0)
    rate.set_rate(books, "A100", Fraction(3), since=T0 + 1_000, reason="r", actor="me", now=T0 + 1_000)
    rate.follow_settings(books, {"A100": Fraction(2)}, T0 + 2_000)  # a restart changes nothing
    rate.follow_settings(books, {}, T0 + 3_000)
    workload.apply(books, [], [Closing("a", T0 + 4_000, "finished")], {}, T0 + 4_000)
    assert [amount for *_, amount in charges(books, "a")] == [2_000, 6_000, 1_000]


def test_the_first_prices_of_a_ledger_that_has_charged_pods_hold_from_now_on(books: Books) -> None:
    run(books, "old", T0, T0 + 1_000)
    run(books, "runs", T0)
    rate.follow_settings(books, {"A100": Fraction(2)}, T0 + 3_000)
    workload.apply(books, [], [Closing("runs", T0 + 4_000, "finished")], {}, T0 + 4_000)
    assert charges(books, "old") == [("charge", 0, 1_000, 1_000)]
    assert [amount for *_, amount in charges(books, "runs")] == [3_000, 2_000]


def test_four_quarters_of_a_gpu_for_an_hour_are_one_gpu_hour(books: Books) -> None:
    set_budget(books, TEAM, Rule(T0, HOUR, "none", "UTC"), actor="me", if_match=None)
    for index in range(4):
        run(books, f"p{index}", T0, T0 + HOUR, share=Fraction(1, 4))
    state = books.require("team").at(T0 + HOUR)
    assert (state.used, state.over, state.balance) == (HOUR, 0, 0)


def test_credit_is_overdraft_and_is_paid_back_from_the_next_period(books: Books) -> None:
    rule = Rule(T0, 20_000, "hour", "UTC", credit=5_000)
    set_budget(books, TEAM, rule, actor="me", if_match=None)
    run(books, "a", T0)
    standing = books.require("team")
    assert (standing.at(T0 + 22_000).balance, standing.at(T0 + 22_000).exhausted) == (-2_000, False)
    assert standing.run_out(T0 + 22_000) == T0 + 25_000
    state = standing.at(T0 + HOUR)
    assert (state.balance, state.exhausted) == (15_000, False)
    workload.apply(books, [], [Closing("a", T0 + HOUR + 1_000, "finished")], {}, T0 + HOUR + 1_000)


def test_what_a_period_leaves_goes_over_up_to_its_cap(books: Books) -> None:
    rule = Rule(T0, 20_000, "hour", "UTC", rollover=8_000)
    set_budget(books, TEAM, rule, actor="me", if_match=None)
    run(books, "a", T0, T0 + 15_000)
    assert books.require("team").at(T0 + HOUR).balance == 25_000
    run(books, "b", T0 + 2 * HOUR, T0 + 2 * HOUR + 1_000)
    assert books.require("team").at(T0 + 2 * HOUR + 1_000).balance == 27_000


def test_a_suspended_budget_is_not_spent_and_a_closed_one_stays_closed(books: Books) -> None:
    def turn(status: Status, now: int) -> None:
        set_status(books, TEAM, status, reason="why", actor="me", now=now)

    run(books, "a", T0)
    turn("suspended", T0 + 1_000)
    turn("active", T0 + 3_000)
    turn("closed", T0 + 4_000)
    with pytest.raises(Conflicting, match="is closed"):
        turn("active", T0 + 5_000)
    with pytest.raises(Conflicting, match="is closed"):
        movement.adjust(books, TEAM, order(1, "k", T0 + 5_000))
    workload.apply(books, [], [Closing("a", T0 + 6_000, "finished")], {}, T0 + 6_000)
    assert charges(books, "a") == [
        ("charge", 0, 1_000, 1_000),
        ("charge", 3_000, 4_000, 1_000),
        ("over-budget", 1_000, 3_000, 2_000),
        ("over-budget", 4_000, 6_000, 2_000),
    ]


def test_grants_of_low_priority_are_used_first(books: Books) -> None:
    for key, priority in (("late", 5), ("early", -5)):
        movement.grant(books, TEAM, order(1_000, key, T0), valid_from=T0, valid_to=None, priority=priority)
    run(books, "a", T0, T0 + 1_500)
    left = {b.priority: b.left for b in books.require("team").at(T0 + 1_500).grants}
    assert left == {5: 1_000}  # what is used up is no longer there


def later(books: Books, key: str, place: AccountRef = TEAM, begins: int = T0 + 5_000) -> int:
    """Book a grant that begins later; return its id."""
    movement.grant(books, place, order(9_000, key, T0), valid_from=begins, valid_to=None)
    with books.database.reading() as session:
        known = accounts.find(session, "default", place.uid)
        assert known is not None
        row = idempotent_rows.under(session, BudgetGrant, known.id, key)
        assert row is not None
        return row.id


def withdraw(books: Books, key: int, now: int, place: AccountRef = TEAM) -> int | None:
    def find(session: Session) -> accounts.BudgetAccount:
        found = accounts.find(session, "default", place.uid)
        assert found is not None
        return found

    return movement.withdraw(books, find, key, reason="a mistake", actor="me", now=now).withdrawn_at


def test_a_grant_that_has_not_begun_is_withdrawn_once_and_brings_nothing(books: Books) -> None:
    key, kept = later(books, "k"), later(books, "kept", begins=T0 + 7_000)
    for now in (T0 + 1_000, T0 + 2_000):
        assert withdraw(books, key, now) == T0 + 1_000
    run(books, "a", T0, T0 + 8_000)
    assert books.require("team").at(T0 + 8_000).balance == 20_000 - 8_000 + 9_000
    assert not movement.grant(books, TEAM, order(9_000, "k", T0 + 1), valid_from=T0 + 5_000, valid_to=None)
    with books.database.reading() as session:
        assert [row.action for row in audit_chain.page(session, "default", "team", 0, 9)] == [
            "grant",
            "grant",
            "withdraw",
        ]
    with pytest.raises(Conflicting, match="began at .* with an adjustment"):
        withdraw(books, kept, T0 + 8_000)
    with pytest.raises(Unknown, match="team has no grant 999"):
        withdraw(books, 999, T0)


def test_a_grant_is_withdrawn_from_its_own_budget_alone_a_teams_too(books: Books) -> None:
    lab = AccountRef(accounts.parent_uid("lab"), "lab", POLICY)
    hierarchy.put_parent_budget(books, "lab", "team", Rule(T0, 5_000, "day", "UTC"), actor="me", if_match=None)
    key = later(books, "k", lab)
    later(books, "other")
    with pytest.raises(Unknown):
        withdraw(books, key, T0 + 1)
    assert withdraw(books, key, T0 + 1, lab) == T0 + 1
    assert books.require_parent("lab").at(T0 + 6_000).balance == 5_000


def test_a_grant_on_which_time_set_aside_depends_is_not_withdrawn(books: Books) -> None:
    safe = NamespacePolicy(budget=BudgetPolicy(amount="20s", period="none", enforcement="safe"))
    place = AccountRef("uid-safe", "safe", safe)
    passing = order(10_000, "passing", T0)
    movement.grant(books, place, passing, valid_from=T0, valid_to=T0 + 6_000)
    key = later(books, "k", place)
    reservation.open_by_hand(books, place, order(29_000, "r", T0 + 1), expires_at=T0 + 9_000)
    with pytest.raises(Conflicting, match="would lack 9000"):
        withdraw(books, key, T0 + 2, place)
    with books.database.reading() as session:
        assert session.get_one(BudgetGrant, key).withdrawn_at is None


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        ("UPDATE budget_grant SET withdrawn_at = NULL", "the withdraw that it names is not there"),
        ("UPDATE budget_grant SET withdrawn_at = 5 WHERE idempotency_key = 'kept'", "withdrawal of grant 2 is not in"),
        ("DELETE FROM audit WHERE action = 'withdraw'", "withdrawal of grant 1 is not in"),
    ],
)
def test_verify_finds_a_withdrawal_that_was_none(database_url: str, damage: str, told: str) -> None:
    books = Books(Database(make_engine(database_url)), "default", carry=False)
    key = later(books, "k")
    later(books, "kept")
    withdraw(books, key, T0 + 1)
    assert verify(books.database.engine, carry=False).differences == []
    books.database.write(lambda session: session.execute(text(damage)) and None)
    found = verify(books.database.engine, carry=False).differences
    assert any(told in difference for difference in found), found
    books.database.close()


def test_a_transfer_says_so_if_its_key_is_taken_on_the_other_side(books: Books) -> None:
    run(books, "a", T0)
    with books.database.reading() as session:
        giver = accounts.find(session, "default", TEAM.uid)
        assert giver is not None
        taken = other_side(giver.id, "k")
    movement.grant(books, OTHER, order(1, taken, T0), valid_from=T0, valid_to=None)
    with pytest.raises(Conflicting, match="send another"):
        movement.transfer(books, TEAM, OTHER, order(1_000, "k", T0 + 1_000), valid_to=None)
    assert books.require("team").at(T0 + 1_000).balance == 19_000


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        ("UPDATE audit SET actor = 'somebody' WHERE id = 1", "audit record 1: it was changed"),
        ("DELETE FROM audit WHERE id = 1", "audit record 2: it does not follow"),
        ("DELETE FROM audit WHERE id = 3", "refund 3 is not in the audit log"),
        ("DELETE FROM audit", "transfer 1 is not in the audit log"),
        ("DELETE FROM budget_grant WHERE kind = 'refund'", "audit record 3: the refund that it names is not there"),
        ("UPDATE budget_grant SET reason = 'none'", "transfer 1 is not in the audit log"),
        ("UPDATE budget_grant SET actor = 'none'", "transfer 1 is not in the audit log"),
        ("UPDATE audit SET id = id + 10 WHERE id = 2", "audit record 3: it does not follow"),
        ("UPDATE budget_grant SET amount_ms = 11999 WHERE amount_ms = 12000", "the budget that gave"),
        ("UPDATE budget_grant SET amount_ms = 9000 WHERE kind = 'refund'", "was refunded 9000"),
    ],
)
def test_verify_finds_what_was_tampered_with(database_url: str, damage: str, told: str) -> None:
    books = Books(Database(make_engine(database_url)), "default", carry=False)
    run(books, "a", T0, T0 + 1_000)
    movement.transfer(books, TEAM, OTHER, order(12_000, "k", T0 + 1_000), valid_to=None)
    refund_pod(books, TEAM, order(1_000, "r", T0 + 1_000), pod_uid="a")
    assert verify(books.database.engine, carry=False).differences == []
    with books.database.reading() as session:
        assert [row.action for row in audit_chain.page(session, "default", "", 0, 9)] == [
            "transfer",
            "transfer",
            "refund",
        ]
    books.database.write(lambda session: session.execute(text(damage)) and None)
    assert any(told in difference for difference in verify(books.database.engine, carry=False).differences)
    books.database.close()


def test_verify_finds_that_the_audit_log_lacks_what_was_decided(database_url: str) -> None:
    books = Books(Database(make_engine(database_url)), "default", carry=False)
    rule = Rule(T0, 5_000, "day", "UTC")
    acts: tuple[Callable[[], object], ...] = (
        lambda: set_budget(books, TEAM, rule, actor="me", if_match=None),
        lambda: set_status(books, TEAM, "suspended", reason="r", actor="me", now=T0 + 1),
        lambda: rate.set_rate(books, "A100", Fraction(2), since=T0 + 9, reason="r", actor="me", now=T0 + 2),
        lambda: hierarchy.put_parent_budget(
            books, "lab", "team", replace(rule, since=T0 + 3), actor="me", if_match=None
        ),
        lambda: hierarchy.set_parent(books, TEAM, "lab", reason="r", actor="me", now=T0 + 4),
        lambda: movement.grant(books, TEAM, order(1, "k", T0 + 6), valid_from=T0 + 6, valid_to=None),
        lambda: seal.seal(books, books.require("team").account, DAY_END, reason="r", actor="me", now=DAY_END + 5),
    )
    for number, act in enumerate(acts, 1):
        act()
        assert verify(books.database.engine, carry=False).differences == []
        with books.database.reading() as session:
            last = session.scalars(select(AuditRecord).order_by(AuditRecord.id.desc())).first()
        assert last is not None
        assert last.id == number
        cut = {column: getattr(last, column) for column in AuditRecord.__mapper__.columns.keys()}  # noqa: SIM118
        books.database.write(lambda s, number=number: s.execute(delete(AuditRecord).where(AuditRecord.id == number)))
        assert "not in the audit log" in "\n".join(verify(books.database.engine, carry=False).differences)
        books.database.write(lambda s, cut=cut: s.execute(insert(AuditRecord).values(**cut)))
    team = books.require("team").account
    forged = {"amountMs": 1, "counterpart": "", "id": 77, "reason": "r"}
    books.database.write(lambda s: books.audit(s, actor="me", action="grant", about=team, detail=forged, now=T0))
    (told,) = verify(books.database.engine, carry=False).differences
    assert "audit record 8: the grant that it names is not there" in told
    books.database.close()
