# SPDX-License-Identifier: Apache-2.0
"""Several schedulers at a time, each with nodes of its own: neither waits for the other, or acts for its pods."""

import orjson
import pytest
from support.small_cluster import binding, small_cluster, wait_for

from scheduler.extender import filter_nodes, gpu_pod
from scheduler.notices import FIRST_SECONDS
from scheduler.service import Scheduler
from slicekeeper.clock import ManualClock
from slicekeeper.config.settings import KubernetesSettings, SchedulerSettings, Settings, WebhookSettings
from slicekeeper.kube.client import NAMESPACES, NODES


@pytest.fixture
def cluster():
    with small_cluster(ManualClock(1_800_000_000_000)) as made:
        made.client.create(NAMESPACES, {"metadata": {"name": "shard-b"}})
        for name, pool in (("n0", "a"), ("n1", "b"), ("n2", "b")):
            made.node(name)
            made.client.patch(NODES, name, {"metadata": {"labels": {"pool": pool}}})
        yield made


def schedulers(cluster, *selectors):
    """Return a scheduler for each selector, all watching."""
    made = [
        Scheduler(
            Settings(
                kubernetes=KubernetesSettings(server=cluster.server.url),
                webhook=WebhookSettings(scheduler_name=name),
                scheduler=SchedulerSettings(bind=f"127.0.0.1:{port}", node_selector=selector, lease_namespace=leases),
            ),
            cluster.clock,
        )
        for port, (name, leases, selector) in enumerate(
            zip(("slicekeeper-scheduler", "b"), ("slicekeeper-system", "shard-b"), selectors, strict=False), 1
        )
    ]
    for each in made:
        each.watches.start()
        wait_for(lambda each=each: each.watches.synced, "the lists are read")
    return made


@pytest.fixture
def two(cluster):
    made = schedulers(cluster, "pool!=b", "pool=b")
    yield made
    for each in made:
        each.watches.stop()


def fits(scheduler, pod):
    answer = filter_nodes(scheduler.state, scheduler.gangs, gpu_pod(scheduler.state, pod), b'["n0","n1","n2"]')
    return orjson.loads(answer)["NodeNames"]


def test_each_places_pods_on_its_own_nodes_alone_and_both_bind_at_a_time(cluster, two):
    one, other = two
    first, second = cluster.pod("first"), cluster.pod("second", schedulerName="b")
    assert fits(one, first) == ["n0"]
    assert fits(other, second) == ["n1", "n2"]
    assert one.binder.bind(binding(first, "n0")) == ""
    assert other.binder.bind(binding(second, "n1")) == ""
    assert cluster.taken() == {"n0-0": 60, "n1-0": 60}
    assert "no GPUs" in one.binder.bind(binding(cluster.pod("third", 20), "n2"))


def test_nobody_acts_for_pods_that_wait_for_the_other(cluster, two):
    one, other = two
    cluster.pod("mine", 80, nodeName="n0", annotations={"gpu.slicekeeper.io/c": "n0-0"})
    cluster.pod("theirs", 80, schedulerName="b")
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
    cluster.client.patch(NODES, "n2", {"metadata": {"labels": {"pool": "a"}}})
    pod = cluster.pod("p")
    wait_for(lambda: fits(one, pod) == ["n0", "n2"], "n2 has come")
    wait_for(lambda: fits(other, pod) == ["n1"], "n2 has gone")
