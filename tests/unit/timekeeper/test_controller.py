# SPDX-License-Identifier: Apache-2.0
"""The controller, look by look, against the simulator's API server over HTTP and a real SQLite."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support.small_cluster import api_served

from scheduler.held_places import HoldKind
from scheduler.placement.learner import Learner
from scheduler.state import SchedulerState
from simulator.api import Api
from simulator.cluster import Cluster
from slicekeeper import names
from slicekeeper.clock import CLOCK_SKEW_MS, ManualClock
from slicekeeper.config.policy import BudgetPolicy, NamespacePolicy
from slicekeeper.config.policy_file import PolicyFile
from slicekeeper.config.settings import PolicySettings, Settings
from slicekeeper.errors import Forbidden, NotFound
from slicekeeper.gpu import inventory
from slicekeeper.kube.client import EVENTS, LEASES, NAMESPACES, NODES, PODS, KubeClient, Object
from slicekeeper.units import Instant, format_instant, format_seconds
from timekeeper.cluster import controller, interval_booking, lost_label, node_clock
from timekeeper.cluster.controller import Controller
from timekeeper.cluster.interval_booking import KUBELET_MS
from timekeeper.core.record import Debt
from timekeeper.ledger import settlement, workload
from timekeeper.ledger.books import Books
from timekeeper.ledger.budget import follow_policy
from timekeeper.ledger.debt import follow_debt
from timekeeper.store import audit_chain, bookings, debts, workloads
from timekeeper.store.db.database import Database
from timekeeper.store.db.engine import make_engine
from timekeeper.store.db.models import WorkloadRow

T0 = 1_767_225_600_000
GPU = inventory.Gpu(uuid="GPU-1", model="A100", memory_mib=40960)


@dataclass
class Stage:
    clock: ManualClock
    kube: KubeClient
    cluster: Cluster
    books: Books
    controller: Controller

    def create(self, name: str = "a", *, bound: bool = True, core: str = "50", plain: bool = False) -> Object:
        limits = {"tencent.com/vcuda-core": core, "tencent.com/vcuda-memory": "16"}
        annotations = {names.gpu_annotation("main"): GPU.uuid, names.BOUND_AT: format_instant(self.clock.now_ms())}
        pod: Object = {
            "metadata": {
                "name": name,
                "namespace": "team",
                "finalizers": [names.FINALIZER],
                "labels": {names.MANAGED_LABEL: "true"},
                "annotations": annotations if bound else {},
            },
            "spec": {"restartPolicy": "Never", "containers": [{"name": "main", "resources": {"limits": limits}}]},
            "status": {"phase": "Running" if bound else "Pending"},
        }
        if bound:
            pod["spec"]["nodeName"] = "n"
        if plain:
            pod["spec"]["containers"].append({"name": "plain"})
        return self.cluster.store.create(PODS, pod, "team")

    def write(self, name: str, **status: Any) -> None:
        def change(pod: Object) -> Object:
            pod["status"] |= status
            return pod

        self.cluster.store.update(PODS, name, "team", change, subresource="status")

    def end(self, name: str, at: int) -> None:
        ended = {"name": "main", "state": {"terminated": {"exitCode": 0, "finishedAt": format_seconds(at)}}}
        self.write(name, phase="Succeeded", containerStatuses=[ended])

    def end_each(self, name: str, phase: str, **ends: int | None) -> None:
        """Write containers' ends; None: it runs."""
        self.write(
            name,
            phase=phase,
            containerStatuses=[
                {
                    "name": container,
                    "state": {"running": {}}
                    if at is None
                    else {"terminated": {"exitCode": 0, "finishedAt": format_seconds(at)}},
                }
                for container, at in ends.items()
            ],
        )

    def finalizers(self, name: str = "a") -> list[str]:
        found: list[str] = self.kube.get(PODS, name, "team")["metadata"]["finalizers"]
        return found

    def state(self, name: str) -> str:
        found: str = self.kube.get(PODS, name, "team")["metadata"]["annotations"].get(names.BUDGET_STATE, "")
        return found

    def look(self, *, fresh: bool = True) -> None:
        """Look once, after what a watch would have brought."""
        if fresh:
            self.controller.pods.on_list(self.kube.list(PODS)[0])
        self.controller.look()

    def workload(self, uid: str) -> WorkloadRow:
        with self.books.database.reading() as session:
            return workloads.by_uid(session, [uid])[uid]

    def known(self) -> int:
        with self.books.database.reading() as session:
            return len(workloads.page(session, "default", None, None, 100))


@pytest.fixture
def stage(tmp_path: Path, database_url: str) -> Iterator[Stage]:
    clock = ManualClock(T0)
    cluster = Cluster(clock)
    policy = tmp_path / "policy.yaml"
    policy.write_text("default: {budget: {amount: 10s, period: none}}")
    with api_served(Api(cluster)) as (reached, kube):
        settings = Settings(kubernetes=reached, policy=PolicySettings(file=str(policy), exempt_namespaces=()))
        kube.create(NAMESPACES, {"metadata": {"name": "team"}})
        kube.create(NODES, {"metadata": {"name": "n", "annotations": {names.NODE_GPUS: inventory.encode([GPU])}}})
        database = Database(make_engine(database_url))
        books = Books(database, "default", carry=False)
        controller = Controller(settings, clock, kube, books, PolicyFile(settings.policy))
        controller.namespaces.on_list(kube.list(NAMESPACES)[0])
        yield Stage(clock, kube, cluster, books, controller)
        controller.stop()
        database.close()


def test_nothing_is_looked_at_before_the_policy_is_known(stage: Stage) -> None:
    """The file alone may say less: it might have budgets changed, or pods evicted."""
    policy = stage.controller._policy = PolicyFile(PolicySettings(objects=True))
    for watch in stage.controller._watches:
        watch.synced.set()
    assert not stage.controller.synced
    policy.apply_over(lambda book: book)
    assert stage.controller.synced


def labels_of(stage: Stage) -> dict[str, str]:
    found: dict[str, str] = stage.kube.get(PODS, "a", "team")["metadata"]["labels"]
    return found


def test_a_pod_first_seen_when_it_is_over_is_charged_and_released_at_once(stage: Stage) -> None:
    pod = stage.create()
    stage.clock.advance(5_000)
    stage.end("a", T0 + 4_000)
    stage.look()
    row = stage.workload(pod["metadata"]["uid"])
    assert (row.started_at, row.ended_at, row.end_source) == (T0, T0 + 4_000, "finished")
    assert stage.kube.get(PODS, "a", "team")["metadata"]["finalizers"] == []


def test_looking_again_changes_nothing(stage: Stage) -> None:
    stage.create()
    stage.clock.advance(25_000)
    for _ in range(3):
        stage.look()
    assert stage.kube.get(PODS, "a", "team")["metadata"]["annotations"][names.BUDGET_STATE] == names.OVER_BUDGET
    told = [e["reason"] for e in stage.kube.list(EVENTS)[0]]
    assert (told.count("BudgetExhausted"), set(told)) == (1, {"BudgetExhausted", "BudgetThreshold"})
    assert stage.known() == 1


def test_the_setting_for_debts_is_followed_once(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    followed: list[int] = []
    monkeypatch.setattr(
        "timekeeper.cluster.controller.follow_debt", lambda books, now: (follow_debt(books, now), followed.append(now))
    )
    for _ in range(2):
        stage.look()
        stage.clock.advance(1_000)
    assert followed == [T0]
    with stage.books.database.reading() as session:
        assert debts.of_cluster(session, "default") == [Debt(0, carry=False)]


def test_what_a_replica_with_an_older_policy_wrote_is_put_right(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    older = NamespacePolicy(budget=msgspec.structs.replace(stage.controller._policy.of("team").budget, amount="5s"))

    def amount() -> int:
        return stage.books.require("team").rule.rule.amount

    monkeypatch.setattr(stage.controller._leadership, "held", lambda: True)
    stage.create()
    stage.look()
    stage.look(fresh=False)
    for cause in ("takeover", "time"):
        stage.clock.advance(1_000)
        follow_policy(stage.books, {"team": older}, stage.clock.now_ms())
        stage.look(fresh=False)
        assert amount() == 5_000, "it is not compared with each look"
        if cause == "takeover":
            stage.controller._leads = False
            assert stage.controller._lead()
        else:
            monkeypatch.setattr("timekeeper.cluster.controller.FOLLOW_SECONDS", 0.0)
        stage.clock.advance(1_000)
        stage.look(fresh=False)
        assert amount() == 10_000, cause


def test_a_grace_counts_from_when_a_namespace_is_enforced_hard_and_no_other_change_lengthens_it(stage: Stage) -> None:
    evictions = stage.controller._evictions
    hard = NamespacePolicy(budget=BudgetPolicy(enforcement="hard", grace="1m"))
    soft = NamespacePolicy()
    of = {"old": hard, "new": hard, "changed": soft}.__getitem__
    evictions.follow_policy(["old"], of, of, Instant(T0))
    later = {"old": hard, "new": hard, "changed": hard}.__getitem__
    # An edit elsewhere: `new` was there before, and hard, but had no budget account yet.
    evictions.follow_policy(["old", "new", "changed"], later, of, Instant(T0 + 600_000))
    since = Instant(T0 + 300_000)
    dues = [evictions.due(name, hard, since) - T0 for name in ("old", "new", "changed")]
    assert dues == [360_000, 360_000, 660_000]


def test_months_are_sealed_a_day_after_their_end(stage: Stage) -> None:
    stage.create()
    stage.look()
    assert stage.books.require("team").account.sealed_until < T0
    stage.clock.advance(24 * 3_600_000)
    stage.look()
    assert stage.books.require("team").account.sealed_until == T0


def test_a_stale_view_of_a_pod_never_removes_another_finalizer(stage: Stage) -> None:
    stage.create()
    stage.end("a", T0 + 1_000)
    stage.clock.advance(2_000)
    stage.controller.pods.on_list(stage.kube.list(PODS)[0])
    meanwhile = {"metadata": {"finalizers": ["example.com/first", names.FINALIZER]}}
    stage.kube.patch(PODS, "a", meanwhile, "team")
    stage.look(fresh=False)
    assert stage.kube.get(PODS, "a", "team")["metadata"]["finalizers"] == ["example.com/first", names.FINALIZER]
    stage.look()
    assert stage.kube.get(PODS, "a", "team")["metadata"]["finalizers"] == ["example.com/first"]


def test_a_pod_of_the_same_name_is_another_pod(stage: Stage) -> None:
    old = stage.create()
    stage.look()
    stage.clock.advance(3_000)
    stage.kube.patch(PODS, "a", {"metadata": {"finalizers": None}}, "team")
    stage.cluster.store.delete(PODS, "a", "team", grace=0)
    new = stage.create()
    stage.clock.advance(1_000)
    stage.look()
    assert stage.workload(old["metadata"]["uid"]).end_source == "last-confirmed"
    with stage.books.database.reading() as session:
        (told,) = audit_chain.page(session, "default", "team", 0, 10)
    assert (told.actor, told.action) == ("timekeeper", "orphan-closed")
    assert old["metadata"]["uid"] in told.detail
    assert stage.workload(new["metadata"]["uid"]).ended_at is None
    assert stage.kube.get(PODS, "a", "team")["metadata"]["finalizers"] == [names.FINALIZER]


def test_a_pod_seen_to_be_deleted_without_our_finalizer_closes_by_its_last_record(stage: Stage) -> None:
    pod = stage.create()
    stage.look()
    changed = {"deletionTimestamp": format_seconds(T0 + 7_000), "finalizers": []}
    last = {**pod, "metadata": {**pod["metadata"], **changed}}
    stage.clock.advance(9_000)
    stage.controller.pods.on_event("DELETED", last)
    stage.look(fresh=False)
    row = stage.workload(pod["metadata"]["uid"])
    assert (row.ended_at, row.flags) == (T0 + 7_000, "end-deleted")


def test_kubelet_gets_its_time_to_tell_how_a_deleted_pod_ended(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interval_booking, "KUBELET_SECONDS", -1.0)
    silent, slow = stage.create("silent"), stage.create("slow")
    stage.look()
    stage.clock.advance(5_000)
    for name in ("silent", "slow"):
        stage.kube.delete(PODS, name, "team")  # with its grace of 30 s
    stage.clock.advance(60_000)
    stage.look()
    assert stage.workload(silent["metadata"]["uid"]).ended_at is None
    stage.end("slow", T0 + 12_000)
    stage.clock.advance(30_000 + KUBELET_MS)
    stage.look()
    assert stage.workload(slow["metadata"]["uid"]).ended_at == T0 + 12_000
    row = stage.workload(silent["metadata"]["uid"])
    assert (row.ended_at, row.end_source) == (T0 + 5_000, "deleted")
    assert [pod["metadata"]["finalizers"] for pod in stage.kube.list(PODS)[0]] == [[], []]


def test_what_was_never_bound_owes_nothing_and_goes(stage: Stage) -> None:
    stage.create(bound=False)
    stage.look()
    assert stage.known() == 0
    stage.kube.delete(PODS, "a", "team")
    stage.look()
    assert stage.kube.list(PODS)[0] == []


def test_a_pod_whose_namespace_is_not_known_yet_waits_and_loses_nothing(stage: Stage) -> None:
    pod = stage.create()
    stage.controller.namespaces.on_list([])
    stage.look()
    assert stage.known() == 0
    stage.controller.namespaces.on_list(stage.kube.list(NAMESPACES)[0])
    stage.clock.advance(60_000)
    stage.look()
    assert stage.workload(pod["metadata"]["uid"]).started_at == T0


def test_gpus_of_a_node_that_the_watch_has_not_brought_are_asked_for_and_kept(stage: Stage) -> None:
    pod = stage.create(core="10")
    stage.look()
    row = stage.workload(pod["metadata"]["uid"])
    assert (row.shares, row.flags) == ('{"' + GPU.model + '":"1/10"}', "")
    with stage.books.database.reading() as session:
        assert workloads.gpus(session) == {GPU.uuid: GPU}


def test_a_mig_slice_is_charged_for_what_it_is_also_when_it_is_gone(stage: Stage) -> None:
    mig = (inventory.MigSlice("MIG-1", 19968, 3, 7),)
    divided = inventory.Gpu("GPU-m", "A100", 40960, healthy=False, mig=mig)

    def publish(*gpus: inventory.Gpu) -> None:
        def change(node: Object) -> Object:
            node["metadata"]["annotations"] = {names.NODE_GPUS: inventory.encode(list(gpus))}
            return node

        stage.cluster.store.update(NODES, "n", "", change)

    def on_slice(name: str) -> Object:
        pod = stage.create(name, core="10")
        annotations = {names.gpu_annotation("main"): "MIG-1"}

        def change(pod: Object) -> Object:
            pod["metadata"]["annotations"] |= annotations
            return pod

        return stage.cluster.store.update(PODS, pod["metadata"]["name"], "team", change)

    publish(GPU, divided)
    first = on_slice("a")
    stage.look()
    publish(GPU)
    second = on_slice("b")
    stage.look()
    for pod in (first, second):
        row = stage.workload(pod["metadata"]["uid"])
        assert (row.shares, row.flags, row.gpus) == ('{"A100":"1/2"}', "", "MIG-1")


@pytest.mark.parametrize("seen", [True, False])
def test_a_label_taken_off_does_not_end_a_charge(stage: Stage, monkeypatch: pytest.MonkeyPatch, seen: bool) -> None:
    monkeypatch.setattr(controller, "RETRY_SECONDS", 0.0)
    pod = stage.create()
    uid = pod["metadata"]["uid"]
    stage.look()
    unlabelled = stage.kube.patch(PODS, "a", {"metadata": {"labels": None}}, "team")
    if seen:  # a watch by label says DELETED
        stage.controller.pods.on_event("DELETED", unlabelled)
    else:
        stage.controller.pods.on_list([])
    stage.clock.advance(5_000)
    stage.look(fresh=False)
    stage.look(fresh=False)
    assert stage.workload(uid).ended_at is None
    assert labels_of(stage) == {names.MANAGED_LABEL: "true"}, "the watch brings it again"
    stage.end("a", T0 + 5_000)
    stage.look()
    assert stage.workload(uid).ended_at == T0 + 5_000
    assert stage.kube.get(PODS, "a", "team")["metadata"]["finalizers"] == []


def test_a_pod_whose_label_may_not_be_written_is_followed_to_its_end(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(controller, "RETRY_SECONDS", 0.0)

    def refused(*_: object) -> None:
        raise Forbidden("a guard of another release", 403)

    monkeypatch.setattr(lost_label.pod_patch, "label", refused)
    uid = stage.create()["metadata"]["uid"]
    stage.look()
    stage.kube.patch(PODS, "a", {"metadata": {"labels": None}}, "team")
    stage.controller.pods.on_list([])
    stage.clock.advance(5_000)
    stage.look(fresh=False)
    stage.end("a", T0 + 5_000)
    stage.look(fresh=False)
    assert stage.workload(uid).ended_at == T0 + 5_000
    assert stage.kube.get(PODS, "a", "team")["metadata"]["finalizers"] == []
    stage.cluster.store.delete(PODS, "a", "team", grace=0)
    stage.look(fresh=False)
    stage.look(fresh=False)
    assert stage.controller.pods.all() == []


def test_another_value_of_the_label_hides_no_pod(stage: Stage) -> None:
    """Since Kubernetes 1.35 a Binding's labels replace the pod's."""
    uid = stage.create()["metadata"]["uid"]
    stage.kube.patch(PODS, "a", {"metadata": {"labels": {names.MANAGED_LABEL: "no"}}}, "team")
    listed, _ = stage.kube.list(PODS, label_selector=names.MANAGED_SELECTOR)
    stage.controller.pods.on_list(listed)
    stage.look(fresh=False)
    assert stage.workload(uid).started_at == T0
    assert labels_of(stage) == {names.MANAGED_LABEL: "true"}


@pytest.mark.parametrize("wrong", [{names.CORE_LIMIT: "much"}, {names.SHARING: "mig"}, {names.GPU_CLASS: "free"}])
def test_an_annotation_that_breaks_a_rule_frees_nobody_from_the_charge(stage: Stage, wrong: dict[str, str]) -> None:
    uid = stage.create()["metadata"]["uid"]
    stage.kube.patch(PODS, "a", {"metadata": {"annotations": wrong}}, "team")
    stage.look()
    assert stage.workload(uid).started_at == T0


@pytest.mark.parametrize("mark", ["finalizer", "binding"])
def test_a_pod_that_was_never_seen_with_its_label_is_found_by_its_other_marks(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, mark: str
) -> None:
    """The timekeeper was away when the label was taken."""
    monkeypatch.setattr(controller, "RETRY_SECONDS", 0.0)
    uid = stage.create()["metadata"]["uid"]
    taken: dict[str, object] = {"labels": None}
    if mark == "binding":
        taken["finalizers"] = []
    stage.kube.patch(PODS, "a", {"metadata": taken}, "team")
    stage.kube.create(PODS, {"metadata": {"name": "plain"}, "spec": {"containers": [{"name": "x"}]}}, "team")
    stage.controller.strays.sweep()
    stage.look(fresh=False)
    stage.look(fresh=False)
    assert stage.workload(uid).started_at == T0
    assert labels_of(stage) == {names.MANAGED_LABEL: "true"}
    assert "labels" not in stage.kube.get(PODS, "plain", "team")["metadata"]


# Clocks


@pytest.mark.parametrize("ahead", [20 * 60_000, 10 * 365 * 24 * 3_600_000])
def test_an_end_in_the_future_is_held_at_the_skew_after_it_was_seen_and_flagged(stage: Stage, ahead: int) -> None:
    pod, neighbour = stage.create(core="10"), stage.create("b", core="10")
    stage.look()
    stage.clock.advance(5_000)
    stage.end("a", stage.clock.ms + ahead)
    stage.look()
    latest = stage.clock.ms + CLOCK_SKEW_MS
    row = stage.workload(pod["metadata"]["uid"])
    assert (row.ended_at, row.end_source, row.flags) == (latest, "finished", "clock-skew")
    assert stage.finalizers() == [], "the charge follows from the record"
    position = stage.books.require("team")
    assert position.account.settled_at <= stage.clock.ms
    assert position.at(stage.clock.ms).balance == 10_000 - 2 * 500
    stage.look()
    annotations = stage.kube.get(PODS, "b", "team")["metadata"]["annotations"]
    assert annotations[names.BUDGET_STATE] == names.IN_BUDGET
    stage.clock.advance(2 * CLOCK_SKEW_MS)
    stage.end("b", T0 + 6_000)
    stage.look()
    with stage.books.database.reading() as session:
        booked = bookings.booked_by_pod(session, [pod["metadata"]["uid"], neighbour["metadata"]["uid"]])
    assert sum(booked[pod["metadata"]["uid"]]) == (latest - T0) // 10
    assert sum(booked[neighbour["metadata"]["uid"]]) == 600


def test_an_end_of_a_node_whose_clock_was_set_forward_and_is_not_known_is_when_it_was_seen(stage: Stage) -> None:
    pod = stage.create()
    stage.look()
    stage.clock.advance(60_000)
    taken = {"manager": "kubelet", "time": format_instant(stage.clock.ms), "fieldsV1": {"f:status": {"f:phase": {}}}}
    stage.kube.patch(PODS, "a", {"metadata": {"managedFields": [taken]}}, "team")
    stage.end("a", stage.clock.ms + 3_600_000)
    stage.clock.advance(2_000)
    stage.look()
    row = stage.workload(pod["metadata"]["uid"])
    assert (row.ended_at, row.end_source, row.flags) == (T0 + 62_000, "finished", "clock-skew")


HOUR = 3_600_000


def told_at(stage: Stage, reported: int) -> None:
    """Have the API server note when kubelet wrote the pod's phase."""
    taken = {"manager": "kubelet", "time": format_seconds(reported), "fieldsV1": {"f:status": {"f:phase": {}}}}
    stage.kube.patch(PODS, "a", {"metadata": {"managedFields": [taken]}}, "team")


def renew(stage: Stage, ahead: int) -> None:
    """Have the node renew its Lease by a clock that is ahead."""
    taken = {"time": format_seconds(stage.clock.ms), "fieldsV1": {"f:spec": {"f:renewTime": {}}}}
    lease = {"metadata": {"managedFields": [taken]}, "spec": {"renewTime": format_instant(stage.clock.ms + ahead)}}
    if stage.kube.find(LEASES, "n", "kube-node-lease") is None:
        stage.kube.create(NAMESPACES, {"metadata": {"name": "kube-node-lease"}})
        stage.kube.create(LEASES, {"metadata": {"name": "n"}}, "kube-node-lease")
    stage.kube.patch(LEASES, "n", lease, "kube-node-lease")


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have pods read again, and Leases too, as often as we look."""
    monkeypatch.setattr(interval_booking, "READ_AGAIN_SECONDS", 0.0)
    monkeypatch.setattr(node_clock, "SAME_SECONDS", 0.0)


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize("ahead", [-24 * HOUR, -45_000, HOUR])
@pytest.mark.parametrize("when", ["long ago", "just before the end", "just after the report"])
def test_an_end_by_a_clock_that_was_set_is_charged_by_the_api_servers(stage: Stage, ahead: int, when: str) -> None:
    pod = stage.create(core="1")
    stage.look()
    stage.clock.advance(2 * HOUR)
    renew(stage, 0 if when == "just before the end" else ahead)
    stage.clock.advance(5_000)
    stage.end("a", stage.clock.ms + ahead)
    told_at(stage, stage.clock.ms + 2_000)
    stage.clock.advance(3_000)
    stage.look()
    assert stage.workload(pod["metadata"]["uid"]).ended_at is None, "the clock may have been set since the last renewal"
    assert stage.finalizers() == [names.FINALIZER]
    stage.clock.advance(2_000)
    renew(stage, 0 if when == "just after the report" else ahead)
    stage.look()
    row = stage.workload(pod["metadata"]["uid"])
    assert (row.ended_at, row.end_source, row.flags) == (T0 + 2 * HOUR + 5_000, "finished", "clock-skew")
    assert stage.finalizers() == []


@pytest.mark.usefixtures("at_once")
def test_an_end_that_a_node_with_a_right_clock_reports_late_is_kubelets(stage: Stage) -> None:
    pod = stage.create(core="1")
    stage.look()
    stage.clock.advance(HOUR)
    stage.end("a", T0 + HOUR - 600_000)
    told_at(stage, stage.clock.ms)
    stage.clock.advance(2_000)
    renew(stage, 0)
    stage.look()
    row = stage.workload(pod["metadata"]["uid"])
    assert (row.ended_at, row.end_source, row.flags) == (T0 + HOUR - 600_000, "finished", "")


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize("answer", [NotFound("no such Lease", 404), Forbidden("may not get leases", 403)])
def test_where_the_clock_of_a_node_is_not_known_an_end_is_kubelets(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, answer: Exception
) -> None:
    pod = stage.create(core="1")
    stage.look()
    stage.clock.advance(HOUR)
    stage.end("a", T0 + HOUR - 600_000)
    told_at(stage, stage.clock.ms)

    def refused(*_: object) -> None:
        raise answer

    with monkeypatch.context() as patch:
        patch.setattr(stage.controller._intervals._clocks._client, "get", refused)
        stage.look()
    row = stage.workload(pod["metadata"]["uid"])
    assert (row.ended_at, row.end_source, row.flags) == (T0 + HOUR - 600_000, "finished", "")


@pytest.mark.usefixtures("at_once")
def test_the_last_renewal_counts_of_a_node_that_is_away_and_another_node_waits_for_nobody(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    pod, other = stage.create(core="1"), stage.create("b", core="1")
    stage.look()
    stage.clock.advance(HOUR)
    renew(stage, -600_000)
    stage.clock.advance(5_000)
    stage.end("a", stage.clock.ms - 600_000)
    stage.end("b", stage.clock.ms)
    told_at(stage, stage.clock.ms)
    stage.look()
    assert stage.workload(other["metadata"]["uid"]).ended_at == T0 + HOUR + 5_000
    assert stage.workload(pod["metadata"]["uid"]).ended_at is None
    monkeypatch.setattr(node_clock, "RENEWAL_SECONDS", 0.0)
    stage.look()
    row = stage.workload(pod["metadata"]["uid"])
    assert (row.ended_at, row.flags) == (T0 + HOUR + 5_000, "clock-skew")


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("kind", ["finished", "disrupted"])
def test_owners_who_write_an_early_time_into_the_managed_fields_pay_all_the_same(
    stage: Stage, kind: str, known: bool
) -> None:
    pod = stage.create(core="1")
    stage.look()
    stage.clock.advance(2 * HOUR)
    if kind == "finished":
        stage.end("a", stage.clock.ms)
    else:
        now = format_seconds(stage.clock.ms)
        stage.write(
            "a",
            phase="Failed",
            conditions=[{"type": "DisruptionTarget", "status": "True", "lastTransitionTime": now}],
        )
    told_at(stage, T0 + HOUR)
    stage.clock.advance(2_000)
    if known:
        renew(stage, 0)
    stage.look()
    row = stage.workload(pod["metadata"]["uid"])
    assert (row.ended_at, row.end_source, "clock-skew" in row.flags) == (T0 + 2 * HOUR, kind, False)


@pytest.mark.usefixtures("at_once")
def test_owners_who_clear_the_managed_fields_while_a_renewal_is_waited_for_pay_all_the_same(stage: Stage) -> None:
    pod = stage.create(core="1")
    stage.look()
    stage.clock.advance(2 * HOUR)
    renew(stage, -HOUR)
    stage.end("a", stage.clock.ms - HOUR)
    told_at(stage, stage.clock.ms)
    stage.look()
    stage.kube.patch(PODS, "a", {"metadata": {"managedFields": None}}, "team")
    stage.clock.advance(2_000)
    renew(stage, -HOUR)
    stage.look()
    row = stage.workload(pod["metadata"]["uid"])
    assert (row.ended_at, row.flags) == (T0 + 2 * HOUR, "clock-skew")


def test_a_pod_that_kubelet_never_ended_is_charged_until_its_deletion_however_old_kubelets_last_write(
    stage: Stage,
) -> None:
    """Its node is dead: kubelet's last write of the status says that the pod ran."""
    pod, vanished = stage.create("dead"), stage.create("vanished")
    taken = {"manager": "kubelet", "time": format_instant(T0), "fieldsV1": {"f:status": {"f:phase": {}}}}
    for name in ("dead", "vanished"):
        stage.kube.patch(PODS, name, {"metadata": {"managedFields": [taken]}}, "team")
    stage.look()
    stage.clock.advance(3_600_000)
    stage.controller._confirmed = 0.0
    stage.look()
    dead = stage.kube.get(PODS, "dead", "team")
    dead["metadata"] |= {"finalizers": [], "deletionTimestamp": format_seconds(stage.clock.ms)}
    lost = stage.kube.get(PODS, "vanished", "team")
    lost["metadata"]["finalizers"] = []
    stage.clock.advance(3_000)
    for gone in (dead, lost):
        stage.controller.pods.on_event("DELETED", gone)
    stage.look(fresh=False)
    row, other = stage.workload(pod["metadata"]["uid"]), stage.workload(vanished["metadata"]["uid"])
    assert (row.ended_at, row.end_source) == (T0 + 3_600_000, "deleted")
    assert (other.ended_at, other.end_source) == (T0 + 3_600_000, "last-confirmed")


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


def test_a_binding_in_the_future_is_charged_from_when_it_was_seen(stage: Stage) -> None:
    pod = stage.create()
    ahead = {names.BOUND_AT: format_instant(T0 + 24 * 3_600_000)}
    stage.kube.patch(PODS, "a", {"metadata": {"annotations": ahead}}, "team")
    stage.clock.advance(2_000)
    stage.look()
    row = stage.workload(pod["metadata"]["uid"])
    assert (row.started_at, row.flags) == (T0 + 2_000, "clock-skew")


def test_no_interval_opens_before_its_pod_was_made(stage: Stage) -> None:
    pod = stage.create()
    early = {names.BOUND_AT: format_instant(T0 - 10 * 365 * 24 * 3_600_000)}
    stage.kube.patch(PODS, "a", {"metadata": {"annotations": early}}, "team")
    stage.clock.advance(2_000)
    stage.look()
    row = stage.workload(pod["metadata"]["uid"])
    assert (row.started_at, row.flags) == (T0, "clock-skew")


# Steps


def raising(*_: object, **__: object) -> None:
    raise RuntimeError("a fault")


@pytest.mark.parametrize(
    "step",
    ["keep_inventory", "follow_policy", "vanished", "release", "settle", "come_back", "gates", "positions",
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
        "settle": (settlement, "settle"), "come_back": (settlement, "come_back"),
        "gates": (controller._gates, "look"), "positions": (stage.books, "positions"),
        "labels": (controller.strays, "label"), "evictions": (controller, "_evict"),
        "confirm": (controller, "_confirm"), "seal": (controller, "_seal"),
    }  # fmt: skip
    with monkeypatch.context() as patch:
        patch.setattr(*targets[step], raising)
        with pytest.raises(RuntimeError, match="a fault"):
            stage.look()
    done = (stage.finalizers() == [], stage.state("runs") == names.OVER_BUDGET)
    assert done == (step != "release", step != "positions")
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
    monkeypatch.setattr(controller, "STUCK_SECONDS", -1.0)
    monkeypatch.setattr(controller, "RETRY_SECONDS", 0.0)
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


# Scheduler and ledger


def test_a_container_that_ends_beside_a_plain_one_holds_its_gpus_and_pays_for_them(stage: Stage) -> None:
    """Also over 29 days: kubelet and kube-scheduler free nothing before the whole pod has ended."""
    resources = Settings().resources
    scheduler = SchedulerState(resources, Learner("best-fit"), stage.clock, hold_seconds=30, lost_seconds=60)
    scheduler.intake.set_nodes(stage.kube.list(NODES)[0])

    def holds() -> bool:
        scheduler.intake.set_pods(stage.kube.list(PODS)[0])
        return scheduler.counts()[HoldKind.BOUND] == 1

    pod = stage.create(plain=True)
    uid = pod["metadata"]["uid"]
    stage.look()
    assert (holds(), stage.workload(uid).ended_at) == (True, None)
    stage.clock.advance(10_000)
    stage.end_each("a", "Running", main=T0 + 10_000, plain=None)
    stage.look()
    assert (holds(), stage.workload(uid).ended_at) == (True, None)
    end = T0 + 29 * 24 * 3_600_000
    stage.clock.advance(end - stage.clock.ms)
    stage.end_each("a", "Succeeded", main=T0 + 10_000, plain=end)
    stage.look()
    assert (holds(), stage.workload(uid).ended_at) == (False, end)
    with stage.books.database.reading() as session:
        assert sum(bookings.booked_by_pod(session, [uid])[uid]) == (end - T0) // 2
