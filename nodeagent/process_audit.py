# SPDX-License-Identifier: Apache-2.0
"""Report processes that use a GPU outside their slice, and evict their pods if the policy says so.

The arbiter compares NVML's processes with its seats, but does not know pods. This module finds the pod of each finding
by the control group, and judges it: a process without a limiter may hold a whole GPU, or a slice that is not limited.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import dataclass
from typing import Any, Final

from nodeagent.arbiter_client import Arbiter, ArbiterAway, ArbiterGpu, Telemetry
from nodeagent.booked_gpus import holds
from nodeagent.gpu_source import GpuList
from nodeagent.node_pods import NodePods, may_start
from slicekeeper.config.policy import NamespacePolicy
from slicekeeper.config.settings import Resources
from slicekeeper.errors import Conflict, Forbidden, NotFound, ServiceError
from slicekeeper.kube.client import PODS, KubeClient, Object
from slicekeeper.kube.eviction import TOO_MANY_REQUESTS, evict
from slicekeeper.kube.pod_manifest import annotations_of, asks_for
from slicekeeper.units import CORES_PER_GPU
from slicekeeper.untyped_json import as_list, as_map

log = logging.getLogger(__name__)

AUDIT_SECONDS: Final = 0.5
UNKNOWN_SECONDS: Final = 2.5
"""How long kubelet may take to report a container to the API server; until then an unknown container is not judged."""
LIST_SECONDS: Final = 60.0
"""Pause between two lists of all pods of the node for a process that belongs to none of them."""
EVICT_SECONDS: Final = 10.0
"""How long a process must exist before its pod is evicted, so that one that is just ending causes no eviction."""
AGAIN_SECONDS: Final = 5.0
"""Pause until a failed eviction is retried."""
FORGET_SECONDS: Final = 600.0
"""A process that reappears within this time is not reported again."""

LEFT_BEHIND: Final = "by no process that lives"
"""How a seat uses a GPU if it is charged for memory of processes that have ended: others hold descriptors of it."""

_MIB: Final = 1 << 20
_UNKNOWN: Final = 2**64 - 1
"""NVML's value for unknown memory."""
_CONTAINER = re.compile(r"(?<![0-9a-z])[0-9a-f]{64}(?![0-9a-z])")
_POD = re.compile(r"(?<![0-9a-z])pod([0-9a-f]{8}(?:[-_]?[0-9a-f]{4}){3}[-_]?[0-9a-f]{12})(?![0-9a-z])")
_CONFIG_HASH: Final = "kubernetes.io/config.hash"


Say = Callable[[str, str, Object, str], None]
"""Writes an event on a pod: reason, action, note."""


@dataclass
class Stray:
    """The processes of one container, or of one control group, that use a GPU outside their slice."""

    gpu: ArbiterGpu
    cgroup: str
    how: str
    processes: int = 0
    memory: int = 0
    pod: Object | None = None
    container: str = ""

    @property
    def key(self) -> tuple[str, str, str]:
        """Its identity at the next check."""
        return self.gpu.uuid, self.cgroup, self.how

    @property
    def within_slice(self) -> bool:
        """Whether it is only to be told: the memory is charged, and no more than its seat may have."""
        return self.how == LEFT_BEHIND

    @property
    def note(self) -> str:
        """Its description for reports."""
        if self.within_slice:
            who = f"container {self.container}" if self.container else self.cgroup or "a seat"
            return (
                f"{who} is charged for {self.memory // _MIB} MiB of GPU {self.gpu.uuid} that processes left behind "
                "when they ended: others still have their exported memory or the GPU's device files open"
            )
        who = f"container {self.container}" if self.container else self.cgroup or "a process"
        counts = {0: "processes that have ended", 1: "1 process"}
        processes = counts.get(self.processes, f"{self.processes} processes")
        return f"{who} uses GPU {self.gpu.uuid} {self.how}: {processes}, {self.memory // _MIB} MiB"


class Audit:
    """Polls the arbiter in a daemon thread."""

    def __init__(
        self,
        client: KubeClient,
        node: str,
        arbiter: Arbiter,
        pods: NodePods,
        source: GpuList,
        resources: Resources,
        policy_of: Callable[[str], NamespacePolicy],
        say: Say,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._node = node
        self._arbiter = arbiter
        self._pods = pods
        self._source = source
        self._resources = resources
        self._policy_of = policy_of
        self._say = say
        self._now = now
        self._since: dict[tuple[str, str, str], float] = {}
        """Since when each stray has been found at every check, by key."""
        self._logged_at: dict[tuple[str, str, str], float] = {}
        """When each stray was last reported, or would have been, by key."""
        self._tried: dict[str, float] = {}
        """When the eviction of each pod was last requested, by UID."""
        self._put_off: set[str] = set()
        """UIDs of the pods for which an event says that a disruption budget protects them."""
        self._others: list[Object] = []
        """All pods of the node as last listed: the watch shows only GPU pods."""
        self._listed = float("-inf")
        """When that was."""
        self._sought: dict[str, float] = {}
        """Control groups of no known pod, and since when."""
        self.strays: list[Stray] = []
        """As last seen and reported."""

    def look(self) -> None:
        """Check once; report and evict what is due."""
        try:
            telemetry = self._arbiter.read()
        except ArbiterAway:
            self._since, self.strays = {}, []
            return
        now = self._now()
        found = self._found(telemetry)
        self._since = {stray.key: self._since.get(stray.key, now) for stray in found}
        # At the second check: at the first, a process may be about to end, or to connect to its seat.
        self.strays = [stray for stray in found if self._since[stray.key] < now and self._is_known(stray, now)]
        for stray in self.strays:
            if stray.key not in self._logged_at:
                self._tell(stray)
            self._logged_at[stray.key] = now
            late = now - self._since[stray.key] >= EVICT_SECONDS
            if stray.pod is not None and late and not stray.within_slice:
                self._evict(stray, stray.pod, now)
        self._logged_at = {key: last for key, last in self._logged_at.items() if now - last < FORGET_SECONDS}
        self._tried = {uid: last for uid, last in self._tried.items() if now - last < FORGET_SECONDS}
        self._put_off &= self._tried.keys()
        there = {stray.cgroup for stray in found}
        self._sought = {cgroup: since for cgroup, since in self._sought.items() if cgroup in there}

    def _found(self, telemetry: Telemetry) -> list[Stray]:
        """Return the arbiter's findings that are violations."""
        ours = {gpu.uuid: frozenset(mig.uuid for mig in gpu.mig) for gpu in self._source.gpus()}
        groups: dict[tuple[str, str, str], Stray] = {}
        gpus = {gpu.gpu: gpu for gpu in telemetry.gpus}
        for finding in telemetry.audit:
            if (gpu := gpus.get(finding.gpu)) is not None:
                stray = Stray(gpu, finding.cgroup, finding.how)
                stray = groups.setdefault(stray.key, stray)
                stray.processes += finding.pid != 0
                stray.memory += finding.memory if finding.memory != _UNKNOWN else 0
        found = []
        for stray in groups.values():
            stray.pod, stray.container = self._owner(stray.cgroup)
            how = judge(stray, ours, self._resources)
            if how:
                stray.how = how
                found.append(stray)
        return found

    def _is_known(self, stray: Stray, now: float) -> bool:
        return stray.pod is not None or not _in_pod(stray.cgroup) or now - self._since[stray.key] >= UNKNOWN_SECONDS

    def _owner(self, cgroup: str) -> tuple[Object | None, str]:
        """Return the owner of a control group; pods that the watch does not show are listed, but not at every check."""
        found = owner(cgroup, self._pods.all())
        if found[0] is None:
            found = owner(cgroup, self._others)
        if found[0] is None and _in_pod(cgroup):
            now = self._now()
            fresh = now - self._sought.setdefault(cgroup, now) < 2 * UNKNOWN_SECONDS
            # A new control group is soon in the list. One that is not may never be: a static pod without its mirror.
            if now - self._listed > (AUDIT_SECONDS / 2 if fresh else LIST_SECONDS):
                self._listed = now
                try:
                    self._others, _ = self._client.list(PODS, field_selector=f"spec.nodeName={self._node}")
                except ServiceError as error:
                    log.info("audit: the pods of node %s are not known: %s", self._node, error)
                found = owner(cgroup, self._others)
        return found

    def _tell(self, stray: Stray) -> None:
        if stray.pod is None:
            log.warning("audit: in no pod: %s", stray.note)
            return
        metadata = stray.pod["metadata"]
        log.warning("audit: pod %s/%s: %s", metadata["namespace"], metadata["name"], stray.note)
        if self._policy_of(metadata["namespace"]).mode != "off":
            reason = "MemoryLeftBehind" if stray.within_slice else "OutsideSlice"
            self._say(reason, "Audit", stray.pod, stray.note)

    def _evict(self, stray: Stray, pod: Object, now: float) -> None:
        metadata = pod["metadata"]
        uid, policy = metadata["uid"], self._policy_of(metadata["namespace"])
        if not policy.audit_evicts or now - self._tried.get(uid, float("-inf")) < AGAIN_SECONDS:
            return
        self._tried[uid] = now
        try:
            # Read again, because what was seen may be old: a pod that has ended needs no eviction.
            here = f"metadata.name={metadata['name']},spec.nodeName={self._node}"
            there, _ = self._client.list(PODS, namespace=metadata["namespace"], field_selector=here)
            going = [one for one in there if one["metadata"]["uid"] == uid and may_start(one)]
            for one in going:
                evict(self._client, one)
                log.warning("audit: pod %s/%s is evicted", metadata["namespace"], metadata["name"])
                self._say("AuditEviction", "Evict", one, f"Evicted: {stray.note}")
        except (NotFound, Conflict):
            pass  # it has changed since it was seen; the next check sees how
        except ServiceError as error:
            if error.status == TOO_MANY_REQUESTS and uid not in self._put_off:
                self._put_off.add(uid)
                note = f"To be evicted: {stray.note}; a disruption budget does not allow it yet"
                self._say("EvictionPutOff", "Evict", pod, note)
            elif isinstance(error, Forbidden):
                log.error("the audit may evict no pod: set components.auditEvictions=true (%s)", error)
            elif error.status != TOO_MANY_REQUESTS:
                log.warning("audit: pod %s/%s is not evicted: %s", metadata["namespace"], metadata["name"], error)


def _in_pod(cgroup: str) -> bool:
    return bool(_CONTAINER.search(cgroup) or _POD.search(cgroup))


def owner(cgroup: str, pods: Iterable[Object]) -> tuple[Object | None, str]:
    """Return the pod and the container of a control group: by the container's ID, else by the pod's UID.

    Not every runtime puts both there, and kubelet reports a container's ID only after its start. A container may have
    control groups of its own, named like any pod's: what is outermost counts, which kubelet and the runtime made.
    """
    names: dict[str, tuple[Object, str]] = {}
    for pod in pods:
        status = as_map(pod.get("status"))
        # A static pod's control group has the UID that kubelet gave it, and its mirror another one.
        for uid in (pod["metadata"]["uid"], str(annotations_of(pod).get(_CONFIG_HASH, ""))):
            names.setdefault(_bare(uid), (pod, ""))
        for key in ("containerStatuses", "initContainerStatuses", "ephemeralContainerStatuses"):
            for container in map(as_map, as_list(status.get(key))):
                runtimes = str(container.get("containerID", "")).rpartition("//")[2]
                names[runtimes] = pod, str(container.get("name", ""))
    for found in (*_CONTAINER.findall(cgroup), *map(_bare, _POD.findall(cgroup))):
        if found in names:
            return names[found]
    return None, ""


def _bare(uid: str) -> str:
    return uid.replace("-", "").replace("_", "")


def judge(stray: Stray, ours: Mapping[str, Set[str]], resources: Resources) -> str:
    """Return how processes use a GPU outside their slice, or what they left behind there; empty if that is allowed.

    `ours` are the GPUs to offer, each with its MIG slices: the hardware keeps processes within them.
    """
    pod: Mapping[str, Any] = stray.pod or {}
    held = list(holds(pod, resources).values())
    here = ours.get(stray.gpu.uuid, frozenset()) | {stray.gpu.uuid}
    mine = [hold for hold in held if not here.isdisjoint(hold.gpus)]
    if stray.gpu.uuid not in ours and (not held or asks_for(pod, resources.devices)):
        return ""  # another plugin allocates it, or nothing does
    if not mine:
        return "which was not given to it" if held else "without a slice of it"
    if any(hold.core >= CORES_PER_GPU or hold.alone or hold.on_slice for hold in mine):
        return ""
    memory = sum(hold.memory_mib for hold in mine)
    if stray.how == LEFT_BEHIND:
        return stray.how
    if any(hold.limited for hold in mine):
        return f"{stray.how}; its slice has {memory} MiB"
    # Its slice is not limited, so it needs no limiter.
    return f"beyond its slice of {memory} MiB" if stray.memory // _MIB > memory else ""
