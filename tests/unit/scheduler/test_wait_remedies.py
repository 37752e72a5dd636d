# SPDX-License-Identifier: Apache-2.0
"""What a waiting pod's owner is advised to do: by hand for a few small clusters."""

import pytest
from support.waiting_pods import NOW, OVER, Cluster

from slicekeeper import names


@pytest.fixture
def cluster():
    return Cluster()


def test_what_fits_now_is_told_as_it_is_before_pods_reach_their_deadlines(cluster):
    cluster.node("n")
    cluster.pod("a", 60, on="n-0", started=0, activeDeadlineSeconds=600)
    cluster.pod("w", 60)
    told = cluster.told("w")
    assert told.expected.at_ms == NOW + 600_000
    assert told.helps == ("40 percent of a GPU with the same memory would fit now (60 are asked for)",)


@pytest.mark.parametrize(
    ("theirs", "mine", "help_"),
    [
        (
            {names.GPU_ANTI_AFFINITY: "x"},
            {names.GPU_ANTI_AFFINITY: "x"},
            "without its rule about company (anti-affinity x)",
        ),
        ({}, {names.SHARING: "exclusive"}, "without its rule about company (sharing exclusive)"),
        ({names.GPU_EXCLUSION: "x"}, {}, "kept by pods that exclude others: it fits when these end"),
    ],
)
def test_rules_about_company_that_keep_a_pod_off_are_named(cluster, theirs, mine, help_):
    cluster.node("n")
    cluster.pod("a", 20, on="n-0", annotations=theirs)
    cluster.pod("w", 50, annotations=mine)
    [told] = cluster.told("w").helps
    assert told.endswith(help_)
    assert not cluster.told("w").is_stuck


def test_a_pod_with_an_affinity_is_told_what_would_fit_beside_its_friend(cluster):
    cluster.node("n0", gpus=2)
    cluster.pod("friend", 70, on="n0-0", annotations={names.GPU_AFFINITY: "x"})
    cluster.pod("other", 60, on="n0-1", annotations={names.GPU_EXCLUSION: "e"})
    cluster.pod("w", 40, annotations={names.GPU_AFFINITY: "x"})
    helps = cluster.told("w").helps
    assert helps == ("30 percent of a GPU with the same memory would fit now (40 are asked for)",)


def test_fewer_whole_gpus_may_fit(cluster):
    cluster.node("n", gpus=4)
    cluster.pod("a", 20, on="n-0")
    cluster.pod("b", 20, on="n-1")
    cluster.pod("w", 400, 0)
    assert cluster.told("w").helps == ("2 whole GPUs would fit now (4 are asked for)",)


def test_memory_alone_may_be_too_much(cluster):
    cluster.node("n")
    cluster.pod("a", 10, 30, on="n-0")  # 7,680 of 8,192 MiB
    cluster.pod("w", 50, 4)
    assert cluster.told("w").helps == ("the same share with 512 MiB (2 blocks) would fit now",)


@pytest.mark.parametrize(
    ("core", "blocks", "annotations", "help_"),
    [
        (50, 4, {names.GPU_MODEL: "H100"}, "name a model that there is: A100"),
        (50, 4, {names.GPU_UUID: "GPU-x"}, "name a GPU that there is, or none: GPU-x is on no node that it may use"),
        (50, 40, {}, "ask for less on one node: the largest GPU has 8192 MiB, the largest node 2 GPUs"),
        (300, 0, {}, "ask for less on one node: the largest GPU has 8192 MiB, the largest node 2 GPUs"),
    ],
)
def test_what_no_pods_end_can_mend_must_be_changed(cluster, core, blocks, annotations, help_):
    cluster.node("n", gpus=2)
    cluster.pod("w", core, blocks, annotations=annotations)
    assert cluster.told("w").helps == (help_,)
    assert cluster.told("w").expected is None
    assert cluster.told("w").is_stuck


def test_without_budget_a_grant_helps_only_if_others_would_give_way(cluster):
    cluster.node("n1")
    cluster.pod("own", 60, on="n1-0", state=OVER)
    cluster.pod("w", 60, state=OVER)
    assert cluster.told("w").give_way == ()
    cluster.node("n2")
    cluster.pod("theirs", 60, on="n2-0", state=OVER, namespace="other")
    told = cluster.told("w")
    assert told.give_way == ("other/theirs",)
    assert told.helps[0].endswith("would give way to it: slicekeeper budget grant team AMOUNT")


def test_more_cpu_than_any_node_has_is_said_to_be_too_much(cluster):
    cluster.node("n0", cpu="4")
    cluster.node("n1", cpu="2")
    cluster.node("closed", cpu="8", unschedulable=True)
    cluster.pod("a", 100, 0, on="n0-0", started=0, activeDeadlineSeconds=60)
    cluster.pod("w", 50, cpu="9")
    told = cluster.told("w")
    assert ("the node has less CPU or main memory than is asked for (cpu 9, memory 0Mi)", 2) in told.reasons
    assert told.helps == ("ask for no more CPU and memory than a node has (cpu 4 with memory 8192Mi)",)
    assert told.give_way == ()
    assert told.is_stuck
    assert told.expected is None


def test_what_would_fit_on_gpus_without_cpu_beside_them_is_not_told(cluster):
    cluster.node("busy", gpus=3, cpu="2")
    cluster.node("n0", cpu="9")
    cluster.pod("a", 60, on="busy-0", cpu="2")
    cluster.pod("b", 80, 8, on="n0-0")
    cluster.pod("c", 10, on="busy-1")
    cluster.pod("w", 95, cpu="1", annotations={names.GPU_MODEL: "A100"})
    cluster.pod("two", 200, 0, cpu="1")
    assert cluster.told("w").helps == (
        "ask for less CPU or memory: where GPUs are free, at most cpu 0 and memory 8192Mi are free",
    )
    cluster.pod("d", 10, on="busy-2")
    assert cluster.told("w").helps == ("20 percent of a GPU with the same memory would fit now (95 are asked for)",)
    assert cluster.told("two").helps == ()


@pytest.mark.parametrize(
    ("node", "reason"),
    [
        ({"unschedulable": True}, "the node is cordoned"),
        ({"taints": [{"key": "a", "effect": "NoSchedule"}]}, "the node has a taint that the pod does not tolerate"),
    ],
)
def test_a_node_that_would_do_if_it_was_open_is_named(cluster, node, reason):
    cluster.node("n0")
    cluster.node("n1", gpus=2, **node)
    cluster.pod("w", 200, 0)
    told = cluster.told("w")
    assert (reason, 1) in told.reasons
    assert told.helps == ("open node n1 to it: it would fit there now",)
    cluster.pod("a", 20, on="n1-0")
    assert cluster.told("w").helps == ("open node n1 to it: its GPUs could hold it",)


@pytest.mark.parametrize(
    ("asked", "wishes", "help_"),
    [
        # What is advised does not exist already, and is there on a node that the pod may use.
        ((60, 4), {names.GPU_MODEL: "H100"}, "name a model that there is: A100, T4"),
        (
            (400, 0),
            {names.GPU_MODEL: "T4"},
            "ask for less on one node: the largest GPU has 8192 MiB, the largest node 2 GPUs of model T4",
        ),
        ((200, 0), {names.GPU_UUID: "n0-0"}, "ask for no more than GPU n0-0 has, or name none"),
    ],
)
def test_advice_is_about_the_gpus_that_the_pod_may_use(cluster, asked, wishes, help_):
    cluster.node("n0", gpus=2, model="T4")
    cluster.node("n1", gpus=8)
    cluster.node("closed", gpus=2, model="L4", unschedulable=True)
    cluster.pod("w", *asked, annotations=wishes)
    assert cluster.told("w").helps == (help_,)


def test_no_node_that_could_hold_a_pod_is_open_or_closed(cluster):
    cluster.pod("w", 400, 0)
    assert cluster.told("w").helps == ("add a node with GPUs that Slicekeeper manages",)
    cluster.node("n", gpus=2, unschedulable=True)
    told = cluster.told("w")
    assert told.helps == ("ask for less on one node: the largest GPU has 8192 MiB, the largest node 2 GPUs",)
    assert told.is_stuck
