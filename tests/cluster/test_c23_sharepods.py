# SPDX-License-Identifier: Apache-2.0
"""SharePods on the real cluster: on one GPU by id, with the company they ask for, charged as pods, and never twice."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from cluster.harness.charges import charge_of
from cluster.harness.component import added
from cluster.harness.install import NAMESPACE
from cluster.harness.kubectl import Object, Refused, wait_for
from cluster.harness.site import Site, plain_container

from slicekeeper import names

MEM = str(1 << 30)


@pytest.fixture(scope="module")
def sharepods(site: Site) -> Iterator[Site]:
    """The cluster with the component, for this file alone."""
    with added(site, sharepods=True):
        yield site


def sharepod(
    name: str,
    request: str = "0.2",
    limit: str = "1.0",
    *,
    prefix: str = "kubeshare/",
    node: str = "",
    script: str = "sleep 600",
    **words: str,
) -> Object:
    said = {"gpu_request": request, "gpu_limit": limit, "gpu_mem": MEM, **words}
    spec = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 1,
        "containers": [plain_container("cuda", script)],
    }
    return {
        "apiVersion": "kubeshare.nthu/v1",
        "kind": "SharePod",
        "metadata": {"name": name, "annotations": {prefix + word: value for word, value in said.items()}},
        "spec": {**spec, **({"nodeName": node} if node else {})},
    }


def condition(obj: Object, kind: str = "Ready") -> Object:
    found = [one for one in obj.get("status", {}).get("conditions", ()) if one["type"] == kind]
    return found[0] if found else {"status": "", "reason": "", "message": ""}


def told(site: Site, team: str, name: str, reason: str, kind: str = "Ready") -> Object:
    """Wait until a condition has a reason; return the SharePod."""

    def look() -> Object | None:
        found = site.kubectl.get("sharepod", name, team)
        return found if condition(found, kind)["reason"] == reason else None

    return wait_for(look, f"{kind}: {reason} of {name}", 120)


def gpu(site: Site, team: str, name: str) -> str:
    """Wait until a SharePod's pod is ready; return its GPU."""
    found = told(site, team, name, "PodReady")
    [pod] = [pod for pod in site.pods(team) if pod["metadata"]["name"] == name]
    uuid = str(pod["metadata"]["annotations"][names.gpu_annotation("cuda")])
    assert found["status"]["BoundDeviceID"] == uuid
    assert found["status"]["nodeName"] == pod["spec"]["nodeName"]
    return uuid


def test_sharepods_of_one_id_are_on_one_gpu_and_it_is_an_id_no_more_with_the_last(sharepods: Site) -> None:
    kubectl, team = sharepods.kubectl, sharepods.namespace()
    [node] = (one["metadata"]["name"] for one in kubectl.list("nodes"))
    kubectl.apply(sharepod("slides-a", "0.4", "0.7", prefix="gemini/", GPUID="xyz"), namespace=team)
    shared = gpu(sharepods, team, "slides-a")
    kubectl.apply(sharepod("slides-b", "0.6", "0.8", prefix="gemini/", GPUID="xyz", node=node), namespace=team)
    assert gpu(sharepods, team, "slides-b") == shared
    for name, core, ceiling in (("slides-a", "40", "70"), ("slides-b", "60", "80")):
        pod = sharepods.pod(team, name)
        limits = pod["spec"]["containers"][0]["resources"]["limits"]
        assert (limits["tencent.com/vcuda-core"], limits["tencent.com/vcuda-memory"]) == (core, "4")
        assert pod["metadata"]["annotations"][names.limit_annotation("cuda")] == ceiling
    kubectl.apply(sharepod("late", "0.1", GPUID="xyz"), namespace=team)
    told(sharepods, team, "late", "Unschedulable")  # three GPUs are idle, and it may have none of them
    kubectl("delete", "sharepod", "slides-b", "-n", team, "--timeout=180s", timeout=190)
    assert gpu(sharepods, team, "late") == shared


def test_company_is_as_asked_for(sharepods: Site) -> None:
    kubectl, team = sharepods.kubectl, sharepods.namespace()
    company = {
        "red-1": {"sched_affinity": "red"},
        "red-2": {"sched_affinity": "red"},
        "green-1": {"sched_anti-affinity": "green"},
        "green-2": {"sched_anti-affinity": "green"},
        "blue": {"sched_exclusion": "blue"},
    }
    kubectl.apply(*(sharepod(name, **words) for name, words in company.items()), namespace=team)
    on = {name: gpu(sharepods, team, name) for name in company}
    assert on["red-1"] == on["red-2"]
    assert on["green-1"] != on["green-2"]
    assert on["blue"] not in {on[name] for name in company if name != "blue"}


def test_a_sharepod_is_told_its_mistake_and_its_columns_fit(sharepods: Site) -> None:
    kubectl, team = sharepods.kubectl, sharepods.namespace()
    hostile = sharepod("hostile")
    hostile["spec"]["hostPID"] = True
    kubectl.apply(sharepod("wrong", "1.5", "1.5"), sharepod("elsewhere", node="no-such-node"), hostile, namespace=team)
    message = condition(told(sharepods, team, "wrong", "SpecInvalid"))["message"]
    assert 'metadata.annotations[kubeshare/gpu_request] is "1.5"' in message
    assert "hostPID" in condition(told(sharepods, team, "hostile", "PodRefused"))["message"]
    told(sharepods, team, "elsewhere", "Unschedulable")
    assert [pod["metadata"]["name"] for pod in sharepods.pods(team)] == ["elsewhere"]
    shown = kubectl("get", "shp", "-n", team).splitlines()
    assert shown[0].split() == ["NAME", "PHASE", "READY", "NODE", "AGE"]
    assert max(map(len, shown)) <= 80
    with pytest.raises(Refused, match=r"spec\.containers"):
        kubectl.create({**sharepod("empty"), "spec": {}}, namespace=team)


def test_the_operator_is_killed_and_each_sharepod_has_one_pod_that_is_charged(sharepods: Site) -> None:
    kubectl, team = sharepods.kubectl, sharepods.namespace()
    every = [sharepod(f"s{number}", "0.1", script="true") for number in range(4)]
    kubectl.apply(*every[:2], namespace=team)
    ours = ("-n", NAMESPACE, "-l", "app.kubernetes.io/name=sharepods")
    kubectl("delete", "pods", *ours, "--grace-period=0", "--force", "--wait=false")
    kubectl.apply(*every[2:], namespace=team)
    ended = [told(sharepods, team, one["metadata"]["name"], "Succeeded", "Ended") for one in every]
    pods = {pod["metadata"]["uid"]: pod for pod in sharepods.pods(team)}
    assert set(pods) == {one["status"]["PodObjectMeta"]["uid"] for one in ended}

    def charged() -> bool:
        found = sharepods.workloads(team)
        return set(found) == set(pods) and all(w.charged_ms == charge_of(pods[uid]) for uid, w in found.items())

    wait_for(charged, "four charges", 120)
    # A pod that has ended is not made again; the garbage collector takes what a deleted SharePod leaves.
    kubectl("delete", "pod", "s0", "-n", team, "--timeout=180s", timeout=190)
    kubectl("delete", "sharepod", "s1", "-n", team, "--timeout=180s", timeout=190)
    left = {"s2", "s3"}
    wait_for(lambda: {pod["metadata"]["name"] for pod in sharepods.pods(team)} == left, "two pods", 120)
    assert condition(kubectl.get("sharepod", "s0", team), "Ended")["status"] == "True"


def test_its_account_makes_and_takes_no_pods_but_sharepods_own(sharepods: Site) -> None:
    kubectl, team = sharepods.kubectl, sharepods.namespace()
    operator = kubectl.acting(f"--as=system:serviceaccount:{NAMESPACE}:sharepods")
    plain = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "plain"},
        "spec": {"containers": [plain_container()], "terminationGracePeriodSeconds": 1},
    }
    kubectl.create(plain, namespace=team)
    theirs = {**plain, "metadata": {"name": "mine"}}
    for act in (
        lambda: operator.create(theirs, namespace=team),
        lambda: operator("delete", "pod", "plain", "-n", team, "--wait=false"),
        lambda: operator.patch("pod", "plain", {"metadata": {"labels": {"a": "b"}}}, team),
    ):
        with pytest.raises(Refused, match="account of SharePods' operator"):
            act()
    typed = kubectl.get("validatingadmissionpolicy", "slicekeeper-sharepods")["status"].get("typeChecking", {})
    assert not typed.get("expressionWarnings")
    with pytest.raises(Refused, match="cannot"):
        operator("get", "secrets", "-n", team)
