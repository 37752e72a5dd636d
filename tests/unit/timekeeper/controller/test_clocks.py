# SPDX-License-Identifier: Apache-2.0
"""Starts and ends by clocks that are wrong are charged by the API server's."""

from __future__ import annotations

import pytest
from support.controller_stage import T0, Stage

from slicekeeper import names
from slicekeeper.clock import CLOCK_SKEW_MS
from slicekeeper.errors import Forbidden, NotFound
from slicekeeper.kube.client import LEASES, NAMESPACES, PODS
from slicekeeper.units import format_instant, format_seconds
from timekeeper.cluster import charge_booking, node_clock
from timekeeper.store import bookings

HOUR = 3_600_000


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
    standing = stage.books.require("team")
    assert standing.account.settled_at <= stage.clock.ms
    assert standing.at(stage.clock.ms).balance == 10_000 - 2 * 500
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
    monkeypatch.setattr(charge_booking, "READ_AGAIN_SECONDS", 0.0)
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
