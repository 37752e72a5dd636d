# SPDX-License-Identifier: Apache-2.0
"""etcd, an API server and kube-scheduler on loopback, without a node: nodes and pods are objects alone."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import urllib.request
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml
from cluster.harness import binaries
from cluster.harness.kubectl import Object, wait_for
from cluster.harness.pki import Authority, service_account_key
from support import chart, leftovers
from support.ports import free_port

from slicekeeper import names
from slicekeeper.config.settings import KubernetesSettings
from slicekeeper.gpu import inventory
from slicekeeper.kube.client import NAMESPACES, PODS, KubeClient

CORE, MEMORY = "tencent.com/vcuda-core", "tencent.com/vcuda-memory"
HALF: Final = {CORE: "50", MEMORY: "160"}
GPU_MIB: Final = 81_920
TEAM, HOME = "team", "slicekeeper-system"
OURS: Final = "slicekeeper-scheduler"
CLIENTS: Final = 8
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
    """etcd and an API server on loopback, and whatever runs on them; `gates` are feature gates, as in `A=true`."""

    def __init__(self, folder: Path, found: binaries.Binaries, gates: str = "") -> None:
        self._folder, self._found = folder, found
        self._gates = [f"--feature-gates={gates}"] if gates else []
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
        wait_for(lambda: answers(f"{store}/health"), "etcd")
        self.url = f"https://127.0.0.1:{port}"
        self.run(
            "kube-apiserver", self._found.kubernetes / "kube-apiserver", f"--etcd-servers={store}",
            "--bind-address=127.0.0.1", f"--secure-port={port}", f"--tls-cert-file={pki}/server.crt",
            f"--tls-private-key-file={pki}/server.key", f"--token-auth-file={self._folder}/tokens.csv",
            "--authorization-mode=RBAC", "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={key}", f"--service-account-signing-key-file={key}",
            # No controller here creates service accounts or removes the taint of new nodes.
            "--disable-admission-plugins=ServiceAccount,TaintNodesByCondition", "--profiling=false",
            *(self._gates and ["--runtime-config=api/beta=true", *self._gates]),
        )  # fmt: skip
        client = self.client()
        wait_for(lambda: is_there(client), "API server", seconds=180)
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
        wait_for(lambda: answers(f"http://{address}/readyz"), name, seconds=120)
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
        config = config or chart.kube_scheduler_config()
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
            *self._gates,
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


def metric(address: str, name: str, label: str) -> int:
    """Return the sum of an extender's metrics of a name that have a label, such as `kind="bound"`."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(f"http://{address}/metrics", timeout=60) as answer:
        lines = answer.read().decode().splitlines()
    return sum(int(float(line.split()[-1])) for line in lines if line.startswith(f"{name}{{") and label in line)


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


@contextlib.contextmanager
def control_plane(gates: str = "") -> Iterator[ControlPlane]:
    """Run one, in a folder that goes with it."""
    with leftovers.folder("control-plane") as folder:
        made = ControlPlane(folder, binaries.ensure(), gates)
        try:
            made.start()
            yield made
        finally:
            made.stop()
