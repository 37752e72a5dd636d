# SPDX-License-Identifier: Apache-2.0
"""How many bare pods are lost when agent and kubelet are killed while pods come in.

Run it as `PYTHONPATH=tests KUBECONFIG=… python -m cluster.harness.lost_pods`, with the KUBECONFIG that
`python -m cluster.harness up` printed. Prints a Markdown table. In every round a burst of pods that no controller
replaces is created, and the blow falls while they are bound, at an instant that differs from round to round.
"""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from collections.abc import Callable

from cluster.harness.cluster import Cluster
from cluster.harness.install import NAMESPACE
from cluster.harness.kubectl import Object, wait_for
from cluster.harness.site import SEAT, Site, gpu_container, playground, pod

from slicekeeper import names

PODS = 24
ROUNDS = 2
ENDED = ("Succeeded", "Failed")


def kill_agent(_site: Site, cluster: Cluster) -> None:
    """End the agent's process as a crash does; its keeper starts it again."""
    cluster.run("sh", "-c", "pkill -KILL -P \"$(pgrep -o -f 'slicekeeper nodeagent [a]gent')\" || true")


def restart_kubelet(_site: Site, cluster: Cluster) -> None:
    """Kill kubelet and start it again."""
    cluster.kill("kubelet")
    cluster.start("kubelet")


def kill_both(site: Site, cluster: Cluster) -> None:
    """Kill both."""
    kill_agent(site, cluster)
    restart_kubelet(site, cluster)


def replace_agent(site: Site, _cluster: Cluster) -> None:
    """Delete the agent's pod; the DaemonSet makes another."""
    site.kubectl("delete", "pods", "-n", NAMESPACE, "-l", "app.kubernetes.io/name=nodeagent", "--wait=false")


BLOWS: dict[str, Callable[[Site, Cluster], None]] = {
    "the agent, `kill -9`": kill_agent,
    "kubelet, `kill -9`": restart_kubelet,
    "both, `kill -9`": kill_both,
    "the agent's pod is deleted": replace_agent,
}


def main() -> None:
    """Strike in every way, and print the table."""
    with playground() as (site, found):
        print("| killed | pods | ran with their own seat | lost | after, median |\n|---|---:|---:|---:|---:|")
        for blow, strike in BLOWS.items():
            fates: Counter[str] = Counter()
            took = []
            for number in range(ROUNDS):
                began = time.monotonic()
                fates += _round(site, found, strike, 0.3 + number * 0.5)
                took.append(time.monotonic() - began)
                _whole(site)
            lost = sum(count for fate, count in fates.items() if fate != "right")
            print(
                f"| {blow} | {fates.total()} | {fates['right']} | {lost} | {sorted(took)[len(took) // 2]:.0f} s |",
                flush=True,
            )
            print(f"{blow}: {dict(fates)} {[round(t) for t in took]}", file=sys.stderr, flush=True)


def _round(site: Site, cluster: Cluster, strike: Callable[[Site, Cluster], None], after: float) -> Counter[str]:
    team = site.namespace("loss")
    third = PODS // 3
    create(site, team, 0, third)
    time.sleep(after)
    create(site, team, third, third)
    strike(site, cluster)
    create(site, team, 2 * third, third)
    fates = Counter(fate(site, one) for one in all_ended(site, team))
    site.clear()
    return fates


def create(site: Site, team: str, first: int, count: int) -> None:
    """Create pods that no controller replaces; each prints its seat and ends."""
    show = gpu_container(script="cat /run/slicekeeper/seat.json", core=5, blocks=4)
    numbers = range(first, first + count)
    site.kubectl.create(*(pod(f"bare-{number}", show, restartPolicy="OnFailure") for number in numbers), namespace=team)


def all_ended(site: Site, team: str) -> list[Object]:
    """Wait until all pods have ended; return them."""

    def look() -> list[Object]:
        pods = site.pods(team)
        return pods if all(one["status"].get("phase") in ENDED for one in pods) else []

    return wait_for(look, "end of all pods", seconds=300, pause=1)


def fate(site: Site, one: Object) -> str:
    """Return what became of a pod that prints its seat and ends: `right`, `wrong seat`, or why it failed."""
    metadata, status = one["metadata"], one["status"]
    if status["phase"] != "Succeeded":
        return str(status.get("reason") or status["phase"])
    log = ("logs", metadata["name"], "-c", "train", "-n", metadata["namespace"])
    seat = json.loads(wait_for(lambda: site.kubectl(*log), "its log"))  # kubelet may serve it a little later
    chosen = metadata["annotations"][names.gpu_annotation("train")].split(",")
    return "right" if seat["uid"] == metadata["uid"] and seat["gpus"] == chosen else "wrong seat"


def _whole(site: Site) -> None:
    """Wait until the node has its seats and the agent is ready."""

    def look() -> bool:
        agents = site.pods(NAMESPACE, "app.kubernetes.io/name=nodeagent")
        ready = [
            one for one in agents if all(c["ready"] for c in one["status"].get("containerStatuses", [{"ready": 0}]))
        ]
        if len(ready) != len(agents) or not agents or any("deletionTimestamp" in a["metadata"] for a in agents):
            return False
        node = site.kubectl.get("node", agents[0]["spec"]["nodeName"])
        return node["status"]["allocatable"].get(SEAT) == "512"

    wait_for(look, "agent and seats", seconds=240, pause=1)


if __name__ == "__main__":
    main()
