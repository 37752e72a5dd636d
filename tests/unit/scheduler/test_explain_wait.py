# SPDX-License-Identifier: Apache-2.0
"""Why a pod waits, what would help, and when its place is expected: worked out by hand for a few small clusters."""

import json
import re

import pytest
from click.testing import CliRunner
from support.small_cluster import NAMESPACE, small_cluster

from scheduler.explain_wait import outlook
from scheduler.placement.best_fit import BestFit
from scheduler.placement.learner import Learner
from scheduler.pods import chosen_hold
from scheduler.state import SchedulerState
from scheduler.wait_forecast import deadlines
from slicekeeper import names
from slicekeeper.cli.main import cli
from slicekeeper.clock import ManualClock
from slicekeeper.config.settings import Resources
from slicekeeper.gpu import inventory
from slicekeeper.kube import events
from slicekeeper.kube.client import NODES, PODS
from slicekeeper.units import format_seconds

NOW = 1_800_000_000_000
OVER, IN = names.OVER_BUDGET, names.IN_BUDGET


class Cluster:
    """A state that gets nodes and pods from a test, and the deadlines of its pods."""

    def __init__(self):
        self.state = SchedulerState(Resources(), Learner("best-fit"), ManualClock(NOW), hold_seconds=0, lost_seconds=0)
        self.objects = []
        self.jobs = []

    def node(self, name, gpus=1, memory=8192, model="A100", cpu="", **spec):
        listed = inventory.encode([inventory.Gpu(f"{name}-{g}", model, memory) for g in range(gpus)])
        status = {"allocatable": {"cpu": cpu, "memory": "8Gi"}} if cpu else {}
        self.state.intake.set_node(
            {"metadata": {"name": name, "annotations": {names.NODE_GPUS: listed}}, "spec": spec, "status": status}
        )

    def pod(
        self,
        name,
        core,
        blocks=4,
        *,
        on="",
        state=IN,
        age=0,
        namespace="team",
        started=None,
        leaving=False,
        job="",
        cpu="0",
        annotations=None,
        **spec,
    ):
        """Make a pod: on a GPU `on`, or waiting for so many seconds."""
        limits = {"tencent.com/vcuda-core": str(core)} | ({"tencent.com/vcuda-memory": str(blocks)} if blocks else {})
        obj = {
            "metadata": {
                "name": name,
                "namespace": namespace,
                "uid": name,
                "labels": {names.MANAGED_LABEL: names.MANAGED_VALUE},
                "creationTimestamp": format_seconds(NOW - age * 1000),
                "annotations": {names.BUDGET_STATE: state, **(annotations or {})},
                **({"deletionTimestamp": format_seconds(NOW)} if leaving else {}),
                **({"ownerReferences": [{"uid": job}]} if job else {}),
            },
            "spec": {"containers": [{"name": "c", "resources": {"limits": limits, "requests": {"cpu": cpu}}}], **spec},
            "status": {"startTime": format_seconds(NOW - started * 1000)} if started is not None else {},
        }
        if on:
            obj["spec"]["nodeName"] = on.rpartition("-")[0]
            obj["metadata"]["annotations"] |= {names.gpu_annotation("c"): on, names.BOUND_AT: format_seconds(NOW)}
        self.objects.append(obj)
        self.state.intake.set_pod(obj)

    def told(self, name):
        ends = deadlines(self.objects, self.jobs)
        return outlook(self.state.snapshot(), self.state.pod(name), BestFit(), ends, NOW)


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


def test_pods_whose_gpu_is_not_in_sight_keep_those_with_their_label(cluster):
    cluster.node("n0")
    cluster.pod("a", 20, on="gone-0", annotations={names.GPU_AFFINITY: "x"})
    cluster.pod("w", 20, annotations={names.GPU_AFFINITY: "x"})
    told = cluster.told("w")
    assert told.expected is None
    assert told.helps == ("it would fit now without its rule about company (affinity x)",)


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


def test_gated_pods_are_not_ahead_and_are_told_what_holds_them(cluster):
    cluster.node("n1")
    cluster.pod("gated", 100, 0, age=50, schedulingGates=[{"name": "slicekeeper.io/budget"}])
    cluster.pod("w", 100, 0)
    told = cluster.told("w")
    assert (told.ahead, told.expected.at_ms, told.expected.after) == ((), NOW, "")
    assert cluster.told("gated").helps[0].startswith("it is held back by slicekeeper.io/budget")
    assert cluster.told("gated").expected is None


def test_what_leaves_makes_room_now(cluster):
    cluster.node("n1")
    cluster.pod("a", 100, 0, on="n1-0", leaving=True)
    cluster.pod("w", 100, 0)
    expected = cluster.told("w").expected
    assert (expected.at_ms, expected.after, expected.is_leaving) == (NOW, "team/a", True)


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


def test_cpu_of_pods_that_are_served_before_is_taken(cluster):
    cluster.node("n", gpus=2, cpu="4")
    cluster.pod("a", 20, on="n-0", cpu="1", started=0, activeDeadlineSeconds=60)
    cluster.pod("older", 20, cpu="2", age=50)
    cluster.pod("w", 20, cpu="2", age=5)
    assert cluster.told("w").expected.at_ms == NOW + 60_000


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


def test_a_place_that_is_kept_for_the_pod_is_told(cluster):
    cluster.node("n")
    cluster.pod("w", 60)
    waiting = cluster.state.pod("w")
    cluster.state.reserve_all([(waiting, chosen_hold(waiting, "n", ["n-0"])[0])], 1 << 62)
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


@pytest.fixture
def real(tmp_path, monkeypatch):
    with small_cluster() as made:
        monkeypatch.setenv("SLICEKEEPER_KUBERNETES_SERVER", made.server.url)
        monkeypatch.setenv("SLICEKEEPER_HOME", str(tmp_path))
        monkeypatch.delenv("KUBECONFIG", raising=False)
        yield made


def explain(*args):
    done = CliRunner().invoke(cli, ["explain", *args])
    assert done.exit_code == 0, done.output
    return done.output


def test_the_command_tells_of_a_waiting_pod(real):
    real.node("n0")
    real.pod("w", 200, 0)
    told = json.loads(explain("w", "-n", NAMESPACE, "-o", "json"))
    assert (told["state"], told["expected"]) == ("waiting", None)
    assert told["reasons"] == [{"reason": "its GPUs could not hold 2 whole GPUs even if they were idle", "nodes": 1}]
    words = explain("pod/w", "-n", NAMESPACE)
    assert "Pod team-a/w waits since " in words
    assert "  1 node: its GPUs could not hold 2 whole GPUs" in words
    assert "Expected: never as things are; no pod's end would make room" in words
    assert words.endswith("the largest node 1 GPU\n")


def test_the_command_tells_where_a_pod_went(real):
    why = "best-fit, the cheapest of 2 nodes with room; GPU before: idle"
    annotations = {
        names.gpu_annotation("c"): "n0-0",
        names.BOUND_AT: "2027-01-15T08:00:00.000Z",
        names.SHARING_MODE: f"shared: adaptive, a share was asked for; {why}",
    }
    real.pod("p", annotations=annotations, nodeName="n0")
    words = explain("p", "-n", NAMESPACE)
    assert "has its place since 2027-01-15T08:00:00.000Z (in-budget)" in words
    assert "on node n0 (shared: adaptive, a share was asked for):\n  container c: n0-0" in words
    assert f"Why there: {why}" in words


def test_what_kube_scheduler_said_last_is_the_condition_as_it_is_now(real):
    made = real.pod("w", 50)
    said = [
        {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes are available"}
    ]
    real.client.patch(PODS, "w", {"status": {"conditions": said}}, NAMESPACE, subresource="status")
    events.write(
        real.client,
        real.clock,
        made,
        kind="Warning",
        reason="FailedScheduling",
        action="Scheduling",
        note="0/1 nodes are available",
        reporter="slicekeeper-scheduler",
    )
    assert explain("w", "-n", NAMESPACE).endswith("kube-scheduler said last:\n  0/3 nodes are available\n")


def test_a_pod_that_its_owner_put_on_a_node_has_a_time_too(real):
    real.pod("p", nodeName="n0")
    assert re.search(r"has its place since \d{4}-", explain("p", "-n", NAMESPACE))


def test_a_pod_that_the_webhook_has_not_seen_is_told(real):
    real.pod("stranger", managed=False)
    assert "create it again in a namespace where the webhook is on" in explain("stranger", "-n", NAMESPACE)


def test_something_is_always_said_to_be_why(real):
    real.pod("w")
    assert "Why:\n  no node has GPUs that Slicekeeper manages\n" in explain("w", "-n", NAMESPACE)
    real.node("n0")
    assert "Why:\n  nothing on GPUs: there is room\nExpected: now, on node n0" in explain("w", "-n", NAMESPACE)
    real.pod("gated", schedulingGates=[{"name": "slicekeeper.io/budget"}])
    words = explain("gated", "-n", NAMESPACE)
    assert "Why:\n  held back by its scheduling gate: slicekeeper.io/budget\n" in words
    assert "Expected: unknown; its scheduling gate comes first" in words


def test_a_pod_that_others_give_way_to_has_its_place_soon(real):
    real.node("n0")
    real.pod("v", 60, state=OVER, annotations={names.gpu_annotation("c"): "n0-0"}, nodeName="n0")
    real.pod("w", 60)
    words = explain("w", "-n", NAMESPACE)
    assert "About to give way to it: team-a/v\nExpected: soon, when the pods that give way to it have ended" in words


def test_the_command_counts_the_cpu_of_all_pods_if_there_is_room_on_gpus(real):
    real.node("n0")
    real.client.patch(NODES, "n0", {"status": {"allocatable": {"cpu": "2", "memory": "8Gi"}}}, subresource="status")
    requests = {"requests": {"cpu": "1500m"}}
    containers = [{"name": "c", "image": "web", "resources": requests}]
    real.pod("web", managed=False, nodeName="n0", containers=containers)
    limits = {"tencent.com/vcuda-core": "20", "tencent.com/vcuda-memory": "4"}
    real.pod("w", containers=[{"name": "c", "image": "cuda", "resources": {"limits": limits, **requests}}])
    words = explain("w", "-n", NAMESPACE)
    assert "1 node: GPUs are free, but not enough CPU or main memory (asked for: cpu 1.5, memory 0Mi)" in words
    assert "Expected: unknown" in words


def test_a_pod_that_waits_for_one_that_is_being_deleted_is_not_told_of_its_deadline(real):
    real.node("n0")
    real.pod("a", annotations={names.gpu_annotation("c"): "n0-0"}, nodeName="n0")
    real.client.delete(PODS, "a", NAMESPACE)
    real.pod("w")
    assert "Expected: soon, on node n0, when team-a/a has ended, which is being deleted" in explain(
        "w", "-n", NAMESPACE
    )


def test_the_command_tells_how_a_gang_stands(real):
    gang = {names.GANG: "bert", names.GANG_SIZE: "3"}
    real.node("n0", gpus=2)
    for name in ("a", "b"):
        real.pod(name, annotations=gang)
    assert (
        "Gang bert: 3 pods are placed together or not at all; 0 have one, 2 wait, of which 2 would fit now "
        "together, and 1 must still come" in explain("a", "-n", NAMESPACE)
    )
    assert json.loads(explain("a", "-n", NAMESPACE, "-o", "json"))["expected"] is None
    assert "create the pods that are missing (1), or name a smaller" in explain("a", "-n", NAMESPACE)
    real.pod("gated", annotations=gang, schedulingGates=[{"name": names.GATE}])
    words = explain("a", "-n", NAMESPACE)
    assert "pods of its gang are held back by scheduling gates (1): `slicekeeper explain` them" in words
    assert "create the pods" not in words
    real.end("gated")
    real.pod("c", annotations=gang)
    words = explain("a", "-n", NAMESPACE)
    assert "3 wait; it can never fit: idle GPUs would hold 2 of them\nExpected: never as things are" in words
    assert "there is room" not in words
    real.node("n1", gpus=2)
    real.pod("p", annotations={names.gpu_annotation("c"): "n1-0"}, nodeName="n1")
    assert "0 have one, 3 wait, of which 3 would fit now together" in explain("a", "-n", NAMESPACE)


@pytest.mark.parametrize("name", ["slicekeeper-scheduler", "gpus"])
def test_nodes_of_other_schedulers_do_not_count_and_one_with_room_is_named(real, name):
    for node in ("n0", "n1"):
        real.node(node)
    real.client.patch(NODES, "n1", {"metadata": {"labels": {names.SHARD: "b"}}})
    real.pod("v", 60, annotations={names.gpu_annotation("c"): "n0-0"}, nodeName="n0")
    real.pod("first", 60, schedulerName=name)
    words = explain("first", "-n", NAMESPACE)
    assert "  1 node: not enough is free" in words
    assert f"{name}-b has nodes with room for it: create it again with that schedulerName" in words
    real.pod("second", 60, schedulerName=f"{name}-b")
    assert "Expected: now, on node n1" in explain("second", "-n", NAMESPACE)


def test_a_scheduler_without_nodes_is_no_other_one(real):
    real.node("n0")
    real.pod("stray", 30, schedulerName="slicekeeper-scheduler-c")
    words = explain("stray", "-n", NAMESPACE)
    assert "Why:\n  no node has GPUs that Slicekeeper manages\n" in words
    assert "slicekeeper-scheduler has nodes with room for it" in words
