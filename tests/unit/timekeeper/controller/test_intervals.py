# SPDX-License-Identifier: Apache-2.0
"""When a charge begins and ends, by what the watch shows of a pod."""

from __future__ import annotations

import pytest
from support.controller_stage import T0, Stage

from scheduler.held_places import HoldKind
from scheduler.placement.learner import Learner
from scheduler.scheduler_state import SchedulerState
from slicekeeper import names
from slicekeeper.config.settings import Settings
from slicekeeper.kube.client import NAMESPACES, NODES, PODS
from slicekeeper.kube.pod import KUBELET_MS
from slicekeeper.units import format_instant, format_seconds
from timekeeper.cluster import charge_booking
from timekeeper.store import audit_chain, bookings


def test_a_pod_first_seen_when_it_is_over_is_charged_and_released_at_once(stage: Stage) -> None:
    pod = stage.create()
    stage.clock.advance(5_000)
    stage.end("a", T0 + 4_000)
    stage.look()
    row = stage.workload(pod["metadata"]["uid"])
    assert (row.started_at, row.ended_at, row.end_source) == (T0, T0 + 4_000, "finished")
    assert stage.kube.get(PODS, "a", "team")["metadata"]["finalizers"] == []


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
    monkeypatch.setattr(charge_booking, "KUBELET_SECONDS", -1.0)
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


def test_a_pod_that_is_deleted_with_a_grace_that_overflows_pays_until_it_ends(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its `deletionTimestamp` is past at once, but kubelet cannot stop it."""
    monkeypatch.setattr(charge_booking, "KUBELET_SECONDS", -1.0)
    pod = stage.create()
    stage.look()
    stage.clock.advance(2 * KUBELET_MS)
    deletion = {"deletionTimestamp": format_seconds(T0), "deletionGracePeriodSeconds": 2**63 - 1}
    seen = stage.kube.get(PODS, "a", "team")
    stage.controller.pods.on_event("MODIFIED", {**seen, "metadata": {**seen["metadata"], **deletion}})
    stage.look(fresh=False)
    assert stage.workload(pod["metadata"]["uid"]).ended_at is None
    assert stage.finalizers() == [names.FINALIZER]
    stage.end("a", T0 + KUBELET_MS)
    stage.look()
    assert stage.workload(pod["metadata"]["uid"]).ended_at == T0 + KUBELET_MS


def test_a_grace_that_is_shortened_gives_kubelet_its_time_again(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise all time since the deletion was requested would be free, although the pod ran on."""
    monkeypatch.setattr(charge_booking, "KUBELET_SECONDS", -1.0)
    uid = stage.create()["metadata"]["uid"]
    stage.look()
    stage.cluster.store.delete(PODS, "a", "team", grace=1_000_000)
    stage.look()
    stage.clock.advance(500_000_000)
    stage.look()
    assert stage.workload(uid).ended_at is None
    stage.cluster.store.delete(PODS, "a", "team", grace=0)
    stage.look()
    stage.clock.advance(KUBELET_MS)
    stage.look()
    assert stage.workload(uid).ended_at is None
    stage.end("a", T0 + 500_002_000)
    stage.look()
    assert (stage.workload(uid).ended_at, stage.kube.list(PODS)[0]) == (T0 + 500_002_000, [])


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


@pytest.mark.parametrize("wrong", [{names.CORE_LIMIT: "much"}, {names.SHARING: "mig"}, {names.GPU_CLASS: "free"}])
def test_an_annotation_that_breaks_a_rule_frees_nobody_from_the_charge(stage: Stage, wrong: dict[str, str]) -> None:
    uid = stage.create()["metadata"]["uid"]
    stage.kube.patch(PODS, "a", {"metadata": {"annotations": wrong}}, "team")
    stage.look()
    assert stage.workload(uid).started_at == T0


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
