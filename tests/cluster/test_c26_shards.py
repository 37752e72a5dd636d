# SPDX-License-Identifier: Apache-2.0
"""Two schedulers, each with nodes of its own: neither crosses over, and what happens to one does not reach the other.

etcd, the API server and the kube-schedulers are real, with the configurations that the manifests have for them; the
nodes are objects alone, as no kubelet is needed to bind.
"""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import yaml
from cluster.harness import cluster as clusters
from cluster.harness import install
from cluster.harness.control_plane import (
    CORE,
    GPU_MIB,
    HOME,
    MEMORY,
    OURS,
    TEAM,
    ControlPlane,
    Program,
    control_plane,
    each,
    metric,
    node,
    pod,
)
from cluster.harness.kubectl import Object, wait_for
from support.ports import free_port

from slicekeeper import names
from slicekeeper.kube.client import LEASES, NAMESPACES, NODES, PODS, PRIORITY_CLASSES, KubeClient

FIRST, SECOND = "", "b"
NODE_COUNT = 3
"""Of each scheduler; a node has one GPU."""

HALVES = 2 * NODE_COUNT
LOWER = "gpu-lower-priority"
PLACES = "slicekeeper_scheduler_places"
ELECTION = {"leaseDuration": "4s", "renewDeadline": "3s", "retryPeriod": "500ms"}


def _config(shard: str) -> Object:
    """Return the kube-scheduler's configuration that the chart has."""
    objects = yaml.safe_load_all(install.rendered({"config": {"scheduler": {"shards": [SECOND]}}}))
    name = f"slicekeeper-kube-scheduler{'-' if shard else ''}{shard}"
    [text] = [one["data"]["kube-scheduler.yaml"] for one in objects if one["metadata"]["name"] == name]
    config: Object = yaml.safe_load(text)
    return config


def _half(name: str, shard: str, annotations: dict[str, str] | None = None, core: int = 50) -> Object:
    made = pod(name)
    made["metadata"]["annotations"] |= annotations or {}
    made["spec"] |= {"schedulerName": f"{OURS}-{shard}" if shard else OURS, "terminationGracePeriodSeconds": 0}
    amounts = {CORE: str(core), MEMORY: str(GPU_MIB // 256 * core // 100)}
    made["spec"]["containers"][0]["resources"] = {"limits": amounts, "requests": {"cpu": "1", **amounts}}
    return made


def _halves(prefix: str, shard: str, count: int = HALVES) -> list[Object]:
    return [_half(f"{prefix}-{number}", shard) for number in range(count)]


@dataclass
class Shards:
    """A control plane and two schedulers on it, the second one with a standby."""

    plane: ControlPlane
    client: KubeClient
    extenders: dict[str, Program] = field(default_factory=dict)
    leader: Program = field(init=False)
    """The second scheduler's kube-scheduler."""
    standby_metrics: str = field(default_factory=lambda: f"127.0.0.1:{free_port()}")

    def extender(self, shard: str, name: str = "", **more: Any) -> Program:
        quick = {"reclaimSeconds": 0.2, "reclaimAfterSeconds": 0.5, "leaseSeconds": 4.0}
        return self.plane.extender(name or f"extender-{shard}", shards=[SECOND], shard=shard, **quick, **more)

    def create(self, *pods: Object) -> None:
        each(self.client, list(pods), TEAM)

    def delete(self, name: str) -> None:
        self.client.delete(PODS, name, TEAM)

    def pods(self) -> dict[str, Object]:
        """Return all pods by name. No GPU may be given out beyond its end, and no node to another's pods, ever."""
        found = {one["metadata"]["name"]: one for one in self.client.list(PODS, namespace=TEAM)[0]}
        given = Counter[str]()
        for name, one in found.items():
            if CORE not in one["spec"]["containers"][0]["resources"].get("limits", {}):
                continue
            if there := one["spec"].get("nodeName"):
                shard = one["spec"]["schedulerName"].removeprefix(OURS).removeprefix("-")
                assert there in _nodes(shard), f"{name} of {shard or 'the first'} is on {there}"
                gpu = one["metadata"]["annotations"][names.gpu_annotation("main")]
                given[gpu] += int(one["spec"]["containers"][0]["resources"]["limits"][CORE])
        assert max(given.values(), default=0) <= 100, given
        return found

    def bound(self, prefix: str) -> set[str]:
        return {name for name, one in self.pods().items() if name.startswith(prefix) and one["spec"].get("nodeName")}

    def waits(self, name: str) -> str:
        """Return what kube-scheduler says why a pod has no node, empty if it has said nothing yet."""
        conditions = self.pods()[name]["status"].get("conditions", [])
        return next((c.get("message", "") for c in conditions if c["type"] == "PodScheduled"), "")


def _nodes(shard: str) -> list[str]:
    return [f"node-{shard or 'first'}-{number}" for number in range(NODE_COUNT)]


@pytest.fixture(scope="module")
def both() -> Iterator[Shards]:
    if reason := clusters.unfit():
        pytest.skip(reason)
    with control_plane() as plane:
        made = Shards(plane, plane.client())
        for namespace in (TEAM, HOME):
            made.client.create(NAMESPACES, {"metadata": {"name": namespace}})
        made.client.create(PRIORITY_CLASSES, {"metadata": {"name": LOWER}, "value": -10})
        for shard in (FIRST, SECOND):
            for name in _nodes(shard):
                one = node(name)
                one["metadata"]["labels"] = {names.SHARD: shard} if shard else {}
                made.client.create(NODES, one)
        made.extenders = {shard: made.extender(shard) for shard in (FIRST, SECOND)}
        plane.kube_scheduler(made.extenders[FIRST], "kube-scheduler", _config(FIRST))
        mine = made.extenders[SECOND]
        made.leader = plane.kube_scheduler(mine, "leader", _config(SECOND), leads=ELECTION)
        wait_for(lambda: made.client.find(LEASES, f"{OURS}-{SECOND}", HOME), "a leader", pause=0.1)
        standby = made.extender(SECOND, "standby-extender", metricsBind=made.standby_metrics)
        plane.kube_scheduler(standby, "standby", _config(SECOND), leads=ELECTION)
        yield made


@pytest.fixture(autouse=True)
def _clear(both: Shards) -> Iterator[None]:
    yield
    for name in both.pods():
        both.delete(name)


def test_each_fills_its_own_nodes_and_what_is_left_waits_beside_the_others_room(both: Shards) -> None:
    both.create(*_halves("b", SECOND, HALVES + 1))
    wait_for(lambda: len(both.bound("b")) == HALVES, "its nodes full", pause=0.05)
    both.create(*_halves("a", FIRST, HALVES))
    wait_for(lambda: len(both.bound("a")) == HALVES, "the others full", pause=0.05)
    [left] = {name for name in both.pods() if name.startswith("b")} - both.bound("b")
    wait_for(lambda: both.waits(left), "why it waits")
    both.delete("a-0")
    both.create(_half("next", FIRST))
    wait_for(lambda: both.bound("next"), "a place for the first's next", pause=0.05)
    assert left not in both.bound("b")
    both.delete(next(iter(both.bound("b"))))
    wait_for(lambda: left in both.bound("b"), "its place", pause=0.05)
    holders = {lease["metadata"]["name"] for lease in both.client.list(LEASES, namespace=HOME)[0]}
    assert {"slicekeeper-binder", f"slicekeeper-binder-{SECOND}"} <= holders


def test_a_gang_starts_whole_in_its_shard_or_not(both: Shards) -> None:
    both.create(_half("in-the-way", SECOND, core=60))
    wait_for(lambda: both.bound("in-the-way"), "it has its place", pause=0.05)
    gang = {names.GANG: "five", names.GANG_SIZE: "5"}
    both.create(*(_half(f"gang-{number}", SECOND, gang) for number in range(5)))
    wait_for(lambda: "waits for room for all" in "".join(map(both.waits, both.pods())), "word why they wait")
    assert not both.bound("gang"), "the other scheduler's nodes are free"
    both.delete("in-the-way")
    wait_for(lambda: len(both.bound("gang")) == 5, "all five", pause=0.05)


def test_a_pod_in_budget_takes_the_place_of_pods_over_budget_of_its_own_shard(both: Shards) -> None:
    over = {names.BUDGET_STATE: names.OVER_BUDGET}
    both.create(*(_half(f"fair-{number}", SECOND, core=100) for number in range(NODE_COUNT - 1)))
    lower = [_half(f"b-{number}", SECOND, over) for number in range(2)]
    for one in lower:
        one["spec"]["priorityClassName"] = LOWER
    both.create(*lower, *(_half(f"a-{number}", FIRST, over) for number in range(HALVES)))
    full = NODE_COUNT + 1 + HALVES
    wait_for(lambda: len(both.bound("")) == full, "full nodes", pause=0.05)
    both.create(_half("urgent-b", SECOND, core=60))
    wait_for(lambda: both.bound("urgent-b"), "a place by kube-scheduler's preemption", pause=0.05)
    assert both.bound("") == both.bound("a-") | both.bound("fair-") | {"urgent-b"}
    assert len(both.bound("a-")) == HALVES
    both.create(_half("urgent-a", FIRST))  # of the priority of all others there: kube-scheduler preempts nothing
    wait_for(lambda: both.bound("urgent-a"), "a place by the reclaimer", pause=0.05)
    assert len(both.bound("a-")) == HALVES - 1


def test_while_an_extender_is_down_its_pods_wait_and_all_else_goes_on(both: Shards) -> None:
    gone = both.extenders[SECOND]
    gone.send(signal.SIGKILL)
    gone.process.wait()
    both.create(*_halves("b", SECOND, 2))
    plain = _half("plain", SECOND)
    del plain["spec"]["containers"][0]["resources"]
    both.create(plain, *_halves("a", FIRST))
    wait_for(lambda: len(both.bound("a")) == HALVES, "the other scheduler's pods", pause=0.05)
    wait_for(lambda: both.bound("plain"), "a pod without GPUs", pause=0.05)
    wait_for(lambda: all(map(both.waits, ("b-0", "b-1"))), "word why they wait")
    assert not both.bound("b")
    both.extenders[SECOND] = both.extender(SECOND, address=gone.address)
    wait_for(lambda: len(both.bound("b")) == 2, "their places", pause=0.05)


def test_a_warm_standby_takes_over_from_a_leader_that_dies_in_a_burst(both: Shards) -> None:
    both.create(*_halves("early", SECOND, 2))
    wait_for(lambda: len(both.bound("early")) == 2, "the leader's work", pause=0.05)
    wait_for(lambda: metric(both.standby_metrics, PLACES, 'kind="bound"') == 2, "a standby that knows of it")
    both.create(*_halves("with", SECOND, 2))
    both.extenders[SECOND].send(signal.SIGSTOP)  # in the middle of these, or of the next ones
    both.create(*_halves("late", SECOND, HALVES - 4))
    for program in (both.leader, both.extenders[SECOND]):
        program.send(signal.SIGKILL)
    wait_for(lambda: len(both.bound("")) == HALVES, "all pods bound", pause=0.05)
