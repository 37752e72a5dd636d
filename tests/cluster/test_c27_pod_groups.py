# SPDX-License-Identifier: Apache-2.0
"""kube-scheduler's own gangs (PodGroups) with their feature gate on: a group that is given up leaves no places behind.

etcd, the API server and kube-scheduler are real; the nodes are objects alone, as no kubelet is needed to bind.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import pytest
from cluster.harness import cluster as clusters
from cluster.harness.binaries import KUBERNETES, NEWEST
from cluster.harness.control_plane import CORE, GPU_MIB, HOME, MEMORY, TEAM, control_plane, metric, node, pod
from cluster.harness.kubectl import Object, wait_for
from support.ports import free_port

from slicekeeper import names
from slicekeeper.kube.client import NAMESPACES, NODES, PODS, KubeClient, Resource

POD_GROUPS: Final = Resource("/apis/scheduling.k8s.io/v1beta1", "podgroups")
NODE_COUNT: Final = 3
"""Each has one GPU."""

LONG: Final = 600.0
"""Seconds after which a tentative place ends by itself: later than the test."""


@dataclass(frozen=True)
class Cluster:
    """A scheduler on three nodes, and the address of its extender's metrics."""

    client: KubeClient
    metrics: str

    def pods(self) -> dict[str, Object]:
        return {one["metadata"]["name"]: one for one in self.client.list(PODS, namespace=TEAM)[0]}

    def bound(self, prefix: str = "") -> dict[str, str]:
        """Return the nodes of the pods that have one."""
        found = self.pods().items()
        return {name: one["spec"]["nodeName"] for name, one in found if name[: len(prefix)] == prefix and _on(one)}

    def refused(self, prefix: str) -> set[str]:
        """Return the pods that kube-scheduler has given up."""
        return {name for name, one in self.pods().items() if name.startswith(prefix) and _is_refused(one)}

    def tentative(self) -> int:
        return metric(self.metrics, "slicekeeper_scheduler_places", 'kind="tentative"')

    def asked(self) -> int:
        """Return how often kube-scheduler has asked about a pod."""
        return metric(self.metrics, "slicekeeper_scheduler_requests_total", 'verb="place"')


def _on(one: Object) -> str:
    return str(one["spec"].get("nodeName") or "")


def _is_refused(one: Object) -> bool:
    conditions = one["status"].get("conditions", [])
    return any(c["type"] == "PodScheduled" and c["status"] == "False" for c in conditions)


def _share(name: str, core: int, group: str = "") -> Object:
    made = pod(name)
    amounts = {CORE: str(core), MEMORY: str(GPU_MIB // 256 * core // 100)}
    made["spec"]["terminationGracePeriodSeconds"] = 0
    made["spec"]["containers"][0]["resources"] = {"limits": amounts, "requests": {"cpu": "1", **amounts}}
    if group:
        made["spec"]["schedulingGroup"] = {"podGroupName": group}
    return made


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    if reason := clusters.unfit():
        pytest.skip(reason)
    if KUBERNETES is not NEWEST:
        pytest.skip("Kubernetes 1.30 has no PodGroups")
    with control_plane(gates="GenericWorkload=true") as plane:
        client, metrics = plane.client(), f"127.0.0.1:{free_port()}"
        for namespace in (TEAM, HOME):
            client.create(NAMESPACES, {"metadata": {"name": namespace}})
        for number in range(NODE_COUNT):
            client.create(NODES, node(f"node-{number}"))
        plane.kube_scheduler(plane.extender(assumeSeconds=LONG, metricsBind=metrics))
        yield Cluster(client, metrics)


@pytest.fixture(autouse=True)
def _clear(cluster: Cluster) -> Iterator[None]:
    yield
    for name in cluster.pods():
        cluster.client.delete(PODS, name, TEAM)


def test_a_group_that_is_given_up_leaves_no_places_behind(cluster: Cluster) -> None:
    client = cluster.client
    client.create(PODS, _share("in-the-way", 60), TEAM)
    wait_for(lambda: cluster.bound("in-the-way"), "it has its place", pause=0.05)
    policy = {"gang": {"minCount": NODE_COUNT}}
    client.create(POD_GROUPS, {"metadata": {"name": "group"}, "spec": {"schedulingPolicy": policy}}, TEAM)
    for number in range(NODE_COUNT):
        client.create(PODS, _share(f"of-group-{number}", 60, "group"), TEAM)
    wait_for(lambda: len(cluster.refused("of-group")) == NODE_COUNT, "a group that is given up", pause=0.05)
    wait_for(lambda: cluster.tentative() == 0, "the end of its places", seconds=20, pause=0.05)

    # Given up once more, for the same reason: no condition changes, but what is asked about later gets the places.
    asked = cluster.asked()
    client.create(PODS, _share("short", 10), TEAM)
    wait_for(lambda: cluster.bound("short"), "a pod beside it", pause=0.05)
    client.delete(PODS, "short", TEAM)
    wait_for(lambda: cluster.asked() >= asked + 1 + NODE_COUNT, "another try of the group", pause=0.05)
    wait_for(lambda: _ended_by_another(cluster), "the end of its places", seconds=30)
    assert not cluster.bound("of-group")

    client.delete(PODS, "in-the-way", TEAM)
    wait_for(lambda: len(cluster.bound("of-group")) == NODE_COUNT, "all of the group", pause=0.05)


def _ended_by_another(cluster: Cluster) -> bool:
    name = f"later-{len(cluster.pods())}"
    cluster.client.create(PODS, _share(name, 1), TEAM)
    wait_for(lambda: cluster.bound(name), "a later pod", pause=0.05)
    return cluster.tentative() == 0


def test_a_nominated_node_gets_its_pod_though_it_is_asked_about_alone(cluster: Cluster) -> None:
    client = cluster.client
    client.create(PODS, _share("first", 60), TEAM)
    [taken] = wait_for(lambda: cluster.bound("first"), "it has its place", pause=0.05).values()
    other = next(name for name in (f"node-{number}" for number in range(NODE_COUNT)) if name != taken)
    made = _share("nominated", 30)
    made["spec"]["schedulingGates"] = [{"name": "example.com/wait"}]
    client.create(PODS, made, TEAM)
    client.patch(PODS, "nominated", {"status": {"nominatedNodeName": other}}, TEAM, subresource="status")
    client.patch(PODS, "nominated", {"spec": {"schedulingGates": None}}, TEAM)
    wait_for(lambda: cluster.bound("nominated"), "its place", pause=0.05)
    found = cluster.pods()["nominated"]
    assert found["spec"]["nodeName"] == other, "not the node that fills up best"
    assert found["metadata"]["annotations"][names.gpu_annotation("main")] == f"GPU-{other}"
    wait_for(lambda: cluster.tentative() == 0, "nothing held beside it", seconds=20, pause=0.05)
