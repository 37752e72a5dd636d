# SPDX-License-Identifier: Apache-2.0
"""Leader election over a real HTTP API: never two leaders, take-over after death, release at the end."""

import contextlib
import threading
import time

import pytest
from support.small_cluster import small_cluster
from support.waiting import wait_for

from slicekeeper.clock import Clock
from slicekeeper.errors import NotFound
from slicekeeper.kube.client import LEASES
from slicekeeper.kube.leader import LeaderElection

NAMESPACE, NAME = "slicekeeper-system", "test"


@pytest.fixture(scope="module")
def cluster():
    with small_cluster() as made:
        yield made


@pytest.fixture
def candidate(cluster):
    with contextlib.suppress(NotFound):
        cluster.client.delete(LEASES, NAME, NAMESPACE)

    def make(identity, seconds=15.0, renew=0.02):
        return LeaderElection(
            cluster.client,
            Clock(),
            namespace=NAMESPACE,
            name=NAME,
            identity=identity,
            duration_seconds=seconds,
            renew_seconds=renew,
        )

    return make


def lease(cluster):
    return cluster.client.get(LEASES, NAME, NAMESPACE)["spec"]


def test_the_first_takes_a_lease_that_is_not_there(cluster, candidate):
    one, other = candidate("one"), candidate("other")
    assert not one.is_leader
    one.campaign()
    other.campaign()
    assert one.is_leader
    assert not other.is_leader
    assert lease(cluster)["holderIdentity"] == "one"
    assert lease(cluster)["leaseTransitions"] == 0


def test_a_leader_renews_and_keeps_its_first_day(cluster, candidate):
    one = candidate("one")
    one.campaign()
    first = lease(cluster)
    time.sleep(0.01)
    one.campaign()
    assert lease(cluster)["acquireTime"] == first["acquireTime"]
    assert lease(cluster)["renewTime"] > first["renewTime"]
    assert lease(cluster)["leaseTransitions"] == 0


def test_a_dead_leader_stops_before_another_takes_over(cluster, candidate):
    dead, heir = candidate("dead", seconds=0.6), candidate("heir", seconds=0.6)
    dead.campaign()
    heir.campaign()

    def taken():
        # Asked before the heir may have taken it, so both can never be seen leading.
        was_leading = dead.is_leader
        heir.campaign()
        assert not (was_leading and heir.is_leader)
        return heir.is_leader

    wait_for(taken, "the heir leads")
    assert not dead.is_leader
    assert lease(cluster)["leaseTransitions"] == 1
    dead.campaign()
    assert not dead.is_leader


def test_a_leader_that_comes_back_under_its_name_goes_on(candidate):
    candidate("one").campaign()
    again = candidate("one")
    again.campaign()
    assert again.is_leader


def test_two_that_write_at_once_are_told_apart_by_the_version(cluster, candidate):
    candidate("before", seconds=15).campaign()
    released = cluster.client.get(LEASES, NAME, NAMESPACE)
    cluster.client.replace(LEASES, {**released, "spec": {**released["spec"], "holderIdentity": ""}})
    rivals = [candidate(f"rival-{i}") for i in range(8)]
    threads = [threading.Thread(target=rival.campaign) for rival in rivals]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(rival.is_leader for rival in rivals) == 1


def test_stop_lets_another_take_over_at_once(cluster, candidate):
    one, other = candidate("one"), candidate("other")
    one.start()
    wait_for(lambda: one.is_leader, "one leads")
    other.start()
    one.stop()
    assert not one.is_leader
    wait_for(lambda: other.is_leader, "the other leads")
    assert lease(cluster)["holderIdentity"] == "other"
    other.stop()
    assert lease(cluster)["holderIdentity"] == ""


def test_a_renewal_under_way_while_it_stops_makes_no_leader(cluster, candidate):
    one = candidate("one")
    one.campaign()
    one.stop()
    one.campaign()
    assert not one.is_leader


def test_a_server_that_is_away_ends_the_leadership_in_time(candidate):
    with small_cluster() as away:
        one = LeaderElection(
            away.client,
            Clock(),
            namespace=NAMESPACE,
            name=NAME,
            identity="one",
            duration_seconds=0.6,
            renew_seconds=0.05,
        )
        one.start()
        wait_for(lambda: one.is_leader, "one leads")
    wait_for(lambda: not one.is_leader, "it has stopped to lead")
    one.stop()
