# SPDX-License-Identifier: Apache-2.0
"""Enforcement `safe` and `hard`, look by look, against the simulator's API server and real databases."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from support.manual_clock import ManualClock
from support.small_cluster import NAMESPACE, SmallCluster, protected, small_cluster

from slicekeeper import names
from slicekeeper.config.policy_file import PolicyFile
from slicekeeper.config.settings import PolicySettings, Settings, TimekeeperSettings
from slicekeeper.errors import ServiceError
from slicekeeper.kube.client import EVENTS, NAMESPACES, NODES, PODS, Object
from slicekeeper.kube.pod import gate_index
from slicekeeper.units import format_instant, format_seconds
from timekeeper.cluster import gated_pods, hard_budget_eviction, pod_patch
from timekeeper.cluster.reconcile_loop import Controller
from timekeeper.ledger import movement, reservation
from timekeeper.ledger.account import AccountRef
from timekeeper.ledger.books import Books
from timekeeper.ledger.movement import Order
from timekeeper.ledger.rate import set_rate
from timekeeper.store import idempotent_rows
from timekeeper.store.db.database import Database
from timekeeper.store.db.engine import make_engine
from timekeeper.store.db.models import ReservationRow

T0 = 1_767_225_600_000
SAFE = "default: {budget: {amount: 200s, period: none, enforcement: safe}}"
HARD = "default: {budget: {amount: 10s, period: none, enforcement: hard, grace: 1m}}"


class Stage:
    """A controller that looks when it is told, on a cluster with one node of whole GPUs."""

    def __init__(self, cluster: SmallCluster, clock: ManualClock, folder: Path, url: str) -> None:
        self.cluster, self.clock, self.client = cluster, clock, cluster.client
        self.file = folder / "policy.yaml"
        self._url = url
        cluster.node("n", gpus=4)

    def begin(self, policy: str) -> None:
        """Start a controller, a new one if there is one already."""
        self.file.write_text(policy)
        settings = Settings(
            policy=PolicySettings(file=str(self.file), exempt_namespaces=()),
            timekeeper=TimekeeperSettings(reservation_margin_seconds=10.0),
        )
        self.books = Books(Database(make_engine(self._url)), "default", carry=False)
        self.policy = PolicyFile(settings.policy)
        self.controller = Controller(settings, self.clock, self.client, self.books, self.policy)
        self.controller.namespaces.on_list(self.client.list(NAMESPACES)[0])
        for node in self.client.list(NODES)[0]:
            self.controller._openings._nodes.on_event("ADDED", node)

    def end(self) -> None:
        self.controller.stop()
        self.books.database.close()

    def look(self) -> float:
        self.controller.pods.on_list(self.client.list(PODS)[0])
        return self.controller.look()

    def pod(self, name: str, *, deadline: int | None = 60, bound: bool = False, **spec: Any) -> Object:
        """Make a pod of one whole GPU, with a grace of 30 s and the margin: `deadline` + 40 s of GPU time."""
        if deadline is not None:
            spec["activeDeadlineSeconds"] = deadline
            spec["schedulingGates"] = [{"name": "example.com/first"}, {"name": names.GATE}]
        made = self.cluster.pod(name, core=100, blocks=0, **spec)
        self.client.patch(PODS, name, {"metadata": {"finalizers": [names.FINALIZER]}}, NAMESPACE)
        self.clock.advance(1_000)
        if bound:
            self.bind(name)
        return made

    def bind(self, name: str) -> None:
        """Do what the scheduler and kubelet do: lift the other gate, bind, run."""

        def change(pod: Object) -> Object:
            pod["spec"].pop("schedulingGates", None)
            pod["spec"]["nodeName"] = "n"
            pod["metadata"]["annotations"] |= {
                names.gpu_annotation("c"): "n-0",
                names.BOUND_AT: format_instant(self.clock.now_ms()),
            }
            pod["status"]["phase"] = "Running"
            return pod

        self.cluster.cluster.store.update(PODS, name, NAMESPACE, change, subresource="binding")

    def finish(self, name: str) -> None:
        def change(pod: Object) -> Object:
            ended = {"exitCode": 0, "finishedAt": format_seconds(self.clock.now_ms())}
            pod["status"] |= {
                "phase": "Succeeded",
                "containerStatuses": [{"name": "c", "state": {"terminated": ended}}],
            }
            return pod

        self.cluster.cluster.store.update(PODS, name, NAMESPACE, change, subresource="status")

    def waits(self, name: str) -> bool:
        return gate_index(self.cluster.get(name)) is not None

    def waiting(self) -> set[str]:
        return {pod["metadata"]["name"] for pod in self.cluster.pods() if gate_index(pod) is not None}

    def told(self, name: str) -> list[str]:
        return [e["message"] for e in self.client.list(EVENTS)[0] if e["involvedObject"]["name"] == name]

    def reasons(self, name: str) -> list[str]:
        return [e["reason"] for e in self.client.list(EVENTS)[0] if e["involvedObject"]["name"] == name]

    def held(self) -> int:
        standing = self.books.require(NAMESPACE)
        return reservation.reserved(self.books, self.clock.now_ms())[standing.account.id]

    def outcomes(self) -> dict[str, str]:
        with self.books.database.reading() as session:
            rows = idempotent_rows.page(session, ReservationRow, self.books.require(NAMESPACE).account.id, limit=100)
        return {row.pod_name: reservation.outcome_of(row, self.clock.now_ms()) for row in rows}

    def grant(self, amount: int) -> None:
        uid = self.client.get(NAMESPACES, NAMESPACE)["metadata"]["uid"]
        place = AccountRef(uid, NAMESPACE, self.policy.of(NAMESPACE))
        now = self.clock.now_ms()
        movement.grant(self.books, place, Order(amount, "r", f"k{now}", b"", "me", now), valid_from=now, valid_to=None)


@pytest.fixture
def stage(tmp_path: Path, database_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], Stage]]:
    monkeypatch.setattr(gated_pods, "AGAIN_SECONDS", -1.0)
    monkeypatch.setattr(hard_budget_eviction, "AGAIN_SECONDS", -1.0)
    clock = ManualClock(T0)
    with small_cluster(clock) as cluster:
        made = Stage(cluster, clock, tmp_path, database_url)

        def begin(policy: str) -> Stage:
            made.begin(policy)
            return made

        yield begin
        made.end()


# safe


def test_a_pod_starts_when_its_deadline_is_set_aside_and_the_rest_comes_back(stage: Callable[[str], Stage]) -> None:
    it = stage(SAFE)
    it.pod("a")
    assert it.waits("a")
    it.look()
    pod = it.cluster.get("a")
    assert pod["spec"]["schedulingGates"] == [{"name": "example.com/first"}], "another's gate stays"
    assert it.held() == 100_000
    assert it.reasons("a") == ["GpuTimeReserved"]
    assert "1m40s of GPU time" in it.told("a")[0]
    it.bind("a")
    it.look()
    it.clock.advance(20_000)
    assert it.held() == 80_000
    it.finish("a")
    it.look()
    assert (it.held(), it.outcomes()) == (0, {"a": "settled"})
    assert it.books.require(NAMESPACE).at(it.clock.now_ms()).balance == 180_000
    for _ in range(2):
        it.look()
    assert it.reasons("a") == ["GpuTimeReserved"]


def test_the_oldest_comes_first_and_no_smaller_one_goes_before_it(stage: Callable[[str], Stage]) -> None:
    it = stage(SAFE)
    it.pod("first", deadline=80)  # 120 s of the 200 s
    it.pod("large", deadline=60)  # 100 s: 20 are missing
    it.pod("small", deadline=1)
    it.look()
    it.look()
    assert it.waiting() == {"large", "small"}
    assert "20s are missing (1m20s are free, 2m set aside for others)" in it.told("large")[0]
    assert it.told("small") == ["This pod waits behind pod large, which is older and needs more GPU time"]
    it.bind("first")
    it.look()
    it.finish("first")
    it.look()
    it.look()
    assert it.waiting() == set()
    assert it.held() == 141_000


def test_a_grant_lets_it_start(stage: Callable[[str], Stage]) -> None:
    it = stage(SAFE)
    it.pod("first", deadline=160)
    it.look()
    it.pod("second", deadline=60)
    it.look()
    assert it.waiting() == {"second"}
    it.grant(100_000)
    it.look()
    assert it.waiting() == set()


def test_one_that_no_period_can_ever_pay_is_told_and_passed_over(stage: Callable[[str], Stage]) -> None:
    it = stage("default: {budget: {amount: 200s, period: day, enforcement: safe}}")
    it.pod("never", deadline=1_000)
    it.pod("small", deadline=60)
    it.pod("later", deadline=60)
    it.pod("too-late", deadline=60)
    it.look()
    assert it.waiting() == {"never", "too-late"}
    assert "can provide 3m20s at most" in it.told("never")[0]
    assert "the next period begins 2026-01-02T00:00:00.000Z and brings 3m20s" in it.told("too-late")[0]
    it.bind("small")
    it.look()
    it.clock.advance(100_000)
    it.finish("small")
    it.look()
    assert it.waiting() == {"never", "too-late"}, "it has used all that was set aside for it"
    it.clock.advance(86_400_000)
    it.look()
    assert it.waiting() == {"never"}, "the next period has come"
    it.grant(2_000_000)
    it.look()
    assert it.waiting() == set(), "a grant brings even that"


def test_what_waits_or_started_keeps_its_state_when_the_budget_is_used_up_by_others(
    stage: Callable[[str], Stage],
) -> None:
    it = stage(SAFE)
    it.pod("old", deadline=None, bound=True)  # from before the namespace was safe: nothing is set aside for it
    it.pod("safe", deadline=60)
    it.look()
    it.bind("safe")
    it.pod("waits", deadline=200)
    it.clock.advance(98_000)
    it.look()
    states = {pod["metadata"]["name"]: pod_patch.state_of(pod) for pod in it.cluster.pods()}
    assert it.books.require(NAMESPACE).at(it.clock.now_ms() + 5_000).exhausted
    it.clock.advance(5_000)
    it.look()
    states = {pod["metadata"]["name"]: pod_patch.state_of(pod) for pod in it.cluster.pods()}
    assert states == {"old": names.OVER_BUDGET, "safe": names.IN_BUDGET, "waits": names.IN_BUDGET}


def test_a_pod_keeps_its_state_although_reservations_cannot_be_read_after_a_restart(
    stage: Callable[[str], Stage], monkeypatch: pytest.MonkeyPatch
) -> None:
    it = stage(SAFE)
    it.pod("old", deadline=None, bound=True)
    it.pod("safe", deadline=60)
    it.look()
    it.bind("safe")
    it.look()
    it.clock.advance(150_000)
    it.end()
    it.begin(SAFE)
    with monkeypatch.context() as patched:
        patched.setattr(gated_pods.store, "pods", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            it.look()
    assert pod_patch.state_of(it.cluster.get("safe")) != names.OVER_BUDGET
    it.look()
    states = {pod["metadata"]["name"]: pod_patch.state_of(pod) for pod in it.cluster.pods()}
    assert states == {"old": names.OVER_BUDGET, "safe": names.IN_BUDGET}


def test_what_vanishes_without_having_run_gives_its_time_back(stage: Callable[[str], Stage]) -> None:
    it = stage(SAFE)
    it.pod("seen")
    it.look()
    it.client.delete(PODS, "seen", NAMESPACE)
    it.look()
    assert (it.held(), it.outcomes()) == (0, {"seen": "expired"})
    it.pod("unseen")
    it.look()
    assert it.held() == 100_000
    it.end()
    it.client.patch(PODS, "unseen", {"metadata": {"finalizers": None}}, NAMESPACE)
    it.client.delete(PODS, "unseen", NAMESPACE)
    it.begin(SAFE)
    it.look()
    assert (it.held(), it.outcomes()) == (0, {"seen": "expired", "unseen": "expired"})


def test_a_crash_between_reservation_and_gate_is_made_good(
    stage: Callable[[str], Stage], monkeypatch: pytest.MonkeyPatch
) -> None:
    it = stage(SAFE)
    it.pod("a")

    def broken(*_given: object) -> None:
        raise ServiceError("no answer")

    with monkeypatch.context() as patched:
        patched.setattr(pod_patch, "lift", broken)
        it.look()
    assert (it.waits("a"), it.held()) == (True, 100_000)
    it.end()
    it.begin(SAFE)
    it.look()
    assert (it.waits("a"), it.held()) == (False, 100_000)


def test_a_pod_that_has_nothing_to_wait_for_is_let_in(stage: Callable[[str], Stage]) -> None:
    it = stage(SAFE)
    it.pod("first", deadline=150)
    it.look()
    it.pod("second", deadline=150)
    it.look()
    assert it.waits("second")
    it.file.write_text("default: {}")
    assert it.policy.refresh()
    it.look()
    assert not it.waits("second")


def test_a_gpu_that_nobody_has_published_is_waited_for(stage: Callable[[str], Stage]) -> None:
    it = stage(SAFE)
    it.pod("b", annotations={names.GPU_MODEL: "H100"})
    it.pod("c")
    it.look()
    assert it.waiting() == {"b"}
    assert "waits for a node with a GPU that fits it" in it.told("b")[0]


def test_a_grace_that_overflows_keeps_no_other_pod_waiting(stage: Callable[[str], Stage]) -> None:
    """At a rate of 0 the pod needs no GPU time, however long it may run."""
    it = stage(SAFE)
    set_rate(it.books, "A100", Fraction(0), since=None, reason="r", actor="me", now=it.clock.now_ms())
    it.pod("endless", terminationGracePeriodSeconds=2**63 - 1)
    it.pod("b")
    it.look()
    assert it.waiting() == set()


@pytest.mark.parametrize("error", [ServiceError("no answer"), RuntimeError("a fault")])
def test_a_pod_that_cannot_be_examined_keeps_no_older_one_and_no_other_namespace_waiting(
    stage: Callable[[str], Stage], monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    it = stage(SAFE)
    it.pod("a")
    it.pod("bad")
    it.pod("younger", deadline=1)
    need = it.controller._openings.need

    def picky(pod: Object, *rest: Any) -> object:
        if pod["metadata"]["name"] == "bad":
            raise error
        return need(pod, *rest)

    with monkeypatch.context() as patched:
        patched.setattr(it.controller._openings, "need", picky)
        with nullcontext() if isinstance(error, ServiceError) else pytest.raises(RuntimeError):
            it.look()
    assert it.waiting() == {"bad", "younger"}
    it.look()
    assert it.waiting() == {"younger"}


# hard


def test_running_pods_are_told_and_evicted_after_the_grace(stage: Callable[[str], Stage]) -> None:
    it = stage(HARD)
    it.pod("a", deadline=None, bound=True)
    since = it.clock.now_ms() + 10_000
    it.look()
    it.clock.advance(11_000)
    assert 58 < it.look() <= 59.1, "it is back when the grace ends"
    assert pod_patch.state_of(it.cluster.get("a")) == names.OVER_BUDGET
    assert f"evicted from {format_instant(since + 60_000)} on unless a grant" in it.told("a")[0]
    it.clock.advance(58_000)
    it.look()
    assert "deletionTimestamp" not in it.cluster.get("a")["metadata"]
    it.clock.advance(1_000)
    it.look()
    pod = it.cluster.get("a")
    assert "deletionTimestamp" in pod["metadata"]
    assert [c["reason"] for c in pod["status"]["conditions"] if c["type"] == "DisruptionTarget"] == [
        "EvictionByEvictionAPI"
    ]
    it.look()
    assert it.reasons("a") == ["BudgetExhausted", "BudgetEviction"]


def test_a_pod_that_its_owner_deleted_with_years_of_grace_is_evicted_all_the_same(
    stage: Callable[[str], Stage],
) -> None:
    it = stage(HARD)
    it.pod("a", deadline=None, bound=True, terminationGracePeriodSeconds=10**9)
    it.look()
    it.client.delete(PODS, "a", NAMESPACE)
    it.clock.advance(90_000)
    it.look()
    assert it.cluster.get("a")["metadata"]["deletionGracePeriodSeconds"] == 3_600
    assert it.reasons("a") == ["BudgetExhausted", "BudgetEviction"]
    it.look()
    assert it.reasons("a") == ["BudgetExhausted", "BudgetEviction"]


def test_a_grant_within_the_grace_keeps_them(stage: Callable[[str], Stage]) -> None:
    it = stage(HARD)
    it.pod("a", deadline=None, bound=True)
    it.look()
    it.clock.advance(50_000)
    it.look()
    it.grant(500_000)
    it.clock.advance(60_000)
    it.look()
    pod = it.cluster.get("a")
    assert "deletionTimestamp" not in pod["metadata"]
    assert pod_patch.state_of(pod) == names.IN_BUDGET


def test_a_disruption_budget_is_respected_and_tried_again(stage: Callable[[str], Stage]) -> None:
    it = stage(HARD)
    for name in ("a", "b"):
        it.pod(name, deadline=None, bound=True)
    it.cluster.api.faults["eviction"] = protected("a")
    it.look()
    it.clock.advance(90_000)
    for _ in range(3):
        it.look()
    gone = {p["metadata"]["name"] for p in it.cluster.pods() if "deletionTimestamp" in p["metadata"]}
    assert gone == {"b"}
    assert it.reasons("a") == ["BudgetExhausted", "EvictionPutOff"]
    it.cluster.api.faults.clear()
    it.look()
    assert "deletionTimestamp" in it.cluster.get("a")["metadata"]


@pytest.mark.parametrize("change", ["enforcement: soft", "enforcement: safe"])
def test_nobody_is_evicted_where_it_is_not_hard(stage: Callable[[str], Stage], change: str) -> None:
    it = stage(HARD.replace("enforcement: hard", change))
    it.pod("a", deadline=None, bound=True)
    it.look()
    it.clock.advance(600_000)
    it.look()
    assert pod_patch.state_of(it.cluster.get("a")) == names.OVER_BUDGET
    assert "deletionTimestamp" not in it.cluster.get("a")["metadata"]


def test_a_namespace_that_becomes_hard_has_its_grace_from_then_on(stage: Callable[[str], Stage]) -> None:
    it = stage(HARD.replace("hard", "soft"))
    it.pod("a", deadline=None, bound=True)
    it.look()
    it.clock.advance(600_000)
    it.look()
    it.file.write_text(HARD)
    assert it.policy.refresh()
    it.look()
    it.clock.advance(59_000)
    it.look()
    assert "deletionTimestamp" not in it.cluster.get("a")["metadata"]
    it.clock.advance(1_000)
    it.look()
    assert "deletionTimestamp" in it.cluster.get("a")["metadata"]
