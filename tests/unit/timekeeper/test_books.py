# SPDX-License-Identifier: Apache-2.0
"""The books on real databases: late, repeated and reordered records, and writers that die in between."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from fractions import Fraction
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import text
from sqlalchemy.orm import Session
from support.databases import Databases
from support.openings import opening

from slicekeeper.config.policy import BudgetPolicy, NamespacePolicy, Origin
from slicekeeper.units import format_instant
from timekeeper.core import timeline
from timekeeper.core.accumulated_charge import Claim
from timekeeper.core.budget_record import Forest, Records, Rule
from timekeeper.core.posting import Posting
from timekeeper.core.refusal import KeyReused, VersionMismatch
from timekeeper.ledger import interval_correction, movement, settlement, stretch, workload
from timekeeper.ledger.account import AccountRef
from timekeeper.ledger.books import Books
from timekeeper.ledger.budget import follow_policy, set_budget
from timekeeper.ledger.budget_rule import version_of
from timekeeper.ledger.interval_correction import RequestedInterval
from timekeeper.ledger.movement import Order
from timekeeper.ledger.verify import verify
from timekeeper.ledger.workload import Closing, Opening
from timekeeper.store import accounts, audit_chain, bookings, timelines
from timekeeper.store.db.database import Database
from timekeeper.store.db.engine import make_engine

HALF = Fraction(1, 2)
T0 = 1_767_225_600_000
POLICY = NamespacePolicy(budget=BudgetPolicy(amount="20s", period="hour"))


@contextmanager
def opened(url: str) -> Iterator[Books]:
    database = Database(make_engine(url))
    try:
        yield Books(database, "default", carry=False)
    finally:
        database.close()


@pytest.fixture
def books(database_url: str) -> Iterator[Books]:
    with opened(database_url) as made:
        yield made


def valid_postings(books: Books, name: str = "team") -> list[Posting]:
    with books.database.reading() as session:
        known = accounts.find_name(session, books.cluster, name)
        assert known is not None
        return sorted(b.posting for b in bookings.valid(session, known.id, None))


def apply(books: Books, openings: list[Opening], closings: list[Closing], now: int) -> None:
    workload.apply(books, openings, closings, {o.namespace: POLICY for o in openings}, now)


pods = st.tuples(st.integers(0, 50_000), st.integers(0, 40_000), st.sampled_from([1, 2, 3, 7]))


@settings(max_examples=25, deadline=None)
@given(st.lists(pods, min_size=1, max_size=6), st.data())
def test_late_repeated_and_reordered_knowledge_ends_in_the_same_ledger(
    databases: Databases, histories: list[tuple[int, int, int]], data: st.DataObject
) -> None:
    openings = {f"pod-{i}": opening(f"pod-{i}", T0 + s, Fraction(1, d)) for i, (s, _, d) in enumerate(histories)}
    closings = {f"pod-{i}": Closing(f"pod-{i}", T0 + s + n, "finished") for i, (s, n, _) in enumerate(histories)}
    news = [(uid, kind) for uid in openings for kind in ("open", "close")]
    order = data.draw(st.permutations(news * 2))
    now = T0
    with databases.migrated() as url:
        with opened(url) as books:
            for uid, kind in order[: len(news)]:
                now += data.draw(st.integers(0, 30_000))
                ends = [closings[uid]] if kind == "close" else []
                apply(books, [openings[uid]], ends, now)
        with opened(url) as books:  # another process goes on; what it is told, it may have been told before
            for uid, _ in order:
                now += data.draw(st.integers(0, 10_000))
                apply(books, [openings[uid]], [closings[uid]], now)
            apply(
                books, [opening("last", T0 + 200_000, HALF)], [Closing("last", T0 + 200_001, "finished")], T0 + 900_000
            )
            found = valid_postings(books)
            report = verify(books.database.engine, carry=False)
    claims = [
        Claim(uid, one.start, closings[uid].end, *one.shares[""].as_integer_ratio()) for uid, one in openings.items()
    ]
    claims.append(Claim("last", T0 + 200_000, T0 + 200_001, 1, 2))
    records = Records(claims, [Rule(0, 20_000, "hour", "UTC")])
    forest = Forest({1: records})
    wanted = timeline.advance(timeline.begin_all(forest, T0 + 900_000), forest, T0 + 900_000).postings[1]
    assert found == sorted(wanted)
    assert report.differences == []


def test_settling_from_anchors_gives_the_ledger_of_settling_from_the_start(
    books: Books, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settlement, "CHECKPOINT_EVERY", 3)
    monkeypatch.setattr(settlement, "CHECKPOINT_LAG_MS", 1_000)
    monkeypatch.setattr(settlement, "CHECKPOINTS_KEPT", 4)
    for i in range(40):
        at = T0 + i * 700
        apply(books, [opening(f"pod-{i}", at, Fraction(1, 3))], [], at)
        if i > 3:
            apply(books, [], [Closing(f"pod-{i - 3}", at - 50, "finished")], at)
    with books.database.reading() as session:
        known = accounts.find_name(session, "default", "team")
        assert known is not None
        assert len(timelines.checkpoints(session, known.id)) == 4 + 1  # and the first of the day
    apply(books, [opening("late", T0 + 900, HALF)], [Closing("late", T0 + 1_900, "finished")], T0 + 40_000)
    found = verify(books.database.engine, carry=False)
    assert found.differences == []
    assert found.transactions > 40


@pytest.mark.parametrize("how", ["late", "late start", "late end", "corrected"])
def test_a_late_record_reads_only_the_pods_that_it_may_concern(
    books: Books, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """The namespace has a pod each minute for ten hours; one of its first minutes becomes known at the end."""
    monkeypatch.setattr(settlement, "CHECKPOINT_EVERY", 4)
    monkeypatch.setattr(settlement, "CHECKPOINTS_KEPT", 1_000)
    monkeypatch.setattr(stretch, "MOST_GPUS", 10)
    minute, count = 60_000, 600
    rule = Rule(T0, 100_000 * minute, "month", "UTC")
    set_budget(books, AccountRef("uid-team", "team", POLICY), rule, actor="me", if_match=None)
    uids = [f"pod-{i}" for i in range(count)]
    started = [opening(uid, T0 + i * minute, HALF) for i, uid in enumerate(uids)]
    ended = [Closing(uid, T0 + i * minute + 40_000, "finished") for i, uid in enumerate(uids)]
    now = T0 + count * minute
    late = opening("late", T0 + 5 * minute, HALF)
    apply(books, [*started, late] if how == "late end" else started, ended, now)
    read: list[int] = []
    advance = timeline.advance

    def spy(states: Any, forest: Forest, *args: Any, **more: Any) -> timeline.TimelineOutcome:
        read.append(sum(len(records.claims) for records in forest.records.values()))
        return advance(states, forest, *args, **more)

    monkeypatch.setattr(timeline, "advance", spy)
    if how == "corrected":
        order = Order(0, "why", "k", b"", "me", now)
        wanted = RequestedInterval("pod-7", None, T0 + 7 * minute + 30_000, order)
        interval_correction.correct(books, lambda s: accounts.require_name(s, "default", "team"), wanted)
    else:
        ends = [] if how == "late start" else [Closing("late", T0 + 8 * minute, "finished")]
        apply(books, [] if how == "late end" else [late], ends, now)
    assert sum(read) < 60
    used = books.require("team").at(now).used
    more = {"late": 90_000, "late start": (count - 5) * 30_000, "late end": 90_000, "corrected": -5_000}[how]
    assert used == count * 20_000 + more
    monkeypatch.undo()
    assert verify(books.database.engine, carry=False).differences == []


def test_old_anchors_are_kept_by_day_and_then_by_month(books: Books, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settlement, "CHECKPOINT_EVERY", 1)
    monkeypatch.setattr(settlement, "CHECKPOINTS_KEPT", 4)
    hour, days = 3_600_000, 80
    for step in range(0, days * 24, 12):
        start = T0 + step * hour
        apply(
            books, [opening(f"pod-{step}", start, HALF)], [Closing(f"pod-{step}", start + 1, "finished")], start + hour
        )
    with books.database.reading() as session:
        kept = [state.at for state in timelines.checkpoints(session, books.require("team").account.id)]
    by_day = [at // (24 * hour) for at in kept[:-4]]
    newest = by_day[-1]
    assert by_day[-30:] == list(range(newest - 29, newest + 1))
    assert 1 <= sum(day < newest - 40 for day in by_day) <= 4
    late = T0 + (days - 20) * 24 * hour + 5
    apply(books, [opening("late", late, HALF)], [Closing("late", late + 1, "finished")], T0 + days * 24 * hour)


def test_a_pod_that_ended_before_others_were_charged_takes_back_what_they_were_charged_over_budget(
    books: Books,
) -> None:
    policy = {"team": NamespacePolicy(budget=BudgetPolicy(amount="10s", period="none"))}
    one = Fraction(1)
    workload.apply(books, [opening("a", T0, one), opening("b", T0, one)], [], policy, T0)
    workload.apply(books, [], [Closing("a", T0 + 10_000, "finished")], policy, T0 + 10_000)
    over = [p for p in valid_postings(books) if p.kind == "over-budget"]
    assert [(p.key, p.amount) for p in over] == [("a", 5_000)]
    # b had ended long before, which nobody knew: a was within the budget for nine seconds.
    workload.apply(books, [], [Closing("b", T0 + 1_000, "finished")], policy, T0 + 20_000)
    amounts: Counter[tuple[str, str]] = Counter()
    for posting in valid_postings(books):
        amounts[posting.kind, posting.key] += posting.amount
    assert amounts["charge", "a"] == 9_000
    assert amounts["over-budget", "a"] == 1_000
    assert amounts["charge", "b"] == 1_000
    assert verify(books.database.engine, carry=False).differences == []


def test_a_grant_is_booked_once_and_its_key_is_for_that_grant_alone(books: Books) -> None:
    def grant(amount: int, now: int) -> bool:
        order = Order(amount, "why", "k", str(amount).encode(), "me", now)
        return movement.grant(books, AccountRef("uid-team", "team", POLICY), order, valid_from=now, valid_to=None)

    assert grant(5_000, T0)
    assert not grant(5_000, T0 + 1)
    with pytest.raises(KeyReused):
        grant(6_000, T0 + 2)
    standing = books.standing("team")
    assert standing is not None
    assert standing.at(T0 + 10).balance == 25_000


@pytest.mark.parametrize("ahead", [1, 3_600_000])
def test_a_pod_bound_by_a_clock_ahead_of_ours_is_foreseen_to_run_out(books: Books, ahead: int) -> None:
    policy = NamespacePolicy(budget=BudgetPolicy(amount="20s", period="none"))
    workload.apply(books, [opening("a", T0 + ahead, Fraction(1))], [], {"team": policy}, T0)
    assert books.require("team").due(T0) == T0 + ahead + 20_000


def test_a_budget_of_its_own_holds_from_then_on_and_stale_versions_are_refused(books: Books) -> None:
    apply(books, [opening("a", T0, Fraction(1))], [], T0)
    before = books.require("team")
    tag = version_of(before.rule)
    set_budget(
        books,
        AccountRef("uid-team", "team", POLICY),
        Rule(T0 + 5_000, 8_000, "hour", "UTC"),
        actor="me",
        if_match=frozenset({tag}),
    )
    standing = books.require("team")
    assert standing.at(T0 + 5_000).balance == 3_000
    assert standing.run_out(T0 + 5_000) == T0 + 8_000
    with pytest.raises(VersionMismatch):
        set_budget(
            books,
            AccountRef("uid-team", "team", POLICY),
            Rule(T0 + 6_000, 1, "hour", "UTC"),
            actor="me",
            if_match=frozenset({tag}),
        )


def test_a_changed_policy_holds_from_then_on_but_not_for_a_budget_of_its_own(books: Books) -> None:
    apply(books, [opening("a", T0, Fraction(1)), opening("b", T0, Fraction(1), "mine")], [], T0)
    set_budget(
        books, AccountRef("uid-mine", "mine", POLICY), Rule(T0 + 1, 7_000, "hour", "UTC"), actor="me", if_match=None
    )
    changed = NamespacePolicy(budget=BudgetPolicy(amount="30s", period="hour"))
    follow_policy(books, {"team": changed, "mine": changed}, T0 + 10_000)
    assert books.require("team").at(T0 + 10_000).balance == 20_000
    assert books.require("mine").at(T0 + 5_000).balance == 2_000


def test_the_audit_log_tells_by_which_policy_a_budget_changed_and_who_wrote_that(books: Books) -> None:
    apply(books, [opening("a", T0, Fraction(1))], [], T0)
    for step, origin in enumerate((None, Origin("guests", "alice"), Origin("guests", None))):
        changed = NamespacePolicy(budget=BudgetPolicy(amount=f"{30 + step}s", period="hour"))
        for _ in range(2):
            follow_policy(books, {"team": changed}, T0 + 10_000 * (step + 1), {"team": origin}.get)
    with books.database.reading() as session:
        found = [
            entry for entry in audit_chain.page(session, books.cluster, "team", 0, 100) if entry.action == "policy"
        ]
    assert [entry.actor for entry in found] == ["policy"] * 3
    details = [json.loads(entry.detail) for entry in found]
    told = [(detail["amountMs"], detail["source"]) for detail in details]
    assert told == [(amount, "policy") for amount in (30_000, 31_000, 32_000)]
    by = [{key: detail[key] for key in ("gpuPolicy", "changedBy") if key in detail} for detail in details]
    assert by == [{}, {"gpuPolicy": "guests", "changedBy": "alice"}, {"gpuPolicy": "guests", "changedBy": "not known"}]
    assert verify(books.database.engine, carry=False).differences == []


def test_a_policys_budget_has_credit_rollover_and_an_anchor(books: Books) -> None:
    half = format_instant(T0 - 1_800_000)
    budget = BudgetPolicy(amount="20s", period="hour", credit="5s", rollover="3s", anchor=half)
    policies = {"team": NamespacePolicy(budget=budget)}
    workload.apply(books, [opening("a", T0, HALF)], [Closing("a", T0 + 10_000, "finished")], policies, T0 + 10_000)
    state = books.require("team").at(T0 + 1_800_000)
    assert (state.period_start, state.balance) == (T0 + 1_800_000, 23_000)
    workload.apply(books, [opening("b", T0 + 1_800_000, Fraction(1))], [], policies, T0 + 1_800_000)
    assert books.require("team").run_out(T0 + 1_800_000) == T0 + 1_828_000
    follow_policy(books, {"team": NamespacePolicy(budget=msgspec.structs.replace(budget, credit="0s"))}, T0 + 1_810_000)
    assert books.require("team").run_out(T0 + 1_810_000) == T0 + 1_823_000


def test_a_namespace_that_is_made_again_starts_afresh(books: Books) -> None:
    apply(books, [opening("a", T0, Fraction(1))], [Closing("a", T0 + 5_000, "finished")], T0 + 5_000)
    again = replace(opening("b", T0 + 6_000, HALF), namespace_uid="another")
    apply(books, [again], [], T0 + 6_000)
    assert books.require("team").at(T0 + 6_000).balance == 20_000


def test_a_write_that_fails_undoes_itself_alone(books: Books) -> None:
    def fail(session: Session) -> None:
        session.execute(text("INSERT INTO watch_mark (cluster, confirmed_at) VALUES ('x', 1)"))
        raise ValueError("no")

    done: list[int] = []

    def work(index: int) -> None:
        apply(books, [opening(f"pod-{index}", T0, HALF)], [], T0 + index)
        done.append(index)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    with pytest.raises(ValueError, match="no"):
        books.database.write(fail)
    for thread in threads:
        thread.join()
    assert sorted(done) == list(range(8))
    with books.database.reading() as session:
        assert session.execute(text("SELECT count(*) FROM watch_mark")).scalar_one() == 0
        assert session.execute(text("SELECT count(*) FROM workload")).scalar_one() == 8


def test_the_database_is_set_up_to_lose_nothing(books: Books) -> None:
    if books.database.engine.dialect.name == "postgresql":
        with books.database.reading() as session:
            assert session.execute(text("SHOW synchronous_commit")).scalar_one() == "on"
            assert session.execute(text("SHOW transaction_isolation")).scalar_one() == "repeatable read"
        return
    with books.database.reading() as session:
        found = {
            name: session.execute(text(f"PRAGMA {name}")).scalar_one()
            for name in ("journal_mode", "synchronous", "foreign_keys")
        }
    assert found == {"journal_mode": "wal", "synchronous": 2, "foreign_keys": 1}


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        ("UPDATE account SET balance_ms = balance_ms + 1 WHERE kind = 'charged'", "account charged holds"),
        ("UPDATE entry SET amount_ms = amount_ms + 1 WHERE id = 1", "not to zero"),
        ("UPDATE workload SET ended_at = ended_at - 7", "does not follow from the records"),
    ],
)
def test_verify_finds_what_was_tampered_with(books: Books, damage: str, told: str) -> None:
    apply(books, [opening("a", T0, HALF)], [Closing("a", T0 + 5_000, "finished")], T0 + 5_000)
    assert verify(books.database.engine, carry=False).differences == []
    books.database.write(lambda session: session.execute(text(damage)) and None)
    assert any(told in difference for difference in verify(books.database.engine, carry=False).differences)
