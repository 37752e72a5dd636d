# SPDX-License-Identifier: Apache-2.0
"""What the extender costs a real kube-scheduler: pods per second with it and without it, in the same run.

    PYTHONPATH=tests .venv/bin/python -m cluster.harness.scheduler_throughput [--nodes 1000] [--pods 2000] [--rounds 3]

etcd, the API server and kube-scheduler are real and listen on loopback; the nodes are objects alone, one GPU each, and
no kubelet runs. The pods of a burst ask for half a GPU each, so that 2,000 of them fill 1,000 nodes to the last place:
one that stays behind although it fits would be seen. All pods are there before kube-scheduler starts. The rate is that
of the binds, from the first one to the last one, as a watch shows them.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections import Counter
from dataclasses import dataclass
from typing import Final

from cluster.harness import binaries
from cluster.harness.control_plane import HOME, TEAM, ControlPlane, control_plane, each, node, pod
from cluster.harness.kubectl import Kubectl, Object, wait_for

from slicekeeper.kube.client import NAMESPACES, NODES, PODS

PROGRAMS: Final = ("extender", "kube-scheduler", "kube-apiserver", "etcd")
SECONDS: Final = 600.0
"""The longest that a burst may take; what is not bound then stays behind."""


@dataclass
class Burst:
    """What became of one."""

    rate: float
    """Pods bound per second."""
    behind: int
    """Pods that were not bound."""
    cpu_ms: dict[str, float]
    """CPU milliseconds per pod, by program."""


def burst(plane: ControlPlane, count: int, *, extended: bool) -> Burst:
    """Have `count` pods bound, in a cluster without others."""
    client = plane.client()
    each(client, [pod(f"p{n}") for n in range(count)], TEAM)
    extender = plane.extender() if extended else None
    objects, version = client.list(PODS, namespace=TEAM)
    assert len(objects) == count
    plane.kube_scheduler(extender)
    first, last, bound, used = 0.0, 0.0, set[str](), Counter[str]()
    end = time.monotonic() + SECONDS
    while len(bound) < count and time.monotonic() < end:
        with client.watch(PODS, version, namespace=TEAM, seconds=30) as events:
            for kind, obj in events:
                version = obj["metadata"]["resourceVersion"]
                if kind != "MODIFIED" or not obj["spec"].get("nodeName"):
                    continue
                bound.add(obj["metadata"]["name"])
                last = time.monotonic()
                if not first:
                    first, used = last, plane.cpu()
                if len(bound) == count:
                    break
    spent = plane.cpu()
    spent.subtract(used)
    plane.stop(but=2)
    check(client.list(PODS, namespace=TEAM)[0])
    kubectl = Kubectl(binaries.NEWEST.bin / "kubectl", plane.kubeconfig)
    kubectl("delete", "--raw", f"{PODS.url(TEAM)}?gracePeriodSeconds=0")
    wait_for(lambda: not client.list(PODS, namespace=TEAM)[0], "end of the pods")
    cpu_ms = {name: seconds * 1000 / count for name, seconds in spent.items()}
    return Burst((len(bound) - 1) / (last - first), count - len(bound), cpu_ms)


def check(pods: list[Object]) -> None:
    """Raise AssertionError if a GPU is given out beyond its end."""
    by_node: dict[str, int] = {}
    for obj in pods:
        name = obj["spec"].get("nodeName", "")
        by_node[name] = by_node.get(name, 0) + 1
    by_node.pop("", None)
    assert max(by_node.values(), default=0) <= 2


def main() -> None:
    """Measure bursts with the extender and without it by turns, and print the table."""
    parser = argparse.ArgumentParser()
    for name, default in (("--nodes", 1000), ("--pods", 2000), ("--rounds", 3)):
        parser.add_argument(name, type=int, default=default)
    options = parser.parse_args()
    with control_plane() as plane:
        client = plane.client()
        for namespace in (TEAM, HOME):
            client.create(NAMESPACES, {"metadata": {"name": namespace}})
        for n in range(options.nodes):
            client.create(NODES, node(f"node-{n:04}"))
        print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; {options.nodes} nodes, {options.pods} pods\n")
        print("| round | with the extender, pods/s | left behind | without, pods/s | left behind | ratio |")
        print("| --- | ---: | ---: | ---: | ---: | ---: |")
        pairs = []
        for turn in range(1, options.rounds + 1):
            one, other = pair = burst(plane, options.pods, extended=True), burst(plane, options.pods, extended=False)
            pairs.append(pair)
            cells = f"{one.rate:.0f} | {one.behind} | {other.rate:.0f} | {other.behind} | {one.rate / other.rate:.2f}"
            print(f"| {turn} | {cells} |", flush=True)
    print(f"\nMedian ratio {statistics.median(one.rate / other.rate for one, other in pairs):.2f}\n")
    print(f"| CPU ms per pod | {' | '.join(PROGRAMS)} |", f"| --- |{' ---: |' * len(PROGRAMS)}", sep="\n")
    for side, title in enumerate(("with the extender", "without")):
        each_ms = [statistics.median(pair[side].cpu_ms.get(name, 0.0) for pair in pairs) for name in PROGRAMS]
        print(f"| {title} | {' | '.join(f'{ms:.1f}' for ms in each_ms)} |")


if __name__ == "__main__":
    main()
