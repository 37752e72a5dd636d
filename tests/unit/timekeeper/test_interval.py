# SPDX-License-Identifier: Apache-2.0
"""When a pod held its GPUs, from its own record."""

from __future__ import annotations

from typing import Any

import pytest

from slicekeeper import names
from slicekeeper.units import parse_instant
from timekeeper.interval import End, Start, end_of, others_ended, start_of

BOUND = "2026-11-21T10:00:00.250Z"
START = parse_instant(BOUND)


def at(text: str) -> int:
    return parse_instant(f"2026-11-21T{text}Z")


def pod(*, bound_at: str | None = BOUND, node: str = "n", **status: Any) -> dict[str, Any]:
    annotations = {} if bound_at is None else {names.BOUND_AT: bound_at}
    containers = [{"name": "main"}, {"name": "helper"}]
    spec = {"nodeName": node, "containers": containers, "restartPolicy": "Never"}
    return {"metadata": {"annotations": annotations}, "spec": spec, "status": status}


def ended(name: str, finished: str | None, code: int = 0) -> dict[str, Any]:
    return {"name": name, "state": {"terminated": {"exitCode": code, "finishedAt": finished}}}


def condition(kind: str, status: str, when: str) -> dict[str, str]:
    return {"type": kind, "status": status, "lastTransitionTime": f"2026-11-21T{when}Z"}


def test_the_scheduler_says_when_an_interval_opens() -> None:
    assert start_of(pod()) == Start(START, exact=True)


def test_a_pod_that_another_scheduler_bound_opens_at_its_condition() -> None:
    conditions = [condition("PodScheduled", "True", "09:59:59")]
    assert start_of(pod(bound_at=None, conditions=conditions)) == Start(at("09:59:59"), exact=False)
    assert start_of(pod(bound_at="soon", conditions=conditions)) == Start(at("09:59:59"), exact=False)
    assert start_of(pod(bound_at=None)) is None


def test_a_pod_that_was_there_before_opens_when_it_was_adopted() -> None:
    old = pod(bound_at=None, conditions=[condition("PodScheduled", "True", "09:59:59")])
    old["metadata"]["annotations"][names.ADOPTED_AT] = "2026-11-21T10:30:00.500Z"
    assert start_of(old) == Start(at("10:30:00.500"), exact=False)
    waiting = pod(bound_at=None, conditions=[condition("PodScheduled", "True", "10:45:00")])
    waiting["metadata"]["annotations"][names.ADOPTED_AT] = "2026-11-21T10:30:00.500Z"
    assert start_of(waiting) == Start(at("10:45:00"), exact=False)


def test_a_pod_that_is_not_bound_holds_nothing() -> None:
    assert start_of(pod(node="")) is None


def test_it_closes_at_the_last_end_of_a_container_that_holds_gpus() -> None:
    statuses = [ended("main", "2026-11-21T10:05:00Z"), ended("helper", "2026-11-21T10:09:00Z")]
    sidecar = [ended("meter", "2026-11-21T10:07:00Z"), ended("gpu-sidecar", "2026-11-21T10:30:00Z")]
    done = pod(phase="Succeeded", containerStatuses=statuses, initContainerStatuses=sidecar)
    assert end_of(done, ["main"], START) == End(at("10:05:00"), "finished")
    assert end_of(done, ["main", "meter"], START) == End(at("10:07:00"), "finished")


def test_it_is_open_while_the_pod_is_not_terminal() -> None:
    running = pod(phase="Running", containerStatuses=[ended("main", "2026-11-21T10:05:00Z")])
    assert end_of(running, ["main"], START) is None
    running["metadata"]["deletionTimestamp"] = "2026-11-21T10:06:30Z"
    assert end_of(running, ["main"], START) is None
    assert end_of(running, ["main"], START, final=True) == End(at("10:06:30"), "deleted")


def test_a_deletion_counts_from_when_it_was_asked_for_whatever_becomes_of_its_grace() -> None:
    lost = pod(phase="Failed")
    lost["metadata"] |= {"deletionTimestamp": "2026-11-21T10:07:30Z", "deletionGracePeriodSeconds": 30}
    assert end_of(lost, ["main"], START) == End(at("10:07:00"), "deleted")
    lost["metadata"] |= {"deletionTimestamp": "2026-11-21T10:07:00Z", "deletionGracePeriodSeconds": 0}
    assert end_of(lost, ["main"], START) == End(at("10:07:00"), "deleted")


def test_it_never_closes_before_it_opened() -> None:
    # kubelet writes whole seconds: a container that ended at once has an end before bound-at.
    done = pod(phase="Failed", containerStatuses=[ended("main", "2026-11-21T10:00:00Z")])
    assert end_of(done, ["main"], START) == End(START, "finished")


@pytest.mark.parametrize("zero", [None, "0001-01-01T00:00:00Z", "never"])
def test_where_kubelet_left_no_end_the_record_says_what_else_ended_it(zero: str | None) -> None:
    lost = pod(phase="Failed", containerStatuses=[ended("main", zero, 137)])
    assert end_of(lost, ["main"], START) is None
    lost["status"]["conditions"] = [condition("Ready", "False", "10:08:00")]
    assert end_of(lost, ["main"], START) == End(at("10:08:00"), "not-ready")
    lost["metadata"]["deletionTimestamp"] = "2026-11-21T10:07:00Z"
    assert end_of(lost, ["main"], START) == End(at("10:07:00"), "deleted")
    lost["status"]["conditions"].append(condition("DisruptionTarget", "True", "10:06:00"))
    assert end_of(lost, ["main"], START) == End(at("10:06:00"), "disrupted")


def test_a_pod_that_kubelet_refused_closes_at_the_refusal() -> None:
    refused = pod(phase="Failed", startTime="2026-11-21T10:00:01Z", reason="UnexpectedAdmissionError")
    assert end_of(refused, ["main"], START) == End(at("10:00:01"), "rejected")


@pytest.mark.parametrize(
    ("policy", "code", "over"),
    [("Never", 1, True), ("OnFailure", 0, True), ("OnFailure", 1, False), ("Always", 0, False)],
)
def test_the_sidecar_may_leave_when_the_others_have_ended_for_good(policy: str, code: int, over: bool) -> None:
    running = pod(phase="Running", containerStatuses=[ended("main", BOUND, code), ended("helper", BOUND)])
    running["spec"]["restartPolicy"] = policy
    assert others_ended(running) is over
    running["status"]["containerStatuses"].pop()
    assert not others_ended(running)


@pytest.mark.parametrize("record", [{}, {"status": []}, {"spec": {"nodeName": "n"}, "metadata": {"annotations": 3}}])
def test_a_damaged_record_says_nothing(record: dict[str, Any]) -> None:
    assert start_of(record) is None
    assert end_of(record, ["main"], 0, final=True) is None
