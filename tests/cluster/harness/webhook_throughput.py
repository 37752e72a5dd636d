# SPDX-License-Identifier: Apache-2.0
"""What the webhook costs a real API server: pods per second with it and without it, the server's own p99, and CPU time.

Run it as `PYTHONPATH=tests KUBECONFIG=… python -m cluster.harness.webhook_throughput`, with the KUBECONFIG that
`python -m cluster.harness up` printed; words behind it choose among the loads. Prints Markdown tables. The pods are
held by a scheduling gate, so no scheduler has work with them. Each load comes by turns with our webhook configurations
and without:

- `rates`: pods at even intervals, so many a second, whatever becomes of those before;
- `deployment`: one that is scaled up from nothing, which is how users' pods are made;
- `clients`: some that create one pod after the other as fast as they can, which only a machine's CPU bounds;
- `plain`: the same with pods that want no GPU.
"""

from __future__ import annotations

import os
import re
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from math import inf
from pathlib import Path
from typing import Final

from cluster.harness.cluster import Cluster
from cluster.harness.kubectl import Kubectl, Object, wait_for
from cluster.harness.site import Site, deployment, gpu_container, plain_container, playground, pod

from slicekeeper.kube.client import DEPLOYMENTS, PODS, KubeClient

CLIENTS: Final = 8
PODS_OF_CLIENTS: Final = 400
PODS_OF_DEPLOYMENT: Final = 200
RATES: Final = (10, 20, 50, 100)
"""Pods per second."""

RATE_SECONDS: Final = 5
CONNECTIONS: Final = 16
"""How many pods that come at a rate may be under way at once. The others wait, and that counts as theirs."""

ROUNDS: Final = 3
SETTLE_SECONDS: Final = 2
"""The API server learns of changed webhook configurations by a watch."""

GATES: Final = [{"name": "suite.example/held"}]
PROGRAMS: Final = ("API server", "etcd", "webhook", "Slicekeeper's other parts", "all else of the cluster", "clients")

Bounds = Counter[float]
"""Calls that took at most so many seconds, as a Prometheus histogram counts them."""


@dataclass
class Round:
    """One load, once."""

    rate: float
    """Pods per second."""
    seconds: list[float]
    """How long each pod took, if a client waits for it; at a fixed rate, from when it was due to be created."""
    cpu: Counter[str]
    """CPU seconds by program."""
    calls: dict[str, Bounds]
    """By webhook."""


class Bench:
    """The cluster, and an account that may do all."""

    def __init__(self, found: Cluster, site: Site) -> None:
        self._cluster, self._site, self._kubectl = found, site, site.kubectl
        self._home = site.namespace("load")
        site.namespaces.clear()  # it outlives the rounds
        self._kubectl("create", "serviceaccount", "load", "-n", self._home)
        subject = f"--serviceaccount={self._home}:load"
        self._kubectl("create", "clusterrolebinding", self._home, "--clusterrole=cluster-admin", subject)
        self._token = self._kubectl("create", "token", "load", "-n", self._home, "--duration=2h").strip()

    def end(self) -> None:
        """Take the account away again."""
        self._kubectl("delete", f"namespace/{self._home}", f"clusterrolebinding/{self._home}", "--wait=false")

    def client(self) -> KubeClient:
        """Return a client with connections of its own."""
        return self._site.client(self._token)

    def with_webhook(self, load: Load) -> Round:
        """Run one load; its pods are gone again before the next."""
        namespace = self._site.namespace("load")
        time.sleep(SETTLE_SECONDS)
        cpu, calls = _cpu(self._cluster), _calls(self._kubectl)
        rate, seconds = load.run(self, namespace)
        used = _cpu(self._cluster)
        used.subtract(cpu)
        made = {
            name: Counter({le: n - calls.get(name, Counter())[le] for le, n in now.items()})
            for name, now in _calls(self._kubectl).items()
        }
        self._kubectl("delete", "deployments", "--all", "-n", namespace)
        self._kubectl("delete", "--raw", f"/api/v1/namespaces/{namespace}/pods?gracePeriodSeconds=0")
        wait_for(lambda: not self._site.pods(namespace), "end of the pods", seconds=300, pause=1)
        self._site.clear()
        return Round(rate, seconds, used, made)

    def without_webhook(self, load: Load) -> Round:
        """Run one load as if our webhook configurations had not been installed yet."""
        with self._site.without_webhook():
            return self.with_webhook(load)


@dataclass(frozen=True)
class Load:
    """A way to make pods; `run` returns how many came to be in a second, and how long each took."""

    kind: str
    name: str
    pods: int
    run: Callable[[Bench, str], tuple[float, list[float]]]


def one_of(container: Object) -> Object:
    """Return a pod of which many can be made."""
    return {**pod("", container, schedulingGates=GATES), "metadata": {"generateName": "x-"}}


def create(client: KubeClient, made: Object, namespace: str, due: float) -> float:
    """Create a pod; return how many seconds after `due` it was there."""
    client.create(PODS, made, namespace)
    return time.monotonic() - due


def by_clients(bench: Bench, namespace: str, container: Object) -> tuple[float, list[float]]:
    """Create pods from many threads, each one after the other."""
    made, clients = one_of(container), [bench.client() for _ in range(CLIENTS)]

    def work(client: KubeClient) -> list[float]:
        return [create(client, made, namespace, time.monotonic()) for _ in range(PODS_OF_CLIENTS // CLIENTS)]

    with ThreadPoolExecutor(CLIENTS) as pool:
        began = time.monotonic()
        each = [seconds for found in pool.map(work, clients) for seconds in found]
        took = time.monotonic() - began
    for client in clients:
        client.close()
    return len(each) / took, each


def at_rate(bench: Bench, namespace: str, rate: int) -> tuple[float, list[float]]:
    """Create pods at even intervals, none of which waits for those before."""
    made, client = one_of(gpu_container(core=5)), bench.client()
    with ThreadPoolExecutor(CONNECTIONS) as pool:
        began = time.monotonic()
        under_way = []
        for due in (began + number / rate for number in range(rate * RATE_SECONDS)):
            time.sleep(max(due - time.monotonic(), 0))
            under_way.append(pool.submit(create, client, made, namespace, due))
        each = [future.result() for future in under_way]
        took = time.monotonic() - began
    client.close()
    return len(each) / took, each


def by_deployment(bench: Bench, namespace: str) -> tuple[float, list[float]]:
    """Scale a Deployment up from nothing, until its status counts all pods."""
    made = deployment("load", gpu_container(core=5), count=0)
    made["spec"]["template"]["spec"]["schedulingGates"] = GATES
    client = bench.client()
    client.create(DEPLOYMENTS, made, namespace)

    def seen(key: str) -> int:
        return int(client.get(DEPLOYMENTS, "load", namespace).get("status", {}).get(key, 0))

    wait_for(lambda: seen("observedGeneration"), "a ReplicaSet")
    began = time.monotonic()
    client.patch(DEPLOYMENTS, "load", {"spec": {"replicas": PODS_OF_DEPLOYMENT}}, namespace)
    wait_for(lambda: seen("replicas") == PODS_OF_DEPLOYMENT, "all pods", seconds=300, pause=0.1)
    took = time.monotonic() - began
    client.close()
    return PODS_OF_DEPLOYMENT / took, []


LOADS: Final = (
    *(Load("rates", f"{rate} a second", rate * RATE_SECONDS, partial(at_rate, rate=rate)) for rate in RATES),
    Load("deployment", "a Deployment", PODS_OF_DEPLOYMENT, by_deployment),
    Load("clients", f"{CLIENTS} clients", PODS_OF_CLIENTS, partial(by_clients, container=gpu_container(core=5))),
    Load("plain", f"{CLIENTS} clients, no GPU", PODS_OF_CLIENTS, partial(by_clients, container=plain_container())),
)


def main(*kinds: str) -> None:
    """Measure loads alternately with and without the webhook, and print the tables."""
    with playground() as (site, found):
        bench = Bench(found, site)
        print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} before the first round\n")
        try:
            bench.with_webhook(LOADS[-2])  # warm caches and connections
            taken = {load: _rounds(bench, load) for load in LOADS if not kinds or load.kind in kinds}
        finally:
            bench.end()
    for show in (_show_rates, _show_calls, _show_cpu):
        show(taken)
        print()


Taken = dict[Load, list[tuple[Round, Round]]]
"""By load, its rounds with the webhook and without."""


def _rounds(bench: Bench, load: Load) -> list[tuple[Round, Round]]:
    return [(bench.with_webhook(load), bench.without_webhook(load)) for _ in range(ROUNDS)]


def _show_rates(taken: Taken) -> None:
    head = ("load", "pods a round", "with the webhook, pods/s", "without", "ratio by round", "median", "p99 with, ms")
    print(_row(*head, "without"), _row("---", *["--:"] * len(head)), sep="\n")
    for load, rounds in taken.items():
        ratios = [hooked.rate / bare.rate for hooked, bare in rounds]
        sides = list(zip(*rounds, strict=True))
        rates = [", ".join(f"{r.rate:.0f}" for r in side) for side in sides]
        each = ", ".join(f"{ratio:.2f}" for ratio in ratios)
        waits = [sorted(seconds for r in side for seconds in r.seconds) for side in sides]
        p99 = [f"{wait[len(wait) * 99 // 100] * 1000:.0f}" if wait else "" for wait in waits]
        print(_row(load.name, load.pods, *rates, each, f"{statistics.median(ratios):.2f}", *p99))


def _show_calls(taken: Taken) -> None:
    print(_row("load", "webhook", "calls", "below 5 ms", "below 25 ms", "p99"), "|---|---|--:|--:|--:|--:|", sep="\n")
    for load, rounds in taken.items():
        total: dict[str, Bounds] = {}
        for hooked, _ in rounds:
            for name, counts in hooked.calls.items():
                total.setdefault(name, Counter()).update(counts)
        for name, counts in total.items():
            calls = counts[inf]
            if not calls:
                print(_row(load.name, name, 0, "", "", ""))
                continue
            p99 = next(bound for bound, count in sorted(counts.items()) if count >= 0.99 * calls)
            shares = [f"{100 * counts[bound] / calls:.1f} %" for bound in (0.005, 0.025)]
            print(_row(load.name, name, calls, *shares, f"below {p99 * 1000:.0f} ms"))


def _show_cpu(taken: Taken) -> None:
    print(_row("load", "CPU ms per pod", *PROGRAMS, "sum"), _row("---", "---", *["--:"] * 7), sep="\n")
    for load, rounds in taken.items():
        for side, title in enumerate(("with", "without")):
            each = [statistics.median(pair[side].cpu[name] for pair in rounds) / load.pods * 1000 for name in PROGRAMS]
            print(_row(load.name, title, *(f"{ms:.1f}" for ms in (*each, sum(each)))))


def _row(*cells: object) -> str:
    return f"| {' | '.join(map(str, cells))} |"


def _calls(kubectl: Kubectl) -> dict[str, Bounds]:
    """Return the API server's own count of calls of each of our webhooks on pods."""
    line = re.compile(
        r'apiserver_admission_webhook_admission_duration_seconds_bucket\{name="(pods[^"]+\.slicekeeper\.io)",'
        r'.*le="([^"]+)"\} (\d+)'
    )
    calls: dict[str, Bounds] = {}
    for name, bound, count in line.findall(kubectl("get", "--raw", "/metrics")):
        calls.setdefault(name, Counter())[float(bound)] += int(count)
    return calls


def _cpu(found: Cluster) -> Counter[str]:
    """Return the CPU seconds that the cluster's programs, and this one as the clients, have used so far."""
    ticks: dict[int, tuple[int, int, str]] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            ticks[int(folder.name)] = int(fields[1]), int(fields[11]) + int(fields[12]), _program(folder)
        except OSError:
            continue  # it has ended
    ours = {int((found.folder / "pid").read_text())}
    while more := {pid for pid, (parent, _, _) in ticks.items() if parent in ours} - ours:
        ours |= more
    used = Counter({"clients": time.process_time()})
    for pid in ours & ticks.keys():
        used[ticks[pid][2]] += ticks[pid][1] / os.sysconf("SC_CLK_TCK")
    return used


def _program(folder: Path) -> str:
    """Return which of PROGRAMS a process counts as."""
    words = (folder / "cmdline").read_text().split("\0")
    named = [word.rpartition("/")[2] for word in words]
    if "slicekeeper" in named[:2]:
        return "webhook" if "webhook" in named else "Slicekeeper's other parts"
    return {"kube-apiserver": "API server", "etcd": "etcd"}.get(named[0], "all else of the cluster")


if __name__ == "__main__":
    main(*sys.argv[1:])
