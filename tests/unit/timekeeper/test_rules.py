# SPDX-License-Identifier: Apache-2.0
"""Budgets that are changed: what was used counts on, and who writes later has their way, whatever the clocks say."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest
from sqlalchemy import text
from support.openings import opening

from slicekeeper.config.policy import BudgetPolicy, NamespacePolicy
from timekeeper.core.accounting_period import accounting_period
from timekeeper.core.budget_record import Rule
from timekeeper.core.budget_state import BudgetState
from timekeeper.core.posting import Posting
from timekeeper.core.refusal import Conflicting
from timekeeper.ledger import hierarchy, movement, rate, workload
from timekeeper.ledger.account import AccountRef, ensure_account
from timekeeper.ledger.books import Books
from timekeeper.ledger.budget import follow_policy, set_budget, set_status
from timekeeper.ledger.budget_rule import version_of
from timekeeper.ledger.debt import follow_debt
from timekeeper.ledger.movement import Order
from timekeeper.ledger.verify import verify
from timekeeper.ledger.workload import Closing
from timekeeper.store import accounts, bookings, budget_rules, timelines
from timekeeper.store.db.database import Database
from timekeeper.store.db.engine import make_engine

T0 = 1_767_225_600_000  # 2026-01-01T00:00Z, a Thursday
SECOND, HOUR, DAY = 1_000, 3_600_000, 86_400_000
POLICY = NamespacePolicy(budget=BudgetPolicy(amount="100s", period="month"))
TEAM = AccountRef("uid-team", "team", POLICY)
MONTH = Rule(0, 100 * SECOND, "month", "UTC")


def use(books: Books, uid: str, start: int, seconds: int, *, policy: NamespacePolicy = POLICY) -> None:
    end = start + seconds * SECOND
    workload.apply(books, [opening(uid, start, Fraction(1))], [Closing(uid, end, "finished")], {"team": policy}, end)


def set_to(books: Books, at: int, seconds: int, **changed: Any) -> BudgetState:
    """Give team a budget; return its standing after that."""
    rule = replace(MONTH, since=at, amount=seconds * SECOND, **changed)
    set_budget(books, TEAM, rule, actor="me", if_match=None)
    return books.require("team").at(at)


def order(seconds: int, key: str, now: int) -> Order:
    return Order(seconds * SECOND, "why", key, f"{seconds}".encode(), "me", now)


def grant(books: Books, seconds: int, now: int, until: int | None = None) -> None:
    movement.grant(books, TEAM, order(seconds, f"g{now}", now), valid_from=now, valid_to=until)


def booked(books: Books, name: str = "team") -> dict[str, int]:
    with books.database.reading() as session:
        known = next(place for place in accounts.all_accounts(session) if place.name == name)
        return dict(bookings.balances(session, known.id))


def posted(books: Books, kind: str) -> list[Posting]:
    with books.database.reading() as session:
        known = accounts.require_name(session, "default", "team")
        return sorted(b.posting for b in bookings.valid(session, known.id, None) if b.posting.kind == kind)


# What the running period has used is remembered


def test_lowering_a_budget_and_raising_it_again_forgives_nothing(books: Books) -> None:
    use(books, "a", T0, 80)
    lowered = set_to(books, T0 + 90 * SECOND, 50)
    assert (lowered.exhausted, lowered.balance) == (True, -30 * SECOND)
    raised = set_to(books, T0 + 91 * SECOND, 100)
    assert (raised.exhausted, raised.balance, raised.used) == (False, 20 * SECOND, 80 * SECOND)
    use(books, "b", T0 + 100 * SECOND, 50)
    assert booked(books)["charged"] == 100 * SECOND
    assert booked(books)["over-budget"] == 30 * SECOND


@pytest.mark.parametrize("credit", [0, 20])
@pytest.mark.parametrize("grants", [0, 40])
def test_dozens_of_toggles_give_no_more_than_the_highest_amount(books: Books, credit: int, grants: int) -> None:
    now = T0
    set_to(books, now, 100, credit=credit * SECOND)
    if grants:
        grant(books, grants, now)
    workload.apply(books, [opening("a", now, Fraction(4))], [], {"team": POLICY}, now)
    for toggle in range(60):
        set_to(books, now := now + 3 * SECOND, (50, 100, 70, 0)[toggle % 4], credit=credit * SECOND)
    workload.apply(books, [], [Closing("a", now, "finished")], {}, now)
    assert booked(books)["charged"] <= (100 + credit + grants) * SECOND
    # The state is what it would be without a single toggle.
    assert set_to(books, now + 1, 100, credit=credit * SECOND).balance <= 0
    use(books, "b", now + SECOND, 500)
    assert booked(books)["charged"] == (100 + credit + grants) * SECOND


def test_what_a_lowered_amount_does_not_cover_is_written_off_with_the_period(books: Books) -> None:
    month = T0 + 31 * DAY
    use(books, "a", T0, 80)
    set_to(books, T0 + 90 * SECOND, 50)
    use(books, "b", month + SECOND, 10)
    assert [(p.at, p.amount) for p in posted(books, "expiry")] == [(month, -30 * SECOND)]
    state = books.require("team").at(month + 11 * SECOND)
    assert (state.balance, state.period.amount) == (40 * SECOND, 50 * SECOND)
    assert booked(books)["budget"] == 40 * SECOND


@pytest.mark.parametrize("first", ["pod", "grant", "budget", "parent"])
def test_nothing_rolls_over_from_before_the_beginning(books: Books, first: str) -> None:
    policy = NamespacePolicy(budget=BudgetPolicy(amount="100s", period="month", rollover="50s"))
    place = replace(TEAM, policy=policy)
    if first == "pod":
        use(books, "a", T0, 2, policy=policy)
    elif first == "grant":
        movement.grant(books, place, order(1, "k", T0), valid_from=T0, valid_to=None)
    elif first == "budget":
        rule = replace(MONTH, since=T0, rollover=50 * SECOND)
        set_budget(books, AccountRef("uid-team", "team", policy), rule, actor="me", if_match=None)
    else:
        hierarchy.put_parent_budget(books, "lab", "team", replace(MONTH, since=T0), actor="me", if_match=None)
        hierarchy.set_parent(books, place, "lab", reason="r", actor="me", now=T0)
    assert books.require("team").at(T0 + 2 * SECOND).period.amount == 100 * SECOND
    assert books.require("team").at(T0 + 31 * DAY).period.amount == 150 * SECOND


def test_what_rolled_over_stays_when_the_amount_changes(books: Books) -> None:
    month = T0 + 31 * DAY
    set_to(books, T0, 100, rollover=60 * SECOND)
    use(books, "a", T0, 30)
    use(books, "b", month, 90)
    assert books.require("team").at(month + 90 * SECOND).balance == 70 * SECOND
    for at, amount, left in ((100, 20, -10), (101, 0, -30), (102, 100, 70)):
        state = set_to(books, month + at * SECOND, amount, rollover=60 * SECOND)
        assert state.balance == left * SECOND


def test_a_budget_of_nothing_has_nothing_when_what_rolled_over_is_gone(books: Books) -> None:
    set_to(books, T0, 100, rollover=60 * SECOND)
    lowered = set_to(books, T0 + 32 * DAY, 0)
    assert (lowered.balance, lowered.exhausted) == (60 * SECOND, False)
    later = books.require("team").at(T0 + 70 * DAY)
    assert (later.balance, later.exhausted) == (0, True)


def test_what_is_owed_stays_owed_however_the_amount_moves(books: Books) -> None:
    """Ninety of fifty are used, forty on credit; a raise that is taken back must not pay them."""
    month = T0 + 31 * DAY
    set_to(books, T0, 50, credit=50 * SECOND)
    use(books, "a", T0, 90)
    assert set_to(books, T0 + 100 * SECOND, 100, credit=50 * SECOND).balance == 10 * SECOND
    assert set_to(books, T0 + 101 * SECOND, 50, credit=50 * SECOND).balance == -40 * SECOND
    assert books.require("team").at(month + SECOND).balance == 10 * SECOND


def test_a_debt_that_a_raise_has_paid_is_owed_again_when_that_is_taken_back(database_url: str) -> None:
    month = T0 + 31 * DAY
    database = Database(make_engine(database_url))
    try:
        books = Books(database, "default", carry=True)
        follow_debt(books, T0 - 1)
        use(books, "a", T0, 130)
        assert books.require("team").at(T0 + 130 * SECOND).debt == 30 * SECOND
        for step in range(4):
            assert set_to(books, T0 + (200 + step) * SECOND, 150).balance == 20 * SECOND
            assert set_to(books, T0 + (210 + step) * SECOND, 100).balance == -30 * SECOND
        assert books.require("team").at(month + SECOND).balance == 70 * SECOND
        assert verify(database.engine, carry=True).differences == []
    finally:
        database.close()


def test_a_typo_in_the_policy_file_that_is_mended_forgives_nothing(books: Books) -> None:
    use(books, "a", T0, 80)
    typo = replace_policy(amount="10s")
    for step in range(20):
        follow_policy(books, {"team": typo if step % 2 == 0 else POLICY}, T0 + (100 + step) * SECOND)
    assert books.require("team").at(T0 + 130 * SECOND).balance == 20 * SECOND
    follow_policy(books, {"team": replace_policy(amount="100s", time_zone="Asia/Tokyo")}, T0 + 140 * SECOND)
    follow_policy(books, {"team": replace_policy(amount="100s", period="day")}, T0 + 150 * SECOND)
    assert books.require("team").at(T0 + 160 * SECOND).balance == 20 * SECOND


def replace_policy(**changed: Any) -> NamespacePolicy:
    return NamespacePolicy(budget=BudgetPolicy(**{"period": "month", **changed}))


def test_a_parents_amount_is_toggled_for_all_below(books: Books) -> None:
    rule = replace(MONTH, since=T0)
    hierarchy.put_parent_budget(books, "lab", "team", rule, actor="me", if_match=None)
    set_to(books, T0, 1000)
    hierarchy.set_parent(books, TEAM, "lab", reason="r", actor="me", now=T0)
    use(books, "a", T0 + SECOND, 80)
    for step in range(30):
        changed = replace(rule, since=T0 + (100 + step) * SECOND, amount=(50, 100)[step % 2] * SECOND)
        hierarchy.put_parent_budget(books, "lab", "team", changed, actor="me", if_match=None)
    assert books.require_parent("lab").at(T0 + 140 * SECOND).balance == 20 * SECOND
    use(books, "b", T0 + 150 * SECOND, 60)
    assert booked(books, "lab")["charged"] == 100 * SECOND


# Through a change of zone, period or anchor


@pytest.mark.parametrize(
    "changed",
    [
        {"zone": "Asia/Tokyo"}, {"zone": "America/New_York"}, {"period": "week"}, {"period": "day"},
        {"period": "hour"}, {"period": "year"}, {"period": "none"}, {"anchor": T0 - 5 * DAY - 7 * HOUR},
    ],
)  # fmt: skip
def test_used_time_counts_on_through_another_calendar(books: Books, changed: dict[str, Any]) -> None:
    set_to(books, T0, 100)
    use(books, "a", T0 + HOUR, 80)
    at = T0 + HOUR + 90 * SECOND
    for _ in range(3):
        state = set_to(books, at := at + SECOND, 100, **changed)
        assert (state.used, state.balance) == (80 * SECOND, 20 * SECOND)
        state = set_to(books, at := at + SECOND, 100)
        assert (state.used, state.balance) == (80 * SECOND, 20 * SECOND)
    state = set_to(books, at + SECOND, 25, **changed)
    assert (state.used, state.balance, state.exhausted) == (80 * SECOND, -55 * SECOND, True)


def test_the_period_that_runs_ends_where_the_new_calendar_says(books: Books) -> None:
    set_to(books, T0, 100)
    use(books, "a", T0 + HOUR, 80)
    set_to(books, T0 + 2 * HOUR, 100, period="day")
    state = books.require("team").at(T0 + DAY - 1)
    assert (state.balance, state.period.expires) == (20 * SECOND, T0 + DAY)
    assert books.require("team").at(T0 + DAY).balance == 100 * SECOND
    with books.database.reading() as session:
        rules = [row.rule for row in budget_rules.rules(session, books.require("team").account.id)]
    assert accounting_period(rules, T0 + 3 * HOUR) == accounting_period(rules, T0 + 1) == (T0, T0 + DAY)
    assert accounting_period(rules, T0 + DAY + HOUR) == (T0 + DAY, T0 + 2 * DAY)


def test_a_period_begins_there_and_then_where_that_is_asked_for(books: Books) -> None:
    set_to(books, T0, 100)
    use(books, "a", T0 + HOUR, 80)
    for step, changed in enumerate(({}, {"zone": "Asia/Tokyo"}, {"period": "day"})):
        at = T0 + 2 * HOUR + step
        state = set_to(books, at, 100, used="reset", **changed)
        assert (state.used, state.balance) == (0, 100 * SECOND)
    with books.database.reading() as session:
        rules = [row.rule for row in budget_rules.rules(session, books.require("team").account.id)]
    assert accounting_period(rules, at + 1) == (at, T0 + DAY)
    assert accounting_period(rules, at - 2) == (T0, at - 2) or accounting_period(rules, at - 3) == (T0, at - 2)


def test_of_rules_of_one_instant_the_last_holds_and_a_period_that_one_asks_for_begins(books: Books) -> None:
    use(books, "a", T0, 80)
    at = T0 + HOUR
    for used, amount in (("counts", 10), ("reset", 200), ("counts", 90)):
        state = set_to(books, at, amount, used=used)
    assert (state.used, state.balance) == (0, 90 * SECOND)


# The later write holds, whatever the clocks say


def test_the_later_accepted_write_holds_with_two_replicas_whose_clocks_differ(database_url: str) -> None:
    fast, slow = (Books(Database(make_engine(database_url)), "default", carry=False) for _ in range(2))
    try:
        ahead, behind = T0 + HOUR + 2 * SECOND, T0 + HOUR
        use(fast, "a", T0, 30)
        set_budget(fast, TEAM, replace(MONTH, since=ahead, amount=1), actor="me", if_match=None)
        tag = frozenset({version_of(slow.require("team").rule)})
        set_budget(slow, TEAM, replace(MONTH, since=behind), actor="me", if_match=tag)
        for books in (fast, slow):
            standing = books.require("team")
            assert standing.rule.rule.amount == 100 * SECOND
            assert standing.at(ahead + DAY).balance == 70 * SECOND
            assert standing.rule.rule.since >= ahead
        set_status(fast, TEAM, "suspended", reason="r", actor="me", now=ahead)
        set_status(slow, TEAM, "active", reason="r", actor="me", now=behind)
        assert (slow.require("team").rule.status, slow.require("team").at(ahead + 1).exhausted) == ("active", False)
        set_status(fast, TEAM, "active", reason="r", actor="me", now=ahead)
        set_status(slow, TEAM, "closed", reason="r", actor="me", now=behind)
        with pytest.raises(Conflicting, match="closed"):
            set_status(fast, TEAM, "active", reason="r", actor="me", now=ahead + DAY)
        assert fast.require("team").at(ahead + 1).exhausted
        assert verify(fast.database.engine, carry=False).differences == []
    finally:
        fast.database.close()
        slow.database.close()


def test_what_a_clock_far_ahead_wrote_never_holds_once_another_rule_is_written(books: Books) -> None:
    use(books, "a", T0, 30)
    set_to(books, T0 + 400 * DAY, 1)
    hierarchy.put_parent_budget(books, "lab", "team", replace(MONTH, since=T0 + 400 * DAY), actor="me", if_match=None)
    now = T0 + HOUR
    assert set_to(books, now, 90).balance == 60 * SECOND
    set_status(books, TEAM, "suspended", reason="r", actor="me", now=now + SECOND)
    set_status(books, TEAM, "active", reason="r", actor="me", now=now + 2 * SECOND)
    hierarchy.put_parent_budget(books, "lab", "team", replace(MONTH, since=now, amount=7), actor="me", if_match=None)
    standing = books.require("team")
    assert (standing.rule.rule.since, standing.rule.rule.amount) == (now + 2 * SECOND, 90 * SECOND)
    assert books.require_parent("lab").rule.rule.amount == 7
    use(books, "b", now + HOUR, 100)
    assert booked(books)["charged"] == 90 * SECOND
    assert [row.rule.amount for row in rules_of(books)] == [100 * SECOND, 90 * SECOND, 90 * SECOND, 90 * SECOND]


def rules_of(books: Books) -> list[budget_rules.RuleRow]:
    with books.database.reading() as session:
        return budget_rules.rules(session, books.require("team").account.id)


def test_the_policy_and_parents_follow_the_later_write_too(books: Books) -> None:
    ahead, behind = T0 + HOUR + 2 * SECOND, T0 + HOUR
    use(books, "a", T0, 30)
    follow_policy(books, {"team": replace_policy(amount="10s")}, ahead)
    follow_policy(books, {"team": POLICY}, behind)
    assert books.require("team").at(ahead).balance == 70 * SECOND
    for at, amount in ((ahead, 1), (behind, 2), (behind - DAY, 3)):
        hierarchy.put_parent_budget(
            books, "lab", "team", replace(MONTH, since=at, amount=amount), actor="me", if_match=None
        )
    assert books.require_parent("lab").rule.rule.amount == 3
    assert books.require_parent("lab").at(ahead).balance == 3
    hierarchy.set_parent(books, TEAM, "lab", reason="r", actor="me", now=ahead)
    hierarchy.set_parent(books, TEAM, None, reason="r", actor="me", now=behind)
    assert books.require("team").above == []
    assert books.require("team").at(ahead).barred is None


def test_a_price_for_at_once_is_not_overtaken_by_an_earlier_one_of_a_clock_ahead(books: Books) -> None:
    ahead, behind = T0 + 2 * SECOND, T0
    price: dict[str, Any] = {"reason": "r", "actor": "me"}
    rate.set_rate(books, "A100", Fraction(9), since=T0 + DAY, now=T0, **price)
    rate.set_rate(books, "A100", Fraction(5), since=None, now=ahead, **price)
    since, made = rate.set_rate(books, "A100", Fraction(2), since=None, now=behind, **price)
    assert (since, made) == (ahead + 1, True)
    assert rate.set_rate(books, "A100", Fraction(2), since=None, now=behind, **price) == (since, False)
    pods = [opening(f"p{n}", at, Fraction(1), model="A100") for n, at in enumerate((T0 + HOUR, T0 + DAY + HOUR))]
    ends = [Closing(f"p{n}", o.start + SECOND, "finished") for n, o in enumerate(pods)]
    workload.apply(books, pods, ends, {"team": POLICY}, T0 + 2 * DAY)
    assert booked(books)["charged"] == (2 + 9) * SECOND


# What stays in the state, and from when on


@pytest.mark.parametrize("act", ["move", "status", "movement"])
def test_an_account_that_a_no_op_opened_is_settled_from_its_opening(books: Books, act: str) -> None:
    policy = NamespacePolicy(budget=BudgetPolicy(amount="20s", period="hour", rollover="1h"))
    place = AccountRef("uid-team", "team", policy)
    if act == "move":
        assert not hierarchy.set_parent(books, place, None, reason="r", actor="me", now=T0)
    elif act == "status":
        set_status(books, place, "active", reason="r", actor="me", now=T0)
    else:
        with pytest.raises(Conflicting):
            movement.adjust(books, place, order(-1_000, "k", T0))
        books.database.write(lambda session: ensure_account(books, session, place, T0))
    state = books.require("team").at(T0 + SECOND)
    assert (state.period_start, state.balance, state.since) == (T0, 20 * SECOND, T0)
    use(books, "a", T0 + 2 * HOUR, 10, policy=policy)
    assert books.require("team").at(T0 + 2 * HOUR + 10 * SECOND).balance == 50 * SECOND


def test_grants_that_are_used_up_leave_the_state_and_its_anchors(books: Books, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("timekeeper.ledger.settlement.CHECKPOINT_EVERY", 1)
    set_to(books, T0, 0)
    for step in range(30):
        grant(books, 2, T0 + step * HOUR, T0 + step * HOUR + DAY if step % 2 else None)
        use(books, f"p{step}", T0 + step * HOUR, 3)
    state = books.require("team").at(T0 + 30 * HOUR)
    assert (state.grants, state.balance, state.granted) == ([], 0, 60 * SECOND)
    with books.database.reading() as session:
        kept = timelines.checkpoints(session, books.require("team").account.id)
    assert kept
    assert max(len(anchor.grants) for anchor in kept) <= 1
    assert booked(books)["charged"] == 60 * SECOND


def test_the_database_knows_no_other_word_for_what_becomes_of_used_time(books: Books) -> None:
    use(books, "a", T0, 1)
    with pytest.raises(Exception, match="ck_budget_rule_used|CHECK"), books.database.engine.begin() as connection:
        connection.execute(text("UPDATE budget_rule SET used = 'other'"))
