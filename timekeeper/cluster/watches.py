# SPDX-License-Identifier: Apache-2.0
"""The timekeeper's view of the cluster: pods, GPUs of nodes and UIDs of namespaces, kept by watches.

Handlers only keep objects and mark those that have changed; the controller decides, in its own thread.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable

from slicekeeper.gpu import devices, inventory
from slicekeeper.gpu.inventory import Gpu
from slicekeeper.kube.client import Object
from slicekeeper.wire.timekeeper import ClusterGpus


class Pods:
    """The managed pods, by UID. A deleted one is kept, in its last state, until the controller is done with it."""

    def __init__(self, wake: threading.Event) -> None:
        self._wake = wake
        self._lock = threading.Lock()
        self._pods: dict[str, Object] = {}
        self._gone: dict[str, Object] = {}
        self._dirty: set[str] = set()
        self.lists = 0
        """The number of full lists of pods: after each, intervals without a pod must be checked."""

    def on_list(self, objects: list[Object]) -> None:
        """Replace all pods.

        One that is missing in the list is marked as changed, but not as deleted: what was last seen of it may be older
        than its end. `VanishedPods` closes its interval.
        """
        listed = {pod["metadata"]["uid"]: pod for pod in objects}
        with self._lock:
            self._dirty |= set(listed) | (set(self._pods) - set(listed))
            self._pods = listed
            self.lists += 1
        self._wake.set()

    def on_event(self, kind: str, obj: Object) -> None:
        """Store the new state of one pod, or the last one if it was deleted."""
        uid = obj["metadata"]["uid"]
        with self._lock:
            if kind == "DELETED":
                self._pods.pop(uid, None)
                self._gone[uid] = obj
            else:
                self._pods[uid] = obj
            self._dirty.add(uid)
        self._wake.set()

    def take(self) -> tuple[dict[str, Object], dict[str, Object]]:
        """Return the pods that changed since the last call: those that are there, and those that were deleted."""
        with self._lock:
            dirty, self._dirty = self._dirty, set()
            there = {uid: self._pods[uid] for uid in dirty if uid in self._pods}
            gone, self._gone = self._gone, {}
            return there, {uid: pod for uid, pod in gone.items() if uid not in self._pods}

    def mark(self, uids: Iterable[str], gone: Iterable[Object] = ()) -> None:
        """Mark pods to be looked at again."""
        with self._lock:
            self._dirty |= set(uids)
            self._gone |= {pod["metadata"]["uid"]: pod for pod in gone}

    def find(self, uid: str) -> Object | None:
        """Return a pod that is there."""
        with self._lock:
            return self._pods.get(uid)

    def named(self, namespace: str, name: str) -> Object | None:
        """Return a pod that is there by its name."""
        return next(
            (p for p in self.all() if (p["metadata"]["namespace"], p["metadata"]["name"]) == (namespace, name)), None
        )

    def all(self) -> list[Object]:
        """Return all pods that are there."""
        with self._lock:
            return list(self._pods.values())


class ClusterNodes:
    """The GPUs that nodes publish, and their MIG slices, each as a GPU with that slice alone."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_node: dict[str, list[Gpu]] = {}
        self._labels: dict[str, dict[str, str]] = {}
        self._there: set[str] = set()
        self._changed: dict[str, Gpu] = {}

    def on_list(self, objects: list[Object]) -> None:
        """Store the GPUs of all nodes; those of a node that is missing stay known, as after its deletion."""
        with self._lock:
            self._there.intersection_update(node["metadata"]["name"] for node in objects)
        for node in objects:
            self.on_event("ADDED", node)

    def on_event(self, kind: str, obj: Object) -> None:
        """Store the GPUs of one node; a deleted one's stay known, because its pods are still charged."""
        name = obj["metadata"]["name"]
        with self._lock:
            (self._there.discard if kind == "DELETED" else self._there.add)(name)
        if kind == "DELETED":
            return
        try:
            gpus = [one for gpu in inventory.of_node(obj) for one in inventory.by_uuid(gpu).values()]
        except ValueError:
            return  # the agent's previous value stays valid; the agent repairs a damaged annotation
        with self._lock:
            known = self._by_node.get(name, [])
            self._changed |= {gpu.uuid: gpu for gpu in gpus if gpu not in known}
            self._by_node[name] = gpus
            self._labels[name] = devices.labels_of(obj)

    def take(self) -> list[Gpu]:
        """Return the GPUs that are new or whose description has changed since the last call."""
        with self._lock:
            changed, self._changed = self._changed, {}
            return list(changed.values())

    def gpus(self) -> ClusterGpus:
        """Return the models that the nodes have now, and the largest amounts of each."""
        memory: dict[str, int] = {}
        most = 0
        with self._lock:
            for name in self._there:
                whole = [gpu for gpu in self._by_node.get(name, []) if not inventory.is_slice(gpu.uuid)]
                for gpu in whole:
                    largest = max(part.memory_mib for part in gpu.parts)
                    memory[gpu.model] = max(memory.get(gpu.model, 0), largest)
                most = max(most, sum(not gpu.mig for gpu in whole))
        return ClusterGpus(memory_mib=dict(sorted(memory.items())), most_on_node=most)

    def models(self) -> list[str]:
        """Return the models that a rate can apply to: of GPUs, and of devices of NVIDIA's plugin."""
        with self._lock:
            labelled = {devices.model_of(self._labels.get(name, {})) for name in self._there}
        return sorted({*self.gpus().memory_mib, *labelled} - {""})

    def device_model(self, node: str) -> str:
        """Return the model of the GPUs that NVIDIA's plugin allocates on a node; empty if there is not exactly one."""
        with self._lock:
            models = {gpu.model for gpu in self._by_node.get(node, [])}
            return models.pop() if len(models) == 1 else devices.model_of(self._labels.get(node, {}))

    def device_labels(self, node: str) -> dict[str, str] | None:
        """Return a node's labels about NVIDIA's devices; None if the node was never seen."""
        with self._lock:
            return self._labels.get(node)

    def all_device_labels(self) -> list[dict[str, str]]:
        """Return the labels of all nodes that have NVIDIA's devices."""
        with self._lock:
            return [labels for labels in self._labels.values() if labels]


class Namespaces:
    """Namespaces' UIDs, by name."""

    def __init__(self) -> None:
        self._uids: dict[str, str] = {}
        self._listed = False

    def on_list(self, objects: list[Object]) -> None:
        """Replace all namespaces."""
        self._listed = True
        self._uids = {namespace["metadata"]["name"]: namespace["metadata"]["uid"] for namespace in objects}

    def on_event(self, kind: str, obj: Object) -> None:
        """Store one namespace, or remove it if it was deleted."""
        name, uid = obj["metadata"]["name"], obj["metadata"]["uid"]
        if kind != "DELETED":
            self._uids[name] = uid
        elif self._uids.get(name) == uid:  # otherwise the name was used again before this event came
            del self._uids[name]

    def uid(self, name: str) -> str | None:
        """Return a namespace's UID; None if it does not exist."""
        return self._uids.get(name)

    def is_gone(self, name: str, uid: str) -> bool:
        """Whether a namespace was deleted; before the first list that is unknown, and no namespace counts as gone."""
        return self._listed and self._uids.get(name) != uid
