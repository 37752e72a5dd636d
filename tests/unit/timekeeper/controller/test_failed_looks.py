# SPDX-License-Identifier: Apache-2.0
"""A look that fails at one step or at one pod: the others are done, and the next look takes it up."""

from __future__ import annotations

from typing import Any

import pytest
from support.controller_stage import GPU, T0, Stage

from slicekeeper import names
from slicekeeper.clock import CLOCK_SKEW_MS
from slicekeeper.kube.client import NODES, Object
from timekeeper.cluster import reconcile_loop
from timekeeper.ledger import settlement, workload
from timekeeper.ledger.books import Books
from timekeeper.store import workloads


def test_an_end_that_the_books_could_not_take_at_first_is_held_from_when_it_was_seen(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    pod = stage.create()
    stage.look()
    seen = stage.clock.ms
    stage.end("a", seen + 24 * 3_600_000)
    with monkeypatch.context() as patch:
        patch.setattr(workload, "apply", raising)
        with pytest.raises(RuntimeError):
            stage.look()
    stage.clock.advance(3_600_000)
    stage.look()
    assert stage.workload(pod["metadata"]["uid"]).ended_at == seen + CLOCK_SKEW_MS


def raising(*_: object, **__: object) -> None:
    raise RuntimeError("a fault")


@pytest.mark.parametrize(
    "step",
    ["keep_inventory", "follow_policy", "vanished", "release", "settle", "reverse_future", "gates", "standings",
     "labels", "evictions", "confirm", "seal"],
)  # fmt: skip
def test_a_step_that_fails_once_loses_no_other_steps_work_and_the_next_look_takes_it_up(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    stage.create("runs")
    stage.create()
    stage.look()
    stage.clock.advance(25_000)
    stage.end("a", T0 + 20_000)
    controller = stage.controller
    targets: dict[str, tuple[object, str]] = {
        "keep_inventory": (controller._openings, "keep_inventory"), "follow_policy": (controller, "_follow_settings"),
        "vanished": (controller._vanished, "look"), "release": (controller, "_release"),
        "settle": (settlement, "settle"), "reverse_future": (settlement, "reverse_future"),
        "gates": (controller._gated_pods, "look"), "standings": (stage.books, "standings"),
        "labels": (controller.strays, "label"), "evictions": (controller, "_evict"),
        "confirm": (controller, "_confirm"), "seal": (controller, "_seal"),
    }  # fmt: skip
    with monkeypatch.context() as patch:
        patch.setattr(*targets[step], raising)
        with pytest.raises(RuntimeError, match="a fault"):
            stage.look()
    done = (stage.finalizers() == [], stage.state("runs") == names.OVER_BUDGET)
    assert done == (step != "release", step != "standings")
    stage.look(fresh=False)
    assert stage.finalizers() == []
    assert stage.state("runs") == names.OVER_BUDGET
    assert stage.finalizers("runs") == [names.FINALIZER]


def test_what_fell_due_is_booked_by_the_next_look_if_this_one_could_not(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.create()
    stage.look()
    stage.clock.advance(25_000)  # the budget is spent at 20 s
    with monkeypatch.context() as patch:
        patch.setattr(settlement, "settle", raising)
        with pytest.raises(RuntimeError):
            stage.look()
    assert stage.books.require("team").account.settled_at == T0
    stage.look(fresh=False)
    assert stage.books.require("team").account.settled_at == T0 + 25_000


def test_one_pod_that_the_books_do_not_take_keeps_no_other_from_its_charge(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad = stage.create("bad")["metadata"]["uid"]
    stage.create()
    apply = workload.apply

    def picky(books: Books, openings: Any, *rest: Any) -> None:
        if any(opening.pod_uid == bad for opening in openings):
            raising()
        apply(books, openings, *rest)

    stage.end("a", T0)
    with monkeypatch.context() as patch:
        patch.setattr(workload, "apply", picky)
        with pytest.raises(RuntimeError):
            stage.look()
        assert stage.finalizers() == []
        assert stage.known() == 1
        assert stage.finalizers("bad") == [names.FINALIZER]
    stage.look()
    assert stage.workload(bad).started_at == T0


def test_one_pod_that_cannot_be_read_keeps_no_other_from_its_charge(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.create("bad")
    stage.create()
    stage.end("a", T0)
    opening = stage.controller._openings.opening

    def picky(pod: Object, *rest: Any) -> Any:
        return raising() if pod["metadata"]["name"] == "bad" else opening(pod, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(stage.controller._openings, "opening", picky)
        with pytest.raises(RuntimeError):
            stage.look()
    assert stage.finalizers() == []
    stage.look()
    assert stage.known() == 2


def test_gpus_that_could_not_be_kept_are_kept_by_the_next_look(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    stage.controller._openings._nodes.on_list(stage.kube.list(NODES)[0])
    with monkeypatch.context() as patch:
        patch.setattr(workloads, "keep_gpus", raising)
        with pytest.raises(RuntimeError):
            stage.look()
    stage.look()
    with stage.books.database.reading() as session:
        assert workloads.gpus(session) == {GPU.uuid: GPU}


def test_a_controller_whose_looks_always_fail_at_one_step_is_noticed(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reconcile_loop, "STUCK_SECONDS", -1.0)
    monkeypatch.setattr(reconcile_loop, "RETRY_SECONDS", 0.0)
    monkeypatch.setattr(stage.controller, "_seal", raising)
    monkeypatch.setattr(type(stage.controller), "synced", True)
    looked = stage.controller._looked
    wait = stage.controller._stop.wait
    turns = iter(range(4))
    monkeypatch.setattr(
        stage.controller._stop, "wait", lambda _: stage.controller._stop.set() if next(turns, None) is None else wait(0)
    )
    stage.controller.run()
    assert stage.controller._looked == looked
    assert "has not finished a look" in stage.controller.trouble()
