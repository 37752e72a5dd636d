# SPDX-License-Identifier: Apache-2.0
"""Several schedulers at a time, each with nodes of its own: neither waits for the other, or acts for its pods."""

import orjson
import pytest
from support.manual_clock import ManualClock
from support.small_cluster import binding, small_cluster
from support.waiting import wait_for

from scheduler.extender import filter_nodes, gpu_pod
from scheduler.scheduler_process import Scheduler
from scheduler.wait_events import FIRST_SECONDS
from slicekeeper import names
from slicekeeper.config.settings import KubernetesSettings, SchedulerSettings, Settings
from slicekeeper.kube.client import NODES


@pytest.fixture
def cluster():
    with small_cluster(ManualClock(1_800_000_000_000)) as made:
        for name in ("n0", "n1", "n2"):
            made.node(name)
        for name in ("n1", "n2"):
            made.client.patch(NODES, name, {"metadata": {"labels": {names.SHARD: "b"}}})
        yield made


@pytest.fixture
def two(cluster):
    """The first scheduler and that of the shard b, both watching."""
    made = [
        Scheduler(
            Settings(
                kubernetes=KubernetesSettings(server=cluster.server.url),
                scheduler=SchedulerSettings(bind=f"127.0.0.1:{port}", shards=("b",), shard=shard),
            ),
            cluster.clock,
        )
        for port, shard in enumerate(("", "b"), 1)
    ]
    for each in made:
        each.watches.start()
        wait_for(lambda each=each: each.watches.synced, "the lists are read")
    yield made
    for each in made:
        each.watches.stop()


def fits(scheduler, pod):
    answer = filter_nodes(scheduler.state, scheduler.gangs, gpu_pod(scheduler.state, pod), b'["n0","n1","n2"]')
    return orjson.loads(answer)["NodeNames"]


def test_each_places_pods_on_its_own_nodes_alone_and_both_bind_at_a_time(cluster, two):
    one, other = two
    first, second = cluster.pod("first"), cluster.pod("second", schedulerName="slicekeeper-scheduler-b")
    assert fits(one, first) == ["n0"]
    assert fits(other, second) == ["n1", "n2"]
    assert one.binder.bind(binding(first, "n0")) == ""
    assert other.binder.bind(binding(second, "n1")) == ""
    assert cluster.taken() == {"n0-0": 60, "n1-0": 60}
    assert "no GPUs" in one.binder.bind(binding(cluster.pod("third", 20), "n2"))


def test_nobody_acts_for_pods_that_wait_for_the_other(cluster, two):
    one, other = two
    cluster.pod("mine", 80, nodeName="n0", annotations={"gpu.slicekeeper.io/c": "n0-0"})
    cluster.pod("theirs", 80, schedulerName="slicekeeper-scheduler-b")
    for each in two:
        wait_for(lambda each=each: len(each.state.snapshot().pods) == 2, "both pods are seen")
    cluster.clock.advance(FIRST_SECONDS * 1000 + 1)
    one.notices._is_leader = other.notices._is_leader = lambda: True
    one.notices.look()
    assert cluster.events() == set()
    other.notices.look()
    assert cluster.events() == {("theirs", "WaitsForGPU")}


def test_a_node_that_gets_another_label_is_the_other_ones(cluster, two):
    one, other = two
    cluster.client.patch(NODES, "n2", {"metadata": {"labels": {names.SHARD: None}}})
    pod = cluster.pod("p")
    wait_for(lambda: fits(one, pod) == ["n0", "n2"], "n2 has come")
    wait_for(lambda: fits(other, pod) == ["n1"], "n2 has gone")


def test_pods_keep_their_gpus_when_their_node_is_another_ones(cluster, two):
    one, other = two
    held = cluster.pod("held", schedulerName="slicekeeper-scheduler-b")
    assert other.binder.bind(binding(held, "n2")) == ""
    cluster.client.patch(NODES, "n2", {"metadata": {"labels": {names.SHARD: None}}})
    small, large = cluster.pod("small", 30), cluster.pod("large")
    wait_for(lambda: fits(one, small) == ["n0", "n2"], "n2 has come")
    assert fits(one, large) == ["n0"]
    assert "not enough is free" in one.binder.bind(binding(large, "n2"))
    wait_for(lambda: fits(other, small) == ["n1"], "n2 has gone")
    assert "no GPUs" in other.binder.bind(binding(small, "n2"))
    assert one.binder.bind(binding(small, "n2")) == ""
    assert cluster.taken() == {"n2-0": 90}


def test_a_node_whose_label_is_no_shard_is_the_first_ones(cluster, two):
    one, other = two
    cluster.client.patch(NODES, "n2", {"metadata": {"labels": {names.SHARD: "c"}}})
    pod = cluster.pod("p")
    wait_for(lambda: fits(one, pod) == ["n0", "n2"], "n2 has come")
    wait_for(lambda: fits(other, pod) == ["n1"], "n2 has gone")
