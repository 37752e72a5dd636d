# SPDX-License-Identifier: Apache-2.0
"""A namespace runs out: its pods give way, and nothing is deleted for lack of budget alone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.local_cluster import delete_all, namespace, pod, pods, start
from support.waiting import wait_for

from simulator.local import LocalCluster
from simulator.store import phase
from simulator.story import is_evicted
from slicekeeper.kube.client import EVENTS, PODS, Object
from slicekeeper.wire.timekeeper import Budget

POLICY = """
namespaces:
  - match: spender
    budget: {amount: 10h, period: none}
"""

STATE = "slicekeeper.io/budget-state"


@pytest.fixture
def local(tmp_path: Path) -> Iterator[LocalCluster]:
    local = start(tmp_path, POLICY, nodes=1, gpus=2)
    yield local
    local.stop()


def all_running(local: LocalCluster, where: str, count: int) -> dict[str, Object]:
    def look() -> dict[str, Object]:
        found = pods(local, where)
        return found if len(found) == count and all(phase(p) == "Running" for p in found.values()) else {}

    return wait_for(look, f"{count} running pods in {where}")


def states(local: LocalCluster, where: str) -> set[str]:
    return {p["metadata"]["annotations"][STATE] for p in pods(local, where).values()}


def gpu(p: Object) -> str:
    return str(p["metadata"]["annotations"]["gpu.slicekeeper.io/main"])


def test_a_namespace_that_runs_out_gives_way_and_comes_back(local: LocalCluster) -> None:
    client, timekeeper = local.kube_client(), local.timekeeper_client()
    for name in ("spender", "saver"):
        namespace(client, name)
    for name, core in (("big", 70), ("small", 30), ("q1", 25), ("q2", 25), ("q3", 25), ("q4", 25)):
        pod(client, "spender", name, core)
        wait_for(lambda name=name: pods(local, "spender")[name]["spec"].get("nodeName"), f"the place of {name}")
    before = all_running(local, "spender", 6)
    assert gpu(before["big"]) == gpu(before["small"]) != gpu(before["q1"]), "best fit packed them so"
    assert states(local, "spender") == {"in-budget"}
    assert {p["spec"]["priorityClassName"] for p in before.values()} == {"gpu-default-priority"}

    # 2 GPUs at a time: what is left of 4 GPU-minutes is gone after 2 minutes at most.
    timekeeper.change_budget(Budget, "spender", {"amountMs": 240_000})
    wait_for(lambda: states(local, "spender") == {"over-budget"}, "all pods over budget")
    wait_for(lambda: _class_of_a_new_pod(local) == "gpu-lower-priority", "the decision in the webhook")
    now = all_running(local, "spender", 6)
    assert {n: p["metadata"]["uid"] for n, p in now.items()} == {n: p["metadata"]["uid"] for n, p in before.items()}
    assert {p["spec"]["priorityClassName"] for p in now.values()} == {"gpu-default-priority"}, "a class never changes"

    # 60 percent for an in-budget pod: taking `big` is enough, any other way takes two.
    pod(client, "saver", "urgent", 60)
    all_running(local, "saver", 1)
    evicted = wait_for(lambda: [p for p in local.cluster.store.removed_pods if is_evicted(p)], "the end of the evicted")
    assert [p["metadata"]["name"] for p in evicted] == ["big"]
    assert set(pods(local, "spender")) == {"small", "q1", "q2", "q3", "q4"}
    assert gpu(pods(local, "saver")["urgent"]) == gpu(before["small"])
    wait_for(lambda: {"big", "urgent"} <= told_of(local), "the reclaimer's word on both")

    timekeeper.grant(Budget, "spender", 36_000_000, "test", "grant-1")
    wait_for(lambda: states(local, "spender") == {"in-budget"}, "all pods in budget again")
    wait_for(lambda: _class_of_a_new_pod(local) == "gpu-default-priority", "the decision in the webhook")
    assert not pods(local, "saver")["urgent"]["metadata"].get("deletionTimestamp")
    delete_all(local)
    spent = {w.pod_name: (w.charged_ms, w.over_budget_ms) for w in timekeeper.workloads("spender")}
    assert all(over > 0 for name, (_, over) in spent.items() if not name.startswith("probe"))
    budget = timekeeper.budget(Budget, "spender")
    assert budget.used_ms == sum(charged for charged, _ in spent.values())


def told_of(local: LocalCluster) -> set[str]:
    """Return the pods on which the reclaimer or the scheduler has written an event."""
    events = local.cluster.store.collection(EVENTS)[0]
    told = [e for e in events if any(part in e["source"]["component"] for part in ("reclaim", "scheduler"))]
    return {e["involvedObject"]["name"] for e in told}


def _class_of_a_new_pod(local: LocalCluster) -> str:
    """Return the class that a new pod gets now; the pod asks for more than there is, so it holds nothing."""
    client = local.kube_client()
    made = client.create(PODS, _probe(), "spender")
    client.delete(PODS, made["metadata"]["name"], "spender")
    return str(made["spec"]["priorityClassName"])


def _probe() -> Object:
    limits = {"tencent.com/vcuda-core": 800}
    container = {"name": "main", "image": "busybox", "resources": {"limits": limits}}
    return {"metadata": {"generateName": "probe-"}, "spec": {"containers": [container]}}
