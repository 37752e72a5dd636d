# SPDX-License-Identifier: Apache-2.0
"""Budgets enforced `safe` and `hard` in local mode: gates, deadlines and evictions with all parts as processes."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from itertools import count
from pathlib import Path

import pytest
from support.charge_oracle import interval
from support.local_cluster import namespace, pod, pods, start
from support.waiting import wait_for

from simulator.initial_objects import MODELS
from simulator.local import LocalCluster
from simulator.store import phase
from simulator.story import is_evicted
from slicekeeper import names
from slicekeeper.errors import ServiceError
from slicekeeper.kube.client import EVENTS, JOBS, PODS, Object
from slicekeeper.wire.timekeeper import Budget

# The margin of local mode is 300 s at this speed, the grace of a pod 30 s.
POLICY = """
namespaces:
  - match: careful
    budget: {amount: 36630s, period: none, enforcement: safe}
  - match: strict
    budget: {amount: 1m, period: none, enforcement: hard, grace: 2m}
"""


@pytest.fixture
def local(tmp_path: Path) -> Iterator[LocalCluster]:
    local = start(tmp_path, POLICY, nodes=1, gpus=2)
    yield local
    local.stop()


def job(name: str, deadline: int | None, sleep: str) -> Object:
    container = {
        "name": "main",
        "image": "busybox",
        "command": ["sleep", sleep],
        "resources": {"limits": {"tencent.com/vcuda-core": 100}},
    }
    spec = {"restartPolicy": "Never", "containers": [container]}
    spec |= {} if deadline is None else {"activeDeadlineSeconds": deadline}
    return {"metadata": {"name": name}, "spec": {"backoffLimit": 0, "template": {"spec": spec}}}


def of_job(local: LocalCluster, where: str, name: str) -> Object:
    """Return the last record of a Job's one pod."""
    found = [*local.cluster.store.removed_pods, *pods(local, where).values()]
    return next((p for p in found if p["metadata"]["labels"].get("job-name") == name), {})


def told(local: LocalCluster, found: Object, reason: str) -> list[str]:
    uid = found["metadata"]["uid"]
    events = local.cluster.store.collection(EVENTS)[0]
    return [e["message"] for e in events if e["involvedObject"].get("uid") == uid and e["reason"] == reason]


def test_a_safe_namespace_lets_in_what_can_finish(local: LocalCluster) -> None:
    client, timekeeper = local.kube_client(), local.timekeeper_client()
    namespace(client, "careful")
    with pytest.raises(ServiceError, match=r"spec\.template\.spec\.activeDeadlineSeconds is null"):
        client.create(JOBS, job("endless", None, "60"), "careful")
    # 36,330 s of 36,630 s are set aside for the first; the second needs 390 s.
    client.create(JOBS, job("first", 36_000, "infinity"), "careful")
    wait_for(lambda: phase(of_job(local, "careful", "first") or {}) == "Running", "the first")
    client.create(JOBS, job("second", 60, "infinity"), "careful")
    second = wait_for(lambda: of_job(local, "careful", "second"), "the second")
    assert second["spec"]["schedulingGates"] == [{"name": names.GATE}]
    assert [c["reason"] for c in second["status"]["conditions"]] == ["SchedulingGated"]
    (why,) = wait_for(lambda: told(local, second, "WaitsForGpuTime"), "word why it waits")
    assert "needs 6m30s of GPU time" in why
    local.cluster.store.delete(PODS, of_job(local, "careful", "first")["metadata"]["name"], "careful")
    wait_for(lambda: phase(of_job(local, "careful", "second")) == "Failed", "the second's end", 60)
    ended = of_job(local, "careful", "second")
    assert ended["status"]["reason"] == "DeadlineExceeded"
    # It may be over before that is written.
    wait_for(lambda: told(local, ended, "GpuTimeReserved"), "word why it started")

    def paid() -> int:
        found = {w.pod_uid: w for w in timekeeper.workloads("careful")}.get(ended["metadata"]["uid"])
        return found.charged_ms if found and found.state == "closed" and not found.over_budget_ms else 0

    held = interval(ended, MODELS["A100"], Fraction(1))
    assert held is not None
    assert wait_for(paid, "its charge") == held.end - held.start >= 50_000
    wait_for(lambda: timekeeper.budget(Budget, "careful").reserved_ms == 0, "the rest")


def test_a_hard_namespace_evicts_after_the_grace_and_refuses(local: LocalCluster) -> None:
    client = local.kube_client()
    namespace(client, "strict")
    found = pod(client, "strict", "a", 100, 1)
    assert "are evicted from" in wait_for(lambda: told(local, found, "BudgetExhausted"), "word of the end")[0]
    wait_for(lambda: told(local, found, "BudgetEviction"), "the eviction", 60)
    wait_for(lambda: not pods(local, "strict"), "its end", 60)
    (gone,) = local.cluster.store.removed_pods
    assert is_evicted(gone)

    numbers = count()

    def refused() -> bool:
        try:
            pod(client, "strict", f"b{next(numbers)}", 100, 1)
        except ServiceError as error:
            return "no GPU budget left" in str(error)
        return False

    wait_for(refused, "the decision in the webhook")
