# SPDX-License-Identifier: Apache-2.0
"""Two controllers that both believe they lead, clocks that differ by an hour, a watch that repeats and disorders."""

from __future__ import annotations

import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from support import charge_oracle
from support.manual_clock import ManualClock

from simulator.api import Api, ApiServer
from simulator.cluster import Cluster
from slicekeeper import names
from slicekeeper.clock import CLOCK_SKEW_MS
from slicekeeper.config.policy_file import PolicyFile
from slicekeeper.config.settings import KubernetesSettings, PolicySettings, Settings
from slicekeeper.gpu import inventory
from slicekeeper.kube.client import NAMESPACES, NODES, PODS, KubeClient, Object
from slicekeeper.units import format_instant, format_seconds
from timekeeper.cluster.reconcile_loop import Controller
from timekeeper.ledger.books import Books
from timekeeper.ledger.verify import verify
from timekeeper.store import bookings, workloads
from timekeeper.store.db.database import Database
from timekeeper.store.db.engine import make_engine

T0 = 1_767_225_600_000
HOUR, AMOUNT = 3_600_000, 40_000
GPU = inventory.Gpu(uuid="GPU-1", model="A100", memory_mib=40960)
SKEWS = (0, HOUR, -HOUR)


class Stage:
    """An API server, and two timekeepers on one database."""

    def __init__(self, folder: Path, url: str) -> None:
        self.clock = ManualClock(T0)
        self.cluster = Cluster(self.clock)
        self.server = ApiServer(Api(self.cluster))
        self.server.start()
        policy = folder / "policy.yaml"
        policy.write_text(f"default: {{budget: {{amount: {AMOUNT}ms, period: none}}}}")
        settings = Settings(
            kubernetes=KubernetesSettings(server=self.server.url),
            policy=PolicySettings(file=str(policy), exempt_namespaces=()),
        )
        self.kube = KubeClient(settings.kubernetes)
        self.kube.create(NAMESPACES, {"metadata": {"name": "team"}})
        self.kube.create(NODES, {"metadata": {"name": "n", "annotations": {names.NODE_GPUS: inventory.encode([GPU])}}})
        self.controllers = []
        self.databases = []
        for _ in range(2):
            database = Database(make_engine(url))
            books = Books(database, "default", carry=False)
            controller = Controller(settings, self.clock, self.kube, books, PolicyFile(settings.policy))
            controller.namespaces.on_list(self.kube.list(NAMESPACES)[0])
            self.controllers.append(controller)
            self.databases.append(database)
        self.versions: list[Object] = []

    def create(self, name: str, core: int, bound: int) -> None:
        limits = {"tencent.com/vcuda-core": str(core), "tencent.com/vcuda-memory": "16"}
        annotations = {names.gpu_annotation("main"): GPU.uuid, names.BOUND_AT: format_instant(bound)}
        pod: Object = {
            "metadata": {
                "name": name,
                "namespace": "team",
                "finalizers": ["example.com/keeps", names.FINALIZER],
                "labels": {names.MANAGED_LABEL: "true"},
                "annotations": annotations,
            },
            "spec": {
                "restartPolicy": "Never",
                "nodeName": "n",
                "containers": [{"name": "main", "resources": {"limits": limits}}],
            },
            "status": {
                "phase": "Running",
                "conditions": [
                    {
                        "type": "PodScheduled",
                        "status": "True",
                        "lastTransitionTime": format_seconds(self.clock.now_ms()),
                    }
                ],
            },
        }
        self.cluster.store.create(PODS, pod, "team")

    def end(self, name: str, at: int) -> None:
        def change(pod: Object) -> Object:
            done = {"terminated": {"exitCode": 0, "finishedAt": format_seconds(at)}}
            pod["status"] |= {"phase": "Succeeded", "containerStatuses": [{"name": "main", "state": done}]}
            return pod

        self.cluster.store.update(PODS, name, "team", change, subresource="status")

    def pods(self) -> list[Object]:
        return self.kube.list(PODS)[0]

    def look(self) -> None:
        """Both look at once."""
        with ThreadPoolExecutor(2) as threads:
            list(threads.map(lambda controller: controller.look(), self.controllers))

    def close(self) -> None:
        for controller, database in zip(self.controllers, self.databases, strict=True):
            controller.stop()
            database.close()
        self.kube.close()
        self.server.stop()


@pytest.fixture
def stage(tmp_path: Path, database_url: str) -> Iterator[Stage]:
    made = Stage(tmp_path, database_url)
    yield made
    made.close()


def deliver(stage: Stage, chance: random.Random) -> None:
    """Bring each controller what its watch may: newest, older, the same again, or nothing this time."""
    newest = stage.pods()
    stage.versions += newest
    for controller in stage.controllers:
        events = [*newest, *chance.choices(stage.versions, k=4)]
        chance.shuffle(events)
        for pod in events[: chance.randint(0, len(events))]:
            controller.pods.on_event("MODIFIED", pod)
        if chance.random() < 0.2:
            controller.pods.on_list(chance.choice((newest, stage.versions[-len(newest) :])))


def test_the_ledger_is_what_the_pods_records_say(stage: Stage) -> None:
    chance = random.Random(11)
    skewed: dict[str, tuple[int, int]] = {}
    running: list[str] = []
    for step in range(18):
        now = stage.clock.now_ms()
        if step < 9:
            name = f"pod-{step}"
            skewed[name] = SKEWS[step % 3], SKEWS[step // 3]
            stage.create(name, chance.choice((30, 50, 70)), now + skewed[name][0])
            running.append(name)
        elif running:
            name = running.pop(chance.randrange(len(running)))
            stage.end(name, now + skewed[name][1])
        deliver(stage, chance)
        stage.look()
        stage.clock.advance(chance.randint(100, 4_000))
    for _ in range(3):
        for controller in stage.controllers:
            controller.pods.on_list(stage.pods())
        stage.look()
    seen = stage.clock.now_ms()
    stage.clock.advance(2 * CLOCK_SKEW_MS)
    stage.look()  # what ended ahead of the clock has ended
    records = stage.pods()
    assert [pod["metadata"]["finalizers"] for pod in records] == [["example.com/keeps"]] * 9
    check(stage, records, skewed, seen)


def check(stage: Stage, records: list[Object], skewed: dict[str, tuple[int, int]], seen: int) -> None:
    """Compare with the records; `seen` is when the last of them had been seen at the latest."""
    found: list[Any] = [charge_oracle.interval(pod, GPU.memory_mib, Fraction(1)) for pod in records]
    with stage.databases[0].reading() as session:
        rows = workloads.by_uid(session, [one.uid for one in found])
    for index, (pod, one) in enumerate(zip(records, found, strict=True)):
        bound, finished = skewed[pod["metadata"]["name"]]
        start, end = one.start, charge_oracle.end_of(pod)
        if bound > 0:  # the condition that the API server wrote says more
            start = charge_oracle.instant(pod["status"]["conditions"][0]["lastTransitionTime"])
        if finished > 0:  # held at the skew after it was seen: some time between its end and the last look
            told, held = end - finished, rows[one.uid].ended_at
            assert told + CLOCK_SKEW_MS <= held <= min(seen + CLOCK_SKEW_MS, end)
            end = held
        found[index] = replace(one, start=start, end=max(start, end))
    wanted = charge_oracle.charges(found, AMOUNT, [])
    with stage.databases[0].reading() as session:
        assert bookings.booked_by_pod(session, [uid for uid, sums in wanted.items() if any(sums)]) == {
            uid: sums for uid, sums in wanted.items() if any(sums)
        }
    assert sum(over for _, over in wanted.values()) > 0
    for pod in records:
        row, (bound, finished) = rows[pod["metadata"]["uid"]], skewed[pod["metadata"]["name"]]
        assert ("clock-skew" in row.flags) == bool(bound or finished), pod["metadata"]["name"]
    assert verify(stage.databases[0].engine, carry=False).differences == []
