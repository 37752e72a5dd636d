# SPDX-License-Identifier: Apache-2.0
"""A pod on its node as simulated: which containers run, since when, until when. Pure: the instant is given to it.

All instants are the cluster clock's milliseconds. A container's program ends at the instant computed when it started,
however late it is observed, as a real one would.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final, Literal

from simulator.container_program import Program, program_of
from slicekeeper.kube.client import Object
from slicekeeper.kube.container_end import starts_again
from slicekeeper.kube.pod_manifest import is_native_sidecar
from slicekeeper.units import format_seconds

PULL_MS: Final = 1_000
"""Time between binding and the first container's start."""

BACKOFF_MS: Final = (10_000, 20_000, 40_000, 80_000, 160_000, 300_000)
"""Pauses before a container is started again, as kubelet makes them."""

TERMINATED: Final = 143
"""Exit code of a program that obeys SIGTERM."""


@dataclass
class SimulatedContainer:
    """One app container's runs."""

    spec: Object
    program: Program
    started_ms: int | None = None
    finished_ms: int | None = None
    exit_code: int | None = None
    restarts: int = 0
    restart_ms: int | None = None
    """When it starts again; None while it runs, or if it does not."""
    ran_before_ms: int = 0
    last: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Its name."""
        return str(self.spec["name"])

    def start(self, now_ms: int) -> None:
        """Begin a run."""
        self.started_ms, self.finished_ms, self.exit_code, self.restart_ms = now_ms, None, None, None

    @property
    def is_running(self) -> bool:
        """Whether it runs now."""
        return self.started_ms is not None and self.finished_ms is None

    def finish(self, at_ms: int, exit_code: int) -> None:
        """End the run at hand."""
        assert self.started_ms is not None  # noqa: S101 - only a running container finishes
        self.finished_ms, self.exit_code = at_ms, exit_code
        self.ran_before_ms += at_ms - self.started_ms

    def plan_restart(self) -> None:
        """Start again after the back-off."""
        assert self.finished_ms is not None  # noqa: S101 - see finish
        self.last = self.state()
        self.restart_ms = self.finished_ms + BACKOFF_MS[min(self.restarts, len(BACKOFF_MS) - 1)]
        self.restarts += 1

    def ran_ms(self, now_ms: int) -> int:
        """Return for how long it has run, all its runs together."""
        running = now_ms - self.started_ms if self.is_running and self.started_ms is not None else 0
        return self.ran_before_ms + running

    def state(self) -> dict[str, Any]:
        """Return the container's state as kubelet writes it, in whole seconds."""
        if self.restart_ms is not None:
            return {"waiting": {"reason": "CrashLoopBackOff"}}
        if self.exit_code is not None and self.finished_ms is None:  # never started, will not any more
            ended = {"exitCode": self.exit_code, "reason": "ContainerStatusUnknown"}
            return {"terminated": {**ended, "startedAt": None, "finishedAt": None}}
        if self.started_ms is None:
            return {"waiting": {"reason": "PodInitializing"}}
        if self.finished_ms is None:
            return {"running": {"startedAt": format_seconds(self.started_ms)}}
        return {
            "terminated": {
                "exitCode": self.exit_code,
                "reason": "Completed" if self.exit_code == 0 else "Error",
                "startedAt": format_seconds(self.started_ms),
                "finishedAt": format_seconds(self.finished_ms),
            }
        }

    def status(self) -> dict[str, Any]:
        """Return the container's status."""
        return {
            "name": self.name,
            "image": self.spec.get("image", ""),
            "imageID": "",
            "ready": self.is_running,
            "started": self.is_running,
            "restartCount": self.restarts,
            "state": self.state(),
            "lastState": self.last,
        }


Stage = Literal["creating", "running", "stopping", "ended"]


class SimulatedPod:
    """One pod's life on its node, up to the end of its app containers; its sidecars' end is given to it."""

    def __init__(self, pod: Object, now_ms: int) -> None:
        spec = pod["spec"]
        self.policy = spec.get("restartPolicy", "Always")
        self.stage: Stage = "creating"
        self.bound_ms = now_ms
        deadline = spec.get("activeDeadlineSeconds")
        self.deadline_ms = None if deadline is None else now_ms + deadline * 1_000
        self.overdue = False
        """Whether its `activeDeadlineSeconds` have passed: whatever still ran then was ended."""
        inits = [c for c in spec.get("initContainers") or [] if not is_native_sidecar(c)]
        self.init_ms = sum(program_of(c, pod).run_ms or 0 for c in inits)
        self.containers = [SimulatedContainer(c, program_of(c, pod)) for c in spec["containers"]]

    def step(self, now_ms: int, *, deleting: bool) -> bool:
        """Bring the pod to the instant; return whether anything changed."""
        before = (self.stage, [(c.started_ms, c.finished_ms, c.restart_ms) for c in self.containers])
        due = self.deadline_ms is not None and now_ms >= self.deadline_ms
        until = min(now_ms, self.deadline_ms) if self.deadline_ms is not None else now_ms
        self._advance(until, deleting=deleting)
        if due and self.stage in ("creating", "running"):
            self.overdue = True
            self._advance(until, deleting=True)
        return before != (self.stage, [(c.started_ms, c.finished_ms, c.restart_ms) for c in self.containers])

    def _advance(self, now_ms: int, *, deleting: bool) -> None:
        if self.stage == "creating":
            self._create(now_ms, deleting=deleting)
        if self.stage == "running":
            for container in self.containers:
                self._step_container(container, now_ms, deleting=deleting)
            if all(not c.is_running and c.restart_ms is None for c in self.containers):
                self.stage = "stopping"

    def _create(self, now_ms: int, *, deleting: bool) -> None:
        if deleting:
            for container in self.containers:
                container.exit_code = 137
            self.stage = "stopping"
        elif now_ms >= self.bound_ms + PULL_MS + self.init_ms:
            for container in self.containers:
                container.start(now_ms)
            self.stage = "running"

    def _step_container(self, container: SimulatedContainer, now_ms: int, *, deleting: bool) -> None:
        program = container.program
        if container.restart_ms is not None and (deleting or now_ms >= container.restart_ms):
            restart_ms, container.restart_ms = container.restart_ms, None
            if not deleting:
                container.start(restart_ms)
        if not container.is_running or container.started_ms is None:
            return
        if program.run_ms is not None and now_ms >= container.started_ms + program.run_ms:
            container.finish(container.started_ms + program.run_ms, program.exit_code)
            if not deleting and starts_again(container.spec, program.exit_code, self.policy):
                container.plan_restart()
        elif deleting:
            container.finish(now_ms, TERMINATED)

    def phase(self) -> str:
        """Return the pod's phase."""
        if self.stage == "creating":
            return "Pending"
        if self.stage != "ended":
            return "Running"
        return "Succeeded" if not self.overdue and all(c.exit_code == 0 for c in self.containers) else "Failed"
