# SPDX-License-Identifier: Apache-2.0
"""A budget runs out while real pods run: states change and are announced, places change hands, a grant undoes it."""

from __future__ import annotations

import json
from collections import Counter

from cluster.harness.install import NAMESPACE
from cluster.harness.kubectl import Object, wait_for
from cluster.harness.site import Site, deployment, gpu_container, job, pod

from slicekeeper import names
from slicekeeper.wire.timekeeper import Budget


def _states(site: Site, namespace: str) -> Counter[str]:
    return Counter(p["metadata"]["annotations"][names.BUDGET_STATE] for p in _alive(site, namespace))


def _alive(site: Site, namespace: str) -> list[Object]:
    return [
        p
        for p in site.pods(namespace)
        if p["status"].get("phase") == "Running" and "deletionTimestamp" not in p["metadata"]
    ]


def test_a_namespace_runs_out_gives_way_at_gpu_level_and_gets_a_grant(site: Site) -> None:
    poor, rich = site.namespace("poor"), site.namespace()
    # 60 percent of each of four GPUs: a pod that wants half a GPU fits the node's total, and no single GPU.
    site.kubectl.create(deployment("leftovers", gpu_container(core=60, blocks=64), count=4), namespace=poor)
    wait_for(lambda: len(_alive(site, poor)) == 4, "four running pods")
    assert len({p["metadata"]["annotations"][names.gpu_annotation("train")] for p in _alive(site, poor)}) == 4

    wait_for(lambda: _states(site, poor)[names.OVER_BUDGET] == 4, "over-budget states")
    assert len(_alive(site, poor)) == 4, "nothing is deleted for lack of budget alone"
    assert wait_for(lambda: [e for e in site.kubectl.list("events", poor) if "budget" in e["message"].lower()], "event")

    held = {p["metadata"]["uid"] for p in _alive(site, poor)}

    wait_for(lambda: _class_now(site, poor) == "gpu-lower-priority", "webhook that knows")
    site.kubectl.create(pod("late", gpu_container(core=5, blocks=4)), namespace=poor)
    late = site.pod(poor, "late")
    assert late["spec"]["priorityClassName"] == "gpu-lower-priority"
    assert (late["spec"]["priority"], late["spec"]["preemptionPolicy"]) == (-100, "Never")
    assert late["metadata"]["annotations"][names.BUDGET_STATE] == names.OVER_BUDGET

    site.kubectl.create(pod("urgent", gpu_container(core=50, blocks=64)), namespace=rich)
    urgent = site.wait_phase(rich, "urgent", "Running")
    assert len([p for p in _alive(site, poor) if p["metadata"]["uid"] in held]) == 3, "the fewest give way"
    wait_for(
        lambda: [e for e in _events_of(site, poor, held) if "urgent" in e["message"]], "word to the pod that gave way"
    )
    wait_for(lambda: _events_of(site, rich, {urgent["metadata"]["uid"]}), "word to the pod that came")

    over = site.workloads(poor)
    assert all(w.over_budget_ms > 0 for w in over.values() if w.pod_uid in held)
    with site.timekeeper() as client:
        client.grant(Budget, poor, 3_600_000, "the suite says so", "grant-1")
        client.grant(Budget, poor, 3_600_000, "the suite says so", "grant-1")
        assert client.budget(Budget, poor).granted_ms == 3_600_000
    wait_for(lambda: set(_states(site, poor)) == {names.IN_BUDGET}, "states back in budget")
    site.kubectl.create(pod("after", gpu_container(core=5, blocks=4)), namespace=poor)
    assert site.pod(poor, "late")["spec"]["priorityClassName"] == "gpu-lower-priority", "a class never changes"
    wait_for(lambda: _class_now(site, poor) == "gpu-default-priority", "webhook that knows")


def test_an_in_budget_pod_is_never_taken_from(site: Site) -> None:
    first, second = site.namespace(), site.namespace()
    site.kubectl.create(job("hold", gpu_container(core=100, blocks=None), count=4), namespace=first)
    wait_for(lambda: len(_alive(site, first)) == 4, "four running pods")
    site.kubectl.create(pod("waits", gpu_container(core=50, blocks=64)), namespace=second)
    wait_for(lambda: site.events(second, "FailedScheduling"), "word why it waits")
    assert len(_alive(site, first)) == 4
    assert site.pod(second, "waits")["status"]["phase"] == "Pending"
    site.kubectl("delete", "job", "hold", "-n", first, "--wait=false")
    site.wait_phase(second, "waits", "Running")


def test_kube_schedulers_preemption_takes_only_what_helps_on_one_gpu(site: Site) -> None:
    team, leftovers = site.namespace(), site.namespace()
    site.kubectl.create(job("keep", gpu_container(core=60, blocks=64), count=4), namespace=team)
    wait_for(lambda: len(_alive(site, team)) == 4, "four running pods")
    background = {names.GPU_CLASS: names.BACKGROUND}
    spare = [pod(f"spare-{n}", gpu_container(core=40, blocks=64), annotations=background) for n in range(4)]
    site.kubectl.create(*spare, namespace=leftovers)
    wait_for(lambda: len(_alive(site, leftovers)) == 4, "a full node")
    asked = _preempt_calls(site)

    # Two leftovers give the node what 60 percent need, and no GPU.
    site.kubectl.create(pod("wide", gpu_container(core=60, blocks=64)), namespace=team)
    wait_for(lambda: _preempt_calls(site) > asked, "a question about victims")
    wait_for(lambda: site.events(team, "FailedScheduling"), "word why it waits")
    site.kubectl.create(pod("narrow", gpu_container(core=40, blocks=64)), namespace=team)
    narrow = site.wait_phase(team, "narrow", "Running")
    assert len(_alive(site, leftovers)) == 3, "one gave way, for the pod that it helps"
    assert len(_alive(site, team)) == 5
    assert site.pod(team, "wide")["status"]["phase"] == "Pending"

    def told() -> list[Object]:
        return [e for e in site.events(leftovers, "Preempted") if e["involvedObject"]["kind"] == "Pod"]

    [event] = wait_for(told, "word to the pod that gave way")
    assert narrow["metadata"]["uid"] in event["message"] or "narrow" in event["message"]


def _events_of(site: Site, namespace: str, uids: set[str]) -> list[Object]:
    return [e for e in site.kubectl.list("events", namespace) if e["involvedObject"].get("uid") in uids]


def _preempt_calls(site: Site) -> int:
    """Return how often kube-scheduler has asked our extender about victims."""
    read = "import urllib.request as u; print(u.urlopen('http://127.0.0.1:8455/metrics', timeout=10).read().decode())"
    python = ("/usr/local/bin/python3", "-ISc", read)
    told = site.kubectl("exec", "deployment/scheduler", "-c", "extender", "-n", NAMESPACE, "--", *python)
    return sum(
        int(float(line.split()[-1]))
        for line in told.splitlines()
        if line.startswith("slicekeeper_scheduler_requests_total{") and 'verb="preempt"' in line
    )


def _class_now(site: Site, namespace: str) -> str:
    made = pod("probe", gpu_container(core=5, blocks=4))
    command = ("create", "--dry-run=server", "-n", namespace, "-f", "-", "-o", "jsonpath={.spec.priorityClassName}")
    return site.kubectl(*command, stdin=json.dumps(made)).strip()
