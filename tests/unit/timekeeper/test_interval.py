# SPDX-License-Identifier: Apache-2.0
"""When a pod held its GPUs, from its own record."""

from __future__ import annotations

from typing import Any

import pytest

from slicekeeper import names
from slicekeeper.clock import CLOCK_SKEW_MS
from slicekeeper.kube.container_end import apps_ended
from slicekeeper.kube.pod import deletion_due_at
from slicekeeper.units import parse_instant
from timekeeper.core.interval import End, Start, credible, end_of, start_of

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


def test_a_pod_that_kubelet_refused_opens_when_kubelet_was_told_of_it() -> None:
    """As kubelet 1.37 leaves a pod that it refuses: without conditions, so nothing says when it was bound."""
    told = {"reason": "NodeAffinity", "startTime": "2026-11-21T10:00:01Z"}
    refused = pod(bound_at=None, phase="Failed", **told)
    assert start_of(refused) == Start(at("10:00:01"), exact=False)
    assert end_of(refused, ["main"], at("10:00:01")) == End(at("10:00:01"), "rejected")
    assert start_of(pod(bound_at=None, phase="Running", **told)) is None, "its condition is still to come"
    assert start_of(pod(phase="Failed", **told)) == Start(START, exact=True), "the scheduler knows better"
    assert start_of(pod(bound_at=None, node="", phase="Failed", **told)) is None


def test_a_pod_that_was_there_before_opens_when_it_was_adopted() -> None:
    old = pod(bound_at=None, conditions=[condition("PodScheduled", "True", "09:59:59")])
    old["metadata"]["annotations"][names.ADOPTED_AT] = "2026-11-21T10:30:00.500Z"
    assert start_of(old) == Start(at("10:30:00.500"), exact=False)
    waiting = pod(bound_at=None, conditions=[condition("PodScheduled", "True", "10:45:00")])
    waiting["metadata"]["annotations"][names.ADOPTED_AT] = "2026-11-21T10:30:00.500Z"
    assert start_of(waiting) == Start(at("10:45:00"), exact=False)


def test_it_never_opens_before_the_pod_was_made() -> None:
    for bound_at in ("2016-11-21T10:00:00.000Z", "2026-11-21T09:59:59.999Z"):
        early = pod(bound_at=bound_at)
        early["metadata"]["creationTimestamp"] = "2026-11-21T10:00:00Z"
        assert start_of(early) == Start(at("10:00:00"), exact=True, skewed=bound_at.startswith("2016"))
    old = pod(bound_at=None, conditions=[condition("PodScheduled", "True", "09:00:00")])
    old["metadata"]["creationTimestamp"] = "2026-11-21T10:00:00Z"
    assert start_of(old) == Start(at("10:00:00"), exact=False, skewed=True)


SEEN = START + 2_000


@pytest.mark.parametrize("ahead", ["2026-11-21T10:20:00Z", "2036-01-01T00:00:00Z"])
def test_a_binding_of_the_future_opens_when_the_api_server_says_that_it_was_made(ahead: str) -> None:
    scheduled = [condition("PodScheduled", "True", "10:00:01")]
    assert start_of(pod(bound_at=ahead, conditions=scheduled), SEEN) == Start(at("10:00:01"), exact=True, skewed=True)
    assert start_of(pod(bound_at=ahead), SEEN) == Start(SEEN, exact=True, skewed=True)
    late = [{"type": "PodScheduled", "status": "True", "lastTransitionTime": ahead}]
    assert start_of(pod(bound_at=ahead, conditions=late), SEEN) == Start(SEEN, exact=True, skewed=True)
    assert start_of(pod(bound_at=None, conditions=late), SEEN) == Start(SEEN, exact=False, skewed=True)
    adopted = pod(bound_at=None, conditions=[condition("PodScheduled", "True", "09:00:00")])
    adopted["metadata"]["annotations"][names.ADOPTED_AT] = ahead
    assert start_of(adopted, SEEN) == Start(SEEN, exact=False, skewed=True), "what ran before is not charged"


def test_a_start_within_the_skew_is_believed() -> None:
    ahead = pod(bound_at="2026-11-21T10:04:00Z")
    assert start_of(ahead, SEEN) == Start(at("10:04:00"), exact=True)


def test_an_end_is_believed_up_to_the_skew_after_it_was_seen() -> None:
    assert credible(SEEN - 1, START, SEEN) == SEEN - 1
    assert credible(SEEN + CLOCK_SKEW_MS, START, SEEN) == SEEN + CLOCK_SKEW_MS
    assert credible(SEEN + 20 * 60_000, START, SEEN) == SEEN + CLOCK_SKEW_MS


@pytest.mark.parametrize("bound_at", ["2026-11-21T09:00:00Z", "2026-11-21T09:59:50Z", "2026-11-21T10:02:00Z"])
def test_a_binding_that_the_api_server_took_at_another_time_opens_then(bound_at: str) -> None:
    """The clock of the scheduler's node was set."""
    scheduled = [condition("PodScheduled", "True", "10:00:01")]
    assert start_of(pod(bound_at=bound_at, conditions=scheduled)) == Start(at("10:00:01"), exact=True, skewed=True)
    slow = pod(bound_at="2026-11-21T09:59:52.500Z", conditions=scheduled)
    assert start_of(slow) == Start(at("09:59:52.500"), exact=True)
    assert start_of(pod(bound_at=bound_at, conditions=scheduled), apart_ms=7_200_000).at == parse_instant(bound_at)


def test_a_pod_that_is_not_bound_holds_nothing() -> None:
    assert start_of(pod(node="")) is None


def test_it_closes_at_the_last_end_of_any_container_whoever_holds_the_gpus() -> None:
    """kubelet and the scheduler keep the slice until all of the pod has ended."""
    statuses = [ended("main", "2026-11-21T10:05:00Z"), ended("helper", "2026-11-21T10:09:00Z")]
    sidecar = [ended("meter", "2026-11-21T10:07:00Z"), ended("gpu-sidecar", "2026-11-21T10:09:02Z")]
    done = pod(phase="Succeeded", containerStatuses=statuses)
    assert end_of(done, ["main"], START) == End(at("10:09:00"), "finished")
    done["status"]["initContainerStatuses"] = sidecar
    assert end_of(done, ["main", "meter"], START) == End(at("10:09:02"), "finished")


UNKNOWN = {
    "null": {"terminated": {"exitCode": 137, "finishedAt": None}},
    "zero": {"terminated": {"exitCode": 137, "finishedAt": "0001-01-01T00:00:00Z"}},
    "absent": {"terminated": {"exitCode": 137}},
    "unknown": {"terminated": {"exitCode": 137, "reason": "ContainerStatusUnknown", "finishedAt": None}},
    "back-off": {"waiting": {"reason": "CrashLoopBackOff"}},
    "running": {"running": {"startedAt": "2026-11-21T10:00:02Z"}},
    "nothing": {},
}


@pytest.mark.parametrize("state", UNKNOWN.values(), ids=UNKNOWN)
@pytest.mark.parametrize("unknown", ["main", "helper"])
def test_an_end_that_kubelet_never_told_is_the_pods_own(state: dict[str, Any], unknown: str) -> None:
    known = "helper" if unknown == "main" else "main"
    statuses = [
        ended(known, "2026-11-21T10:05:00Z"),
        {"name": unknown, "state": state, "lastState": ended("", "2026-11-21T10:01:00Z")["state"]},
    ]
    lost = pod(phase="Failed", containerStatuses=statuses)
    holders = ["main", "helper"]
    assert end_of(lost, holders, START) is None, "whose end nobody tells may still be told"
    told = [condition("Ready", "False", "10:08:00"), condition("PodReadyToStartContainers", "False", "10:08:01")]
    lost["status"]["conditions"] = told
    assert end_of(lost, holders, START) == End(at("10:08:01"), "not-ready")
    lost["metadata"]["deletionTimestamp"] = "2026-11-21T10:07:00Z"
    assert end_of(lost, holders, START) == End(at("10:07:00"), "deleted")
    told.append(condition("DisruptionTarget", "True", "10:06:00"))
    assert end_of(lost, holders, START) == End(at("10:06:00"), "disrupted")
    told[-1]["lastTransitionTime"] = "2026-11-21T10:04:00Z"
    assert end_of(lost, holders, START) == End(at("10:05:00"), "disrupted"), "what is known to have run later counts"


@pytest.mark.parametrize(("policy", "code"), [("Always", 0), ("Always", 1), ("OnFailure", 1)])
def test_a_back_off_that_was_cut_short_held_the_slice_until_the_pod_went(policy: str, code: int) -> None:
    """kubelet writes the end of the last run then, which may lie minutes back."""
    gone = pod(
        phase="Failed",
        containerStatuses=[ended("main", "2026-11-21T10:05:00Z", code), ended("helper", "2026-11-21T10:04:00Z", code)],
        conditions=[condition("Ready", "False", "10:04:00"), condition("DisruptionTarget", "True", "10:09:00")],
    )
    assert end_of(gone, ["main"], START) == End(at("10:05:00"), "finished"), "nothing would have started it again"
    gone["spec"]["restartPolicy"] = policy
    assert end_of(gone, ["main"], START) == End(at("10:09:00"), "disrupted")
    gone["status"]["conditions"].pop()
    gone["metadata"] |= {"deletionTimestamp": "2026-11-21T10:08:30Z", "deletionGracePeriodSeconds": 30}
    assert end_of(gone, ["main"], START) == End(at("10:08:00"), "deleted")
    gone["status"]["containerStatuses"][0] = ended("main", "2026-11-21T10:08:02Z", 143)
    assert end_of(gone, ["main"], START) == End(at("10:08:02"), "finished"), "it ran until it was told to stop"
    gone["metadata"] = {"annotations": gone["metadata"]["annotations"]}
    gone["status"]["conditions"].append(condition("PodReadyToStartContainers", "False", "10:15:01"))
    assert end_of(gone, ["main"], START) == End(at("10:15:01"), "not-ready"), "activeDeadlineSeconds passed"


def test_a_container_that_never_starts_again_ends_its_pod_whatever_the_pods_policy_is() -> None:
    """It was deleted 40 minutes later, and read only then."""
    gone = pod(phase="Failed", containerStatuses=[ended("main", "2026-11-21T10:10:00Z", 1)])
    gone["spec"] |= {"restartPolicy": "OnFailure", "containers": [{"name": "main", "restartPolicy": "Never"}]}
    gone["metadata"] |= {"deletionTimestamp": "2026-11-21T10:50:00Z", "deletionGracePeriodSeconds": 0}
    assert end_of(gone, ["main"], START) == End(at("10:10:00"), "finished")
    rule = {"action": "Restart", "exitCodes": {"operator": "In", "values": [1]}}
    gone["spec"]["containers"][0]["restartPolicyRules"] = [rule]
    assert end_of(gone, ["main"], START) == End(at("10:50:00"), "deleted"), "it would have been started again"


def test_a_pod_whose_init_container_failed_for_good_closes_with_its_sandbox() -> None:
    waiting = {"name": "main", "state": {"waiting": {"reason": "PodInitializing"}}}
    failed = ended("prepare", "2026-11-21T10:10:00Z", 1)
    failed["state"]["terminated"]["startedAt"] = "2026-11-21T10:00:02Z"
    gone = pod(phase="Failed", containerStatuses=[waiting], initContainerStatuses=[failed])
    gone["spec"] |= {
        "restartPolicy": "OnFailure",
        "containers": [{"name": "main"}],
        "initContainers": [{"name": "prepare", "restartPolicy": "Never"}],
    }
    gone["status"]["conditions"] = [condition("PodReadyToStartContainers", "False", "10:10:01")]
    gone["metadata"] |= {"deletionTimestamp": "2026-11-21T10:50:00Z", "deletionGracePeriodSeconds": 0}
    assert end_of(gone, ["main"], START) == End(at("10:10:01"), "not-ready")


def test_an_unknown_end_of_a_container_without_gpus_counts_if_the_record_tells_the_pods() -> None:
    statuses = [ended("main", "2026-11-21T10:05:00Z"), ended("helper", None, 137)]
    lost = pod(phase="Failed", containerStatuses=statuses)
    assert end_of(lost, ["main"], START) == End(at("10:05:00"), "finished")
    lost["status"]["conditions"] = [condition("DisruptionTarget", "True", "10:06:00")]
    assert end_of(lost, ["main"], START) == End(at("10:06:00"), "disrupted")


def test_a_pod_that_was_never_ready_held_its_slice_until_its_sandbox_went() -> None:
    """Its image could not be pulled, or it was never ready: `Ready` turned to False when the pod began."""
    waiting = {"name": "main", "state": {"waiting": {"reason": "ImagePullBackOff"}}}
    conditions = [condition("Ready", "False", "10:00:00"), condition("PodReadyToStartContainers", "False", "11:00:01")]
    late = pod(phase="Failed", reason="DeadlineExceeded", containerStatuses=[waiting], conditions=conditions)
    assert end_of(late, ["main"], START) == End(at("11:00:01"), "not-ready")


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


def test_a_deletion_whose_grace_overflows_says_nothing() -> None:
    """The API server adds 2**63 - 1 seconds as one second less than none, and kubelet cannot stop the pod."""
    running = pod(phase="Running")
    running["metadata"] |= {"deletionTimestamp": "2026-11-21T10:07:29Z", "deletionGracePeriodSeconds": 2**63 - 1}
    assert deletion_due_at(running) is None
    assert end_of(running, ["main"], START, final=True) is None
    running["metadata"]["deletionGracePeriodSeconds"] = 2**63 // 10**9
    assert deletion_due_at(running) == at("10:07:29")


@pytest.mark.parametrize("state", UNKNOWN.values(), ids=UNKNOWN)
def test_a_deletion_that_came_after_the_pods_end_moves_it_no_more(state: dict[str, Any]) -> None:
    """It does not matter whether the pod was looked at before it was deleted."""
    helper = ended("helper", "2026-11-21T10:05:00Z")
    helper["state"]["terminated"]["startedAt"] = "2026-11-21T10:00:02Z"
    lost = pod(phase="Failed", containerStatuses=[helper, {"name": "main", "state": state}])
    stopped = condition("PodReadyToStartContainers", "False", "10:08:01")
    lost["status"]["conditions"] = [condition("Ready", "False", "10:08:00"), stopped]
    before = end_of(lost, ["main"], START)
    lost["metadata"]["deletionTimestamp"] = "2026-11-24T09:00:00Z"
    assert end_of(lost, ["main"], START) == before == End(at("10:08:01"), "not-ready")
    asked = End(parse_instant("2026-11-24T09:00:00Z"), "deleted")
    lost["spec"]["restartPolicy"] = "Always"
    assert end_of(lost, ["main"], START) == asked, "it would have been started again, so it held the slice"
    lost["status"]["reason"] = "DeadlineExceeded"
    assert end_of(lost, ["main"], START) == before
    lost["spec"]["restartPolicy"] = "Never"
    del helper["state"]["terminated"]["startedAt"]
    if state != UNKNOWN["running"]:
        assert end_of(lost, ["main"], START) == asked, "its sandbox was never there: it waited until it was deleted"


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


def test_a_pod_that_ran_and_was_refused_after_a_reboot_pays_until_the_refusal() -> None:
    """kubelet takes the state of its containers away then, and leaves the instant of its first start."""
    refused = pod(phase="Failed", startTime="2026-11-21T10:00:01Z", reason="UnexpectedAdmissionError")
    refused["metadata"]["managedFields"] = [
        {"manager": "kube-scheduler", "time": "2026-11-21T10:00:00Z", "fieldsV1": {"f:status": {"f:conditions": {}}}},
        {"manager": "kubelet", "time": "2026-11-21T13:00:00Z", "fieldsV1": {"f:status": {"f:phase": {}}}},
        {"manager": "another", "time": "2026-11-21T14:00:00Z", "fieldsV1": {"f:metadata": {"f:labels": {}}}},
    ]
    assert end_of(refused, ["main"], START) == End(at("13:00:00"), "rejected")


@pytest.mark.parametrize(
    ("policy", "code", "over"),
    [("Never", 1, True), ("OnFailure", 0, True), ("OnFailure", 1, False), ("Always", 0, False)],
)
def test_the_sidecar_may_leave_when_the_others_have_ended_for_good(policy: str, code: int, over: bool) -> None:
    running = pod(phase="Running", containerStatuses=[ended("main", BOUND, code), ended("helper", BOUND)])
    running["spec"]["restartPolicy"] = policy
    assert apps_ended(running) is over
    running["status"]["containerStatuses"].pop()
    assert not apps_ended(running)


@pytest.mark.parametrize("record", [{}, {"status": []}, {"spec": {"nodeName": "n"}, "metadata": {"annotations": 3}}])
def test_a_damaged_record_says_nothing(record: dict[str, Any]) -> None:
    assert start_of(record) is None
    assert end_of(record, ["main"], 0, final=True) is None
