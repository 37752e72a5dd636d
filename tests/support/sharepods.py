# SPDX-License-Identifier: Apache-2.0
"""SharePods in the simulated API server, beside what else acts on them and their pods, each step by the test's word.

The garbage collector deletes what names an owner that is gone; kubelet says how pods go; our finalizer holds a pod
until its charge is booked, which is at once here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from support.budget_objects import Interrupted
from support.custom_objects import apply, kinds_served
from support.manual_clock import ManualClock
from support.small_cluster import api_served

from objects.sharepods.keeper import SharePodKeeper
from objects.sharepods.template import SHAREPODS
from simulator.api import Api
from simulator.api_errors import ObjectNotFound
from simulator.cluster import Cluster
from simulator.kinds import ObjectKind
from simulator.store import Store
from slicekeeper.config.settings import Resources
from slicekeeper.kube.client import NAMESPACES, PODS, KubeClient, Object
from slicekeeper.kube.pod import controller_of
from slicekeeper.units import format_seconds

T0 = 1_767_225_600_000
TEAM = "team"
SHARE = {"kubeshare/gpu_request": "0.5", "kubeshare/gpu_limit": "1.0", "kubeshare/gpu_mem": "1073741824"}


def spec(**more: Any) -> Object:
    return {"containers": [{"name": "cuda", "image": "cuda:1"}], "restartPolicy": "Always", **more}


def sharepod(name: str = "one", annotations: dict[str, str] | None = None, **more: Any) -> Object:
    """Return a SharePod as the API server has it."""
    metadata = {
        "name": name,
        "namespace": TEAM,
        "uid": f"uid-{name}",
        "generation": 1,
        "resourceVersion": "1",
        "annotations": SHARE if annotations is None else annotations,
    }
    return {"metadata": metadata, "spec": spec(**more)}


@dataclass
class SharePodWorld:
    """A cluster, and short words for what tests do to it."""

    clock: ManualClock
    cluster: Cluster
    kube: KubeClient
    names: Iterator[int] = field(default_factory=count)

    @property
    def store(self) -> Store:
        return self.cluster.store

    def namespace(self) -> str:
        name = f"n{next(self.names)}"
        self.kube.create(NAMESPACES, {"metadata": {"name": name}})
        return name

    def keeper(self, client: Any = None, *, acts: Callable[[], bool] = lambda: True) -> SharePodKeeper:
        """Return an operator that has just started and has listed what is there."""
        keeper = SharePodKeeper(client or self.kube, Resources(), self.clock, acts)
        for watch in keeper._watches:
            watch._list()
        return keeper

    def look(self) -> None:
        self.keeper().keep()

    def interrupted(self, at: int, happens: Callable[[], None], *, after: bool) -> None:
        """Look by an operator to which something happens at its call of a number."""
        self.keeper(Interrupted(self.kube, count(), at, happens, after)).keep()

    def apply(self, annotations: Object, pod: Object, name: str = "one", namespace: str = TEAM) -> Object:
        """Create a SharePod, or change it as `kubectl apply` does."""
        apply(self.store, SHAREPODS, namespace, name, pod)

        def annotate(old: Object) -> Object:
            old["metadata"]["annotations"] = dict(annotations)
            return old

        return self.store.update(SHAREPODS, name, namespace, annotate)

    def delete(self, name: str = "one", namespace: str = TEAM) -> None:
        with suppress(ObjectNotFound):
            self.store.delete(SHAREPODS, name, namespace)

    def collect_garbage(self) -> None:
        """Delete pods whose owner is gone, as kube-controller-manager does."""
        there = {one["metadata"]["uid"] for one in self.store.collection(SHAREPODS)[0]}
        for pod in self.store.collection(PODS)[0]:
            owner = controller_of(pod)
            if owner is not None and owner["kind"] == "SharePod" and owner["uid"] not in there:
                self.remove_pod(pod["metadata"]["name"], pod["metadata"]["namespace"])

    def sharepod(self, name: str = "one", namespace: str = TEAM) -> Object:
        return self.store.get(SHAREPODS, name, namespace)

    def status(self, name: str = "one", namespace: str = TEAM) -> Object:
        return dict(self.sharepod(name, namespace).get("status") or {})

    def condition(self, kind: str, name: str = "one", namespace: str = TEAM) -> tuple[str, str, str]:
        for one in self.status(name, namespace).get("conditions", ()):
            if one["type"] == kind:
                return one["status"], one["reason"], one["message"]
        return "", "", ""

    def pod(self, name: str = "one", namespace: str = TEAM) -> Object | None:
        return self.store.find(PODS, name, namespace)

    def make_pod(self, name: str = "one", namespace: str = TEAM, **metadata: Any) -> Object:
        """Create a pod that is no SharePod's."""
        body = {"metadata": {"name": name, **metadata}, "spec": spec()}
        return self.kube.create(PODS, body, namespace)

    def kubelet(self, name: str = "one", namespace: str = TEAM, **status: Any) -> None:
        """Have a pod's status say something."""

        def change(pod: Object) -> Object:
            pod["status"] = {**pod["status"], **status}
            return pod

        with suppress(ObjectNotFound):
            self.store.update(PODS, name, namespace, change, subresource="status")

    def ended(self, phase: str, name: str = "one", namespace: str = TEAM) -> None:
        """Have kubelet say that a pod has ended now."""
        code = 0 if phase == "Succeeded" else 1
        at = {"terminated": {"finishedAt": format_seconds(self.clock.now_ms()), "exitCode": code}}
        self.kubelet(name, namespace, phase=phase, containerStatuses=[{"name": "cuda", "state": at}])

    def remove_pod(self, name: str = "one", namespace: str = TEAM) -> None:
        """Delete a pod, and have it go at once."""
        with suppress(ObjectNotFound):
            self.store.delete(PODS, name, namespace, grace=0)


@contextmanager
def sharepod_world() -> Iterator[SharePodWorld]:
    """Yield a world with one namespace."""
    with kinds_served(ObjectKind("SharePod", SHAREPODS)):
        clock = ManualClock(T0)
        cluster = Cluster(clock)
        with api_served(Api(cluster)) as (_, kube):
            kube.create(NAMESPACES, {"metadata": {"name": TEAM}})
            yield SharePodWorld(clock, cluster, kube)
