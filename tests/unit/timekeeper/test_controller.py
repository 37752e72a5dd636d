# SPDX-License-Identifier: Apache-2.0
"""The controller, look by look, against the simulator's API server over HTTP and a real SQLite."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from simulator.api import Api, ApiServer
from simulator.cluster import Cluster
from slicekeeper import inventory, names
from slicekeeper.clock import ManualClock
from slicekeeper.errors import Forbidden
from slicekeeper.kube.client import EVENTS, NAMESPACES, NODES, PODS, KubeClient, Object
from slicekeeper.namespace_policy import PolicyFile
from slicekeeper.settings import KubernetesSettings, PolicySettings, Settings
from slicekeeper.units import format_instant, format_seconds
from timekeeper import controller as module
from timekeeper import strays
from timekeeper.books import Books
from timekeeper.controller import Controller
from timekeeper.records import Debt
from timekeeper.store import audit, debts, workloads
from timekeeper.store.database import Database
from timekeeper.store.engine import make_engine
from timekeeper.store.models import Workload

T0 = 1_767_225_600_000
GPU = inventory.Gpu(uuid="GPU-1", model="A100", memory_mib=40960)


@dataclass
class Stage:
    clock: ManualClock
    kube: KubeClient
    cluster: Cluster
    books: Books
    controller: Controller

    def create(self, name: str = "a", *, bound: bool = True, core: str = "50") -> Object:
        limits = {"tencent.com/vcuda-core": core, "tencent.com/vcuda-memory": "16"}
        annotations = {names.gpu_annotation("main"): GPU.uuid, names.BOUND_AT: format_instant(self.clock.now_ms())}
        pod: Object = {
            "metadata": {
                "name": name, "namespace": "team", "finalizers": [names.FINALIZER],
                "labels": {names.MANAGED_LABEL: "true"}, "annotations": annotations if bound else {},
            },
            "spec": {"restartPolicy": "Never", "containers": [{"name": "main", "resources": {"limits": limits}}]},
            "status": {"phase": "Running" if bound else "Pending"},
        }  # fmt: skip
        if bound:
            pod["spec"]["nodeName"] = "n"
        return self.cluster.store.create(PODS, pod, "team")

    def write(self, name: str, **status: Any) -> None:
        def change(pod: Object) -> Object:
            pod["status"] |= status
            return pod

        self.cluster.store.update(PODS, name, "team", change, subresource="status")

    def end(self, name: str, at: int) -> None:
        ended = {"name": "main", "state": {"terminated": {"exitCode": 0, "finishedAt": format_seconds(at)}}}
        self.write(name, phase="Succeeded", containerStatuses=[ended])

    def look(self, *, fresh: bool = True) -> None:
        """Look once, after what a watch would have brought."""
        if fresh:
            self.controller.pods.on_list(self.kube.list(PODS)[0])
        self.controller.look()

    def workload(self, uid: str) -> Workload:
        with self.books.database.reading() as session:
            return workloads.by_uid(session, [uid])[uid]

    def known(self) -> int:
        with self.books.database.reading() as session:
            return len(workloads.page(session, "default", "", None, 100))


@pytest.fixture
def stage(tmp_path: Path, database_url: str) -> Iterator[Stage]:
    clock = ManualClock(T0)
    cluster = Cluster(clock)
    server = ApiServer(Api(cluster))
    server.start()
    policy = tmp_path / "policy.yaml"
    policy.write_text("default: {budget: {amount: 10s, period: none}}")
    settings = Settings(
        kubernetes=KubernetesSettings(server=server.url), policy=PolicySettings(file=str(policy), exempt_namespaces=())
    )
    kube = KubeClient(settings.kubernetes)
    kube.create(NAMESPACES, {"metadata": {"name": "team"}})
    kube.create(NODES, {"metadata": {"name": "n", "annotations": {names.NODE_GPUS: inventory.encode([GPU])}}})
    database = Database(make_engine(database_url))
    books = Books(database, "default", carry=False)
    controller = Controller(settings, clock, kube, books, PolicyFile(settings.policy))
    controller.namespaces.on_list(kube.list(NAMESPACES)[0])
    yield Stage(clock, kube, cluster, books, controller)
    controller.stop()
    database.close()
    kube.close()
    server.stop()


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
    assert [e["reason"] for e in stage.kube.list(EVENTS)[0]] == ["BudgetExhausted"]
    assert stage.known() == 1


def test_the_setting_for_debts_is_followed_once(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    followed: list[int] = []
    follow = stage.books.follow_debt
    monkeypatch.setattr(stage.books, "follow_debt", lambda now: (follow(now), followed.append(now)))
    for _ in range(2):
        stage.look()
        stage.clock.advance(1_000)
    assert followed == [T0]
    with stage.books.database.reading() as session:
        assert debts.of_cluster(session, "default") == [Debt(0, carry=False)]


def test_months_are_sealed_a_day_after_their_end(stage: Stage) -> None:
    stage.create()
    stage.look()
    assert stage.books.require("team").known.sealed_until < T0
    stage.clock.advance(24 * 3_600_000)
    stage.look()
    assert stage.books.require("team").known.sealed_until == T0


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
        (told,) = audit.page(session, "default", "team", 0, 10)
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
    monkeypatch.setattr(module, "KUBELET_SECONDS", -1.0)
    silent, slow = stage.create("silent"), stage.create("slow")
    stage.look()
    stage.clock.advance(5_000)
    for name in ("silent", "slow"):
        stage.kube.delete(PODS, name, "team")  # with its grace of 30 s
    stage.clock.advance(60_000)
    stage.look()
    assert stage.workload(silent["metadata"]["uid"]).ended_at is None
    stage.end("slow", T0 + 12_000)
    stage.clock.advance(30_000 + module.KUBELET_MS)
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


@pytest.mark.parametrize("seen", [True, False])
def test_a_label_taken_off_does_not_end_a_charge(stage: Stage, monkeypatch: pytest.MonkeyPatch, seen: bool) -> None:
    monkeypatch.setattr(module, "RETRY_SECONDS", 0.0)
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
    monkeypatch.setattr(module, "RETRY_SECONDS", 0.0)

    def refused(*_: object) -> None:
        raise Forbidden("a guard of another release", 403)

    monkeypatch.setattr(strays.marks, "label", refused)
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
    monkeypatch.setattr(module, "RETRY_SECONDS", 0.0)
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
