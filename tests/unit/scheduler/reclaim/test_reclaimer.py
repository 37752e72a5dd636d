# SPDX-License-Identifier: Apache-2.0
"""The reclaimer on a real API: which pods it evicts, and when none; for which pods it keeps places; its events."""

import orjson
import pytest
from support.manual_clock import ManualClock
from support.small_cluster import binding, protected, small_cluster
from support.waiting import wait_for

from scheduler.extender import filter_nodes, gpu_pod
from scheduler.held_places import HoldKind
from scheduler.scheduler_process import Scheduler
from simulator import kinds
from simulator.api_errors import ApiError
from simulator.kinds import ObjectKind
from slicekeeper import names
from slicekeeper.config.settings import KubernetesSettings, SchedulerSettings, Settings
from slicekeeper.kube.client import DISRUPTION_BUDGETS, NODES, PODS
from slicekeeper.kube.pod import is_leaving

START = 1_800_000_000_000
OVER, IN = names.OVER_BUDGET, names.IN_BUDGET
READY = {"type": "Ready", "status": "True"}


def conditions_of(pod):
    """Return what kube-scheduler said of a pod that waits; None: of one that is bound, or nothing."""
    return None if pod is None or pod["spec"].get("nodeName") else pod.get("status", {}).get("conditions")


class Story:
    """One scheduler on one cluster; time is the test's."""

    def __init__(self, cluster, clock):
        self.cluster = cluster
        self.clock = clock
        settings = Settings(
            kubernetes=KubernetesSettings(server=cluster.server.url),
            scheduler=SchedulerSettings(assume_seconds=30, reclaim_after_seconds=2),
        )
        self.scheduler = Scheduler(settings, clock)
        self.state = self.scheduler.state

    def start(self):
        self.scheduler.watches.start()
        wait_for(lambda: self.scheduler.watches.synced, "synced")
        return self

    def node(self, name, *args, **kwargs):
        """Make a node, and wait until the scheduler knows it."""
        self.cluster.node(name, *args, **kwargs)
        wait_for(lambda: name in self.state.snapshot().nodes, f"the watch brings {name}")

    def runs(self, name, core=60, *, on="n0", state=OVER, **kwargs):
        """Make a pod and bind it."""
        pod = self.cluster.pod(name, core, state=state, **kwargs)
        assert self.scheduler.binder.bind(binding(pod, on)) == ""
        return pod

    def waits(self, name="w", core=60, **kwargs):
        """Make a pod that kube-scheduler refuses, and let it wait long enough."""
        pod = self.cluster.pod(name, core, **kwargs)
        refused = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
        status = {"status": {"conditions": [refused]}}
        self.cluster.client.patch(PODS, name, status, pod["metadata"]["namespace"], subresource="status")
        self.clock.advance(3000)
        return pod

    def look(self):
        """Let the reclaimer look once the watch has brought all that there is."""
        self.settle()
        self.scheduler.reclaimer.look()

    def settle(self):
        pods = {p["metadata"]["uid"]: p for p in self.cluster.client.list(PODS)[0]}

        def same():
            snapshot = self.state.snapshot()
            known = {p.uid: (p.node, p.budget_state, p.leaving, conditions_of(p.waiting)) for p in snapshot.pods}
            there = {
                uid: (
                    p["spec"].get("nodeName", ""),
                    p["metadata"]["annotations"].get(names.BUDGET_STATE),
                    is_leaving(p),
                    conditions_of(p),
                )
                for uid, p in pods.items()
            }
            bound = {uid for uid, p in pods.items() if p["spec"].get("nodeName")}
            counted = self.state._cluster.cpu_memory.uids()
            return known == there and not self.state.counts()[HoldKind.BINDING] and counted == bound

        wait_for(same, "the watches have caught up")

    def evicted(self):
        return {
            p["metadata"]["name"] for p in self.cluster.client.list(PODS)[0] if p["metadata"].get("deletionTimestamp")
        }

    def fits(self, pod, *nodes):
        return orjson.loads(
            filter_nodes(self.state, self.scheduler.gangs, gpu_pod(self.state, pod), orjson.dumps(nodes))
        )["NodeNames"]


@pytest.fixture
def story():
    clock = ManualClock(START)
    with small_cluster(clock) as cluster:
        cluster.node("n0")
        made = Story(cluster, clock).start()
        yield made
        made.scheduler.watches.stop()


@pytest.mark.parametrize("deleted", [False, True])
def test_a_pod_that_would_take_years_to_stop_gets_an_hour(story, deleted):
    years = 10**9
    victim = story.runs("victim", terminationGracePeriodSeconds=years)
    if deleted:  # by its owner, who knows that it ignores the request to stop
        story.cluster.client.delete(PODS, "victim", victim["metadata"]["namespace"])
    story.waits()
    story.look()
    assert story.cluster.events() == {("victim", "GaveWay"), ("w", "PlaceReclaimed")}
    assert story.cluster.get("victim")["metadata"]["deletionGracePeriodSeconds"] == 3_600


def test_an_over_budget_pod_gives_way_and_the_place_is_kept(story):
    story.runs("victim")
    waiting, rival = story.waits(), story.cluster.pod("rival")
    story.look()
    assert story.evicted() == {"victim"}
    assert story.cluster.events() == {("victim", "GaveWay"), ("w", "PlaceReclaimed")}
    assert story.fits(waiting, "n0") == []
    story.cluster.end("victim")
    wait_for(lambda: story.fits(waiting, "n0") == ["n0"], "the pod for which the place was made gets it")
    assert story.fits(rival, "n0") == []
    assert "not enough is free" in story.scheduler.binder.bind(binding(rival, "n0"))
    assert story.scheduler.binder.bind(binding(waiting, "n0")) == ""
    story.settle()
    assert story.state.counts() == {HoldKind.BOUND: 1}


def test_the_fewest_and_the_lowest_class_go(story):
    story.node("n1")
    story.runs("small-1", 30, on="n0")
    story.runs("small-2", 30, on="n0")
    story.runs("small-3", 30, on="n0")
    story.runs("one", 90, on="n1", annotations={names.GPU_CLASS: names.BACKGROUND}, state=IN)
    story.waits(core=90)
    story.look()
    assert story.evicted() == {"one"}


def test_background_goes_before_over_budget(story):
    story.node("n1")
    story.runs("over", on="n0")
    story.runs("background", on="n1", annotations={names.GPU_CLASS: names.BACKGROUND}, state=IN)
    story.waits()
    story.look()
    assert story.evicted() == {"background"}


def test_in_budget_pods_are_never_taken(story):
    story.runs("mine", state=IN)
    story.waits()
    for _ in range(3):
        story.look()
        story.clock.advance(60_000)
    assert story.evicted() == set()
    assert story.cluster.events() == set()


def test_when_it_would_not_be_enough_nobody_goes(story):
    story.runs("mine", 50, state=IN)
    story.runs("over", 40)
    story.waits(core=60)
    story.look()
    assert story.evicted() == set()
    assert story.state.counts() == {HoldKind.BOUND: 2}


@pytest.mark.parametrize(
    "waiting",
    [
        {"state": OVER},
        {"annotations": {names.GPU_CLASS: names.BACKGROUND}},
        {"schedulerName": "default-scheduler"},
        {"schedulingGates": [{"name": "slicekeeper.io/reservation"}]},
        {"managed": False},
        {"nodeSelector": {"pool": "other"}},
        {"annotations": {names.SHARING: "mig"}},
    ],
)
def test_pods_that_are_not_served(story, waiting):
    story.runs("victim")
    pod = story.cluster.pod("w", **waiting)
    story.clock.advance(3000)
    if waiting.get("managed", True):
        story.settle()
    assert pod["metadata"]["name"] == "w"
    story.scheduler.reclaimer.look()
    assert story.evicted() == set()


def test_nobody_goes_before_the_pod_has_waited(story):
    story.runs("victim")
    story.cluster.pod("w")
    story.clock.advance(1999)
    story.look()
    assert story.evicted() == set()
    story.clock.advance(1)
    story.look()
    assert story.evicted() == {"victim"}


def test_a_pod_that_fits_is_left_to_kube_scheduler(story):
    story.runs("over", 40)
    story.waits(core=60)
    story.look()
    assert story.evicted() == set()


@pytest.mark.parametrize("spec", [{"unschedulable": True}, {"taints": [{"key": "x", "effect": "NoSchedule"}]}])
def test_nobody_goes_on_a_node_that_the_pod_may_not_use(story, spec):
    story.runs("victim")
    story.cluster.client.patch(NODES, "n0", {"spec": spec})
    story.waits()

    def seen():
        facts = story.state.snapshot().nodes["n0"][0]
        return facts.unschedulable or facts.taints

    wait_for(seen, "the node's change is seen")
    story.look()
    assert story.evicted() == set()


def test_nobody_goes_for_a_pod_that_asks_for_more_cpu_than_the_node_has(story):
    small = {"status": {"allocatable": {"cpu": "4", "memory": "8Gi"}}}
    story.cluster.client.patch(NODES, "n0", small, subresource="status")
    story.runs("victim")
    limits = {"tencent.com/vcuda-core": "60", "tencent.com/vcuda-memory": "4"}
    resources = {"limits": limits, "requests": {"cpu": "5"}}
    story.waits(containers=[{"name": "c", "image": "cuda", "resources": resources}])
    wait_for(lambda: story.state.snapshot().cpu_memory["n0"][0] <= 4, "the node's size is seen")
    story.look()
    assert story.evicted() == set()


def test_a_disruption_budget_makes_it_try_the_next_choice(story):
    story.node("n1")
    story.runs("first", on="n0", annotations={names.GPU_CLASS: names.BACKGROUND})
    story.runs("second", on="n1")
    story.cluster.api.faults["eviction"] = protected("first")
    waiting = story.waits()
    story.look()
    assert story.evicted() == {"second"}
    story.cluster.end("second")
    wait_for(lambda: story.fits(waiting, "n0", "n1") == ["n1"], "the place on n1 is kept")


def test_a_disruption_budget_on_all_choices_evicts_nobody_and_keeps_nothing(story):
    story.runs("first")
    story.cluster.api.faults["eviction"] = protected("first")
    story.waits()
    story.look()
    assert story.evicted() == set()
    assert story.state.counts() == {HoldKind.BOUND: 1}
    del story.cluster.api.faults["eviction"]
    story.look()
    assert story.evicted() == set()
    story.clock.advance(31_000)
    story.look()
    assert story.evicted() == {"first"}


def test_nobody_goes_in_vain_if_a_disruption_budget_protects_one_of_those_that_must_go_together(story):
    story.runs("first", 50)
    story.runs("second", 50)
    story.cluster.api.faults["eviction"] = protected("second")
    story.waits(core=100, blocks=0)
    story.look()
    assert story.evicted() == set()
    assert story.state.counts() == {HoldKind.BOUND: 2}
    del story.cluster.api.faults["eviction"]
    story.clock.advance(31_000)
    story.look()
    assert story.evicted() == {"first", "second"}


def guarded(story, monkeypatch, allowed, **selector):
    """Make a disruption budget that counts down, as the API server does."""
    kind = ObjectKind("PodDisruptionBudget", DISRUPTION_BUDGETS)
    monkeypatch.setitem(kinds.BY_PATH, (DISRUPTION_BUDGETS.prefix, DISRUPTION_BUDGETS.plural), kind)
    monkeypatch.setitem(kinds.BY_RESOURCE, DISRUPTION_BUDGETS, kind)
    budget = {"metadata": {"name": "guard"}, "spec": {"selector": selector}}
    story.cluster.client.create(DISRUPTION_BUDGETS, budget, "team-a")
    left = allowed

    def tell():
        status = {"status": {"disruptionsAllowed": left}}
        story.cluster.client.patch(DISRUPTION_BUDGETS, "guard", status, "team-a", subresource="status")

    def check(api, call):
        nonlocal left
        if READY not in api.store.get(PODS, call.name, call.namespace)["status"]["conditions"]:
            return
        if not left:
            raise ApiError(429, "TooManyRequests", "Cannot evict pod as it would violate the pod's disruption budget.")
        if not call.body["deleteOptions"].get("dryRun"):
            left -= 1
            tell()

    tell()
    story.cluster.api.faults["eviction"] = check


def runs_ready(story, *args, **kwargs):
    pod = story.runs(*args, **kwargs)
    status = {"status": {"conditions": [READY]}}
    story.cluster.client.patch(PODS, pod["metadata"]["name"], status, "team-a", subresource="status")


@pytest.mark.parametrize("gang", [{}, {names.GANG: "g", names.GANG_SIZE: "2"}])
def test_nobody_goes_in_vain_if_a_disruption_budget_allows_only_one_of_two(story, monkeypatch, gang):
    story.node("n1")
    on = ("n0", "n1") if gang else ("n0", "n0")
    for name, node in zip(("first", "second"), on, strict=True):
        runs_ready(story, name, 50, on=node)
    if not gang:
        story.runs("mine", state=IN, on="n1")
    guarded(story, monkeypatch, 1, matchLabels={names.MANAGED_LABEL: names.MANAGED_VALUE})
    for name in ("w0", "w1") if gang else ("w0",):
        story.waits(name, core=100, blocks=0, annotations=gang)
    story.look()
    assert story.evicted() == set()
    assert story.state.counts()[HoldKind.RESERVED] == 0


def test_of_the_pods_of_a_disruption_budget_no_more_go_than_it_allows(story, monkeypatch):
    for name in ("a", "b", "c"):
        runs_ready(story, name, 33)
    story.node("n1")
    runs_ready(story, "d", 50, on="n1")
    story.runs("e", 50, on="n1")
    expression = {"key": names.MANAGED_LABEL, "operator": "Exists"}
    guarded(story, monkeypatch, 1, matchExpressions=[expression])
    story.waits(core=100, blocks=0)
    story.look()
    assert story.evicted() == {"d", "e"}, "a pod that is not ready takes nothing from the budget"


def test_a_grant_that_the_watch_has_not_brought_yet_spares_the_pod(story):
    story.runs("victim")
    story.waits()
    story.settle()
    story.scheduler.watches.stop()
    story.cluster.set_state("victim", IN)
    story.scheduler.reclaimer.look()
    assert story.evicted() == set()
    assert story.scheduler.metrics.evictions.labels("spared")._value.get() == 1
    assert story.state.counts()[HoldKind.RESERVED] == 0


def test_nobody_goes_for_a_pod_whose_label_is_on_a_gpu_out_of_sight(story):
    story.node("n1")
    wish = {names.GPU_AFFINITY: "x"}
    story.runs("friend", 20, on="n1", state=IN, annotations=wish)
    story.runs("first", on="n0")
    story.cluster.client.patch(NODES, "n1", {"metadata": {"annotations": {names.NODE_GPUS: "?"}}})
    wait_for(lambda: "n1" not in story.state.snapshot().nodes, "the watch brings the damage")
    story.waits(annotations=wish)
    story.look()
    assert story.evicted() == set()


def test_nobody_else_goes_while_victims_are_on_their_way_out(story):
    story.node("n1")
    story.runs("first", on="n0")
    story.runs("second", on="n1")
    story.waits()
    for _ in range(10):
        story.look()
        story.clock.advance(20_000)
        assert len(story.evicted()) == 1
    assert story.state.counts()[HoldKind.RESERVED] == 1


def test_two_waiting_pods_are_served_by_two_victims_and_a_third_by_none(story):
    story.node("n1")
    story.runs("first", on="n0")
    story.runs("second", on="n1")
    for name in ("w1", "w2", "w3"):
        story.waits(name)
    story.look()
    assert story.evicted() == {"first", "second"}
    assert story.state.counts()[HoldKind.RESERVED] == 2


def test_a_pod_that_does_not_take_its_place_is_left_alone_for_longer_each_time(story):
    story.runs("victim-0")
    story.waits()
    gone = 0
    for turn in range(120):
        story.look()
        for name in story.evicted():
            gone += 1
            story.cluster.end(name)
            story.settle()
            story.clock.advance(31_000)
            story.runs(f"victim-{turn + 1}")
        story.clock.advance(10_000)
    # 120 looks over some 20 minutes: at 0, 2, 6, 14, 30 … holds of 30 s.
    assert 3 <= gone <= 6


def test_another_process_after_a_restart_keeps_the_place_and_evicts_nobody_more(story):
    story.node("n1")
    story.runs("first", on="n0")
    story.runs("second", on="n1")
    waiting, rival = story.waits(), story.cluster.pod("rival")
    story.look()
    story.scheduler.watches.stop()
    assert story.evicted() == {"first"}
    again = Story(story.cluster, story.clock).start()
    again.look()
    assert again.evicted() == {"first"}
    again.cluster.end("first")
    wait_for(lambda: again.fits(waiting, "n0") == ["n0"], "the place is kept")
    assert again.fits(rival, "n0") == []
    again.scheduler.watches.stop()


def test_only_a_leader_reclaims(story):
    assert not story.scheduler.leader.is_leader
    story.scheduler.leader.campaign()
    assert story.scheduler.leader.is_leader
    story.scheduler.leader.stop()
    assert not story.scheduler.leader.is_leader


def _triggered(story, name="w"):
    return story.cluster.get(name)["metadata"]["annotations"].get(names.ROOM_SEEN_AT)


def test_a_pod_that_does_not_come_to_its_place_is_nudged_ever_more_seldom(story):
    story.runs("victim")
    story.waits()
    story.look()
    story.clock.advance(10_000)
    story.look()
    assert _triggered(story) is None, "the victim is still there"
    story.cluster.end("victim")
    story.look()
    assert _triggered(story) is None, "most come by themselves"
    seen = []
    for _ in range(9):
        story.clock.advance(2_000)
        story.look()
        if _triggered(story) not in seen:
            seen.append(_triggered(story))
    assert len(seen) == 3
    assert story.cluster.get("w")["spec"].get("nodeName") is None


def test_a_pod_that_fits_and_does_not_come_is_triggered(story):
    story.waits()
    story.look()
    story.clock.advance(2_000)
    story.look()
    assert _triggered(story)


@pytest.mark.parametrize("victims", [False, True])
def test_a_pod_that_kube_scheduler_has_not_tried_yet_is_not_triggered(story, victims):
    """In a burst many wait for their first turn: there is room for them, and they come."""
    if victims:
        story.runs("victim", 30)
    story.cluster.pod("w")
    for _ in range(3):
        story.clock.advance(3_000)
        story.look()
    assert not _triggered(story)


@pytest.mark.parametrize("state", [IN, OVER])
def test_a_place_that_another_pod_did_not_come_for_hides_no_room(story, state):
    """kube-scheduler has chosen it, and then something but GPUs kept the pod away; no other call comes meanwhile."""
    wait_for(lambda: "n0" in story.state.snapshot().nodes, "the watch brings n0")
    assert story.fits(story.cluster.pod("stray", 60), "n0") == ["n0"]
    pod = story.waits("w", 60, state=state)
    uid = pod["metadata"]["uid"]
    wait_for(lambda: any(p.uid == uid and conditions_of(p.waiting) for p in story.state.waiting()), "it is seen")
    story.scheduler.reclaimer.look()
    story.clock.advance(2_000)
    story.scheduler.reclaimer.look()
    assert _triggered(story)


def test_a_pod_over_budget_is_told_of_room_too_but_nobody_gives_way_to_it(story):
    story.runs("other", 30)
    story.waits("w", 60, state=OVER)
    for _ in range(3):
        story.look()
        story.clock.advance(3000)
    assert _triggered(story)
    story.waits("more", 90, state=OVER)
    story.look()
    assert story.evicted() == set()
    assert not _triggered(story, "more")


def test_nothing_is_looked_at_while_no_pod_waits_nor_again_until_something_changes(story, monkeypatch):
    looks = []
    changed_nodes = story.state.changed_nodes
    story.runs("victim", 60)
    story.settle()
    monkeypatch.setattr(
        story.state, "changed_nodes", lambda everything: looks.append(1) or changed_nodes(everything=everything)
    )
    story.scheduler.reclaimer.look()
    assert not looks
    story.waits("w", 200)
    story.look()
    looks.clear()
    story.scheduler.reclaimer.look()
    assert not looks, "nothing has changed"
    story.node("n1", gpus=2)
    wait_for(lambda: "n1" in story.state.snapshot().nodes, "the watch brings n1")
    story.scheduler.reclaimer.look()
    assert looks


GANG = {names.GANG: "g", names.GANG_SIZE: "2"}


def test_room_is_made_for_a_whole_gang(story):
    story.node("n1")
    story.runs("v0", on="n0")
    story.runs("v1", on="n1")
    pods = [story.waits(name, annotations=GANG) for name in ("w0", "w1")]
    story.look()
    assert story.evicted() == {"v0", "v1"}
    assert story.state.counts()[HoldKind.RESERVED] == 2
    story.cluster.end("v0")
    wait_for(lambda: story.state.totals()[2] == 40, "one victim is gone")
    assert story.fits(pods[0], "n0", "n1") == [], "one place is not enough"
    story.clock.advance(20_000)
    story.look()
    story.cluster.end("v1")
    wait_for(lambda: story.fits(pods[0], "n0", "n1") + story.fits(pods[1], "n0", "n1"), "both are gone")
    places = [story.fits(pod, "n0", "n1")[0] for pod in pods]
    assert sorted(places) == ["n0", "n1"]
    story.look()
    assert story.evicted() == set()


def test_a_gang_that_does_not_take_its_places_is_left_alone_though_one_of_its_pods_fits_nowhere(story):
    story.node("n1")
    for name, core in (("large", 200), ("w0", 60), ("w1", 60)):
        story.waits(name, core, annotations=GANG)
    for name, on in (("v0", "n0"), ("v1", "n1")):
        story.runs(name, on=on)
    story.look()
    assert story.evicted() == {"v0", "v1"}
    for name in ("v0", "v1"):
        story.cluster.end(name)
    story.settle()
    story.clock.advance(35_000)
    for name, on in (("v2", "n0"), ("v3", "n1")):
        story.runs(name, on=on)
    story.look()
    assert story.evicted() == set()
    story.clock.advance(35_000)
    story.look()
    assert story.evicted() == {"v2", "v3"}


def test_nobody_goes_for_a_gang_for_which_the_search_that_starts_it_would_find_no_places(story, monkeypatch):
    story.runs("v0")
    for name in ("w0", "w1"):
        story.waits(name, 30, annotations=GANG)
    searches = []
    monkeypatch.setattr("scheduler.reclaim.reclaimer.places_for", lambda *asked: (0, searches.append(asked) or []))
    story.look()
    assert searches
    assert story.evicted() == set()
    assert story.state.counts() == {HoldKind.BOUND: 1}
    monkeypatch.undo()
    story.clock.advance(6_000)
    story.look()
    assert story.evicted() == {"v0"}


def test_for_a_part_of_a_gang_nobody_goes(story):
    story.node("n1")
    story.runs("over", on="n0")
    story.runs("mine", on="n1", state=IN)
    story.waits("w0", annotations=GANG)
    story.look()
    story.waits("w1", annotations=GANG)
    story.look()
    assert story.evicted() == set()
    assert not story.state.counts()[HoldKind.RESERVED]


def test_a_gang_that_is_not_all_in_budget_takes_from_nobody(story):
    story.node("n1")
    story.runs("v0", on="n0")
    story.runs("v1", on="n1")
    story.waits("w0", annotations=GANG)
    story.waits("w1", annotations=GANG, state=OVER)
    story.look()
    assert story.evicted() == set()


def test_a_disruption_budget_that_protects_one_place_keeps_them_all(story):
    story.node("n1")
    story.runs("v0", on="n0")
    story.runs("v1", on="n1")
    for name in ("w0", "w1"):
        story.waits(name, annotations=GANG)
    for one in ("v0", "v1"):  # whichever is the first to be asked for, the other stays, too
        story.cluster.api.faults["eviction"] = protected(one)
        story.look()
        assert story.evicted() == set()
        story.clock.advance(40_000)
    assert not story.state.counts()[HoldKind.RESERVED]


def test_a_pod_that_replaces_one_of_a_running_gang_is_served_alone(story):
    story.node("n1")
    story.node("n2")
    first = [story.cluster.pod(f"g{i}", annotations=GANG) for i in range(2)]
    wait_for(lambda: len(story.state.waiting()) == 2, "the watch brings them")
    places = [story.fits(pod, "n0", "n1", "n2")[0] for pod in first]
    story.scheduler.gangs._barrier = 0
    assert "1 of 2 pods have come" in story.scheduler.binder.bind(binding(first[0], places[0]))
    for pod, place in reversed(list(zip(first, places, strict=True))):
        assert story.scheduler.binder.bind(binding(pod, place)) == ""
    [left] = {"n0", "n1", "n2"} - set(places)
    story.runs("victim", on=left)
    story.settle()
    story.cluster.end("g0")
    story.settle()
    story.runs("mine", on=places[0], state=IN)
    story.waits("again", annotations=GANG)
    story.look()
    assert story.evicted() == {"victim"}
