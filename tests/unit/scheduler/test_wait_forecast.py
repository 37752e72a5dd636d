# SPDX-License-Identifier: Apache-2.0
"""When the place of a waiting pod is expected: by hand for a few small clusters."""

import pytest
from support.waiting_pods import NOW, Cluster

from slicekeeper import names
from slicekeeper.units import format_seconds


@pytest.fixture
def cluster():
    return Cluster()


def test_the_place_is_expected_at_the_first_deadline_that_makes_room(cluster):
    cluster.node("n1")
    cluster.node("n2")
    cluster.pod("a", 60, on="n1-0", started=100, activeDeadlineSeconds=1000)
    cluster.pod("b", 30, on="n2-0", started=0, activeDeadlineSeconds=400)  # leaves only 60 with it
    cluster.pod("c", 60, on="n2-0", started=0, job="j")
    cluster.jobs = [
        {
            "metadata": {"uid": "j"},
            "spec": {"activeDeadlineSeconds": 1700},
            "status": {"startTime": format_seconds(NOW - 1_000_000)},
        }
    ]
    cluster.pod("w", 70)
    expected = cluster.told("w").expected
    assert (expected.at_ms, expected.node, expected.after) == (NOW + 700_000, "n2", "team/c")


def test_a_deadline_that_has_no_date_makes_no_room(cluster):
    cluster.node("n1")
    cluster.pod("a", 100, 0, on="n1-0", job="j")
    cluster.jobs = [
        {
            "metadata": {"uid": "j"},
            "spec": {"activeDeadlineSeconds": 10**18},
            "status": {"startTime": format_seconds(NOW)},
        }
    ]
    cluster.pod("w", 100, 0)
    assert cluster.told("w").expected is None


def test_pods_that_wait_end_with_their_jobs_too(cluster):
    cluster.node("n1")
    cluster.pod("a", 100, 0, on="n1-0", started=0, activeDeadlineSeconds=100)
    cluster.pod("b", 100, 0, age=50, job="j")
    cluster.pod("c", 100, 0, age=40, job="k")
    cluster.pod("w", 100, 0)
    cluster.jobs = [
        {"metadata": {"uid": uid}, "spec": {"activeDeadlineSeconds": s}, "status": {"startTime": format_seconds(NOW)}}
        for uid, s in (("j", 500), ("k", 300))
    ]
    expected = cluster.told("w").expected
    assert (expected.at_ms, expected.after) == (NOW + 500_000, "team/b"), "c ends before it finds a place"


def test_pods_ahead_take_the_first_places(cluster):
    cluster.node("n1")
    cluster.pod("a", 100, 0, on="n1-0", started=0, activeDeadlineSeconds=60)
    cluster.pod("older", 100, 0, age=50, activeDeadlineSeconds=500)
    cluster.pod("younger", 100, 0, age=5)
    cluster.pod("urgent", 60, age=1, priority=1000, activeDeadlineSeconds=30)
    cluster.pod("w", 100, 0, age=20)
    told = cluster.told("w")
    assert told.ahead == ("team/urgent", "team/older")
    assert (told.expected.at_ms, told.expected.after) == (NOW + (60 + 30 + 500) * 1000, "team/older")


def test_what_leaves_makes_room_now(cluster):
    cluster.node("n1")
    cluster.pod("a", 100, 0, on="n1-0", leaving=True)
    cluster.pod("w", 100, 0)
    expected = cluster.told("w").expected
    assert (expected.at_ms, expected.after, expected.is_leaving) == (NOW, "team/a", True)


def test_cpu_that_is_short_is_told_and_expected_with_the_pods_that_have_it(cluster):
    cluster.node("n", cpu="4")
    cluster.pod("a", 20, on="n-0", cpu="2500m", started=0, activeDeadlineSeconds=600)
    cluster.pod("w", 20, cpu="2")
    told = cluster.told("w")
    assert told.reasons == (("GPUs are free, but not enough CPU or main memory (asked for: cpu 2, memory 0Mi)", 1),)
    assert told.helps == (
        "ask for less CPU or memory: where GPUs are free, at most cpu 1.5 and memory 8192Mi are free",
    )
    assert (told.expected.at_ms, told.expected.after) == (NOW + 600_000, "team/a")
    assert not told.is_stuck
    containers = [{"resources": {"requests": {"cpu": "1"}}}]
    cluster.state.intake.set_other({"metadata": {"uid": "o"}, "spec": {"nodeName": "n", "containers": containers}})
    assert "at most cpu 0.5 and" in cluster.told("w").helps[0]


def test_cpu_of_pods_that_are_served_before_is_taken(cluster):
    cluster.node("n", gpus=2, cpu="4")
    cluster.pod("a", 20, on="n-0", cpu="1", started=0, activeDeadlineSeconds=60)
    cluster.pod("older", 20, cpu="2", age=50)
    cluster.pod("w", 20, cpu="2", age=5)
    assert cluster.told("w").expected.at_ms == NOW + 60_000


def test_a_gang_gets_room_for_all_or_for_none(cluster):
    cluster.node("n0", gpus=2)
    cluster.pod("a", 100, 0, on="n0-0", started=0, activeDeadlineSeconds=100)
    cluster.pod("b", 100, 0, on="n0-1", started=0, activeDeadlineSeconds=200)
    gang = {names.GANG: "g", names.GANG_SIZE: "2"}
    for name in ("g0", "g1"):
        cluster.pod(name, 100, 0, age=50, annotations=gang)
    cluster.pod("w", 100, 0, activeDeadlineSeconds=300)
    told = cluster.told("w")
    assert told.ahead == ("team/g0", "team/g1")
    assert (told.expected.at_ms, told.expected.after) == (NOW + 100_000, "team/a"), "one GPU is not enough for the gang"
    for name in ("g0", "g1"):
        expected = cluster.told(name).expected
        assert (expected.at_ms, expected.after) == (NOW + 200_000, "team/b")


def test_a_gang_that_finds_room_takes_it_before_those_behind_it(cluster):
    cluster.node("n0", gpus=3, cpu="5")
    cluster.pod("a", 100, 0, on="n0-0", started=0, cpu="1", activeDeadlineSeconds=100)
    gang = {names.GANG: "g", names.GANG_SIZE: "2"}
    for name, age in (("g0", 50), ("g1", 0), ("g2", 0)):
        cluster.pod(name, 100, 0, age=age, cpu="2", annotations=gang, activeDeadlineSeconds=60)
    cluster.pod("w", 100, 0, age=10)
    told = cluster.told("w")
    assert told.ahead == ("team/g0", "team/g1", "team/g2")
    assert told.expected.at_ms == NOW + 60_000
    assert cluster.told("g2").expected.at_ms == NOW + 60_000, "as any other pod, once the gang has started"
