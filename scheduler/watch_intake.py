# SPDX-License-Identifier: Apache-2.0
"""Record what the watches show: nodes, managed pods with what they hold, and other pods that use CPU and memory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from scheduler import nodes as node_objects
from scheduler.cluster_state import ClusterState
from scheduler.cpu_memory import Entry, comes_with_its_node, entry_of
from scheduler.held_places import HoldKind, Place, is_tentative, nodes_of
from scheduler.placement.learner import Learner
from scheduler.pods import Hold, KnownPod, held_by, read_pod
from slicekeeper.config.settings import Resources
from slicekeeper.kube.pod_manifest import asks_for
from slicekeeper.untyped_json import as_map

ReadObject = Mapping[str, Any]


class Intake:
    """Updates from the watches. All methods are safe from any thread."""

    def __init__(self, cluster: ClusterState, learner: Learner, resources: Resources) -> None:
        self._cluster = cluster
        self._nodes, self._pods, self._places = cluster.nodes, cluster.pods, cluster.places
        self._learner = learner
        self._resources = resources

    def set_nodes(self, objects: Iterable[ReadObject]) -> None:
        """Replace all nodes by a list."""
        read = [node_objects.read(obj) for obj in objects]
        with self._cluster.writing():
            for name in self._nodes.gpus.keys() - {node.facts.name for node in read}:
                self._drop_node(name)
            for node in read:
                self._take_node(node)

    def set_node(self, obj: ReadObject) -> None:
        """Update one node."""
        node = node_objects.read(obj)
        with self._cluster.writing():
            self._take_node(node)

    def drop_node(self, name: str) -> None:
        """Forget a node; pods that are bound to it count again if it comes back."""
        with self._cluster.writing():
            self._drop_node(name)

    def set_pods(self, objects: Iterable[ReadObject]) -> None:
        """Replace all managed pods by a list.

        A pod that is missing may have been made after the list was read, so what is BINDING for it stays.
        """
        pods = [_read_pod(obj, self._resources) for obj in objects]  # the slow part, outside the lock
        with self._cluster.writing():
            for pod, hold in pods:
                self._take(pod, hold)
            for uid in self._pods.uids() - {pod.uid for pod, _ in pods if pod is not None}:
                self._lose(uid)
                self._cluster.drop_places(uid, lambda place: place.kind is not HoldKind.BINDING)

    def set_pod(self, obj: ReadObject) -> None:
        """Update one pod."""
        pod, hold = _read_pod(obj, self._resources)
        with self._cluster.writing():
            self._take(pod, hold)

    def drop_pod(self, uid: str) -> None:
        """Forget a pod that is gone, and free what it held."""
        with self._cluster.writing():
            self._lose(uid)
            self._cluster.put(uid, ())

    def set_others(self, objects: Iterable[ReadObject]) -> None:
        """Replace all bound pods that are not managed by a list, for the CPU and memory that they use."""
        # The slow part, outside the lock.
        entries = {_uid(obj): (entry_of(obj), self._wants_cores_alone(obj)) for obj in objects}
        with self._cluster.writing():
            gone = self._cluster.cpu_memory.uids() - entries.keys() - self._pods.uids()
            for uid, (entry, cores_alone) in (entries | dict.fromkeys(gone, (None, False))).items():
                self._take_other(uid, entry, cores_alone)

    def set_other(self, obj: ReadObject) -> None:
        """Update one bound pod that is not managed."""
        entry, cores_alone = entry_of(obj), self._wants_cores_alone(obj)
        with self._cluster.writing():
            self._take_other(_uid(obj), entry, cores_alone)

    def drop_other(self, uid: str) -> None:
        """Record that a bound pod that is not managed is gone, or has ended."""
        with self._cluster.writing():
            self._cluster.put_cpu_memory(uid, None)

    # Below, only while writing.

    def _take_node(self, node: node_objects.Node) -> None:
        name = node.facts.name
        self._cluster.changed_nodes.add(name)
        more = self._cluster.cpu_memory.set_node(name, node.facts.offered)
        if self._nodes.put(node):
            self._cluster.refresh([name])
        elif more:
            self._cluster.recount(name)

    def _drop_node(self, name: str) -> None:
        self._nodes.drop(name)
        self._cluster.cpu_memory.set_node(name, None)
        self._cluster.refresh([name])

    def _take(self, pod: KnownPod | None, hold: Hold | None) -> None:
        known = self._pods.get(pod.uid) if pod is not None else None
        if pod is None or (known is not None and known.node and not pod.node):
            return  # nothing to hold for; or an old event: a pod never loses its node
        bound = (Place(HoldKind.BOUND, pod, hold),) if hold else ()
        if known == pod and pod.node and not pod.finished and self._places.of(pod.uid) == bound:
            return  # seen again: a list of all pods makes no garbage of what is known, and marks no node as changed
        if known is None and pod.managed:
            self._learner.arrivals.add(pod.demand)
        self._change(pod.uid)
        self._pods.put(pod)
        taken = (pod.node, pod.demand.cpu_milli, pod.demand.ram_mib)
        self._cluster.put_cpu_memory(pod.uid, taken if pod.node and not pod.finished else None)
        if pod.finished:
            self._cluster.put(pod.uid, ())
        elif pod.node:
            self._cluster.put(pod.uid, bound)
        elif pod.is_refused and (known is None or known.scheduled != pod.scheduled):
            # kube-scheduler does not tell extenders that it has given up a pod, or a group of pods.
            self._cluster.drop_places(pod.uid, is_tentative)

    def _lose(self, uid: str) -> None:
        self._change(uid)
        self._pods.forget(uid)
        self._cluster.put_cpu_memory(uid, None)

    def _change(self, uid: str) -> None:
        self._cluster.mark_changed(nodes_of(self._places.of(uid)))

    def _wants_cores_alone(self, obj: ReadObject) -> bool:
        """Whether a pod that arrives takes cores beside GPUs and no GPU; needs nothing but the pod."""
        return not asks_for(obj, (self._resources.core, self._resources.memory)) and not comes_with_its_node(obj)

    def _take_other(self, uid: str, entry: Entry | None, cores_alone: bool) -> None:
        if (
            cores_alone
            and entry is not None
            and uid not in self._cluster.cpu_memory
            and entry[0] in self._cluster.fleet
        ):
            self._learner.arrivals.add_without_gpus()
        self._cluster.put_cpu_memory(uid, entry)


def _read_pod(obj: ReadObject, resources: Resources) -> tuple[KnownPod | None, Hold | None]:
    pod = read_pod(obj, resources)
    return pod, held_by(pod, obj) if pod is not None and pod.node and not pod.finished else None


def _uid(obj: ReadObject) -> str:
    return str(as_map(obj.get("metadata")).get("uid", ""))
