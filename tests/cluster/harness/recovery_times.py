# SPDX-License-Identifier: Apache-2.0
"""How long slices of a GPU are not as they should be after something on the node was killed.

Run it as `PYTHONPATH=tests KUBECONFIG=… python -m cluster.harness.recovery_times`, with the KUBECONFIG that
`python -m cluster.harness up` printed. Prints a Markdown table; takes two minutes. Two pods that ask for 60 and 30
percent launch kernels without an end. While the blow falls, the node's arbiter is asked 50 times a second what it
holds, and what the first gets of the time that both get is taken from what they say themselves.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, Final

from cluster.harness.cluster import Cluster
from cluster.harness.gpu_work import one_gpu, said, worker
from cluster.harness.kubectl import wait_for
from cluster.harness.lost_pods import kill_agent, restart_kubelet
from cluster.harness.site import Site, playground, pod

ASKED: Final = {"large": 60, "small": 30}
BATCH: Final = 20
"""Kernels of 1 ms in a step."""
BEFORE_SECONDS: Final = 3.0
AFTER_SECONDS: Final = 8.0

_LISTEN = """
import json, socket, sys, time
def held():
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(1)
            connection.connect("/run/slicekeeper/control.sock")
            connection.sendall(b'{"op":"read"}\\n')
            told = json.loads(connection.makefile().readline())
    except (OSError, ValueError):
        return None
    keys = ("seat", "core", "limit", "memory_limit", "class", "processes")
    return sorted(tuple(seat[key] for key in keys) for seat in told["seats"])
right, wrong, end = held(), [], time.time() + float(sys.argv[1])
while time.time() < end:
    at = time.time()
    if held() != right:
        wrong.append(at)
    time.sleep(0.02)
print(json.dumps(wrong))
"""
"""Says when the arbiter held anything else than at first, or did not answer."""


def kill_arbiter(_site: Site, cluster: Cluster) -> None:
    """End the arbiter's process."""
    cluster.run("sh", "-c", "kill -KILL $(pgrep -f 'lib/[a]rbiter serve')")


def kill_both(site: Site, cluster: Cluster) -> None:
    """End the arbiter and the agent."""
    kill_arbiter(site, cluster)
    kill_agent(site, cluster)


def restart_containerd(_site: Site, cluster: Cluster) -> None:
    """Kill containerd and start it again."""
    cluster.kill("containerd")
    cluster.start("containerd")


BLOWS: Final[dict[str, Callable[[Site, Cluster], None]]] = {
    "arbiter": kill_arbiter,
    "agent": kill_agent,
    "arbiter and agent": kill_both,
    "kubelet": restart_kubelet,
    "containerd": restart_containerd,
}


def strike(site: Site, cluster: Cluster, team: str, blow: Callable[[Site, Cluster], None]) -> tuple[float, list[str]]:
    """Return for how many seconds the arbiter's seats were wrong, and the first pod's part before, then, and later."""
    heard: list[float] = []

    def listen() -> None:
        command = (sys.executable, "-c", _LISTEN, str(BEFORE_SECONDS + AFTER_SECONDS))
        heard.extend(json.loads(cluster.run(*command)))

    listener = threading.Thread(target=listen)
    listener.start()
    time.sleep(BEFORE_SECONDS)
    at = time.time()
    blow(site, cluster)
    listener.join()
    spans = ((at - BEFORE_SECONDS, at), (at, at + 1), (at + 1, at + 2), (at + 2, at + AFTER_SECONDS))
    return (max(heard) - at if heard else 0.0), [part(site, team, *span) for span in spans]


def part(site: Site, team: str, begin: float, end: float) -> str:
    """Return what the first pod got of the time that both got in a span of time."""
    got = {name: _milliseconds(said(site, team, name, "steps"), begin, end) for name in ASKED}
    return f"{got['large'] / sum(got.values()):.0%}" if sum(got.values()) else "-"


def _milliseconds(steps: list[list[str]], begin: float, end: float) -> float:
    """Return the GPU time of a worker within a span; each of its lines speaks of the time since the one before."""
    sum_, last = 0.0, 0.0
    for at, rate in ((float(at), float(rate)) for at, rate in steps):
        sum_ += rate * BATCH * max(min(at, end) - max(last or at - 0.25, begin), 0.0)
        last = at
    return sum_


def main() -> None:
    """Strike in every way, and print the table."""
    with playground() as (site, cluster):
        here, team = one_gpu(site), site.namespace()
        for name, core in ASKED.items():
            greedy = worker(core, 16, batch=BATCH, kernel="spin_1ms", host=0)
            site.kubectl.create(pod(name, greedy, annotations=here), namespace=team)
        for name in ASKED:
            site.wait_phase(team, name, "Running")
            wait_for(lambda name=name: said(site, team, name, "steps"), "steps")
        print("| killed | seats wrong or unknown for | `large` before | first second | next second | then, until 8 s |")
        print("|---|---:|---:|---:|---:|---:|")
        for name, blow in BLOWS.items():
            wrong, parts = strike(site, cluster, team, blow)
            print(f"| {name} | {wrong:.2f} s | {' | '.join(parts)} |", flush=True)
        restarts: list[Any] = [site.pod(team, name)["status"]["containerStatuses"] for name in ASKED]
        print(f"\nContainers restarted: {sum(one['restartCount'] for [one] in restarts)}.")
        site.clear()


if __name__ == "__main__":
    main()
