# SPDX-License-Identifier: Apache-2.0
"""Agent and kubelet are killed while pods start, run and restart: no wrong seat, no lost pod."""

from __future__ import annotations

import json
import time

from cluster.harness.cluster import Cluster
from cluster.harness.kubectl import Object, Refused, wait_for
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
    wait_for("its log", lambda: _right(site, one))
    return _seat(site, one)


def _touch(site: Site, team: str, file: str) -> bool:
    try:
        site.kubectl("exec", "crash", "-c", "train", "-n", team, "--", "touch", file)
    except Refused:
        return False
    return True


def _kill_agent(cluster: Cluster) -> None:
    """Kill the agent if it is up; kubelet starts it again, each time a little later."""
    cluster.run("sh", "-c", "pkill -KILL -f 'slicekeeper nodeagent [r]un' || true")


def _restart_kubelet(cluster: Cluster) -> None:
    cluster.kill("kubelet")
    cluster.start("kubelet")


def _seats_are_back(site: Site) -> None:
    """Wait until kubelet knows the agent again: before, it fails the pods that it is given."""
    node = site.part("nodeagent")["spec"]["nodeName"]
    wait_for("seats", lambda: site.kubectl.get("node", node)["status"]["allocatable"].get(SEAT) == "256", seconds=180)


def _running(site: Site, namespace: str) -> list[Object]:
    return [p for p in site.pods(namespace) if p["status"].get("phase") == "Running"
            and all(c["ready"] for c in p["status"].get("containerStatuses", []))]  # fmt: skip


def test_agent_and_kubelet_are_killed_while_pods_start(site: Site, cluster: Cluster) -> None:
    team = site.namespace("crowd")
    site.kubectl.create(
        deployment("serve", gpu_container(script=f"{SHOW}; sleep 600", core=5, blocks=4), count=20), namespace=team
    )
    for round_ in range(3):
        time.sleep(1.5)
        _kill_agent(cluster)
        if round_ == 1:
            _restart_kubelet(cluster)
    pods = wait_for(
        "twenty running pods", lambda: found if len(found := _running(site, team)) == 20 else [], seconds=180, pause=2
    )
    wait_for("their seats", lambda: all(_right(site, one) for one in pods), seconds=30)
    ids = {one["metadata"]["uid"]: _seat(site, one)["id"] for one in pods}
    assert len(set(ids.values())) == 20

    # And while they run: nobody is restarted, nobody's seat changes.
    restarts = {one["metadata"]["uid"]: one["status"]["containerStatuses"][0]["restartCount"] for one in pods}
    _kill_agent(cluster)
    _restart_kubelet(cluster)
    _seats_are_back(site)
    again = wait_for(
        "the same pods", lambda: found if len(found := _running(site, team)) == 20 else [], seconds=120, pause=2
    )
    wait_for("their logs", lambda: all(_right(site, one) for one in again))  # kubelet serves them a little later
    assert {one["metadata"]["uid"]: _seat(site, one)["id"] for one in again} == ids
    assert {one["metadata"]["uid"]: one["status"]["containerStatuses"][0]["restartCount"] for one in again} == restarts


def test_a_restarting_container_keeps_its_seat_while_agent_and_kubelet_are_killed(site: Site, cluster: Cluster) -> None:
    _seats_are_back(site)
    team = site.namespace()
    # It runs while kubelet is restarted: one between two runs is a new one to kubelet, failed without the agent.
    crash = gpu_container(script=f"{SHOW}; until test -e /flag/go; do sleep 0.2; done; exit 1", core=5, blocks=4)
    crash["volumeMounts"] = [{"name": "flag", "mountPath": "/flag"}]
    volumes = [{"name": "flag", "emptyDir": {}}]
    site.kubectl.create(pod("crash", crash, restartPolicy="Always", volumes=volumes), namespace=team)
    first = _seat_told(site, site.wait_phase(team, "crash", "Running"))
    _kill_agent(cluster)
    _restart_kubelet(cluster)
    wait_for("kubelet that knows it", lambda: _touch(site, team, "/flag/go"))

    def restarted() -> Object | None:
        one = site.pod(team, "crash")
        status = one["status"]["containerStatuses"][0]
        return one if status["restartCount"] >= 2 and _right(site, one) else None

    again = wait_for("second restart", restarted, seconds=180, pause=1)
    assert _seat_told(site, again) == first


def test_a_node_created_anew_has_its_gpus_again(site: Site, cluster: Cluster) -> None:
    name = site.part("nodeagent")["spec"]["nodeName"]
    zeroed = [{"op": "replace", "path": "/status/capacity/tencent.com~1vcuda-core", "value": "0"}]
    site.kubectl("patch", "node", name, "--subresource=status", "--type=json", "-p", json.dumps(zeroed))
    wait_for(
        "capacity", lambda: site.kubectl.get("node", name)["status"]["capacity"]["tencent.com/vcuda-core"] == "400", 30
    )
    _restart_kubelet(cluster)
    _seats_are_back(site)
    assert site.kubectl.get("node", name)["status"]["capacity"]["tencent.com/vcuda-core"] == "400"
