# SPDX-License-Identifier: Apache-2.0
"""kube-scheduler's loop: order, node totals, and the extender's answers."""

import threading
from collections.abc import Iterator
from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import pytest
from support.json_server import JsonServer
from support.manual_clock import ManualClock
from support.waiting import wait_for

from simulator import kubescheduler
from simulator.cluster import Cluster
from simulator.initial_objects import fill
from simulator.kubescheduler import KubeScheduler, request_of
from slicekeeper.config.settings import Settings
from slicekeeper.kube.client import EVENTS, PODS, Object
from slicekeeper.net.json_client import JsonClient

NAME = "slicekeeper-scheduler"


class Extender:
    """Keeps what it is asked; refuses nodes in `full`, scores by `scores`, binds as it is told to."""

    def __init__(self, cluster: Cluster) -> None:
        self.calls: list[tuple[str, Object]] = []
        self.full: dict[str, str] = {}
        self.scores: dict[str, int] = {}
        self.bind_error = ""
        self._cluster = cluster
        self.server = JsonServer(self.answer)
        self.url = self.server.url

    def answer(self, path: str, args: Object) -> Any:
        self.calls.append((path, args))
        return getattr(self, path[1:])(self._cluster, args)

    def filter(self, _cluster: Cluster, args: Object) -> Object:
        fit = [name for name in args["NodeNames"] if name not in self.full]
        return {"NodeNames": fit, "FailedNodes": self.full, "Error": ""}

    def prioritize(self, _cluster: Cluster, args: Object) -> list[Object]:
        return [{"Host": name, "Score": self.scores.get(name, 0)} for name in args["NodeNames"]]

    def bind(self, cluster: Cluster, args: Object) -> Object:
        if not self.bind_error:
            cluster.bind(args["PodName"], args["PodNamespace"], {"target": {"name": args["Node"]}})
        return {"Error": self.bind_error}

    def paths(self) -> list[str]:
        return [path for path, _ in self.calls]


@pytest.fixture
def cluster() -> Cluster:
    cluster = Cluster(ManualClock(1_000_000))
    fill(cluster.store, Settings(), 2, 1, "T4")
    return cluster


@pytest.fixture
def extender(cluster: Cluster) -> Iterator[Extender]:
    extender = Extender(cluster)
    yield extender
    extender.server.stop()


@pytest.fixture
def scheduler(cluster: Cluster, extender: Extender, monkeypatch: pytest.MonkeyPatch) -> KubeScheduler:
    """A loop that waits for each bind, however busy the machine is."""
    monkeypatch.setattr(kubescheduler, "BIND_SECONDS", 60.0)
    return KubeScheduler(cluster, JsonClient(extender.url, timeout=60), NAME)


def pod(cluster: Cluster, name: str, core: int = 10, scheduler: str = NAME, **spec: Any) -> None:
    container = {"name": "c", "image": "i", "resources": {"limits": {"tencent.com/vcuda-core": core}}}
    body = {"metadata": {"name": name}, "spec": {"schedulerName": scheduler, "containers": [container], **spec}}
    cluster.create(PODS, body, "default")


def node_of(cluster: Cluster, name: str) -> str:
    return str(cluster.store.get(PODS, name, "default")["spec"].get("nodeName", ""))


def test_the_best_of_the_nodes_that_pass_is_bound(
    cluster: Cluster, extender: Extender, scheduler: KubeScheduler
) -> None:
    extender.scores = {"node-1": 3, "node-2": 7}
    pod(cluster, "a")
    scheduler.schedule_all()
    assert extender.paths() == ["/filter", "/prioritize", "/bind"]
    assert extender.calls[0][1]["NodeNames"] == ["node-1", "node-2"]
    assert extender.calls[0][1]["Nodes"] is None
    assert extender.calls[2][1]["PodUID"] == cluster.store.get(PODS, "a", "default")["metadata"]["uid"]
    assert node_of(cluster, "a") == "node-2"


def test_the_higher_priority_goes_first_then_the_older(
    cluster: Cluster, extender: Extender, scheduler: KubeScheduler
) -> None:
    lower = {"priorityClassName": "gpu-lower-priority"}
    pod(cluster, "low", **lower)
    pod(cluster, "old")
    pod(cluster, "new")
    scheduler.schedule_all()
    bound = [body["PodName"] for path, body in extender.calls if path == "/bind"]
    assert bound == ["old", "new", "low"]


def test_node_totals_are_checked_before_the_extender_is_asked(
    cluster: Cluster, extender: Extender, scheduler: KubeScheduler
) -> None:
    pod(cluster, "first", 60)
    scheduler.schedule_all()
    other = {"node-1": "node-2", "node-2": "node-1"}[node_of(cluster, "first")]
    extender.calls.clear()
    pod(cluster, "second", 60)
    scheduler.schedule_all()
    assert extender.calls[0][1]["NodeNames"] == [other]
    pod(cluster, "third", 60)
    extender.calls.clear()
    scheduler.schedule_all()
    assert extender.calls == []
    (condition,) = cluster.store.get(PODS, "third", "default")["status"]["conditions"]
    assert condition["reason"] == "Unschedulable"
    assert condition["message"] == "0/2 nodes are available: 2 Insufficient tencent.com/vcuda-core."
    (event,) = cluster.store.collection(EVENTS)[0]
    assert event["reason"] == "FailedScheduling"


def test_a_pod_that_ended_gives_its_share_back(cluster: Cluster, extender: Extender, scheduler: KubeScheduler) -> None:
    for name in ("a", "b"):
        pod(cluster, name, 90)
    scheduler.schedule_all()
    change = lambda old: {**old, "status": {"phase": "Succeeded"}}  # noqa: E731
    cluster.store.update(PODS, "a", "default", change, subresource="status")
    pod(cluster, "c", 90)
    scheduler.schedule_all()
    assert node_of(cluster, "c") == node_of(cluster, "a")


def test_what_the_extender_refuses_waits_and_is_told_once(
    cluster: Cluster, extender: Extender, scheduler: KubeScheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr(kubescheduler, "time", SimpleNamespace(monotonic=lambda: now[0]))
    extender.full = {"node-1": "no single GPU has 10%", "node-2": "no single GPU has 10%"}
    pod(cluster, "a")
    for _ in range(5):
        scheduler.schedule_all()
    assert extender.paths() == ["/filter"], "back-off"
    assert len(cluster.store.collection(EVENTS)[0]) == 1
    extender.full = {}
    now[0] += kubescheduler.FIRST_BACKOFF_SECONDS
    scheduler.schedule_all()
    assert node_of(cluster, "a")


def test_a_binding_that_fails_is_tried_again(cluster: Cluster, extender: Extender, scheduler: KubeScheduler) -> None:
    extender.bind_error = "GPU was taken"
    pod(cluster, "a")
    scheduler.schedule_all()
    assert node_of(cluster, "a") == ""
    (event,) = cluster.store.collection(EVENTS)[0]
    assert event["message"] == "GPU was taken"


def test_gated_deleted_and_others_pods(cluster: Cluster, extender: Extender, scheduler: KubeScheduler) -> None:
    pod(cluster, "gated", schedulingGates=[{"name": "x"}])
    pod(cluster, "plain", scheduler="default-scheduler")
    scheduler.schedule_all()
    assert extender.calls == []
    assert node_of(cluster, "gated") == ""
    assert node_of(cluster, "plain") == "node-1"


def test_the_effective_request_is_the_larger_of_start_and_run() -> None:
    def container(cpu: str, **more: Any) -> Object:
        return {"resources": {"requests": {"cpu": cpu}}, **more}

    spec: Object = {
        "initContainers": [
            container("1", restartPolicy="Always"),
            container("4"),
            container("2", restartPolicy="Always"),
        ],
        "containers": [container("500m"), container("1")],
    }
    assert request_of({"spec": spec}) == {"cpu": Fraction(5)}
    spec["containers"].append(container("3"))
    assert request_of({"spec": spec}) == {"cpu": Fraction(15, 2)}
    spec |= container("8")
    assert request_of({"spec": spec}) == {"cpu": Fraction(8)}


def test_a_bind_that_takes_long_stops_nobody_and_its_pod_counts_on_its_node(
    cluster: Cluster, extender: Extender, scheduler: KubeScheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kubescheduler, "BIND_SECONDS", 0.05)
    go_on, answer = threading.Event(), extender.bind

    def slow(made: Cluster, args: Object) -> Object:
        if args["PodName"] == "slow":
            assert go_on.wait(60)
        return answer(made, args)

    extender.bind = slow  # type: ignore[method-assign]
    pod(cluster, "slow", core=60)
    pod(cluster, "quick", core=60)
    scheduler.schedule_all()
    wait_for(lambda: node_of(cluster, "quick"), "the quick one is bound")
    first = next(args["Node"] for path, args in extender.calls if path == "/bind")
    assert node_of(cluster, "quick") != first, "the slow one counts where it is about to be"
    asked = len(extender.calls)
    scheduler.schedule_all()
    assert len(extender.calls) == asked, "it is not tried again meanwhile"
    go_on.set()
    scheduler._bindings[next(iter(scheduler._bindings))].outcome.result(60)
    assert node_of(cluster, "slow") == first
    scheduler.schedule_all()
    assert not scheduler._bindings
