# SPDX-License-Identifier: Apache-2.0
"""What the extender costs a real kube-scheduler: pods per second with it and without it, in the same run.

    PYTHONPATH=tests .venv/bin/python -m cluster.harness.scheduling [--nodes 1000] [--pods 2000] [--rounds 3]

etcd, the API server and kube-scheduler are real and listen on loopback; the nodes are objects alone, one GPU each, and
no kubelet runs. The pods of a burst ask for half a GPU each, so that 2,000 of them fill 1,000 nodes to the last place:
one that stays behind although it fits would be seen. All pods are there before kube-scheduler starts. The rate is that
of the binds, from the first one to the last one, as a watch shows them.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml
from cluster.harness import binaries
from cluster.harness.install import ROOT
from cluster.harness.kubectl import Kubectl, Object, wait_for
from cluster.harness.pki import Authority, service_account_key
from support.ports import free_port

from slicekeeper import names
from slicekeeper.config.settings import KubernetesSettings
from slicekeeper.gpu import inventory
from slicekeeper.kube.client import NAMESPACES, NODES, PODS, KubeClient

CORE, MEMORY = "tencent.com/vcuda-core", "tencent.com/vcuda-memory"
HALF: Final = {CORE: "50", MEMORY: "160"}
GPU_MIB: Final = 81_920
TEAM, HOME = "team", "slicekeeper-system"
OURS: Final = "slicekeeper-scheduler"
CLIENTS: Final = 8
PROGRAMS: Final = ("extender", "kube-scheduler", "kube-apiserver", "etcd")
SECONDS: Final = 600.0
"""The longest that a burst may take; what is not bound then stays behind."""

QUERIES_PER_SECOND: Final = 5000
"""Of kube-scheduler's own client, so that not its default of 50 is measured."""


@dataclass(frozen=True)
class Program:
    """One that runs, and where it listens."""

    process: subprocess.Popen[bytes]
    address: str = ""

    def send(self, number: signal.Signals) -> None:
        """Send a signal to it and its children."""
        os.killpg(self.process.pid, number)


class ControlPlane:
    """etcd and an API server on loopback, and whatever runs on them."""

    def __init__(self, folder: Path, found: binaries.Binaries) -> None:
        self._folder, self._found = folder, found
        self._running: list[tuple[str, subprocess.Popen[bytes]]] = []
        self._pki = Authority(folder / "pki")
        self._pki.issue("server", user="kube-apiserver", hosts=("127.0.0.1",))
        (folder / "token").write_text("bench")
        (folder / "tokens.csv").write_text("bench,bench,bench,system:masters\n")
        self.url = ""
        self.kubeconfig = folder / "kubeconfig"

    def start(self) -> None:
        """Start both and wait until they answer."""
        etcd, peer, port = free_port(), free_port(), free_port()
        pki, key = self._pki.folder, service_account_key(self._pki.folder)
        store, other = f"http://127.0.0.1:{etcd}", f"http://127.0.0.1:{peer}"
        self.run(
            "etcd", self._found.etcd, "--data-dir", self._folder / "etcd", "--unsafe-no-fsync",
            "--listen-client-urls", store, "--advertise-client-urls", store, "--listen-peer-urls", other,
            "--initial-advertise-peer-urls", other, "--initial-cluster", f"default={other}",
        )  # fmt: skip
        wait_for("etcd", lambda: answers(f"{store}/health"))
        self.url = f"https://127.0.0.1:{port}"
        self.run(
            "kube-apiserver", self._found.kubernetes / "kube-apiserver", f"--etcd-servers={store}",
            "--bind-address=127.0.0.1", f"--secure-port={port}", f"--tls-cert-file={pki}/server.crt",
            f"--tls-private-key-file={pki}/server.key", f"--token-auth-file={self._folder}/tokens.csv",
            "--authorization-mode=RBAC", "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={key}", f"--service-account-signing-key-file={key}",
            # No controller here creates service accounts or removes the taint of new nodes.
            "--disable-admission-plugins=ServiceAccount,TaintNodesByCondition", "--profiling=false",
        )  # fmt: skip
        client = self.client()
        wait_for("API server", lambda: is_there(client), seconds=180)
        cluster = {"server": self.url, "certificate-authority": str(self._pki.ca_file)}
        self.kubeconfig.write_text(
            yaml.safe_dump(
                {
                    "apiVersion": "v1",
                    "kind": "Config",
                    "current-context": "bench",
                    "clusters": [{"name": "bench", "cluster": cluster}],
                    "users": [{"name": "bench", "user": {"token": "bench"}}],
                    "contexts": [{"name": "bench", "context": {"cluster": "bench", "user": "bench"}}],
                }
            )
        )

    def client(self) -> KubeClient:
        """Return a client that may do all."""
        ca, token = str(self._pki.ca_file), f"{self._folder}/token"
        return KubeClient(KubernetesSettings(server=self.url, ca_file=ca, token_file=token))

    def extender(self, name: str = "extender", address: str = "", **more: Any) -> Program:
        """Start our scheduler's extender, with more settings of its section; it listens at its `address`."""
        address = address or f"127.0.0.1:{free_port()}"
        settings = {
            "kubernetes": {"server": self.url, "caFile": str(self._pki.ca_file), "tokenFile": f"{self._folder}/token"},
            "scheduler": {"bind": address, "metricsBind": "", **more},
            "log": {"level": "warning"},
        }
        file = self._folder / f"{name}.yaml"
        file.write_text(yaml.safe_dump(settings))
        main = "from slicekeeper.cli.main import main; main()"
        process = self.run(name, sys.executable, "-c", main, "--config", file, "scheduler", "serve")
        wait_for(name, lambda: answers(f"http://{address}/readyz"), seconds=120)
        return Program(process, address)

    def kube_scheduler(
        self,
        extender: Program | None,
        name: str = "kube-scheduler",
        config: Object | None = None,
        leads: Object | None = None,
    ) -> Program:
        """Start kube-scheduler as it is installed, with an extender or with none.

        Without `leads`, more settings of its leader election, it always leads.
        """
        config = config or yaml.safe_load((ROOT / "manifests/base/config/kube-scheduler.yaml").read_text())
        config["leaderElection"] = {**config["leaderElection"], **leads} if leads else {"leaderElect": False}
        config["clientConnection"] = {
            "kubeconfig": str(self.kubeconfig),
            "qps": QUERIES_PER_SECOND,
            "burst": QUERIES_PER_SECOND,
        }
        if extender is None:
            del config["extenders"]
        else:
            config["extenders"][0]["urlPrefix"] = f"http://{extender.address}"
        file = self._folder / f"{name}.yaml"
        file.write_text(yaml.safe_dump(config))
        process = self.run(
            name,
            self._found.kubernetes / "kube-scheduler",
            f"--config={file}",
            "--bind-address=127.0.0.1",
            f"--secure-port={free_port()}",
            "--authentication-skip-lookup=true",
        )
        return Program(process)

    def run(self, name: str, *command: object) -> subprocess.Popen[bytes]:
        """Start a program; its output goes to a log in the folder."""
        with (self._folder / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                list(map(str, command)), stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        self._running.append((name, process))
        return process

    def cpu(self) -> Counter[str]:
        """Return the CPU seconds that each program has used so far, with its children."""
        used = Counter[str]()
        groups = {process.pid: name for name, process in self._running}
        for stat in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):  # it has ended
                fields = stat.read_text().rpartition(")")[2].split()
                if name := groups.get(int(fields[2])):
                    used[name] += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        return used

    def stop(self, *, but: int = 0) -> None:
        """End what was started, last first, but the first few."""
        while len(self._running) > but:
            _, process = self._running.pop()
            if process.poll() is not None:
                continue  # a test has killed it
            os.killpg(process.pid, signal.SIGTERM)
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def answers(url: str) -> bool:
    """Return whether a server answers that it is well."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def is_there(client: KubeClient) -> bool:
    """Return whether the API server takes requests."""
    try:
        client.get(NAMESPACES, "default")
    except Exception:
        return False
    return True


def node(name: str) -> Object:
    """Return a node with one GPU, as the node agent publishes it."""
    gpus = [inventory.Gpu(f"GPU-{name}", "NVIDIA A100-SXM4-80GB", GPU_MIB)]
    size = {"cpu": "96", "memory": "384Gi", "pods": "110", CORE: "100", MEMORY: str(GPU_MIB // 256)}
    return {
        "metadata": {"name": name, "annotations": {names.NODE_GPUS: inventory.encode(gpus)}},
        "status": {
            "capacity": size,
            "allocatable": size,
            "conditions": [{"type": "Ready", "status": "True", "reason": "Bench", "message": ""}],
        },
    }


def pod(name: str) -> Object:
    """Return a pod as the webhook leaves it: half a GPU, and a container of about the size that real ones have."""
    requests = {"cpu": "4", "memory": "16Gi"}
    return {
        "metadata": {
            "name": name,
            "labels": {names.MANAGED_LABEL: names.MANAGED_VALUE},
            "annotations": {names.BUDGET_STATE: names.IN_BUDGET},
        },
        "spec": {
            "schedulerName": OURS,
            "containers": [
                {
                    "name": "main",
                    "image": "registry.example/train:1.0",
                    "command": ["python", "train.py"],
                    "env": [{"name": f"OPTION_{i}", "value": "x" * 40} for i in range(20)],
                    "resources": {"limits": HALF, "requests": {**requests, **HALF}},
                }
            ],
        },
    }


def each(client: KubeClient, work: list[Object], namespace: str) -> None:
    """Create pods from several threads."""
    with ThreadPoolExecutor(CLIENTS) as pool:
        list(pool.map(lambda one: client.create(PODS, one, namespace), work))


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
    wait_for("end of the pods", lambda: not client.list(PODS, namespace=TEAM)[0])
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


@contextlib.contextmanager
def control_plane() -> Iterator[ControlPlane]:
    """Run one, in a folder that goes with it."""
    with tempfile.TemporaryDirectory() as folder:
        made = ControlPlane(Path(folder), binaries.ensure())
        try:
            made.start()
            yield made
        finally:
            made.stop()


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
