# SPDX-License-Identifier: Apache-2.0
"""The server as a process of its own, killed again and again, against an oracle that knows only the pods' records."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from simulator import certificates
from simulator.api import Api, ApiServer
from simulator.cluster import Cluster
from slicekeeper import inventory, names
from slicekeeper.clock import SystemClock
from slicekeeper.kube.client import EVENTS, NAMESPACES, NODES, PODS, KubeClient, Object
from slicekeeper.settings import KubernetesSettings
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
        command = [str(COMMAND), "--config", str(self.config), "timekeeper", "serve"]
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)

    def kill(self) -> None:
        """End the server, its worker included, with no chance to tidy up."""
        if self.process is not None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()

    def get(self, path: str) -> Any:
        request = urllib.request.Request(self.url + path, headers={"Authorization": "Bearer secret"})
        with urllib.request.urlopen(request, timeout=30, context=self.trust) as answer:
            return json.load(answer)

    def post(self, path: str, body: Any, key: str) -> Any:
        headers = {"Authorization": "Bearer secret", "Idempotency-Key": key, "Content-Type": "application/json"}
        request = urllib.request.Request(self.url + path, json.dumps(body).encode(), headers)
        with urllib.request.urlopen(request, timeout=30, context=self.trust) as answer:
            return json.load(answer)

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
            "name": name, "namespace": namespace, "finalizers": ["example.com/keeps", names.FINALIZER],
            "labels": {names.MANAGED_LABEL: names.MANAGED_VALUE},
            "annotations": {names.BUDGET_STATE: names.IN_BUDGET, **(more or {})},
        }  # fmt: skip
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


@pytest.fixture
def site(tmp_path: Path, database_url: str) -> Iterator[Site]:
    clock = SystemClock()
    cluster = Cluster(clock)
    server = ApiServer(Api(cluster))
    server.start()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    (tmp_path / "token").write_text("secret")
    (tmp_path / "policy.yaml").write_text(POLICY)
    url = f"https://127.0.0.1:{port}"
    tls = certificates.make(tmp_path / "tls", clock.now_ms())
    config = tmp_path / "config.yaml"
    settings = {
        "kubernetes": {"server": server.url},
        "policy": {"file": str(tmp_path / "policy.yaml"), "reloadSeconds": 0.2},
        "timekeeper": {
            "bind": f"127.0.0.1:{port}", "database": database_url,
            "operatorTokenFile": str(tmp_path / "token"),
            "tls": {"certificateFile": str(tls.certificate), "keyFile": str(tls.key)},
        },
        "timekeeperClient": {"url": url, "caFile": str(tls.ca), "tokenFile": str(tmp_path / "token")},
    }  # fmt: skip
    config.write_text(json.dumps(settings))
    kube = KubeClient(KubernetesSettings(server=server.url))
    for namespace in ("rich", "poor", "watched"):
        kube.create(NAMESPACES, {"metadata": {"name": namespace}})
    kube.create(NODES, {"metadata": {"name": "n", "annotations": {names.NODE_GPUS: inventory.encode([GPU])}}})
    site = Site(tmp_path, kube, cluster, url, ssl.create_default_context(cafile=str(tls.ca)), config)
    yield site
    site.kill()
    kube.close()
    server.stop()
    if os.environ.get("SHOW_LOG"):
        print((tmp_path / "log").read_text())


def until(true: Any, what: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while not true():
        assert time.monotonic() < deadline, f"waited in vain until {what}"
        time.sleep(0.05)


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
    for t in range(min(s for s, _, _ in spans.values()), max(e for _, e, _ in spans.values())):
        steps = {
            name: int(rate * (t + 1 - start) + Fraction(1, 2)) - int(rate * (t - start) + Fraction(1, 2))
            for name, (start, end, rate) in spans.items()
            if start <= t < end
        }
        exhausted = exhausted or sum(steps.values()) > left or not left
        (over if exhausted else charged).update(steps)
        left -= 0 if exhausted else sum(steps.values())
    return {name: (charged[name], over[name]) for name in spans}


def test_killed_at_any_moment_the_ledger_is_what_the_pods_records_say(site: Site) -> None:
    chance = random.Random(7)
    site.start()
    until(site.ready, "the server is ready")
    alive: list[tuple[str, str]] = []
    for step in range(40):
        namespace = ("rich", "poor")[step % 2]
        if step < 24:
            more = {names.GPU_CLASS: names.BACKGROUND} if step % 5 == 0 else None
            bind = step not in (6, 13)
            site.create(f"pod-{step}", namespace, bind=bind, more=more)
            alive.append((f"pod-{step}", namespace))
        for pod in list(alive):
            if chance.random() < 0.15:
                alive.remove(pod)
                if chance.random() < 0.5:
                    site.kube.delete(PODS, *pod)
                site.finish(*pod)
        site.all()
        time.sleep(chance.uniform(0.02, 0.25))
        if step % 6 == 3:
            site.kill()
            time.sleep(chance.uniform(0.0, 0.3))
            site.start()
            time.sleep(chance.uniform(0.0, 1.8))
    for pod in alive:
        site.finish(*pod)
    until(site.ready, "the server is ready")
    until(
        lambda: all(names.FINALIZER not in (p["metadata"].get("finalizers") or []) for p in site.all()), "all are paid"
    )
    records = list(site.pods.values())
    assert len(records) == 24
    found = {w["podName"]: w for w in site.get("/api/v1/workloads?limit=500")["items"]}
    for namespace, budget in (("rich", 36_000_000), ("poor", 2_000)):
        wanted = oracle([p for p in records if p["metadata"]["namespace"] == namespace], budget)
        mine = {n: (w["chargedMs"], w["overBudgetMs"]) for n, w in found.items() if w["namespace"] == namespace}
        assert mine == wanted
        assert all(found[name]["state"] == "closed" for name in wanted)
    assert sum(over for _, over in oracle([p for p in records if p["metadata"]["namespace"] == "poor"], 2_000).values())
    assert "pod-6" not in found  # never bound: nothing is owed, and its finalizer went too
    verified = site.run("timekeeper", "verify", "-o", "json")
    assert verified.returncode == 0, verified.stdout
    assert json.loads(verified.stdout)["differences"] == []
    site.let_go()


def test_states_flip_when_a_budget_runs_out_and_back_with_a_grant_or_a_new_policy(site: Site) -> None:
    site.start()
    until(site.ready, "the server is ready")
    site.create("a", "poor")
    site.create("b", "rich")
    site.create("c", "watched")
    until(lambda: site.state_of("a", "poor") == names.OVER_BUDGET, "poor has run out")
    decision = site.get("/api/v1/decisions/poor")
    bound = parse_instant(site.kube.get(PODS, "a", "poor")["metadata"]["annotations"][names.BOUND_AT])
    assert decision["since"] == format_instant(bound + 2 * 2_000 - 1)  # half a GPU, rounded half up
    assert decision["priorityClassName"] == "gpu-lower-priority"
    assert site.run("budget", "grant", "poor", "1h", "--reason", "a test").returncode == 0
    until(lambda: site.state_of("a", "poor") == names.IN_BUDGET, "the grant has come")
    until(lambda: site.get("/api/v1/decisions/watched")["state"] == "exhausted", "watched has run out")
    assert site.state_of("c", "watched") == names.IN_BUDGET
    assert site.state_of("b", "rich") == names.IN_BUDGET
    (site.folder / "policy.yaml").write_text("default: {budget: {amount: 1ms, period: none}}")
    until(lambda: site.state_of("b", "rich") == names.OVER_BUDGET, "the new policy holds")
    until(lambda: site.state_of("c", "watched") == names.OVER_BUDGET, "watched is enforced now")
    told = {(e["involvedObject"]["name"], e["reason"]) for e in site.kube.list(EVENTS)[0]}
    assert {("a", "BudgetExhausted"), ("a", "BudgetAvailable"), ("b", "BudgetExhausted")} <= told
    assert len(site.all()) == 3


def test_deleted_pods_wait_until_they_are_paid_and_foreign_finalizers_stay(site: Site) -> None:
    site.create("a", "rich")
    site.kube.delete(PODS, "a", "rich")
    site.finish("a", "rich")
    time.sleep(0.3)
    assert not site.paid("a", "rich")  # nobody is there to be paid
    site.start()
    until(lambda: site.paid("a", "rich"), "a is paid")
    assert site.kube.get(PODS, "a", "rich")["metadata"]["finalizers"] == ["example.com/keeps"]
    site.create("never-bound", "rich", bind=False)
    site.kube.delete(PODS, "never-bound", "rich")
    until(lambda: site.paid("never-bound", "rich"), "the pod that never held anything goes")
    (site.folder / "policy.yaml").write_text("default: {mode: 'off', budget: {amount: 7ms}}")
    until(lambda: site.get("/api/v1/budgets/never-seen")["amountMs"] == 7, "the new policy holds")
    site.create("b", "rich")
    site.finish("b", "rich")
    until(lambda: site.paid("b", "rich"), "the pod that nobody meters goes")
    workloads = {w["podName"]: w for w in site.get("/api/v1/workloads")["items"]}
    assert list(workloads) == ["a"]
    assert workloads["a"]["flags"] == ["unobserved"]


def test_a_pod_that_vanishes_without_our_finalizer_is_closed_and_flagged(site: Site) -> None:
    site.start()
    until(site.ready, "the server is ready")
    site.create("a", "rich")
    until(lambda: site.get("/api/v1/workloads")["items"], "a is known")
    site.kill()
    site.kube.patch(PODS, "a", {"metadata": {"finalizers": None}}, "rich")
    site.cluster.store.delete(PODS, "a", "rich", grace=0)
    site.start()
    until(lambda: site.ready() and site.get("/api/v1/workloads")["items"][0]["state"] == "closed", "a is closed")
    (workload,) = site.get("/api/v1/workloads")["items"]
    assert "end-last-confirmed" in workload["flags"]
    assert site.run("timekeeper", "verify").returncode == 0


def test_two_replicas_on_postgresql_are_killed_in_turn(site: Site, database_url: str) -> None:
    if not database_url.startswith("postgresql"):
        pytest.skip("SQLite has one process")
    assert site.run("timekeeper", "migrate").returncode == 0
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    settings = json.loads(site.config.read_text())
    settings["timekeeper"]["bind"] = f"127.0.0.1:{port}"
    config = site.folder / "second.yaml"
    config.write_text(json.dumps(settings))
    second = replace(site, url=f"https://127.0.0.1:{port}", config=config, process=None)
    both = (site, second)
    try:
        for one in both:
            one.start()
        until(lambda: all(one.ready() for one in both), "both are ready")
        for step in range(12):
            dying, other = both[step % 2], both[1 - step % 2]
            site.create(f"pod-{step}", ("rich", "poor")[step % 2])
            dying.kill()
            grant = {"amountMs": 1, "reason": "while one is away"}
            for _ in range(2):  # once, whoever is asked
                other.post("/api/v1/budgets/watched/grants", grant, f"key-{step}")
            site.all()
            dying.start()
            until(dying.ready, "the killed one is back")
            dying.post("/api/v1/budgets/watched/grants", grant, f"key-{step}")
            if step % 3 == 2:
                site.finish(f"pod-{step}", ("rich", "poor")[step % 2])
        for step in range(12):
            if step % 3 != 2:
                site.finish(f"pod-{step}", ("rich", "poor")[step % 2])
        until(lambda: all(names.FINALIZER not in p["metadata"]["finalizers"] for p in site.all()), "all are paid")
        found = {w["podName"]: w for w in second.get("/api/v1/workloads?limit=500")["items"]}
        for namespace, budget in (("rich", 36_000_000), ("poor", 2_000)):
            wanted = oracle([p for p in site.pods.values() if p["metadata"]["namespace"] == namespace], budget)
            mine = {n: (w["chargedMs"], w["overBudgetMs"]) for n, w in found.items() if w["namespace"] == namespace}
            assert mine == wanted
        assert site.get("/api/v1/budgets/watched")["grantedMs"] == 12
        assert site.run("timekeeper", "verify").returncode == 0
    finally:
        second.kill()
        site.let_go()
