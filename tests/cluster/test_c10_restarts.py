# SPDX-License-Identifier: Apache-2.0
"""Agent and kubelet are killed while pods start, run and restart: no wrong seat, no lost pod, no wrong charge."""

from __future__ import annotations

import json
import time
from collections import Counter
from datetime import UTC, datetime, timedelta

from cluster.harness.cluster import Cluster
from cluster.harness.install import NAMESPACE
from cluster.harness.kubectl import Object, Refused, wait_for
from cluster.harness.lost_pods import all_ended, create, fate, kill_agent, replace_agent, restart_kubelet
from cluster.harness.programs import NODE
from cluster.harness.site import SEAT, Site, deployment, gpu_container, pod

from slicekeeper import names

SHOW = "cat /run/slicekeeper/seat.json"


def _seat(site: Site, one: Object) -> Object:
    metadata = one["metadata"]
    said = site.kubectl("logs", metadata["name"], "-c", "train", "-n", metadata["namespace"])
    seat: Object = json.loads(said.splitlines()[-1])
    return seat


def _right(site: Site, one: Object) -> bool:
    try:
        seat = _seat(site, one)
    except (Refused, IndexError, ValueError):
        return False
    chosen = one["metadata"]["annotations"][names.gpu_annotation("train")].split(",")
    assert seat["uid"] == one["metadata"]["uid"], "a seat of another pod"
    assert seat["gpus"] == chosen
    return True


def _seat_told(site: Site, one: Object) -> Object:
    """Wait for a container's log, which kubelet may serve a little later, and return the seat in it."""
    wait_for(lambda: _right(site, one), "its log")
    return _seat(site, one)


def _touch(site: Site, team: str, file: str) -> bool:
    try:
        site.kubectl("exec", "crash", "-c", "train", "-n", team, "--", "touch", file)
    except Refused:
        return False
    return True


def _seats_are_back(site: Site) -> None:
    """Wait until kubelet knows the agent again: before, it fails the pods that it is given."""
    node = site.part("nodeagent")["spec"]["nodeName"]
    wait_for(lambda: site.kubectl.get("node", node)["status"]["allocatable"].get(SEAT) == "512", "seats", seconds=180)


def _running(site: Site, namespace: str) -> list[Object]:
    return [
        p
        for p in site.pods(namespace)
        if p["status"].get("phase") == "Running" and all(c["ready"] for c in p["status"].get("containerStatuses", []))
    ]


def test_agent_and_kubelet_are_killed_while_pods_start(site: Site, cluster: Cluster) -> None:
    team = site.namespace("crowd")
    site.kubectl.create(
        deployment("serve", gpu_container(script=f"{SHOW}; sleep 600", core=5, blocks=4), count=20), namespace=team
    )
    for round_ in range(3):
        time.sleep(1.5)
        kill_agent(site, cluster)
        if round_ == 1:
            restart_kubelet(site, cluster)
    pods = wait_for(
        lambda: found if len(found := _running(site, team)) == 20 else [], "twenty running pods", seconds=180, pause=2
    )
    wait_for(lambda: all(_right(site, one) for one in pods), "their seats")
    ids = {one["metadata"]["uid"]: _seat(site, one)["id"] for one in pods}
    assert len(set(ids.values())) == 20

    # And while they run: no pod restarts, and no seat changes.
    restarts = {one["metadata"]["uid"]: one["status"]["containerStatuses"][0]["restartCount"] for one in pods}
    kill_agent(site, cluster)
    restart_kubelet(site, cluster)
    _seats_are_back(site)
    again = wait_for(
        lambda: found if len(found := _running(site, team)) == 20 else [], "the same pods", seconds=120, pause=2
    )
    wait_for(lambda: all(_right(site, one) for one in again), "their logs")  # kubelet serves them a little later
    assert {one["metadata"]["uid"]: _seat(site, one)["id"] for one in again} == ids
    assert {one["metadata"]["uid"]: one["status"]["containerStatuses"][0]["restartCount"] for one in again} == restarts


def _agent_uids(site: Site) -> set[str]:
    return {
        one["metadata"]["uid"]
        for one in site.pods(NAMESPACE, "app.kubernetes.io/name=nodeagent")
        if one["status"].get("phase") == "Running" and "deletionTimestamp" not in one["metadata"]
    }


def _fates(site: Site, team: str) -> Counter[str]:
    return Counter(fate(site, one) for one in all_ended(site, team))


def test_no_pod_is_lost_that_comes_while_the_agent_is_replaced(site: Site, cluster: Cluster) -> None:
    before = _agent_uids(site)
    replace_agent(site, cluster)  # whatever was done to the last one
    wait_for(lambda: _agent_uids(site) - before, "another agent")
    _seats_are_back(site)
    team = site.namespace()
    create(site, team, 0, 8)
    replace_agent(site, cluster)
    create(site, team, 8, 4)
    assert _fates(site, team) == {"right": 12}


def test_no_pod_is_lost_that_comes_while_the_agent_is_killed(site: Site, cluster: Cluster) -> None:
    """No controller creates these pods again. Wait for earlier ones: kubelet would fail one that it has not started."""
    _seats_are_back(site)
    team = site.namespace()
    create(site, team, 0, 4)
    all_ended(site, team)
    kill_agent(site, cluster)
    create(site, team, 4, 8)
    assert _fates(site, team) == {"right": 12}


def test_no_pod_is_lost_that_comes_while_kubelet_is_killed(site: Site, cluster: Cluster) -> None:
    _seats_are_back(site)
    team = site.namespace()
    create(site, team, 0, 8)
    restart_kubelet(site, cluster)
    create(site, team, 8, 4)
    assert _fates(site, team) == {"right": 12}


def test_no_pod_is_lost_that_comes_while_both_are_killed(site: Site, cluster: Cluster) -> None:
    _seats_are_back(site)
    team = site.namespace()
    kill_agent(site, cluster)
    create(site, team, 0, 4)
    restart_kubelet(site, cluster)
    create(site, team, 4, 4)
    assert _fates(site, team) == {"right": 8}


def test_a_restarting_container_keeps_its_seat_while_agent_and_kubelet_are_killed(site: Site, cluster: Cluster) -> None:
    _seats_are_back(site)
    team = site.namespace()
    # It runs while kubelet is restarted: one between two runs is a new one to kubelet, failed without the agent.
    crash = gpu_container(script=f"{SHOW}; until test -e /flag/go; do sleep 0.2; done; exit 1", core=5, blocks=4)
    crash["volumeMounts"] = [{"name": "flag", "mountPath": "/flag"}]
    volumes = [{"name": "flag", "emptyDir": {}}]
    site.kubectl.create(pod("crash", crash, restartPolicy="Always", volumes=volumes), namespace=team)
    first = _seat_told(site, site.wait_phase(team, "crash", "Running"))
    kill_agent(site, cluster)
    restart_kubelet(site, cluster)
    wait_for(lambda: _touch(site, team, "/flag/go"), "kubelet that knows it")

    def restarted() -> Object | None:
        one = site.pod(team, "crash")
        status = one["status"]["containerStatuses"][0]
        return one if status["restartCount"] >= 2 and _right(site, one) else None

    again = wait_for(restarted, "second restart", seconds=180, pause=1)
    assert _seat_told(site, again) == first


def test_a_container_between_two_runs_outlives_kubelet(site: Site, cluster: Cluster) -> None:
    """A new kubelet takes it for a new one, and would fail the pod if it had no seats yet."""
    _seats_are_back(site)
    team = site.namespace()
    crash = gpu_container(script=f"{SHOW}; exit 1", core=5, blocks=4)
    site.kubectl.create(pod("crash", crash, restartPolicy="Always"), namespace=team)

    def waits(least: int) -> Object | None:
        one = site.pod(team, "crash")
        assert one["status"].get("phase") != "Failed", one["status"]
        status = next(iter(one["status"].get("containerStatuses", [])), None)
        back_off = status and (status["state"].get("waiting") or {}).get("reason") == "CrashLoopBackOff"
        return one if status and back_off and status["restartCount"] >= least else None

    first = wait_for(lambda: waits(2), "back-off", seconds=180)
    seat = _seat_told(site, first)
    restart_kubelet(site, cluster)
    count = first["status"]["containerStatuses"][0]["restartCount"]
    again = wait_for(lambda: waits(count + 1), "another run", seconds=180, pause=1)
    assert _seat_told(site, again) == seat


def _finished(status: Object, at: datetime) -> Object:
    started = status["state"]["running"]["startedAt"]
    end = {"exitCode": 0, "startedAt": started, "finishedAt": at.isoformat(timespec="seconds")}
    return {**status, "started": False, "ready": False, "state": {"terminated": end}}


def _finalizers(site: Site, team: str) -> list[str]:
    found: list[str] = site.pod(team, "train")["metadata"].get("finalizers", [])
    return found


def test_the_end_of_a_pod_whose_nodes_clock_was_set_back_is_charged_by_the_api_servers_clock(
    site: Site, cluster: Cluster
) -> None:
    """All programs here share the machine's clock, so what a kubelet would write by another is written in its place."""
    back = timedelta(seconds=20)
    team = site.namespace()
    site.kubectl.create(pod("train", gpu_container(core=5, blocks=4)), namespace=team)
    running = site.wait_phase(team, "train", "Running")["status"]
    uid = site.pod(team, "train")["metadata"]["uid"]
    opened = datetime.fromisoformat(wait_for(lambda: site.workloads(team).get(uid), "its interval").start)
    wait_for(lambda: datetime.now(UTC) > opened + back, "enough to set it back")
    cluster.kill("kubelet")
    try:
        end = datetime.now(UTC)
        kinds = ("initContainerStatuses", "containerStatuses")
        statuses = {kind: [_finished(one, end - back) for one in running.get(kind, [])] for kind in kinds}
        ended = {"status": {"phase": "Succeeded", **statuses}}
        site.kubectl.patch("pod", "train", ended, team, "--subresource=status")
        reported = datetime.now(UTC)
        wait_for(lambda: datetime.now(UTC) > reported + timedelta(seconds=1), "a later second")
        renewed = (datetime.now(UTC) - back).isoformat(timespec="microseconds")
        site.kubectl.patch("lease", NODE, {"spec": {"renewTime": renewed}}, "kube-node-lease")
        # Without kubelet the timekeeper can only be asked by what it writes: this goes when the charge is booked.
        wait_for(lambda: names.FINALIZER not in _finalizers(site, team), "the booking", seconds=120)
    finally:
        cluster.start("kubelet")
        _seats_are_back(site)
    found = site.workloads(team)[uid]
    assert found.end is not None
    # The parts of seconds that no record has; a slow renewal moves it no further than to the report.
    assert end - timedelta(seconds=2) <= datetime.fromisoformat(found.end) <= reported + timedelta(seconds=1)
    assert found.flags == ["clock-skew"]


def test_a_node_created_anew_has_its_gpus_again(site: Site, cluster: Cluster) -> None:
    name = site.part("nodeagent")["spec"]["nodeName"]
    zeroed = [{"op": "replace", "path": "/status/capacity/tencent.com~1vcuda-core", "value": "0"}]
    site.kubectl("patch", "node", name, "--subresource=status", "--type=json", "-p", json.dumps(zeroed))
    wait_for(
        lambda: site.kubectl.get("node", name)["status"]["capacity"]["tencent.com/vcuda-core"] == "400", "capacity", 30
    )
    restart_kubelet(site, cluster)
    _seats_are_back(site)
    assert site.kubectl.get("node", name)["status"]["capacity"]["tencent.com/vcuda-core"] == "400"
