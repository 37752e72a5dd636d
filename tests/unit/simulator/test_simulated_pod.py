# SPDX-License-Identifier: Apache-2.0
"""A pod's life on its node, and the programs that its containers run."""

from typing import Any

import pytest

from simulator.container_program import Program, program_of
from simulator.simulated_pod import PULL_MS, SimulatedPod
from slicekeeper import names

BOUND = 1_000_000_123


def make(*commands: list[str], policy: str = "Never", init: list[Any] | None = None) -> SimulatedPod:
    containers = [{"name": f"c{i}", "command": command} for i, command in enumerate(commands)]
    pod = {"metadata": {}, "spec": {"restartPolicy": policy, "containers": containers, "initContainers": init or []}}
    return SimulatedPod(pod, BOUND)


@pytest.mark.parametrize(
    ("container", "annotations", "policy", "expected"),
    [
        ({"command": ["sleep", "90"]}, {}, "Never", Program(90_000)),
        ({"command": ["sh", "-c"], "args": ["sleep 1.5; sleep 2m"]}, {}, "Never", Program(121_500)),
        ({"args": ["sh", "-c", "sleep 5; exit 3"]}, {names.RUN_SECONDS: "9"}, "Never", Program(5_000, 3)),
        ({}, {names.RUN_SECONDS: "9"}, "Always", Program(9_000)),
        ({}, {names.RUN_SECONDS: "soon"}, "Never", Program(600_000)),
        ({}, {}, "Always", Program(None)),
        ({"command": ["sleep", "infinity"]}, {}, "Never", Program(None)),
    ],
)
def test_a_program_is_read_from_command_annotation_or_default(
    container: dict[str, Any], annotations: dict[str, str], policy: str, expected: Program
) -> None:
    pod = {"metadata": {"annotations": annotations}, "spec": {"restartPolicy": policy}}
    assert program_of(container, pod) == expected


def test_a_program_ends_when_it_should_however_late_anybody_looks() -> None:
    run = make(["sleep", "10"], ["sleep", "20"])
    assert not run.step(BOUND + PULL_MS - 1, deleting=False)
    assert run.step(BOUND + PULL_MS, deleting=False)
    assert run.phase() == "Running"
    assert run.step(BOUND + 3_600_000, deleting=False)
    assert run.stage == "stopping"
    finished = [c.status()["state"]["terminated"]["finishedAt"] for c in run.containers]
    assert finished == ["1970-01-12T13:46:51Z", "1970-01-12T13:47:01Z"], "whole seconds, cut"
    assert run.phase() == "Running", "the sidecar has not ended yet"
    run.stage = "ended"
    assert run.phase() == "Succeeded"


def test_a_pods_deadline_ends_what_still_runs_however_late_anybody_looks() -> None:
    run = make(["sleep", "10"], ["sleep", "1000"])
    run.deadline_ms = BOUND + 60_000
    run.step(BOUND + PULL_MS, deleting=False)
    run.step(BOUND + 3_600_000, deleting=False)
    assert run.stage == "stopping"
    assert [c.finished_ms for c in run.containers] == [BOUND + PULL_MS + 10_000, BOUND + 60_000]
    run.stage = "ended"
    assert run.phase() == "Failed"


def test_deletion_ends_programs_now_and_one_that_never_started_has_no_end() -> None:
    run = make(["sleep", "10"], ["sleep", "1000"])
    run.step(BOUND + PULL_MS, deleting=False)
    run.step(BOUND + 500_000, deleting=True)
    assert [c.exit_code for c in run.containers] == [0, 143]
    assert run.containers[1].finished_ms == BOUND + 500_000
    unborn = make(["sleep", "10"])
    unborn.step(BOUND, deleting=True)
    assert unborn.stage == "stopping"
    assert unborn.containers[0].status()["state"]["terminated"]["finishedAt"] is None
    unborn.stage = "ended"
    assert unborn.phase() == "Failed"


@pytest.mark.parametrize(("policy", "command", "again"), [
    ("Always", "sleep 10", True), ("OnFailure", "sleep 10", False), ("OnFailure", "sleep 10; exit 1", True),
    ("Never", "sleep 10; exit 1", False),
])  # fmt: skip
def test_the_restart_policy_holds(policy: str, command: str, again: bool) -> None:
    run = make(["sh", "-c", command], policy=policy)
    run.step(BOUND + PULL_MS, deleting=False)
    run.step(BOUND + PULL_MS + 10_000, deleting=False)
    (container,) = run.containers
    assert (container.restart_ms is not None) == again == (run.stage == "running")
    if again:
        assert container.status()["state"] == {"waiting": {"reason": "CrashLoopBackOff"}}
        run.step(BOUND + PULL_MS + 20_000, deleting=False)
        assert container.is_running
        assert container.status()["restartCount"] == 1
        assert container.ran_ms(BOUND + PULL_MS + 25_000) == 15_000, "counters go on over restarts"


def test_a_containers_own_restart_fields_come_before_the_pods() -> None:
    run = make(["sh", "-c", "sleep 10; exit 42"], ["sh", "-c", "sleep 10; exit 1"], policy="OnFailure")
    rule = {"action": "Restart", "exitCodes": {"operator": "In", "values": [42]}}
    for container in run.containers:
        container.spec |= {"restartPolicy": "Never", "restartPolicyRules": [rule]}
    run.step(BOUND + PULL_MS, deleting=False)
    run.step(BOUND + PULL_MS + 10_000, deleting=False)
    assert [container.restart_ms is not None for container in run.containers] == [True, False]
    own = {"command": ["train"], "restartPolicy": "Never"}
    assert program_of(own, {"metadata": {}, "spec": {"restartPolicy": "Always"}}) == Program(600_000)


def test_init_containers_run_first_and_native_sidecars_do_not_count() -> None:
    init = [
        {"name": "i", "command": ["sleep", "5"]},
        {"name": "s", "restartPolicy": "Always", "command": ["sleep", "99"]},
    ]
    run = make(["sleep", "10"], init=init)
    run.step(BOUND + PULL_MS + 4_999, deleting=False)
    assert run.phase() == "Pending"
    run.step(BOUND + PULL_MS + 5_000, deleting=False)
    assert run.phase() == "Running"
