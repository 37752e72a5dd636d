# SPDX-License-Identifier: Apache-2.0
"""The timekeeper, the API server and etcd go away while pods start, end and are deleted: every charge is right."""

from __future__ import annotations

import json
import os
import re
import time

import pytest
from cluster.harness.binaries import say
from cluster.harness.charges import charge_of
from cluster.harness.cluster import Cluster
from cluster.harness.install import NAMESPACE
from cluster.harness.kubectl import Object, Refused, wait_for
from cluster.harness.site import Site, gpu_container, job

from slicekeeper import names

BURST = int(os.environ.get("SLICEKEEPER_CLUSTER_BURST", "24"))
"""Pods of the burst."""

TIMEKEEPER = "deployment/timekeeper"
PART = "app.kubernetes.io/name=timekeeper"


def _ended(one: Object) -> bool:
    """Whether a pod is deleted and every container of it has ended, or it got no node: only our finalizer keeps it."""
    statuses = one["status"].get("containerStatuses", [])
    if "deletionTimestamp" not in one["metadata"]:
        return False
    if not one["spec"].get("nodeName"):
        return True
    return one["status"].get("phase") in ("Succeeded", "Failed") and all("terminated" in s["state"] for s in statuses)


def _release_all(site: Site) -> int:
    """Release pods by --break-glass, again as it says if one changed meanwhile; return how many went."""
    count = 0
    while True:
        code, told = site.check("--break-glass")
        released = re.search(r"(\d+) pods released", told)
        assert released, told
        count += int(released[1])
        if "changed meanwhile" not in told:
            assert code == 0, told
            return count


def _wait_until_all_ended(site: Site, team: str, seconds: float) -> None:
    try:
        wait_for(lambda: all(map(_ended, site.pods(team))), "deleted pods that have all ended", seconds, 1)
    except TimeoutError as error:
        left = [
            (p["metadata"]["name"], p["metadata"].get("deletionTimestamp"), p["spec"].get("nodeName"), p["status"])
            for p in site.pods(team)
            if not _ended(p)
        ]
        raise TimeoutError(f"{error}: {left}") from None


def _expected(pods: list[Object]) -> dict[str, int]:
    return {one["metadata"]["uid"]: charge_of(one) for one in pods if names.BOUND_AT in one["metadata"]["annotations"]}


def _booked(site: Site, team: str) -> dict[str, int]:
    closed = [w for w in site.workloads(team).values() if w.state == "closed"]
    return {w.pod_uid: w.charged_ms + w.over_budget_ms for w in closed}


@pytest.mark.timeout(600 + 5 * BURST, func_only=True)
def test_a_burst_while_the_timekeeper_is_away(site: Site, cluster: Cluster) -> None:
    team = site.namespace("crowd")
    site.kubectl.create(job("before", gpu_container(script="sleep 600", core=5, blocks=4), count=3), namespace=team)
    wait_for(lambda: _phase(site, team, "before", "Running") == 3, "pods that ran before")
    site.rollout(TIMEKEEPER, 0)
    left = time.monotonic()
    try:
        wait_for(lambda: not site.pods(NAMESPACE, PART), "end of the timekeeper")
        seen = _version(site, team)
        burst = job("burst", gpu_container(script="sleep 2", core=5, blocks=4), count=BURST)
        burst["spec"]["parallelism"] = min(BURST, 40)
        site.kubectl.create(burst, namespace=team)
        site.kubectl("delete", "pods", "-n", team, "-l", "job-name=before", "--wait=false")
        cluster.forget_history()
        cluster.kill("kube-apiserver")
        cluster.start("kube-apiserver")
        limit = 60 + BURST * 5
        wait_for(lambda: _phase(site, team, "burst", "Succeeded") >= BURST, "end of the burst", limit, 2)
        cluster.kill("etcd")
        cluster.start("etcd")
        wait_for(lambda: _answers(site), "answering API server", 60)
        site.kubectl("delete", "jobs", "--all", "-n", team, "--wait=false", "--cascade=background")
        # Not left to Kubernetes' garbage collector, whose watches have just lost their history too.
        site.kubectl("delete", "pods", "--all", "-n", team, "--wait=false")
        cluster.forget_history()
        _wait_until_all_ended(site, team, 2 * limit)
        wait_for(lambda: _is_forgotten(site, team, seen), "a history that is gone")
        records = site.pods(team)
        assert len(records) >= BURST + 3
        assert all(
            "deletionTimestamp" in r["metadata"] and names.FINALIZER in r["metadata"]["finalizers"] for r in records
        )
    finally:
        site.rollout(TIMEKEEPER, 1)
    back = time.monotonic()
    wait_for(lambda: not site.pods(team), "pods that are let go", seconds=60 + BURST)
    waited = time.monotonic() - back
    say(f"{len(records)} pods were held by an absence of {back - left:.0f} s, and gone {waited:.1f} s after it")
    assert _booked(site, team) == _expected(records)


def test_the_watch_breaks_and_history_is_gone(site: Site, cluster: Cluster) -> None:
    team = site.namespace("crowd")
    site.kubectl.create(job("some", gpu_container(script="sleep 30", core=5, blocks=4), count=6), namespace=team)
    wait_for(lambda: _phase(site, team, "some", "Running") == 6, "running pods")
    cluster.run("pkill", "-STOP", "-f", "slicekeeper timekeeper [s]erve")
    seen = _version(site, team)
    try:
        wait_for(lambda: _phase(site, team, "some", "Succeeded") == 6, "their end")
        site.kubectl("delete", "job", "some", "-n", team, "--wait=false", "--cascade=background")
        wait_for(lambda: all("deletionTimestamp" in p["metadata"] for p in site.pods(team)), "their deletion")
        records = site.pods(team)
        cluster.forget_history()
        cluster.kill("etcd")
        cluster.start("etcd")
        cluster.kill("kube-apiserver")
        cluster.start("kube-apiserver")
        wait_for(lambda: _answers(site), "answering API server", 60)
        wait_for(lambda: _is_forgotten(site, team, seen), "a history that is gone")
    finally:
        cluster.run("sh", "-c", "pkill -CONT -f 'slicekeeper timekeeper [s]erve' || true")
    wait_for(lambda: not site.pods(team), "pods that are let go")
    assert len(records) == 6
    assert _booked(site, team) == _expected(records)


def _phase(site: Site, team: str, name: str, phase: str) -> int:
    return sum(p["status"].get("phase") == phase for p in site.pods(team, f"job-name={name}"))


def _version(site: Site, team: str) -> str:
    """Return the version of the pods of now, from which a watch could go on."""
    answer = json.loads(site.kubectl("get", "--raw", f"/api/v1/namespaces/{team}/pods"))
    return str(answer["metadata"]["resourceVersion"])


def _is_forgotten(site: Site, team: str, version: str) -> bool:
    """Whether the API server refuses to go on from a version: 410 Gone."""
    url = f"/api/v1/namespaces/{team}/pods?watch=1&timeoutSeconds=2&resourceVersion={version}"
    try:
        told = site.kubectl("get", "--raw", url)
    except Refused as error:
        told = str(error)
    return "too old resource version" in told


def _answers(site: Site) -> bool:
    try:
        return bool(site.kubectl("get", "--raw", "/readyz"))
    except Refused:
        return False


@pytest.mark.parametrize("way", ["gone", "killed", "upgraded", "evicted"])
def test_namespaces_are_deleted_without_the_timekeeper(site: Site, cluster: Cluster, way: str) -> None:
    name = f"spare-{way}"
    site.kubectl("create", "namespace", name)
    try:
        if way == "gone":
            site.rollout(TIMEKEEPER, 0)
            wait_for(lambda: not site.pods(NAMESPACE, PART), "end of the timekeeper")
        elif way == "killed":
            cluster.run("pkill", "-KILL", "-f", "slicekeeper timekeeper [s]erve")
        elif way == "upgraded":
            site.kubectl("rollout", "restart", TIMEKEEPER, "-n", NAMESPACE)
        else:
            [pod] = site.pods(NAMESPACE, PART)
            path = f"/api/v1/namespaces/{NAMESPACE}/pods/{pod['metadata']['name']}/eviction"
            body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod["metadata"]["name"]}}
            site.kubectl("create", "--raw", path, "-f", "-", stdin=json.dumps(body))
        begun = time.monotonic()
        site.kubectl("delete", "namespace", name, "--timeout=90s")
        say(f"a namespace was deleted in {time.monotonic() - begun:.1f} s with the timekeeper {way}")
        for path in (f"/apis/{names.API}", "/openapi/v3"):
            assert site.kubectl("get", "--raw", path)
        if way == "gone":
            with pytest.raises(Refused, match="unable to handle the request"):
                site.kubectl("get", "--raw", f"/apis/{names.API}/budgets")
    finally:
        site.rollout(TIMEKEEPER, 1)
        wait_for(lambda: _serves(site), "a timekeeper that answers")


def _serves(site: Site) -> bool:
    try:
        return bool(site.kubectl("get", "--raw", f"/apis/{names.API}/budgets"))
    except Refused:
        return False


def test_kubectl_offers_no_kind_that_it_cannot_show(site: Site) -> None:
    told = site.kubectl("api-resources", f"--api-group={names.API.partition('/')[0]}", "--no-headers")
    assert not told.strip()
    with pytest.raises(Refused, match="doesn't have a resource type"):
        site.kubectl("get", "budgets")


def test_pods_that_a_broken_timekeeper_holds_are_let_go_and_charged_later(site: Site) -> None:
    team = site.namespace()
    site.kubectl.create(job("known", gpu_container(script="sleep 600", core=5, blocks=4), count=2), namespace=team)
    wait_for(lambda: _phase(site, team, "known", "Running") == 2, "pods that run before")
    site.rollout(TIMEKEEPER, 0)
    try:
        wait_for(lambda: not site.pods(NAMESPACE, PART), "end of the timekeeper")
        site.kubectl.create(job("unseen", gpu_container(script="sleep 1", core=5, blocks=4), count=2), namespace=team)
        wait_for(lambda: _phase(site, team, "unseen", "Succeeded") == 2, "pods that ran unseen")
        site.kubectl("delete", "jobs", "--all", "-n", team, "--wait=false")
        _wait_until_all_ended(site, team, 90)
        held = site.pods(team)
        assert len(held) == 4
        assert _release_all(site) == 4
        wait_for(lambda: not site.pods(team), "pods that went")
        assert "4 pods were released by --break-glass and are not charged yet" in site.check()[1]
    finally:
        site.rollout(TIMEKEEPER, 1)
    wait_for(lambda: _booked(site, team) == _expected(held), "charges")
    records = ("get", "configmaps", "-n", NAMESPACE, "-l", "slicekeeper.io/released-pods", "-o", "name")
    wait_for(lambda: not site.kubectl(*records), "a record that is done with")
