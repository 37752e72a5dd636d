# SPDX-License-Identifier: Apache-2.0
"""The event of a pod that waits: one for each, kept up to date, not too often, and silent about other namespaces."""

import pytest
from support.manual_clock import ManualClock
from support.small_cluster import NAMESPACE, small_cluster

from scheduler.placement.learner import Learner
from scheduler.scheduler_state import SchedulerState
from scheduler.wait_events import AGAIN_SECONDS, FIRST_SECONDS, SAME_AGAIN_SECONDS, WaitEvents
from slicekeeper import names
from slicekeeper.config.settings import Resources
from slicekeeper.kube.client import EVENTS, NAMESPACES, NODES, PODS
from slicekeeper.units import format_seconds

NOW = 1_800_000_000_000


class World:
    """A cluster whose pods and nodes a state follows, and the notices that the leader keeps."""

    def __init__(self, cluster, clock):
        self.cluster, self.clock = cluster, clock
        self.state = SchedulerState(Resources(), Learner("best-fit"), clock, hold_seconds=30, lost_seconds=60)
        self.notices = WaitEvents(cluster.client, clock, self.state, lambda: True, reporter="slicekeeper-scheduler")

    def look(self, seconds=0):
        """Let time pass and the watches catch up, and write all notices that are due."""
        self.clock.advance(seconds * 1000)
        self.state.intake.set_nodes(self.cluster.client.list(NODES)[0])
        self.state.intake.set_pods(self.cluster.client.list(PODS)[0])
        for _ in range(10):
            self.notices.look()

    def events(self, pod="w"):
        return [e for e in self.cluster.client.list(EVENTS)[0] if e["involvedObject"]["name"] == pod]


@pytest.fixture
def world():
    clock = ManualClock(NOW)
    with small_cluster(clock) as made:
        yield World(made, clock)


def runs(world, name, on, namespace=NAMESPACE, seconds=600, **more):
    annotations = {names.gpu_annotation("c"): f"{on}-0"}
    made = world.cluster.pod(name, 60, annotations=annotations, nodeName=on, activeDeadlineSeconds=seconds, **more)
    status = {"status": {"phase": "Running", "startTime": format_seconds(NOW)}}
    world.cluster.client.patch(PODS, name, status, namespace, subresource="status")
    return made


def test_a_pod_that_waits_is_told_once_since_when_and_when_its_place_is_expected(world):
    world.cluster.node("n0")
    runs(world, "first", "n0")
    world.cluster.pod("older", 60)
    world.cluster.pod("w", 60)
    world.look(FIRST_SECONDS - 1)
    assert world.events() == []
    world.look(1)
    [event] = world.events()
    assert (event["reason"], event["type"], event["count"]) == ("WaitsForGPU", "Normal", 1)
    assert event["message"] == (
        f"Waits for 60 percent of a GPU with 1024 MiB since {format_seconds(NOW)}. Pods served before it: 1. "
        "What would help: 40 percent of a GPU with the same memory would fit now (60 are asked for)."
    )
    [older] = world.events("older")
    assert f"Expected about {format_seconds(NOW + 600_000)} on node n0" in older["message"]


def test_its_event_is_replaced_when_something_is_new_and_repeated_seldom(world):
    world.cluster.node("n0")
    runs(world, "first", "n0")
    world.cluster.pod("w", 60)
    world.look(FIRST_SECONDS)
    [event] = world.events()
    assert f"Expected about {format_seconds(NOW + 600_000)} on node n0, when team-a/first reaches" in event["message"]
    world.cluster.end("first")
    world.look(AGAIN_SECONDS - 1)
    assert world.events() == [event], "not so soon"
    world.look(1)
    [second] = world.events()
    assert second["metadata"]["name"] == event["metadata"]["name"]
    assert "there is room on GPUs" in second["message"]
    assert second["count"] == 2
    world.look(SAME_AGAIN_SECONDS - 1)
    assert world.events() == [second], "nothing new"
    world.look(AGAIN_SECONDS)
    [third] = world.events()
    assert (third["message"], third["count"]) == (second["message"], 3), "so that it does not expire"


def test_another_process_goes_on_with_the_same_event_and_one_that_expired_is_made_again(world):
    world.cluster.node("n0")
    world.cluster.pod("w", 200, 0)
    world.look(FIRST_SECONDS)
    [event] = world.events()
    assert "What would help: ask for less on one node" in event["message"]
    heir = World(world.cluster, world.clock)
    heir.look()
    assert [e["metadata"]["name"] for e in heir.events()] == [event["metadata"]["name"]]
    world.cluster.client.delete(EVENTS, event["metadata"]["name"], NAMESPACE)
    heir.look(SAME_AGAIN_SECONDS)
    assert [e["metadata"]["name"] for e in heir.events()] == [event["metadata"]["name"]]


def test_pods_of_other_namespaces_are_not_named(world):
    world.cluster.client.create(NAMESPACES, {"metadata": {"name": "secret"}})
    world.cluster.node("n0")
    manifest = runs(world, "merger", "n0", state=names.OVER_BUDGET)
    world.cluster.end("merger")
    metadata = {key: manifest["metadata"][key] for key in ("name", "labels", "annotations")} | {"namespace": "secret"}
    status = {"phase": "Running", "startTime": format_seconds(NOW)}
    made = {"metadata": metadata, "spec": manifest["spec"], "status": status}
    world.cluster.client.create(PODS, made, "secret")
    world.cluster.client.patch(PODS, "merger", {"status": status}, "secret", subresource="status")
    world.cluster.pod("w", 60)
    world.cluster.pod("x-poor", 60, state=names.OVER_BUDGET)
    world.look(FIRST_SECONDS)
    [event], [other] = world.events(), world.events("x-poor")
    assert "Pods about to give way to it: 1." in event["message"]
    assert "when another namespace's pod reaches its deadline" in event["message"]
    assert "with budget again, other pods (1) would give way" in other["message"]
    assert "merger" not in event["message"] + other["message"]


def test_a_pod_of_a_gang_is_told_who_is_there(world):
    world.cluster.node("n0", gpus=2)
    for name in ("w", "v"):
        world.cluster.pod(name, 60, annotations={names.GANG: "bert", names.GANG_SIZE: "3"})
    world.look(FIRST_SECONDS)
    [event] = world.events()
    assert "3 pods of its gang bert get their places together: 0 have one, 2 wait, 0 have" in event["message"]


def test_one_pod_is_told_at_a_time_and_what_cannot_be_placed_at_all_is_left_to_kube_scheduler(world):
    world.cluster.node("n0")
    world.cluster.pod("stranger", 60, managed=False)
    for n in range(3):
        world.cluster.pod(f"w{n}", 200, 0)
    world.state.intake.set_pods(world.cluster.client.list(PODS)[0])
    world.clock.advance(FIRST_SECONDS * 1000)
    for told in (1, 2, 3, 3):
        world.notices.look()
        assert len(world.cluster.client.list(EVENTS)[0]) == told
