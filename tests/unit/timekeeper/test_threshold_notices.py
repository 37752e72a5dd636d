# SPDX-License-Identifier: Apache-2.0
"""Each threshold of a budget is announced once per period: as an event of the namespace and in the audit log."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from support.manual_clock import ManualClock
from support.openings import opening
from support.small_cluster import NAMESPACE, SmallCluster, small_cluster

from slicekeeper.config.policy_file import PolicyFile
from slicekeeper.config.settings import PolicySettings, Settings
from slicekeeper.errors import Forbidden, Unavailable
from slicekeeper.kube.client import EVENTS, NAMESPACES
from timekeeper.api.views import decision
from timekeeper.cluster.reconcile_loop import Controller
from timekeeper.core.budget_record import Rule
from timekeeper.core.period import PeriodName
from timekeeper.ledger import hierarchy, movement, workload
from timekeeper.ledger.account import AccountRef
from timekeeper.ledger.books import Books
from timekeeper.ledger.budget import set_budget
from timekeeper.ledger.movement import Order
from timekeeper.ledger.verify import verify
from timekeeper.ledger.workload import Closing
from timekeeper.store import audit_chain
from timekeeper.store.db.database import Database
from timekeeper.store.db.engine import make_engine

T0 = 1_767_225_600_000
HOUR = 3_600_000
POLICY = "default: {budget: {amount: 100s, period: hour, thresholds: [50, 80, 95, 100]}}"


class Stage:
    """Two controllers on one database and one API server, which act only when the test calls them."""

    def __init__(self, cluster: SmallCluster, clock: ManualClock, folder: Path, url: str) -> None:
        self.cluster, self.clock, self.url = cluster, clock, url
        self.file = folder / "policy.yaml"
        self.file.write_text(POLICY)
        self.settings = Settings(policy=PolicySettings(file=str(self.file), exempt_namespaces=()))
        self.uid = cluster.client.get(NAMESPACES, NAMESPACE)["metadata"]["uid"]
        self.controllers: list[Controller] = []
        self.all_books: list[Books] = []
        for _ in range(2):
            self.begin()

    @property
    def books(self) -> Books:
        return self.all_books[0]

    @property
    def place(self) -> AccountRef:
        return AccountRef(self.uid, NAMESPACE, PolicyFile(self.settings.policy).of(NAMESPACE))

    def begin(self) -> Controller:
        books = Books(Database(make_engine(self.url)), "default", carry=False)
        policy = PolicyFile(self.settings.policy)
        made = Controller(self.settings, self.clock, self.cluster.client, books, policy)
        made.namespaces.on_list(self.cluster.client.list(NAMESPACES)[0])
        self.controllers.append(made)
        self.all_books.append(books)
        return made

    def run(self, uid: str, *, share: Fraction = Fraction(1)) -> None:
        begun = opening(uid, self.clock.now_ms(), share, NAMESPACE)
        begun = type(begun)(**{**begun.__dict__, "namespace_uid": self.uid})
        workload.apply(self.books, [begun], [], {NAMESPACE: self.place.policy}, self.clock.now_ms())

    def finish(self, uid: str) -> None:
        now = self.clock.now_ms()
        workload.apply(self.books, [], [Closing(uid, now, "finished")], {}, now)

    def after(self, seconds: int, *controllers: Controller) -> list[int]:
        """Let all act twice after some seconds; return the thresholds announced so far."""
        self.clock.advance(seconds * 1_000)
        for _ in range(2):
            for one in controllers or self.controllers:
                one.look()
        return self.told()

    def told(self) -> list[int]:
        told = [int(event["message"].partition(" %")[0]) for event in self.events()]
        with self.books.database.reading() as session:
            rows = audit_chain.page(session, "default", "", 0, 99)
        noted = [row.detail for row in rows if row.action == "threshold"]
        assert len(noted) == len(told), (noted, told)
        return told

    def events(self) -> list[dict[str, Any]]:
        found = [e for e in self.cluster.client.list(EVENTS)[0] if e["reason"] == "BudgetThreshold"]
        return sorted(found, key=lambda e: (e["firstTimestamp"], int(e["message"].partition(" %")[0])))

    def close(self) -> None:
        for one in self.controllers:
            one.stop()
        for books in self.all_books:
            books.database.close()


@pytest.fixture
def stage(tmp_path: Path, database_url: str) -> Iterator[Stage]:
    clock = ManualClock(T0)
    with small_cluster(clock) as cluster:
        made = Stage(cluster, clock, tmp_path, database_url)
        try:
            yield made
            assert verify(made.books.database.engine, carry=False).differences == []
        finally:
            made.close()


def test_each_threshold_is_told_once_per_period_by_two_controllers_and_after_a_restart(stage: Stage) -> None:
    stage.run("a")
    assert stage.after(49) == []
    assert stage.after(2) == [50]
    assert stage.after(29) == [50, 80]
    assert stage.after(5, stage.begin()) == [50, 80], "a restart repeats none"
    assert stage.after(10) == [50, 80, 95]
    assert stage.after(6) == [50, 80, 95, 100]
    stage.finish("a")
    assert stage.after(3_600) == [50, 80, 95, 100]
    stage.run("b")
    assert stage.after(96) == [50, 80, 95, 100, 50, 80, 95], "one look that comes late tells all of them"
    (first, *_) = stage.events()
    assert first["involvedObject"] == {
        "apiVersion": "v1",
        "kind": "Namespace",
        "name": NAMESPACE,
        "namespace": NAMESPACE,
        "uid": stage.uid,
    }
    assert first["message"] == "50 % of the budget is used: 51s of 1m40s since 2026-01-01T00:00:00.000Z"
    assert first["type"] == "Warning"


def test_a_look_is_due_when_the_next_threshold_is(stage: Stage) -> None:
    stage.run("a", share=Fraction(1, 2))
    one = stage.controllers[0]
    assert one.look() == pytest.approx(100.0, abs=0.01)
    stage.clock.advance(100_000)
    assert one.look() == pytest.approx(60.0, abs=0.01)
    assert stage.told() == [50]


def test_the_decision_names_the_highest(stage: Stage) -> None:
    stage.run("a")
    for seconds, wanted in ((51, 50), (30, 80), (15, 95)):
        stage.clock.advance(seconds * 1_000)
        now, standing = stage.clock.now_ms(), stage.books.require(NAMESPACE)
        found = decision.decision(standing, stage.place.policy, stage.settings, now, 0)
        assert (found.state, found.reason) == ("warning", f"more than {wanted} % of the budget is used")


def test_a_raised_amount_that_is_used_up_to_a_threshold_again_is_not_told_again(stage: Stage) -> None:
    stage.run("a")
    assert stage.after(81) == [50, 80]
    rule = Rule(stage.clock.now_ms(), 200_000, "hour", "UTC")
    set_budget(stage.books, stage.place, rule, actor="me", if_match=None)
    assert stage.after(80) == [50, 80]
    assert stage.after(30) == [50, 80, 95]


@pytest.mark.parametrize("period", ["none", "hour"])
def test_a_period_that_an_operator_begins_has_its_own(stage: Stage, period: PeriodName) -> None:
    rule = Rule(T0, 100_000, period, "UTC")
    set_budget(stage.books, stage.place, rule, actor="me", if_match=None)
    stage.run("a")
    assert stage.after(81) == [50, 80]
    again = replace(rule, since=stage.clock.now_ms(), used="reset")
    set_budget(stage.books, stage.place, again, actor="me", if_match=None)
    assert stage.after(49) == [50, 80]
    assert stage.after(2) == [50, 80, 50]


def test_a_percentage_is_one_of_all_that_the_period_has_earlier_grants_too(stage: Stage) -> None:
    stage.run("a")
    order = Order(100_000, "r", "k", b"", "me", stage.clock.now_ms())
    movement.grant(stage.books, stage.place, order, valid_from=order.now, valid_to=None)
    stage.finish("a")
    stage.clock.advance(HOUR)
    stage.run("b")
    assert stage.after(99) == [], "the period has 200 s: its amount, and a grant of the hour before"
    assert stage.after(2) == [50]


def test_a_grant_moves_what_lies_ahead_and_a_lowered_amount_tells_what_it_crosses(stage: Stage) -> None:
    stage.run("a")
    assert stage.after(40) == []
    order = Order(100_000, "r", "k", b"", "me", stage.clock.now_ms())
    movement.grant(stage.books, stage.place, order, valid_from=order.now, valid_to=None)
    assert stage.after(50) == []
    assert stage.after(11) == [50]
    stage.finish("a")
    rule = Rule(stage.clock.now_ms(), 20_000, "hour", "UTC")
    set_budget(stage.books, stage.place, rule, actor="me", if_match=None)
    assert stage.after(1) == [50, 80]


def test_a_percentage_is_one_of_what_was_not_moved_away(stage: Stage) -> None:
    stage.run("a")
    assert stage.after(30) == []
    order = Order(50_000, "r", "k", b"", "me", stage.clock.now_ms())
    other = AccountRef("uid-other", "other", stage.place.policy)
    movement.transfer(stage.books, stage.place, other, order, valid_to=None)
    assert stage.after(1) == [50]
    assert stage.events()[0]["message"].startswith("50 % of the budget is used: 31s of 50s ")
    stage.clock.advance(5_000)
    movement.adjust(stage.books, stage.place, replace(order, amount=-10_000, key="l", now=stage.clock.now_ms()))
    assert stage.after(1) == [50, 80], "37 s of 40 s"
    assert stage.after(1) == [50, 80, 95]


def test_a_percentage_is_one_of_what_has_not_expired(stage: Stage) -> None:
    stage.run("a")
    now = stage.clock.now_ms()
    order = Order(100_000, "r", "k", b"", "me", now)
    movement.grant(stage.books, stage.place, order, valid_from=now, valid_to=now + 60_000, priority=1)
    assert stage.after(59) == [], "of 200 s"
    assert stage.after(2) == [50], "of 100 s"
    assert stage.events()[0]["message"].startswith("50 % of the budget is used: 1m1s of 1m40s ")


def test_a_budget_from_which_all_was_moved_tells_nothing(stage: Stage) -> None:
    order = Order(-100_000, "r", "k", b"", "me", stage.clock.now_ms())
    movement.adjust(stage.books, stage.place, order)
    stage.run("a")
    assert stage.after(10) == []


def test_a_budget_of_nothing_and_a_suspended_one_tell_nothing(stage: Stage) -> None:
    stage.file.write_text("default: {budget: {amount: 0s, period: hour}}")
    stage.controllers[0]._policy.refresh()
    stage.run("a")
    assert stage.after(10, stage.controllers[0]) == []


def test_a_teams_thresholds_are_told_in_the_namespaces_under_it(stage: Stage) -> None:
    hierarchy.put_parent_budget(stage.books, "lab", "team", Rule(T0, 60_000, "day", "UTC"), actor="me", if_match=None)
    hierarchy.set_parent(stage.books, stage.place, "lab", reason="r", actor="me", now=T0)
    stage.run("a")
    assert stage.after(31) == [50]
    assert stage.events()[0]["message"].startswith("50 % of the budget of team lab is used: 31s of 1m")
    assert stage.after(25) == [50, 50, 80]
    with stage.books.database.reading() as session:
        (mine,) = audit_chain.page(session, "default", NAMESPACE, 0, 9)[-1:]
    assert mine.action == "threshold"


@pytest.mark.parametrize("error", [Unavailable("away"), Forbidden("no", 403, "Forbidden")])
def test_an_event_that_cannot_be_written_is_written_later_or_noted_alone(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fail(*_: object) -> None:
        raise error

    stage.run("a")
    with monkeypatch.context() as patch:
        patch.setattr(stage.cluster.client, "create", fail)
        stage.clock.advance(51_000)
        stage.controllers[0].look()
    stage.clock.advance(6_000)
    stage.controllers[0].look()
    with stage.books.database.reading() as session:
        assert len([r for r in audit_chain.page(session, "default", "", 0, 9) if r.action == "threshold"]) == 1
    assert len(stage.events()) == (1 if isinstance(error, Unavailable) else 0)


def test_two_controllers_that_look_at_the_same_moment_tell_it_once(stage: Stage) -> None:
    stage.run("a")
    stage.clock.advance(81_000)
    with ThreadPoolExecutor(2) as threads:
        for done in [threads.submit(one.look) for one in stage.controllers]:
            done.result(60)
    assert stage.told() == [50, 80]
