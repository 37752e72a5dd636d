# SPDX-License-Identifier: Apache-2.0
"""The kube-scheduler's loop, as seen by our extender.

Pending pods by priority and age; the in-tree check of each node's totals; then, for pods that name our scheduler, the
extender's `filter`, `prioritize` and `bind` over HTTP. Other pods are bound to the first node that fits.
A bind that takes long, as of a pod that waits for the rest of its gang, goes on beside the loop.
There is no in-tree preemption here: giving way is the reclaimer's, and the cluster suite has the real scheduler.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Final

from simulator.api_errors import ApiError
from simulator.cluster import Cluster, set_condition
from simulator.controllers import write_event
from simulator.loop import Loop
from simulator.store import phase
from slicekeeper.errors import ServiceError
from slicekeeper.kube.client import NODES, PODS, Object
from slicekeeper.kube.effective_request import effective_request
from slicekeeper.kube.pod import has_ended
from slicekeeper.kube.pod_manifest import containers
from slicekeeper.net.json_client import JsonClient
from slicekeeper.units import parse_quantity

ResourceAmounts = dict[str, Fraction]

FIRST_BACKOFF_SECONDS: Final = 0.1
LONGEST_BACKOFF_SECONDS: Final = 1.0
"""Real seconds, because they pace real HTTP at any speed of the clock."""


BIND_SECONDS: Final = 0.25
"""How long the loop waits for a bind: most are done by then, and local mode shows their outcome at once."""
BINDS: Final = 128


def amounts(listed: Object | None) -> ResourceAmounts:
    """Return a resource list's exact quantities."""
    return {name: parse_quantity(value) for name, value in (listed or {}).items()}


def request_of(pod: Object) -> ResourceAmounts:
    """Return what a pod takes of its node; amounts of the pod itself replace those of its containers."""
    spec = pod["spec"]
    of_containers = effective_request(
        (kind, amounts((container.get("resources") or {}).get("requests"))) for _, kind, container in containers(spec)
    )
    return of_containers | amounts((spec.get("resources") or {}).get("requests"))


def _sum(one: ResourceAmounts, other: ResourceAmounts) -> ResourceAmounts:
    return {name: one.get(name, Fraction(0)) + other.get(name, Fraction(0)) for name in one.keys() | other.keys()}


@dataclass
class _WaitingPod:
    """A pod that was not scheduled: when to retry."""

    tries: int = 0
    not_before: float = 0.0
    reason: str = ""


@dataclass
class _Binding:
    """A bind in progress: its pod counts as being on the node."""

    outcome: Future[str]
    node: str
    takes: ResourceAmounts


class KubeScheduler:
    """Schedules in one daemon thread; `extender` is asked for pods whose schedulerName is `name`."""

    def __init__(self, cluster: Cluster, extender: JsonClient, name: str) -> None:
        self._cluster = cluster
        self._store = cluster.store
        self._extender = extender
        self._name = name
        self._waiting: dict[str, _WaitingPod] = {}
        self._bindings: dict[str, _Binding] = {}
        self._binders = ThreadPoolExecutor(BINDS, thread_name_prefix="bind")
        self._loop = Loop("kube-scheduler", self.schedule_all, self._store, FIRST_BACKOFF_SECONDS)
        self.start, self.stop = self._loop.start, self._loop.stop

    def schedule_all(self) -> None:
        """Try every pending pod whose back-off is over, the highest priority first, then the oldest."""
        pods = [pod for pod in self._store.collection(PODS)[0] if _is_pending(pod)]
        alive = {pod["metadata"]["uid"] for pod in pods}
        self._waiting = {uid: waiting for uid, waiting in self._waiting.items() if uid in alive}
        self._bindings = {
            uid: binding for uid, binding in self._bindings.items() if uid in alive or not binding.outcome.done()
        }
        # The sort is stable and a collection is in the order of creation.
        for pod in sorted(pods, key=lambda pod: -int(pod["spec"].get("priority", 0))):
            waiting = self._waiting.setdefault(pod["metadata"]["uid"], _WaitingPod())
            if self._loop.stopping:
                return
            if time.monotonic() < waiting.not_before:
                continue
            try:
                reason = self._schedule_or_bind_on(pod)
            except (ServiceError, ApiError, KeyError, TypeError) as error:
                reason = f"running Bind or extender: {type(error).__name__}: {error}"
            if reason:
                self._put_off(pod, waiting, reason)

    def _put_off(self, pod: Object, waiting: _WaitingPod, reason: str) -> None:
        """Retry a pod later, and say why in its status and in an event; the same reason is said only once."""
        pause = min(FIRST_BACKOFF_SECONDS * 2**waiting.tries, LONGEST_BACKOFF_SECONDS)
        waiting.tries, waiting.not_before = min(waiting.tries + 1, 10), time.monotonic() + pause
        if reason == waiting.reason:
            return
        waiting.reason = reason

        def mark(old: Object) -> Object:
            set_condition(old, "PodScheduled", "False", self._cluster.clock.now_ms(), "Unschedulable", reason)
            return old

        metadata = pod["metadata"]
        try:
            self._store.update(PODS, metadata["name"], metadata["namespace"], mark, subresource="status")
        except ApiError:
            return  # gone or bound meanwhile
        write_event(self._cluster, pod, "FailedScheduling", reason, pod["spec"]["schedulerName"])

    def _schedule_or_bind_on(self, pod: Object) -> str:
        """Schedule a pod whose bind is not under way; return why it found no place, empty if it did or still may."""
        uid = pod["metadata"]["uid"]
        binding = self._bindings.get(uid)
        if binding is None:
            return self._schedule(pod)
        if not binding.outcome.done():
            return ""
        del self._bindings[uid]
        return binding.outcome.result()

    def _schedule(self, pod: Object) -> str:
        """Bind one pod; return why it found no place, empty if it did."""
        nodes, _ = self._store.collection(NODES)
        fitting, short = self._fits_in_tree(pod, nodes)
        if not fitting:
            return f"0/{len(nodes)} nodes are available: {short}."
        if pod["spec"]["schedulerName"] != self._name:
            self._cluster.bind(pod["metadata"]["name"], pod["metadata"]["namespace"], {"target": {"name": fitting[0]}})
            return ""
        return self._ask_extender(pod, fitting, len(nodes))

    def _ask_extender(self, pod: Object, fitting: list[str], nodes: int) -> str:
        """Call the extender as kube-scheduler does: filter, prioritize, bind. Return why the pod found no place."""
        args = {"Pod": pod, "Nodes": None, "NodeNames": fitting}
        filtered = self._extender.json("POST", "/filter", body=args)
        if filtered.get("Error"):
            return str(filtered["Error"])
        names: list[str] = filtered.get("NodeNames") or []
        if not names:
            failed = {**(filtered.get("FailedNodes") or {}), **(filtered.get("FailedAndUnresolvableNodes") or {})}
            return f"0/{nodes} nodes are available: {_counted(failed.values())}."
        scores: list[dict[str, Any]] = self._extender.json(
            "POST", "/prioritize", body={"Pod": pod, "Nodes": None, "NodeNames": names}
        )
        chosen = max(scores, key=lambda score: score["Score"])["Host"] if scores else names[0]
        # A bind of a gang waits for the others, whose turn comes only when this loop goes on.
        outcome = self._binders.submit(self._bind, pod["metadata"], chosen)
        try:
            return outcome.result(BIND_SECONDS)
        except TimeoutError:
            if outcome.done():  # just now
                return outcome.result()
            self._bindings[pod["metadata"]["uid"]] = _Binding(outcome, chosen, request_of(pod))
            return ""

    def _bind(self, metadata: Object, node: str) -> str:
        name = {"PodName": metadata["name"], "PodNamespace": metadata["namespace"], "PodUID": metadata["uid"]}
        bound = self._extender.json("POST", "/bind", body={**name, "Node": node})
        return str(bound.get("Error") or "")

    def _fits_in_tree(self, pod: Object, nodes: list[Object]) -> tuple[list[str], str]:
        """Return the nodes whose totals suffice, and what is missing on the others."""
        wanted = request_of(pod)
        taken: dict[str, ResourceAmounts] = {}
        for other in self._store.collection(PODS)[0]:
            node = other["spec"].get("nodeName")
            if node and not has_ended(other):
                taken[node] = _sum(taken.get(node, {}), request_of(other))
            elif (binding := self._bindings.get(other["metadata"]["uid"])) is not None and not node:
                taken[binding.node] = _sum(taken.get(binding.node, {}), binding.takes)
        fitting: list[str] = []
        lacking: list[str] = []
        for node in nodes:
            name = node["metadata"]["name"]
            if (node.get("spec") or {}).get("unschedulable"):
                lacking.append("node(s) were unschedulable")
                continue
            free = amounts(node["status"].get("allocatable"))
            held = taken.get(name, {})
            short = [r for r, want in wanted.items() if want > free.get(r, Fraction(0)) - held.get(r, Fraction(0))]
            if not short:
                fitting.append(name)
            lacking += [f"Insufficient {resource}" for resource in short]
        return fitting, _counted(lacking)


def _counted(reasons: Iterable[str]) -> str:
    """Return each reason with the number of nodes for which it was given."""
    return ", ".join(f"{count} {reason}" for reason, count in sorted(Counter(reasons).items()))


def _is_pending(pod: Object) -> bool:
    metadata, spec = pod["metadata"], pod["spec"]
    held = spec.get("nodeName") or spec.get("schedulingGates") or metadata.get("deletionTimestamp")
    return not held and phase(pod) == "Pending"
