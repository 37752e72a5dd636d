# SPDX-License-Identifier: Apache-2.0
"""All nodes' kubelets in one thread: runs the pods that are bound, in the cluster's time, and writes their status.

App containers are simulated; the sidecar is the real one, a child process. Status is written as kubelet does:
instants in whole seconds, a terminal phase only when every container has ended, the last delete without grace.
"""

from __future__ import annotations

import logging
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from simulator.api_errors import ObjectNotFound
from simulator.cluster import Cluster, set_condition
from simulator.loop import TICK_SECONDS, Loop
from simulator.processes import Spawner
from simulator.sidecar_process import SidecarProcess
from simulator.simulated_pod import SimulatedPod
from slicekeeper import names
from slicekeeper.config.settings import Settings
from slicekeeper.errors import RequestRefused
from slicekeeper.gpu.pod_request import parse_pod
from slicekeeper.kube.client import PODS, Object
from slicekeeper.kube.objects import Pod, read
from slicekeeper.kube.pod import has_ended
from slicekeeper.kube.pod_manifest import is_native_sidecar
from slicekeeper.units import CORES_PER_GPU, format_seconds

log = logging.getLogger(__name__)

USAGE_SECONDS: Final = 0.2
"""Real seconds between two writes of a pod's usage, which its sidecar reads."""

SIDECAR_GRACE_SECONDS: Final = 4.0
"""Minimum real seconds that a sidecar has to end: it uses real HTTP at any speed of the clock."""


@dataclass
class _RunningPod:
    """A pod that is on its node."""

    simulated: SimulatedPod
    folder: Path
    cores: dict[str, int]
    sidecar: SidecarProcess | None = None
    usage_at: float = 0.0


class Kubelet:
    """Runs all bound pods, in one daemon thread. `folder` contains their volumes."""

    def __init__(self, cluster: Cluster, settings: Settings, spawner: Spawner, folder: Path, logs: Path) -> None:
        self._cluster = cluster
        self._store = cluster.store
        self._settings = settings
        self._spawner = spawner
        self._folder = folder
        self._logs = logs
        self._pods: dict[str, _RunningPod] = {}
        self._loop = Loop("kubelet", self.sync)
        self.start = self._loop.start

    def stop(self) -> None:
        """Stop, and all sidecars with it, without writing anything more."""
        self._loop.stop()
        for pod in self._pods.values():
            if pod.sidecar is not None:
                pod.sidecar.stop(SIDECAR_GRACE_SECONDS / 2)
        deadline = time.monotonic() + SIDECAR_GRACE_SECONDS
        while time.monotonic() < deadline:
            if all(pod.sidecar is None or pod.sidecar.has_ended() for pod in self._pods.values()):
                return
            time.sleep(TICK_SECONDS)

    def sidecar_pids(self) -> dict[str, int]:
        """Return the process ids of the sidecars that run, by pod UID."""
        with self._store.changed:
            found = {uid: pod.sidecar.pid for uid, pod in self._pods.items() if pod.sidecar is not None}
        return {uid: pid for uid, pid in found.items() if pid is not None}

    def sync(self) -> None:
        """Process every bound pod once."""
        bound = {p["metadata"]["uid"]: p for p in self._store.collection(PODS)[0] if p["spec"].get("nodeName")}
        for uid in self._pods.keys() - bound.keys():
            self._drop(uid)
        for uid, pod in bound.items():
            try:
                self._sync_pod(uid, pod)
            except ObjectNotFound:
                self._drop(uid)  # forced out of the cluster meanwhile

    def _sync_pod(self, uid: str, pod: Object) -> None:
        """Advance one pod, and write its status if anything changed: it is gone only after its end is written."""
        deleting = bool(pod["metadata"].get("deletionTimestamp"))
        if has_ended(pod):
            self._drop(uid)
            if deleting and pod["metadata"].get("deletionGracePeriodSeconds"):
                self._delete(pod)
            return
        now_ms = self._cluster.clock.now_ms()
        held = self._pods.get(uid)
        if held is None:
            held = self._admit(uid, pod, now_ms)
        changed = held.simulated.step(now_ms, deleting=deleting)
        changed |= self._sync_sidecar(held, pod, now_ms)
        if changed:
            self._write_status(held, pod)
        if held.simulated.stage == "ended":
            self._drop(uid)
            if deleting:
                self._delete(pod)

    def _admit(self, uid: str, pod: Object, now_ms: int) -> _RunningPod:
        """Start a pod that is new on its node; a pod with an unreadable request runs, and uses nothing."""
        try:
            request = parse_pod(read(pod, Pod), self._settings.resources)
        except RequestRefused as error:
            log.warning("pod %s runs though its request cannot be read: %s", pod["metadata"]["name"], error)
            request = None
        folder = self._folder / uid
        folder.mkdir(parents=True, exist_ok=True)
        cores = {r.container: r.core for r in request.requests} if request else {}
        held = _RunningPod(SimulatedPod(pod, now_ms), folder, cores)
        with self._store.changed:
            self._pods[uid] = held
        return held

    def _sync_sidecar(self, held: _RunningPod, pod: Object, now_ms: int) -> bool:
        """Start, feed, restart or stop the pod's sidecar; return whether its status changed."""
        if held.simulated.stage == "stopping":
            if held.sidecar is not None:
                self._write_usage(held, now_ms)
                held.sidecar.stop(self._grace(pod))
                if not held.sidecar.has_ended():
                    return False
            held.simulated.stage = "ended"
            return True
        if held.sidecar is None:
            container = next((c for c in pod["spec"].get("initContainers") or [] if c["name"] == names.SIDECAR), None)
            if container is None:
                return False
            held.sidecar = self._start_sidecar(held, pod, container)
            return True
        if time.monotonic() >= held.usage_at:
            held.usage_at = time.monotonic() + USAGE_SECONDS
            self._write_usage(held, now_ms)
        return held.sidecar.ensure()

    def _start_sidecar(self, held: _RunningPod, pod: Object, container: Object) -> SidecarProcess:
        clock, metadata = self._settings.clock, pod["metadata"]
        node_env = {names.ENV_PREFIX + "CLOCK_ORIGIN": clock.origin, names.ENV_PREFIX + "CLOCK_SPEED": str(clock.speed)}
        log_file = self._logs / f"{metadata['namespace']}_{metadata['name']}_{container['name']}.log"
        return SidecarProcess(self._spawner, pod, container, held.folder, log_file, self._cluster.tokens, node_env)

    def _write_usage(self, held: _RunningPod, now_ms: int) -> None:
        """Count the usage of simulated programs: exactly their requests, as long as they run."""
        used = {
            c.name: c.ran_ms(now_ms) * held.cores[c.name] // CORES_PER_GPU
            for c in held.simulated.containers
            if c.name in held.cores
        }
        if held.sidecar is not None:
            held.sidecar.write_usage(used)

    def _grace(self, pod: Object) -> float:
        """Return how many real seconds a sidecar has to end."""
        if pod["metadata"].get("deletionGracePeriodSeconds") == 0:
            return 0.0
        seconds: int = pod["spec"].get("terminationGracePeriodSeconds", 30)
        return max(seconds / self._settings.clock.speed, SIDECAR_GRACE_SECONDS)

    def _drop(self, uid: str) -> None:
        """Forget a pod, with its sidecar and its volumes."""
        held = self._pods.get(uid)
        if held is None:
            return
        if held.sidecar is not None:
            held.sidecar.stop(0.0)
        with self._store.changed:
            del self._pods[uid]
        shutil.rmtree(held.folder, ignore_errors=True)

    def _delete(self, pod: Object) -> None:
        metadata = pod["metadata"]
        self._store.delete(PODS, metadata["name"], metadata["namespace"], uid=metadata["uid"], grace=0)

    def _write_status(self, held: _RunningPod, pod: Object) -> None:
        now_ms = self._cluster.clock.now_ms()

        def change(old: Object) -> Object:
            status = old.setdefault("status", {})
            status["phase"] = held.simulated.phase()
            if held.simulated.overdue:
                status["reason"] = "DeadlineExceeded"
            status.setdefault("startTime", format_seconds(held.simulated.bound_ms))
            status["containerStatuses"] = [container.status() for container in held.simulated.containers]
            status["initContainerStatuses"] = [
                _sidecar_status(c, held) for c in old["spec"].get("initContainers") or [] if is_native_sidecar(c)
            ]
            ready = "True" if held.simulated.stage == "running" else "False"
            ended = held.simulated.stage == "ended"
            set_condition(old, "PodReadyToStartContainers", "False" if ended else "True", now_ms)
            set_condition(old, "Initialized", "False" if held.simulated.stage == "creating" else "True", now_ms)
            set_condition(old, "ContainersReady", ready, now_ms)
            set_condition(old, "Ready", ready, now_ms)
            return old

        metadata = pod["metadata"]
        self._store.update(PODS, metadata["name"], metadata["namespace"], change, subresource="status")


def _sidecar_status(container: Object, held: _RunningPod) -> dict[str, Any]:
    """Return the status of a native sidecar; only ours is a process, others are taken to run as long as the pod."""
    ended = held.simulated.stage == "ended"
    started = format_seconds(held.simulated.bound_ms)
    state: dict[str, Any] = {"running": {"startedAt": started}}
    if ended:
        state = {"terminated": {"exitCode": 0, "reason": "Completed", "startedAt": started}}
    restarts = max(held.sidecar.restarts, 0) if held.sidecar is not None and container["name"] == names.SIDECAR else 0
    return {
        "name": container["name"],
        "image": container.get("image", ""),
        "imageID": "",
        "ready": not ended,
        "started": not ended,
        "restartCount": restarts,
        "state": state,
        "lastState": {},
    }
