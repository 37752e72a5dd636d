# SPDX-License-Identifier: Apache-2.0
"""`preempt`: of kube-scheduler's victims, chosen by whole nodes, those that help on single GPUs, and none in budget."""

import json

import pytest
from support.asgi import ask
from support.manual_clock import ManualClock
from support.small_cluster import binding, small_cluster
from support.waiting import wait_for

from scheduler.app import make_app
from scheduler.held_places import HoldKind
from scheduler.scheduler_process import Scheduler
from slicekeeper import names
from slicekeeper.config.settings import KubernetesSettings, Settings

OVER, IN = names.OVER_BUDGET, names.IN_BUDGET


class Node:
    """One node with two GPUs, and an extender that is asked as kube-scheduler asks."""

    def __init__(self, cluster):
        self.cluster = cluster
        cluster.node("n0", gpus=2)
        self.scheduler = Scheduler(
            Settings(kubernetes=KubernetesSettings(server=cluster.server.url)), ManualClock(1_800_000_000_000)
        )
        self.state = self.scheduler.state
        self.app = make_app(self.scheduler)
        self.scheduler.watches.start()
        wait_for(lambda: self.scheduler.watches.synced, "synced")

    def runs(self, name, core, *, state=OVER, **spec):
        pod = self.cluster.pod(name, core, state=state, **spec)
        assert self.scheduler.binder.bind(binding(pod, "n0")) == ""
        uid = pod["metadata"]["uid"]
        wait_for(lambda: (known := self.state.pod(uid)) is not None and known.node, "the watch shows it")
        return uid

    def ask(self, pod, *uids, node="n0"):
        listed = {node: {"Pods": [{"UID": uid} for uid in uids], "NumPDBViolations": 1}}
        body = {"Pod": pod, "NodeNameToVictims": None, "NodeNameToMetaVictims": listed}
        answer = ask(self.app, "POST", "/preempt", json.dumps(body).encode())
        assert answer.status == 200
        return answer.json == {"NodeNameToMetaVictims": listed} or answer.json["NodeNameToMetaVictims"]


@pytest.fixture
def node():
    with small_cluster() as cluster:
        made = Node(cluster)
        yield made
        made.scheduler.watches.stop()


def test_victims_on_the_right_gpu_are_passed_on(node):
    node.runs("mine", 100, state=IN)
    low = node.runs("low", 80)
    assert node.ask(node.cluster.pod("w", 60), low) is True


def test_victims_that_free_two_halves_are_not(node):
    for name in ("a", "b"):
        node.runs(f"mine-{name}", 60, state=IN)
    lows = [node.runs(f"low-{name}", 40) for name in ("a", "b")]
    assert node.ask(node.cluster.pod("w", 60), *lows) == {}
    assert node.ask(node.cluster.pod("v", 40), lows[0]) is True


def test_nobody_in_budget_is_a_victim(node):
    node.runs("low", 60)
    mine = node.runs("mine", 100, state=IN)
    assert node.ask(node.cluster.pod("w", 60), mine) == {}


def test_background_work_is_a_victim_whatever_the_budget(node):
    node.runs("mine", 100, state=IN)
    annotations = {names.GPU_CLASS: names.BACKGROUND}
    low = node.runs("low", 80, state=IN, annotations=annotations)
    assert node.ask(node.cluster.pod("w", 60), low) is True


def test_pods_that_are_none_of_ours_are_kube_schedulers_business(node):
    node.runs("low", 60)
    assert node.ask(node.cluster.pod("w", 60), "a-plain-pod-that-holds-cpu") is True


def test_a_pod_over_budget_takes_from_nobody(node):
    node.runs("mine", 100, state=IN)
    low = node.runs("low", 80)
    assert node.ask(node.cluster.pod("w", 60, state=OVER), low) == {}


def test_nobody_more_goes_for_a_pod_whose_place_is_being_cleared(node):
    node.runs("mine", 100, state=IN)
    low = node.runs("low", 80)
    waiting = node.cluster.pod("w", 60)
    uid = waiting["metadata"]["uid"]
    wait_for(lambda: node.state.pod(uid), "the watch shows it")
    place = next(p for p in node.state.snapshot().places if p.pod.uid == low)
    assert node.state.reserve([(node.state.pod(uid), place.hold)], 1 << 62)
    assert node.ask(waiting, low) == {}


def test_asking_changes_nothing(node):
    low = node.runs("low", 80)
    before = node.state.totals()
    node.ask(node.cluster.pod("w", 60), low)
    assert node.state.totals() == before
    assert node.state.counts()[HoldKind.BOUND] == 1


def test_unknown_nodes_and_pods_without_gpus(node):
    waiting = node.cluster.pod("w", 60)
    assert node.ask(waiting, "x", node="gone") == {}
    assert node.ask(node.cluster.pod("plain", 0, managed=False), "x", node="gone") is True


@pytest.mark.parametrize("body", [
    {}, {"Pod": {"metadata": {"uid": "u"}}, "NodeNameToVictims": {"n0": {"Pods": []}}},
    {"Pod": {}, "NodeNameToMetaVictims": []}, {"Pod": {}, "NodeNameToMetaVictims": {"n0": None}},
    {"Pod": {}, "NodeNameToMetaVictims": {"n0": {"Pods": [{"UID": 3}]}}},
    {"Pod": {}, "NodeNameToMetaVictims": {"n0": {"Pods": None}}},
])  # fmt: skip
def test_what_nobody_sends_is_answered_in_words(node, body):
    answer = ask(node.app, "POST", "/preempt", json.dumps(body).encode())
    assert answer.status == 400
    assert answer.json["Error"]
