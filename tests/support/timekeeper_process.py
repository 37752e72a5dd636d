# SPDX-License-Identifier: Apache-2.0
"""A timekeeper's server as a process of its own over a simulated API server, and what its ledger must come to."""

from __future__ import annotations

import json
import os
import signal
import ssl
import subprocess
import sys
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

from support.ports import free_port

from simulator import certificates
from simulator.api import Api, ApiServer
from simulator.cluster import Cluster
from slicekeeper import names
from slicekeeper.clock import Clock
from slicekeeper.config.settings import KubernetesSettings
from slicekeeper.gpu import inventory
from slicekeeper.kube.client import NAMESPACES, NODES, PODS, KubeClient, Object
from slicekeeper.units import format_instant, format_seconds, parse_instant

GPU = inventory.Gpu(uuid="GPU-1", model="A100", memory_mib=40960)
HALF = {"tencent.com/vcuda-core": "50", "tencent.com/vcuda-memory": "15"}
PATIENCE = 120.0
COMMAND = Path(sys.executable).with_name("slicekeeper")
POLICY = """
default: {budget: {amount: 10h, period: none}}
namespaces:
  - {match: poor, budget: {amount: 2s}}
  - {match: watched, mode: observe, budget: {amount: 1s}}
"""


@dataclass
class Site:
    """A simulated API server, and a timekeeper's process beside it."""

    folder: Path
    kube: KubeClient
    cluster: Cluster
    url: str
    trust: ssl.SSLContext
    config: Path
    process: subprocess.Popen[bytes] | None = None
    pods: dict[str, Object] = field(default_factory=dict)

    def start(self) -> None:
        """Start the server; PostgreSQL knows its sessions by the server's URL."""
        command = [str(COMMAND), "--config", str(self.config), "timekeeper", "serve"]
        env = {**os.environ, "PGAPPNAME": self.url}
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, env=env, start_new_session=True)

    def twin(self) -> Site:
        """Return another server on the same database and cluster, not started."""
        port = free_port()
        settings = json.loads(self.config.read_text())
        settings["timekeeper"]["bind"] = f"127.0.0.1:{port}"
        config = self.folder / f"{port}.yaml"
        config.write_text(json.dumps(settings))
        return replace(self, url=f"https://127.0.0.1:{port}", config=config, process=None)

    def kill(self) -> None:
        """End the server, its worker included, with no chance to tidy up."""
        if self.process is not None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            self.process = None

    def end(self) -> None:
        """End the server as kubelet does, and wait until it has gone."""
        assert self.process is not None
        self.process.terminate()
        self.process.wait(timeout=PATIENCE)
        self.process = None

    def get(self, path: str) -> Any:
        request = urllib.request.Request(self.url + path, headers={"Authorization": "Bearer secret"})
        with urllib.request.urlopen(request, timeout=PATIENCE, context=self.trust) as answer:
            return json.load(answer)

    def post(self, path: str, body: Any, key: str, token: str = "secret") -> int:
        """Send a body under an Idempotency-Key; return the status."""
        headers = {"Authorization": f"Bearer {token}", "Idempotency-Key": key, "Content-Type": "application/json"}
        request = urllib.request.Request(self.url + path, json.dumps(body).encode(), headers)
        with urllib.request.urlopen(request, timeout=PATIENCE, context=self.trust) as answer:
            return int(answer.status)

    def ready(self) -> bool:
        try:
            return self.get("/readyz")["status"] == "ok"
        except (urllib.error.URLError, OSError):
            return False

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [str(COMMAND), "--config", str(self.config), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    # The cluster's side

    def create(self, name: str, namespace: str, *, bind: bool = True, more: dict[str, str] | None = None) -> None:
        metadata: Object = {
            "name": name,
            "namespace": namespace,
            "finalizers": ["example.com/keeps", names.FINALIZER],
            "labels": {names.MANAGED_LABEL: names.MANAGED_VALUE},
            "annotations": {names.BUDGET_STATE: names.IN_BUDGET, **(more or {})},
        }
        containers = [{"name": "main", "image": "x", "resources": {"limits": dict(HALF)}}]
        self.kube.create(
            PODS, {"metadata": metadata, "spec": {"restartPolicy": "Never", "containers": containers}}, namespace
        )
        if bind:
            annotations = {
                names.gpu_annotation("main"): GPU.uuid,
                names.BOUND_AT: format_instant(self.cluster.clock.now_ms()),
            }
            binding: Object = {
                "metadata": {"name": name, "annotations": annotations},
                "target": {"kind": "Node", "name": "n"},
            }
            self.kube.create(PODS, binding, namespace, name=name, subresource="binding")

    def finish(self, name: str, namespace: str) -> None:
        def end(pod: Object) -> Object:
            done = {"terminated": {"exitCode": 0, "finishedAt": format_seconds(self.cluster.clock.now_ms())}}
            pod["status"] |= {"phase": "Succeeded", "containerStatuses": [{"name": "main", "state": done}]}
            return pod

        self.cluster.store.update(PODS, name, namespace, end, subresource="status")

    def let_go(self) -> None:
        """Take the other finalizer off, so that pods under deletion go."""
        for pod in self.all():
            rest = [f for f in pod["metadata"].get("finalizers") or [] if f != "example.com/keeps"]
            self.kube.patch(
                PODS, pod["metadata"]["name"], {"metadata": {"finalizers": rest}}, pod["metadata"]["namespace"]
            )

    def all(self) -> list[Object]:
        pods = self.kube.list(PODS)[0]
        for pod in pods:
            self.pods[pod["metadata"]["uid"]] = pod
        return pods

    def state_of(self, name: str, namespace: str) -> str:
        return str(self.kube.get(PODS, name, namespace)["metadata"]["annotations"][names.BUDGET_STATE])

    def paid(self, name: str, namespace: str) -> bool:
        return names.FINALIZER not in self.kube.get(PODS, name, namespace)["metadata"]["finalizers"]


@contextmanager
def process_site(tmp_path: Path, database_url: str) -> Iterator[Site]:
    """Give a cluster with the namespaces rich, poor and watched, and a server on the database that is not started."""
    clock = Clock()
    cluster = Cluster(clock)
    server = ApiServer(Api(cluster))
    server.start()
    port = free_port()
    (tmp_path / "token").write_text("secret")
    (tmp_path / "policy.yaml").write_text(POLICY)
    url = f"https://127.0.0.1:{port}"
    tls = certificates.make(tmp_path / "tls", clock.now_ms())
    config = tmp_path / "config.yaml"
    settings = {
        "kubernetes": {"server": server.url},
        "policy": {"file": str(tmp_path / "policy.yaml"), "reloadSeconds": 0.2},
        "timekeeper": {
            "bind": f"127.0.0.1:{port}",
            "database": database_url,
            "operatorTokenFile": str(tmp_path / "token"),
            "tls": {"certificateFile": str(tls.certificate), "keyFile": str(tls.key)},
        },
        "timekeeperClient": {
            "url": url,
            "caFile": str(tls.ca),
            "tokenFile": str(tmp_path / "token"),
            "timeoutSeconds": PATIENCE,
        },
    }
    config.write_text(json.dumps(settings))
    kube = KubeClient(KubernetesSettings(server=server.url))
    for namespace in ("rich", "poor", "watched"):
        kube.create(NAMESPACES, {"metadata": {"name": namespace}})
    kube.create(NODES, {"metadata": {"name": "n", "annotations": {names.NODE_GPUS: inventory.encode([GPU])}}})
    site = Site(tmp_path, kube, cluster, url, ssl.create_default_context(cafile=str(tls.ca)), config)
    try:
        yield site
    finally:
        site.kill()
        kube.close()
        server.stop()
        if os.environ.get("SHOW_LOG"):
            print((tmp_path / "log").read_text())


def oracle(pods: list[Object], budget_ms: int) -> dict[str, tuple[int, int]]:
    """Return by pod's name what is charged to the budget and over it, walking through the milliseconds."""
    spans = {}
    for pod in pods:
        bound = pod["metadata"]["annotations"].get(names.BOUND_AT)
        if bound is None:
            continue
        (status,) = pod["status"]["containerStatuses"]
        start, end = parse_instant(bound), parse_instant(status["state"]["terminated"]["finishedAt"])
        rate = Fraction(1, 2) * (Fraction(1, 2) if names.GPU_CLASS in pod["metadata"]["annotations"] else 1)
        spans[pod["metadata"]["name"]] = (start, max(start, end), rate)
    charged: Counter[str] = Counter()
    over: Counter[str] = Counter()
    left, exhausted = budget_ms, False
    for t in range(
        min((s for s, _, _ in spans.values()), default=0), max((e for _, e, _ in spans.values()), default=0)
    ):
        steps = {
            name: int(rate * (t + 1 - start) + Fraction(1, 2)) - int(rate * (t - start) + Fraction(1, 2))
            for name, (start, end, rate) in spans.items()
            if start <= t < end
        }
        exhausted = exhausted or sum(steps.values()) > left or not left
        (over if exhausted else charged).update(steps)
        left -= 0 if exhausted else sum(steps.values())
    return {name: (charged[name], over[name]) for name in spans}
