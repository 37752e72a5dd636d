# SPDX-License-Identifier: Apache-2.0
"""Why a pod waits, which pods are served before it, and which give way: by hand for a few small clusters."""

import pytest
from support.waiting_pods import IN, NOW, OVER, Cluster

from scheduler.pods import chosen_hold
from slicekeeper import names


@pytest.fixture
def cluster():
    return Cluster()


def test_reasons_are_counted_by_nodes_and_what_fits_now_is_told(cluster):
    cluster.node("full")
    cluster.node("half", model="T4")
    cluster.node("closed", unschedulable=True)
    cluster.pod("a", 100, 0, on="full-0")
    cluster.pod("b", 70, 16, on="half-0")
    cluster.pod("w", 50)
    told = cluster.told("w")
    assert [n for _, n in told.reasons] == [2, 1]
    assert told.reasons[0][0].startswith("not enough is free for 50 percent of a GPU with 1024 MiB")
    assert told.reasons[1][0] == "the node is cordoned"
    assert told.expected is None
    assert told.helps == (
        "30 percent of a GPU with the same memory would fit now (50 are asked for)",
        "open node closed to it: it would fit there now",
    )


def test_pods_whose_gpu_is_not_in_sight_keep_those_with_their_label(cluster):
    cluster.node("n0")
    cluster.pod("a", 20, on="gone-0", annotations={names.GPU_AFFINITY: "x"})
    cluster.pod("w", 20, annotations={names.GPU_AFFINITY: "x"})
    told = cluster.told("w")
    assert told.expected is None
    assert told.helps == ("it would fit now without its rule about company (affinity x)",)


def test_pods_of_a_gang_that_lacks_some_are_ahead_of_nobody(cluster):
    cluster.node("n1", gpus=2)
    cluster.pod("a", 100, 0, on="n1-0", started=0, activeDeadlineSeconds=100)
    cluster.pod("b", 100, 0, on="n1-1")
    cluster.pod("g0", 100, 0, age=50, annotations={names.GANG: "g", names.GANG_SIZE: "2"})
    cluster.pod("w", 100, 0)
    told = cluster.told("w")
    assert told.ahead == ()
    assert told.expected.at_ms == NOW + 100_000
    cluster.pod("g1", 100, 0, annotations={names.GANG: "g", names.GANG_SIZE: "2"})
    assert cluster.told("w").ahead == ("team/g0", "team/g1")


def test_gated_pods_are_not_ahead_and_are_told_what_holds_them(cluster):
    cluster.node("n1")
    cluster.pod("gated", 100, 0, age=50, schedulingGates=[{"name": "slicekeeper.io/budget"}])
    cluster.pod("w", 100, 0)
    told = cluster.told("w")
    assert (told.ahead, told.expected.at_ms, told.expected.after) == ((), NOW, "")
    assert cluster.told("gated").helps[0].startswith("whoever holds it back by slicekeeper.io/budget must")
    assert cluster.told("gated").expected is None


def test_over_budget_pods_give_way_to_one_in_budget(cluster):
    cluster.node("n1")
    cluster.pod("o1", 60, on="n1-0", state=OVER, namespace="other")
    cluster.pod("w", 60)
    assert cluster.told("w").give_way == ("other/o1",)
    assert "budget grant" not in "".join(cluster.told("w").helps)


def test_nobody_gives_way_to_background_work(cluster):
    cluster.node("n0")
    cluster.pod("theirs", 60, on="n0-0", state=OVER)
    for state in (IN, OVER):
        cluster.pod(state, 60, state=state, annotations={names.GPU_CLASS: names.BACKGROUND})
        told = cluster.told(state)
        assert told.give_way == ()
        assert not any("grant" in text for text in told.helps)


def test_nobody_gives_way_if_a_pod_that_is_being_deleted_makes_room(cluster):
    cluster.node("n0")
    cluster.node("n1")
    cluster.pod("theirs", 60, on="n0-0", state=OVER)
    cluster.pod("leaving", 60, on="n1-0", leaving=True)
    cluster.pod("w", 60)
    told = cluster.told("w")
    assert told.give_way == ()
    assert (told.expected.node, told.expected.is_leaving) == ("n1", True)


def test_pods_give_way_to_a_whole_gang_or_to_none_of_it(cluster):
    cluster.node("n0", gpus=2)
    cluster.pod("one", 60, on="n0-0", state=OVER)
    cluster.pod("two", 60, on="n0-1", state=OVER)
    gang = {names.GANG: "g", names.GANG_SIZE: "2"}
    cluster.pod("w0", 60, annotations=gang)
    assert cluster.told("w0").give_way == ()
    cluster.pod("w1", 60, annotations=gang)
    assert cluster.told("w0").give_way == ("team/one", "team/two")
    cluster.pod("w2", 60, annotations=gang, state=OVER)
    assert cluster.told("w0").give_way == ()


def test_room_that_is_there_already_is_said(cluster):
    cluster.node("n1")
    cluster.pod("w", 60)
    told = cluster.told("w")
    assert (told.reasons, told.expected.node, told.expected.after) == ((), "n1", "")
    assert told.helps[0].startswith("there is room on GPUs")


def test_a_forecast_changes_nothing_in_the_state(cluster):
    cluster.node("n1")
    cluster.pod("a", 100, 0, on="n1-0", started=0, activeDeadlineSeconds=60)
    cluster.pod("w", 100, 0)
    before = cluster.state.totals()
    assert cluster.told("w") == cluster.told("w")
    assert cluster.state.totals() == before


def test_a_place_that_is_kept_for_the_pod_is_told(cluster):
    cluster.node("n")
    cluster.pod("w", 60)
    waiting = cluster.state.pod("w")
    cluster.state.reserve([(waiting, chosen_hold(waiting, "n", ["n-0"])[0])], 1 << 62)
    assert cluster.told("w").helps == ("a place is kept for it on node n, for when kube-scheduler tries it again",)


def test_a_gang_has_the_place_of_its_first_pod(cluster):
    gang = {names.GANG: "g", names.GANG_SIZE: "2"}
    cluster.node("n", gpus=2)
    cluster.pod("first", 60, age=9)
    cluster.pod("v", 60, age=7, annotations=gang)
    cluster.pod("other", 60, age=5)
    cluster.pod("w", 60, annotations=gang)
    assert cluster.told("w").ahead == ("team/first",)
    assert cluster.told("other").ahead == ("team/first", "team/v", "team/w")


@pytest.mark.parametrize(
    "ahead",
    [
        {"core": 100, "blocks": 0, "cpu": "9"},
        {"core": 300, "blocks": 0},
        {"core": 50, "nodeSelector": {"pool": "other"}},
        {"core": 50, "annotations": {names.GPU_MODEL: "H100"}},
    ],
)
def test_pods_that_can_never_fit_are_ahead_of_nobody(cluster, ahead):
    cluster.node("n", cpu="4", gpus=2)
    for gpu in (0, 1):
        cluster.pod(f"a{gpu}", 100, 0, on=f"n-{gpu}")
    cluster.pod("never", age=50, **ahead)
    cluster.pod("older", 100, 0, age=40)
    cluster.pod("w", 100, 0)
    assert cluster.told("w").ahead == ("team/older",)


@pytest.mark.parametrize(("size", "cpu"), [(3, "0"), (2, "3")])
def test_a_gang_that_can_never_fit_is_ahead_of_nobody(cluster, size, cpu):
    cluster.node("n", cpu="4", gpus=2)
    for number in range(size):
        cluster.pod(f"g{number}", 100, 0, age=50, cpu=cpu, annotations={names.GANG: "g", names.GANG_SIZE: str(size)})
    cluster.pod("w", 100, 0)
    assert cluster.told("w").ahead == ()
