# SPDX-License-Identifier: Apache-2.0
"""A small cluster behind a real HTTP API: nodes, pods, and an API server that fails when it is told to."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from simulator.api import Api, ApiServer, Call
from simulator.api_errors import ApiError
from simulator.cluster import Cluster
from slicekeeper import names
from slicekeeper.clock import Clock
from slicekeeper.config.settings import KubernetesSettings
from slicekeeper.gpu import inventory
from slicekeeper.kube.client import EVENTS, NAMESPACES, NODES, PODS, KubeClient, Object

NAMESPACE = "team-a"

Fault = Callable[["FailingApi", Call], Any]


class FailingApi(Api):
    """The simulator's API, with one kind of call that can be made to fail as networks and servers do."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(cluster)
        self.faults: dict[str, Fault] = {}
        """By subresource: what answers instead."""

    def answer(self, method: str, call: Call) -> tuple[int, Any, list[str]]:
        fault = self.faults.get(call.subresource) if method == "POST" else None
        if fault is not None:
            fault(self, call)
        return super().answer(method, call)


def lost_before(_api: FailingApi, _call: Call) -> None:
    """The request never arrives, and the connection breaks."""
    raise ConnectionResetError


def lost_after(api: FailingApi, call: Call) -> None:
    """The request is carried out, and the answer never arrives."""
    Api.answer(api, "POST", call)
    raise ConnectionResetError


def protected(*pods: str) -> Fault:
    """Return a fault: these pods' disruption budget allows no eviction."""

    def check(_api: FailingApi, call: Call) -> None:
        if call.name in pods:
            raise ApiError(429, "TooManyRequests", "Cannot evict pod as it would violate the pod's disruption budget.")

    return check


@contextmanager
def api_served(api: Api) -> Iterator[tuple[KubernetesSettings, KubeClient]]:
    """Serve an API; yield how it is reached, and a client of it."""
    server = ApiServer(api)
    server.start()
    reached = KubernetesSettings(server=server.url)
    client = KubeClient(reached)
    try:
        yield reached, client
    finally:
        client.close()
        server.stop()


class SmallCluster:
    """The API server, a client of it, and short words for what tests make."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.cluster = Cluster(clock)
        self.api = FailingApi(self.cluster)
        self.server = ApiServer(self.api)
        self.server.start()
        self.client = KubeClient(KubernetesSettings(server=self.server.url))
        for namespace in (NAMESPACE, "slicekeeper-system"):
            self.client.create(NAMESPACES, {"metadata": {"name": namespace}})

    def node(self, name: str, gpus: int = 1, memory: int = 8192, **spec: Any) -> None:
        listed = inventory.encode([inventory.Gpu(f"{name}-{g}", "A100", memory) for g in range(gpus)])
        self.client.create(NODES, {"metadata": {"name": name, "annotations": {names.NODE_GPUS: listed}}, "spec": spec})

    def pod(
        self,
        name: str,
        core: int = 60,
        blocks: int = 4,
        *,
        state: str = names.IN_BUDGET,
        annotations: dict[str, str] | None = None,
        managed: bool = True,
        **spec: Any,
    ) -> Object:
        limits = {"tencent.com/vcuda-core": str(core)} | ({"tencent.com/vcuda-memory": str(blocks)} if blocks else {})
        return self.client.create(
            PODS,
            {
                "metadata": {
                    "name": name,
                    "labels": {names.MANAGED_LABEL: names.MANAGED_VALUE} if managed else {},
                    "annotations": {names.BUDGET_STATE: state, **(annotations or {})},
                },
                "spec": {
                    "schedulerName": "slicekeeper-scheduler",
                    "containers": [{"name": "c", "image": "cuda", "resources": {"limits": limits if core else {}}}],
                    **spec,
                },
            },
            NAMESPACE,
        )

    def get(self, name: str) -> Object:
        return self.client.get(PODS, name, NAMESPACE)

    def pods(self) -> list[Object]:
        return self.client.list(PODS)[0]

    def set_state(self, name: str, state: str) -> None:
        self.client.patch(PODS, name, {"metadata": {"annotations": {names.BUDGET_STATE: state}}}, NAMESPACE)

    def end(self, name: str) -> None:
        """Let the pod's containers have ended, as kubelet reports it when a deletion is done."""
        self.cluster.store.delete(PODS, name, NAMESPACE, grace=0)

    def events(self) -> set[tuple[str, str]]:
        return {(e["involvedObject"]["name"], e["reason"]) for e in self.client.list(EVENTS)[0]}

    def taken(self) -> dict[str, int]:
        """Return the compute given out of each GPU, by the pods' own annotations."""
        sums: dict[str, int] = {}
        for pod in self.pods():
            gpus = pod["metadata"].get("annotations", {}).get(names.gpu_annotation("c"), "")
            core = int(pod["spec"]["containers"][0]["resources"]["limits"].get("tencent.com/vcuda-core", 0))
            for gpu in filter(None, gpus.split(",")):
                sums[gpu] = sums.get(gpu, 0) + min(core, 100)
        return sums

    def stop(self) -> None:
        self.client.close()
        self.server.stop()


@contextmanager
def small_cluster(clock: Clock | None = None) -> Iterator[SmallCluster]:
    """Run one."""
    made = SmallCluster(clock or Clock())
    try:
        yield made
    finally:
        made.stop()


def binding(pod: Object, node: str) -> dict[str, str]:
    """Return what kube-scheduler sends to bind a pod."""
    metadata = pod["metadata"]
    return {"PodName": metadata["name"], "PodNamespace": metadata["namespace"], "PodUID": metadata["uid"], "Node": node}
