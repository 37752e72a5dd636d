# SPDX-License-Identifier: Apache-2.0
"""A controller that looks when a test says so, against the simulator's API server over HTTP."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.manual_clock import ManualClock
from support.small_cluster import api_served

from simulator.api import Api
from simulator.cluster import Cluster
from slicekeeper import names
from slicekeeper.config.policy_file import PolicyFile
from slicekeeper.config.settings import PolicySettings, Settings
from slicekeeper.gpu import inventory
from slicekeeper.kube.client import NAMESPACES, NODES, PODS, KubeClient, Object
from slicekeeper.units import format_instant, format_seconds
from timekeeper.cluster.reconcile_loop import Controller
from timekeeper.ledger.books import Books
from timekeeper.store import workloads
from timekeeper.store.db.database import Database
from timekeeper.store.db.engine import make_engine
from timekeeper.store.db.models import WorkloadRow

T0 = 1_767_225_600_000
GPU = inventory.Gpu(uuid="GPU-1", model="A100", memory_mib=40960)


@dataclass
class Stage:
    """What a controller is made of, and short words for what tests do to pods."""

    clock: ManualClock
    kube: KubeClient
    cluster: Cluster
    books: Books
    controller: Controller
    settings: Settings
    policy: PolicyFile

    def set_policy(self, **policy: str) -> None:
        """Change the policy of all namespaces, as it is read from its file."""
        told = ", ".join(f'{key}: "{value}"' for key, value in policy.items())
        Path(self.settings.policy.file).write_text(
            f"default: {{budget: {{amount: 10s, period: none}}{', ' * bool(told)}{told}}}"
        )
        self.policy.refresh()

    def restart(self) -> None:
        """Have another process take over, which has remembered nothing."""
        self.controller.stop()
        self.policy = PolicyFile(self.settings.policy)
        self.controller = Controller(self.settings, self.clock, self.kube, self.books, self.policy)
        self.controller.namespaces.on_list(self.kube.list(NAMESPACES)[0])

    def create(
        self,
        name: str = "a",
        *,
        bound: bool = True,
        core: str = "50",
        plain: bool = False,
        limits: dict[str, str] | None = None,
    ) -> Object:
        limits = limits or {"tencent.com/vcuda-core": core, "tencent.com/vcuda-memory": "16"}
        annotations = {names.gpu_annotation("main"): GPU.uuid, names.BOUND_AT: format_instant(self.clock.now_ms())}
        pod: Object = {
            "metadata": {
                "name": name,
                "namespace": "team",
                "finalizers": [names.FINALIZER],
                "labels": {names.MANAGED_LABEL: "true"},
                "annotations": annotations if bound else {},
            },
            "spec": {"restartPolicy": "Never", "containers": [{"name": "main", "resources": {"limits": limits}}]},
            "status": {"phase": "Running" if bound else "Pending"},
        }
        if bound:
            pod["spec"]["nodeName"] = "n"
        if plain:
            pod["spec"]["containers"].append({"name": "plain"})
        return self.cluster.store.create(PODS, pod, "team")

    def write(self, name: str, **status: Any) -> None:
        def change(pod: Object) -> Object:
            pod["status"] |= status
            return pod

        self.cluster.store.update(PODS, name, "team", change, subresource="status")

    def end(self, name: str, at: int) -> None:
        ended = {"name": "main", "state": {"terminated": {"exitCode": 0, "finishedAt": format_seconds(at)}}}
        self.write(name, phase="Succeeded", containerStatuses=[ended])

    def end_each(self, name: str, phase: str, **ends: int | None) -> None:
        """Write containers' ends; None: it runs."""
        ended = {of: {"terminated": {"exitCode": 0, "finishedAt": format_seconds(at)}} for of, at in ends.items() if at}
        states = [{"name": container, "state": ended.get(container, {"running": {}})} for container in ends]
        self.write(name, phase=phase, containerStatuses=states)

    def finalizers(self, name: str = "a") -> list[str]:
        found: list[str] = self.kube.get(PODS, name, "team")["metadata"]["finalizers"]
        return found

    def state(self, name: str) -> str:
        found: str = self.kube.get(PODS, name, "team")["metadata"]["annotations"].get(names.BUDGET_STATE, "")
        return found

    def look(self, *, fresh: bool = True) -> None:
        """Look once, after what a watch would have brought."""
        if fresh:
            self.controller.pods.on_list(self.kube.list(PODS)[0])
        self.controller.look()

    def workload(self, uid: str) -> WorkloadRow:
        with self.books.database.reading() as session:
            return workloads.by_uid(session, [uid])[uid]

    def known(self) -> int:
        with self.books.database.reading() as session:
            return len(workloads.page(session, "default", None, None, 100))


@contextmanager
def staged(folder: Path, database_url: str) -> Iterator[Stage]:
    """Give a stage with the namespace `team` and a node with one GPU."""
    clock = ManualClock(T0)
    cluster = Cluster(clock)
    policy = folder / "policy.yaml"
    policy.write_text("default: {budget: {amount: 10s, period: none}}")
    with api_served(Api(cluster)) as (reached, kube):
        settings = Settings(kubernetes=reached, policy=PolicySettings(file=str(policy), exempt_namespaces=()))
        kube.create(NAMESPACES, {"metadata": {"name": "team"}})
        kube.create(NODES, {"metadata": {"name": "n", "annotations": {names.NODE_GPUS: inventory.encode([GPU])}}})
        database, file = Database(make_engine(database_url)), PolicyFile(settings.policy)
        books = Books(database, "default", carry=False)
        stage = Stage(clock, kube, cluster, books, Controller(settings, clock, kube, books, file), settings, file)
        stage.controller.namespaces.on_list(kube.list(NAMESPACES)[0])
        yield stage
        stage.controller.stop()
        database.close()
