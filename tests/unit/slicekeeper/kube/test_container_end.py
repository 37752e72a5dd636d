# SPDX-License-Identifier: Apache-2.0
"""Which containers have ended for good: kubelet's rules, read from each container's own fields before the pod's."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slicekeeper.kube.container_end import apps_ended, container_ends, starts_again, waited_for_a_restart

Object = dict[str, Any]


def rule(action: str, operator: str, *values: int) -> Object:
    return {"action": action, "exitCodes": {"operator": operator, "values": list(values)}}


def ended(code: int, **more: Any) -> Object:
    return {"state": {"terminated": {"exitCode": code, "finishedAt": "2026-11-21T10:10:00Z", **more}}}


def pod(
    policy: str, *apps: tuple[Object, Object], init: tuple[tuple[Object, Object], ...] = (), **status: Any
) -> Object:
    """Return a pod of containers given as (their own fields, their status)."""

    def named(prefix: str, pairs: Any, part: int) -> list[Object]:
        return [{"name": f"{prefix}{index}", **pair[part]} for index, pair in enumerate(pairs)]

    return {
        "spec": {
            "restartPolicy": policy,
            "containers": named("app", apps, 0),
            "initContainers": named("init", init, 0),
        },
        "status": {
            "phase": "Running",
            "containerStatuses": named("app", apps, 1),
            "initContainerStatuses": named("init", init, 1),
            **status,
        },
    }


policies = st.sampled_from(["Always", "OnFailure", "Never"])
rules = st.builds(
    rule,
    st.sampled_from(["Restart", "RestartAllContainers", "Unknown"]),
    st.sampled_from(["In", "NotIn", "Between"]),
    st.integers(0, 3),
)


@given(policies, st.none() | policies, st.lists(rules, max_size=3), st.integers(0, 3))
def test_rules_come_before_the_containers_policy_and_that_before_the_pods(
    of_pod: str, own: str | None, listed: list[Object], code: int
) -> None:
    def by_kubelet() -> bool:
        for one in listed:
            codes = one["exitCodes"]
            matches = {"In": code in codes["values"], "NotIn": code not in codes["values"]}
            if matches.get(codes["operator"], False):
                if one["action"] != "Unknown":
                    return True
                break
        return {"Always": True, "OnFailure": code != 0, "Never": False}[own or of_pod]

    container = {"restartPolicyRules": listed, **({"restartPolicy": own} if own else {})}
    assert starts_again(container, code, of_pod) == by_kubelet()


NEVER, ALWAYS = {"restartPolicy": "Never"}, {"restartPolicy": "Always"}
ON_42 = {"restartPolicy": "Never", "restartPolicyRules": [rule("Restart", "In", 42)]}
ALL_ON_42 = {"restartPolicy": "Never", "restartPolicyRules": [rule("RestartAllContainers", "In", 42)]}
RUNS: Object = {"state": {"running": {}}}
WAITS: Object = {"state": {"waiting": {"reason": "CrashLoopBackOff"}}}


@pytest.mark.parametrize(
    ("made", "over"),
    [
        (pod("OnFailure", (NEVER, ended(1))), True),
        (pod("Always", (NEVER, ended(1)), (NEVER, ended(0))), True),
        (pod("Never", (ALWAYS, ended(0))), False),
        (pod("Never", ({"restartPolicy": "OnFailure"}, ended(0))), True),
        (pod("Never", (ON_42, ended(42))), False),
        (pod("Never", (ON_42, ended(43))), True),
        (pod("OnFailure", (ON_42, WAITS | {"lastState": ended(42)["state"]})), False),
        (pod("Never", ({**NEVER, "restartPolicyRules": [rule("Restart", "NotIn", 0, 7)]}, ended(7))), True),
        (pod("Never", ({**NEVER, "restartPolicyRules": [rule("Restart", "NotIn", 0, 7)]}, ended(8))), False),
        # One that is done runs again with all others, whichever container's exit asks for that.
        (pod("Never", ({}, ended(0)), (ALL_ON_42, ended(42))), False),
        (pod("Never", ({}, ended(0)), init=((ALL_ON_42, ended(42)),)), False),
        (pod("Never", ({}, ended(0)), init=((ALL_ON_42 | ALWAYS, ended(42)),)), False),
        (pod("Never", ({}, ended(137, reason="RestartingAllContainers")), (ALL_ON_42, ended(0))), False),
        (pod("Never", ({}, ended(0)), conditions=[{"type": "AllContainersRestarting", "status": "True"}]), False),
        (pod("Never", ({}, ended(0)), conditions=[{"type": "AllContainersRestarting", "status": "False"}]), True),
        # Native sidecars and init containers do not keep a pod.
        (pod("Never", ({}, ended(0)), init=((ALWAYS, RUNS), ({}, ended(0)))), True),
        (pod("Never", ({}, ended(0)), ({}, RUNS)), False),
        (pod("Never", ({}, {})), False),
        (pod("Never"), False),
        (pod("Always", ({}, RUNS), phase="Failed"), True),
    ],
)  # fmt: skip
def test_only_sidecars_are_left_when_every_app_container_has_ended_for_good(made: Object, over: bool) -> None:
    assert apps_ended(made) is over


@pytest.mark.parametrize(
    ("made", "waited"),
    [
        (pod("OnFailure", (NEVER, ended(1)), phase="Failed"), False),
        (pod("Never", (ALWAYS, ended(1)), phase="Failed"), True),
        (pod("Never", (ON_42, ended(42)), phase="Failed"), True),
        (pod("Always", (NEVER, ended(0)), (ON_42, ended(1)), phase="Failed"), False),
        # An init container that failed for good ends its pod, and one that is started again does not.
        (pod("OnFailure", ({}, {"state": {"waiting": {}}}), init=((NEVER, ended(1)),), phase="Failed"), False),
        (pod("Never", (ALWAYS, {"state": {"waiting": {}}}), init=((ON_42, ended(42)),), phase="Failed"), True),
        (pod("Always", ({}, {"state": {"waiting": {}}}), init=(({}, ended(0)),), phase="Failed"), True),
        (pod("Never", ({}, {"state": {"waiting": {}}}), phase="Failed"), False),
    ],
)
def test_a_pod_that_was_ended_from_outside_held_its_gpus_until_then(made: Object, waited: bool) -> None:
    assert waited_for_a_restart(made) is waited


def test_an_init_container_that_is_done_does_not_start_again() -> None:
    made = pod("Always", ({}, RUNS), init=(({}, ended(0)), ({}, ended(1)), (ALWAYS, ended(0))))
    assert [end.for_good for end in container_ends(made)] == [True, False, False, False]


@pytest.mark.parametrize(
    "record", [{}, {"spec": 1, "status": []}, {"spec": {"containers": [3, {"restartPolicyRules": [7]}]}}]
)
def test_a_damaged_record_has_no_ended_container(record: Object) -> None:
    assert not apps_ended(record)
    assert not any(end.for_good for end in container_ends(record))
