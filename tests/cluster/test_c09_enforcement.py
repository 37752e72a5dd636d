# SPDX-License-Identifier: Apache-2.0
"""Budgets enforced `safe` and `hard` on real Jobs; a namespace that is made again has a fresh account."""

from __future__ import annotations

import json
from typing import Any

import pytest
from cluster.harness.kubectl import Object, Refused, wait_for
from cluster.harness.site import Site, gpu_container, job, plain_container, pod

from slicekeeper import names
from slicekeeper.wire.timekeeper import Budget

AMOUNT, HOLD = 200_000, 71_000


def _gpu(script: str) -> Object:
    return gpu_container(script=script, core=100, blocks=None)


def _pod_of(site: Site, namespace: str, name: str) -> Object:
    """Return the one pod of a Job."""
    return wait_for(lambda: site.pods(namespace, f"job-name={name}"), f"pod of Job {name}")[0]


def _wait(site: Site, namespace: str, name: str, *phases: str) -> Object:
    made = _pod_of(site, namespace, name)
    return site.wait_phase(namespace, made["metadata"]["name"], *phases, seconds=120)


def _gated(found: Object) -> bool:
    return {"name": names.GATE} in found["spec"].get("schedulingGates", [])


def _said(site: Site, found: Object, reason: str) -> list[str]:
    uid, namespace = found["metadata"]["uid"], found["metadata"]["namespace"]
    return [e["message"] for e in site.events(namespace, reason) if e["involvedObject"].get("uid") == uid]


def _budget(site: Site, namespace: str) -> Budget:
    with site.timekeeper() as client:
        return client.budget(Budget, namespace)


def _charge(site: Site, found: Object) -> Any:
    return site.workloads(found["metadata"]["namespace"]).get(found["metadata"]["uid"])


def test_in_a_safe_namespace_what_starts_may_finish(site: Site) -> None:
    safe = site.namespace("safe")
    for wrong in (job("wrong", _gpu("sleep 1")), pod("wrong", _gpu("sleep 1"))):
        if wrong["kind"] == "Job":
            wrong["spec"]["activeDeadlineSeconds"] = 60  # the Job's, not its pods'
        with pytest.raises(Refused, match=r"activeDeadlineSeconds is null.*for example activeDeadlineSeconds: 3600"):
            site.kubectl.create(wrong, namespace=safe)
    with pytest.raises(Refused, match="the gate is reserved"):
        site.kubectl.create(pod("cpu", plain_container(), schedulingGates=[{"name": names.GATE}]), namespace=safe)

    # The first needs 161 s of the 200 s and runs as long as it likes, so that the second, of 71 s, waits.
    site.kubectl.create(job("first", _gpu("sleep 600"), activeDeadlineSeconds=100), namespace=safe)
    first = _wait(site, safe, "first", "Running")
    wait_for(lambda: _said(site, first, "GpuTimeReserved"), "word why it started")
    assert not first["spec"].get("schedulingGates")
    assert first["spec"]["priorityClassName"] == "gpu-default-priority"
    site.kubectl.create(job("second", _gpu("sleep 600"), activeDeadlineSeconds=10), namespace=safe)
    second = _pod_of(site, safe, "second")
    (why,) = wait_for(lambda: _said(site, second, "WaitsForGpuTime"), "word why it waits")
    assert "needs 1m11s of GPU time" in why
    assert "are missing" in why
    budget = _budget(site, safe)
    assert 0 < budget.reserved_ms <= budget.balance_ms <= AMOUNT
    assert budget.balance_ms - budget.reserved_ms == AMOUNT - 161_000, "what is charged was set aside"

    found = site.pod(safe, second["metadata"]["name"])
    assert _gated(found)
    condition = {c["type"]: c.get("reason") for c in found["status"]["conditions"]}["PodScheduled"]
    assert condition == "SchedulingGated"
    site.kubectl("create", "rolebinding", "alice", "--clusterrole=admin", "--user=alice", "-n", safe)
    lift = json.dumps([{"op": "remove", "path": "/spec/schedulingGates"}])
    with pytest.raises(Refused, match="only the timekeeper may remove"):
        site.kubectl.acting("--as=alice")(
            "patch", "pod", found["metadata"]["name"], "-n", safe, "--type=json", "-p", lift
        )
    longer = {"spec": {"activeDeadlineSeconds": 86_400}}
    with pytest.raises(Refused, match="must be less than or equal to previous value"):
        site.kubectl.patch("pod", first["metadata"]["name"], longer, safe)

    # What the first leaves when it is deleted comes back at once, and the second is ended by its deadline.
    site.kubectl("delete", "job", "first", "-n", safe, "--wait=false")
    second = _wait(site, safe, "second", "Running", "Failed")
    second = _wait(site, safe, "second", "Failed")
    assert second["status"]["reason"] == "DeadlineExceeded"
    assert second["metadata"]["annotations"][names.BUDGET_STATE] == names.IN_BUDGET
    paid = wait_for(lambda: (w := _charge(site, second)) and w.state == "closed" and w, "its charge")
    assert 9_000 <= paid.charged_ms <= HOLD
    assert paid.over_budget_ms == 0
    wait_for(lambda: _budget(site, safe).reserved_ms == 0, "the rest")

    # Made again, the namespace has an account of its own.
    spent = AMOUNT - _budget(site, safe).balance_ms
    assert spent > paid.charged_ms
    site.kubectl("delete", "namespace", safe, timeout=250)
    site.kubectl.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": safe}})
    account = ("get", "serviceaccount", "default", "-n", safe, "--ignore-not-found", "-o", "name")
    wait_for(lambda: site.kubectl(*account), "service account")
    # 161 s again: more than the old account had left.
    site.kubectl.create(job("fresh", _gpu("sleep 1"), activeDeadlineSeconds=100), namespace=safe)
    fresh = _wait(site, safe, "fresh", "Succeeded")
    paid = wait_for(lambda: (w := _charge(site, fresh)) and w.state == "closed" and w, "its charge")
    budget = _budget(site, safe)
    assert (budget.used_ms, budget.balance_ms) == (paid.charged_ms, AMOUNT - paid.charged_ms)


def test_in_a_hard_namespace_pods_are_told_refused_and_evicted(site: Site) -> None:
    kept, spent = site.namespace("lenient"), site.namespace("hard")
    site.kubectl.create(job("saved", _gpu("sleep 600")), namespace=kept)
    saved = _wait(site, kept, "saved", "Running")
    with site.timekeeper() as client:  # before the word comes: the grace is 30 s
        (told,) = wait_for(lambda: _said(site, saved, "BudgetExhausted"), "word of the end")
        assert "are evicted from" in told
        client.grant(Budget, kept, 3_600_000, "the suite says so", "grant-1")

    guard = {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": "guard"},
        "spec": {"minAvailable": 1, "selector": {"matchLabels": {"guard": "yes"}}},
    }
    guarded = job("guarded", _gpu("sleep 600"))
    guarded["spec"]["template"]["metadata"]["labels"]["guard"] = "yes"
    site.kubectl.create(guard, guarded, job("plain", _gpu("sleep 600")), namespace=spent)
    plain, held = _wait(site, spent, "plain", "Running"), _wait(site, spent, "guarded", "Running")
    wait_for(lambda: _said(site, plain, "BudgetExhausted"), "word of the end")
    refused = wait_for(lambda: _refusal(site, spent), "refusal")
    assert "no GPU budget left" in refused
    assert "for example the same manifest, after a grant or in the next period" in refused

    (why,) = wait_for(lambda: _said(site, plain, "BudgetEviction"), "eviction", seconds=120)
    assert "the grace period of 5s is over" in why
    wait_for(lambda: not _is_running(site, plain), "its end")
    wait_for(lambda: _said(site, held, "EvictionPutOff"), "word of the disruption budget")
    assert _is_running(site, held)
    site.kubectl("delete", "poddisruptionbudget", "guard", "-n", spent)
    wait_for(lambda: _said(site, held, "BudgetEviction"), "eviction")
    assert _is_running(site, saved), "a grant within the grace keeps it"
    assert not _said(site, saved, "BudgetEviction")


def _refusal(site: Site, namespace: str) -> str:
    try:
        site.kubectl.create(pod("late", _gpu("sleep 1")), namespace=namespace, dry_run=True)
    except Refused as error:
        return str(error)
    return ""


def _is_running(site: Site, found: Object) -> bool:
    metadata = found["metadata"]
    try:
        now = site.pod(metadata["namespace"], metadata["name"])
    except Refused:
        return False
    return now["status"].get("phase") == "Running" and "deletionTimestamp" not in now["metadata"]
