# SPDX-License-Identifier: Apache-2.0
"""Gangs: places for all or for none, the barrier before the first bind, deadlines, restarts, and any interleaving."""

import itertools
import random
import threading
import time

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.scheduled_pods import container, managed

from scheduler.extender import filter_nodes, gpu_pod, preempt, prioritize_nodes
from scheduler.gangs import Gangs
from scheduler.held_places import HoldKind
from scheduler.pending_bindings import NoPlace
from scheduler.placement.learner import Learner
from scheduler.pods import Hold, Share, read_pod
from scheduler.state import SchedulerState
from slicekeeper import names
from slicekeeper.clock import ManualClock
from slicekeeper.config.settings import Resources
from slicekeeper.gpu import inventory

HOLD = 30


def node(name, gpus=1, memory=8192, model="A100", **more):
    value = inventory.encode([inventory.Gpu(f"{name}-{g}", model, memory) for g in range(gpus)])
    return {"metadata": {"name": name, "annotations": {names.NODE_GPUS: value}}, **more}


def pod(name, core=60, *, gang="g", size=4, on="", gpus="", phase="Pending", owner="", more=None, **spec):
    said = {names.GANG: gang} if gang and not gang.startswith("job:") else {}
    said |= {names.GANG_SIZE: str(size)} if size else {}
    said |= {names.gpu_annotation("c"): gpus} if gpus else {}
    controller = owner or (gang.removeprefix("job:") if gang.startswith("job:") else "")
    owners = [{"kind": "Job", "name": "train", "uid": controller, "controller": True}] if controller else []
    return managed(
        name,
        container(core, 4 if core < 100 else 0),
        on=on,
        phase=phase,
        annotations={names.BUDGET_STATE: names.IN_BUDGET, **said, **(more or {})},
        metadata={"ownerReferences": owners},
        **spec,
    )


class Calls:
    """A nudger that notes who is called."""

    def __init__(self):
        self.called = []

    def keep(self, waiting):
        pass

    def nudge(self, pod, *, at_once):
        assert at_once
        self.called.append(pod.name)


class World:
    """One extender without HTTP; a bind does not wait, so that tests say who comes when."""

    def __init__(self, *nodes, barrier_seconds=0.0, clock=None):
        self.clock = clock or ManualClock()
        self.state = SchedulerState(Resources(), Learner("best-fit"), self.clock, hold_seconds=HOLD, lost_seconds=60)
        self.state.intake.set_nodes(list(nodes))
        self.state.intake.set_pods([])
        self.nodes = [n["metadata"]["name"] for n in nodes]
        self.calls = Calls()
        self.gangs = Gangs(self.state, self.clock, self.calls, hold_seconds=HOLD, barrier_seconds=barrier_seconds)

    def waits(self, *objects):
        for obj in objects:
            self.state.intake.set_pod(obj)
        return objects

    def filter(self, obj, *among):
        return orjson.loads(
            filter_nodes(self.state, self.gangs, gpu_pod(self.state, obj), orjson.dumps(among or self.nodes))
        )

    def fits(self, obj, *among):
        return self.filter(obj, *among)["NodeNames"]

    def why(self, obj, *among):
        said = self.filter(obj, *among)
        assert said["NodeNames"] == []
        [reason] = set(said["FailedNodes"].values())
        return reason

    def bind(self, obj, on, *, lost=None):
        """Bind as the binder does; return the pod if it is bound now.

        `lost` is whether the Binding whose answer is lost was executed.
        """
        read = read_pod(obj, Resources())
        try:
            if read.gang is not None:
                self.gangs.come(read, on)
            place = self.state.bindings.choose(read, on)
        except NoPlace:
            return None
        if lost is None:
            self.state.bindings.bound(read.uid, on)
        else:
            self.state.bindings.lost(read.uid, on)
        if lost is False:
            return None
        bound = {**obj, "spec": {**obj["spec"], "nodeName": on}, "status": {"phase": "Running"}}
        gpus = {names.gpu_annotation(c): ",".join(g) for c, g in place.gpus.items()}
        bound["metadata"] = {**obj["metadata"], "annotations": {**obj["metadata"]["annotations"], **gpus}}
        return bound

    def starts(self, *objects):
        """Let kube-scheduler try all pods twice; return the bound ones."""
        done = {}
        for obj in (*objects, *objects):
            name = obj["metadata"]["name"]
            if name not in done and (found := self.fits(obj)):
                bound = self.bind(obj, found[0])
                if bound is not None:
                    self.state.intake.set_pod(bound)
                    done[name] = bound
        return list(done.values())

    def held(self):
        return self.state.counts()


def test_nothing_is_held_until_all_are_there_and_then_all_have_a_place():
    world = World(*[node(f"n{i}") for i in range(5)])
    pods = [pod(f"p{i}") for i in range(4)]
    world.waits(*pods[:3])
    assert world.why(pods[0]) == "gang g waits for its pods: 3 of 4 are there"
    assert not world.held()
    world.waits(pods[3])
    [where] = world.fits(pods[3])
    assert world.held() == {HoldKind.RESERVED: 4}
    world.gangs.look()
    assert set(world.calls.called) == {"p0", "p1", "p2", "p3"}
    theirs = [world.fits(p) for p in pods]
    assert theirs[3] == [where]
    assert len(set(map(tuple, theirs))) == 4, "each has its own node, and only that"
    assert (
        orjson.loads(prioritize_nodes(world.state, world.gangs, gpu_pod(world.state, pods[0]), orjson.dumps(theirs[0])))
        == []
    )
    assert world.fits(pod("other", gang="", size=0)) == sorted(set(world.nodes) - {t for [t] in theirs})


def test_no_pod_is_bound_before_as_many_have_come_as_the_gang_needs():
    world = World(*[node(f"n{i}") for i in range(4)])
    pods = world.waits(*[pod(f"p{i}") for i in range(4)])
    places = [world.fits(p)[0] for p in pods]
    for obj, on in list(zip(pods, places, strict=True))[:3]:
        assert world.bind(obj, on) is None
    assert world.held() == {HoldKind.RESERVED: 4}
    for obj, on in reversed(list(zip(pods, places, strict=True))):
        assert world.bind(obj, on) is not None, "the last has come: now all may"
    assert world.held()[HoldKind.BINDING] == 4


def test_binds_wait_for_each_other_and_go_together():
    world = World(*[node(f"n{i}") for i in range(8)], barrier_seconds=30)
    pods = world.waits(*[pod(f"p{i}", size=8) for i in range(8)])
    places = [world.fits(p)[0] for p in pods]
    done = []
    threads = [
        threading.Thread(target=lambda o=o, p=p: done.append(world.bind(o, p)))
        for o, p in zip(pods, places, strict=True)
    ]
    for thread in threads[:7]:
        thread.start()
    time.sleep(0.05)
    assert not done
    threads[7].start()
    for thread in threads:
        thread.join()
    assert len([bound for bound in done if bound]) == 8


def test_a_gang_with_more_pods_than_may_wait_starts_as_its_pods_come_again(monkeypatch):
    monkeypatch.setattr("scheduler.gangs.WAITERS", 2)
    world = World(*[node(f"n{i}") for i in range(6)], barrier_seconds=30)
    pods = world.waits(*[pod(f"p{i}", size=6) for i in range(6)])
    places = [world.fits(p)[0] for p in pods]
    done = []
    threads = [threading.Thread(target=lambda i=i: done.append(world.bind(pods[i], places[i]))) for i in range(2)]
    for thread in threads:
        thread.start()
    while world.gangs._waiters < 2:
        time.sleep(0.01)
    for index in range(2, 5):
        assert world.bind(pods[index], places[index]) is None, "no thread is left to wait"
    for index in (5, 2, 3, 4):
        assert world.bind(pods[index], places[index]) is not None
    for thread in threads:
        thread.join()
    assert all(done)


def test_a_stopping_process_lets_no_bind_wait():
    world = World(node("n0"), node("n1"), barrier_seconds=60)
    pods = world.waits(*[pod(f"p{i}", size=2) for i in range(2)])
    [where] = world.fits(pods[0])
    done = []
    thread = threading.Thread(target=lambda: done.append(world.bind(pods[0], where)))
    thread.start()
    world.gangs.stop()
    thread.join(60)
    assert done == [None]


def test_what_does_not_fit_holds_nothing_and_what_never_can_is_told():
    world = World(*[node(f"n{i}") for i in range(4)])
    world.state.intake.set_pod(pod("x", gang="", size=0, on="n0", gpus="n0-0", phase="Running"))
    pods = world.waits(*[pod(f"p{i}") for i in range(4)])
    assert world.why(pods[0]) == "gang g waits for room for all: 1 of 4 pods have none"
    assert not world.held()[HoldKind.RESERVED]
    world.state.intake.drop_pod("uid-x")
    assert len(world.starts(*pods)) == 4
    large = world.waits(*[pod(f"q{i}", gang="large", size=5) for i in range(5)])
    assert world.why(large[0]) == (
        "gang large can never fit: idle GPUs of all nodes open to it would hold 4 of the 5 pods that it needs"
    )


def test_two_gangs_take_turns_and_neither_holds_a_part():
    world = World(*[node(f"n{i}") for i in range(6)])
    one, two = [pod(f"a{i}", gang="a") for i in range(4)], [pod(f"b{i}", gang="b") for i in range(4)]
    world.waits(*itertools.chain(*zip(one, two, strict=True)))
    for obj in itertools.chain(*zip(one, two, strict=True)):
        world.fits(obj)
    assert world.held() == {HoldKind.RESERVED: 4}
    assert len(world.starts(*one)) == 4
    assert world.starts(*two) == []
    for obj in one[:2]:
        world.state.intake.drop_pod(obj["metadata"]["uid"])
    assert len(world.starts(*two)) == 4


LOOK_MS = 400


class SlowWorld(World):
    """A look for places takes 0.4 s of the clock; notes which gang was looked at when, in seconds."""

    def __init__(self, *nodes):
        super().__init__(*nodes)
        self.looks, trial = [], self.state.trial

        def slow(without):
            self.clock.advance(LOOK_MS)
            self.looks.append((self.clock.monotonic_ns() / 1e9, min(without).split("-")[1]))
            return trial(without)

        self.state.trial = slow

    def asks(self, gangs, seconds):
        """Let kube-scheduler ask for a pod of each gang in turn while things change and the thread looks."""
        end = self.clock.monotonic_ns() + seconds * 1_000_000_000
        while self.clock.monotonic_ns() < end:
            for members in gangs:
                self.state.intake.set_node(node("changes", 1 + len(self.looks) % 2, spec={"unschedulable": True}))
                self.fits(members[0], "n0")
                self.clock.advance(50)
            self.gangs.look()


def gang_of(name, namespace="team-a", size=2):
    made = [pod(f"{name}-{i}", 100, gang=name, size=size) for i in range(size)]
    for obj in made:
        obj["metadata"]["namespace"] = namespace
    return made


def test_looks_in_vain_take_a_tenth_of_the_time_however_many_gangs_there_are_and_each_has_its_turn():
    world = SlowWorld(node("n0"))
    gangs = [world.waits(*gang_of(f"g{n}")) for n in range(20)]
    world.asks(gangs, 200)
    assert 40 <= len(world.looks) <= 200 / (10 * LOOK_MS / 1000) + 1
    begun = [who for _, who in world.looks]
    assert set(begun[:20]) == {f"g{n}" for n in range(20)}, "the longest waiting first"
    assert begun[20:] == begun[: len(begun) - 20]


def test_a_namespace_with_many_gangs_does_not_keep_another_from_its_turn():
    world = SlowWorld(node("n0"), node("n1"))
    crowd = [world.waits(*gang_of(f"g{n}", size=3)) for n in range(30)]
    world.asks(crowd, 60)
    fits = world.waits(*gang_of("fits", "team-b"))
    before = len(world.looks)
    world.asks([*crowd, fits], 15)
    assert "fits" in [who for _, who in world.looks[before:]][:2]
    assert world.held() == {HoldKind.RESERVED: 2}


def test_a_gang_that_waits_for_its_turn_is_told_so_and_one_that_is_gone_holds_up_nobody():
    world = SlowWorld(node("n0"))
    first, second, third = (world.waits(*gang_of(name)) for name in ("a", "b", "c"))
    assert "can never fit" in world.why(first[0])
    assert world.why(second[0]) == "gang b waits for its turn: places for other gangs are looked for first"
    assert world.fits(third[0]) == []
    for obj in second:
        world.state.intake.drop_pod(obj["metadata"]["uid"])
    world.state.intake.set_node(node("n1"))
    world.clock.advance(10 * LOOK_MS)
    world.gangs.look()
    assert [who for _, who in world.looks][1:] == ["c", "a"], "what finds places makes nobody rest"
    assert world.held() == {HoldKind.RESERVED: 2}


def test_places_that_are_not_taken_are_let_go_and_the_gang_waits_twice_as_long_each_time():
    world = World(node("n0"), node("n1"))
    pods = world.waits(*[pod(f"p{i}", size=2) for i in range(2)])
    other = pod("other", gang="", size=0)
    pause = HOLD
    for _ in range(3):
        [where] = world.fits(pods[0])
        assert world.bind(pods[0], where) is None
        assert world.fits(other) == []
        world.clock.advance(HOLD * 1000 + 1)
        world.gangs.look()
        assert not world.held()
        assert "only 1 of 2 pods took them" in world.why(pods[0])
        assert world.fits(other) == ["n0", "n1"]
        world.state.intake.drop_pod("uid-other")
        world.clock.advance(pause * 1000 - 10)
        assert world.fits(pods[1]) == []
        world.clock.advance(20)
        pause *= 2
    assert len(world.starts(*pods)) == 2


def test_the_places_end_when_one_of_the_pods_is_gone():
    world = World(node("n0"), node("n1"), node("n2"))
    pods = world.waits(*[pod(f"p{i}", size=2) for i in range(2)])
    world.fits(pods[0])
    world.state.intake.drop_pod("uid-p1")
    world.gangs.look()
    assert not world.held()
    assert world.why(pods[0]) == "gang g waits for its pods: 1 of 2 are there"


def test_a_node_that_kube_scheduler_does_not_offer_makes_all_look_again():
    world = World(*[node(f"n{i}") for i in range(3)])
    pods = world.waits(*[pod(f"p{i}", size=2) for i in range(2)])
    [first] = world.fits(pods[0])
    [other] = world.fits(pods[1])
    [third] = set(world.nodes) - {first, other}
    assert world.fits(pods[0], third) == [third], "n with CPU for it"
    assert world.fits(pods[1]) != [third]
    assert world.held() == {HoldKind.RESERVED: 2}
    assert "waits for room for all" in world.why(pods[1], third), "they cannot both be there"


def test_running_pods_count_after_a_restart_and_when_one_is_replaced():
    world = World(*[node(f"n{i}") for i in range(5)])
    running = [pod(f"p{i}", on=f"n{i}", gpus=f"n{i}-0", phase="Running") for i in range(2)]
    rest = [pod(f"p{i}") for i in range(2, 4)]
    world.waits(*running, rest[0])
    assert world.why(rest[0]) == "gang g waits for its pods: 1 of 2 are there, 2 have a place"
    world.waits(rest[1])
    assert len(world.starts(*rest)) == 2
    world.state.intake.drop_pod("uid-p0")
    [new] = world.waits(pod("p0-again"))
    assert len(world.starts(new)) == 1
    [extra] = world.waits(pod("extra"))
    assert world.fits(extra) == ["n4"], "more than the gang needs: a pod like any other"


@pytest.mark.parametrize(("maker", "counts"), [("job-1", True), ("job-2", False)])
def test_pods_that_succeeded_count_for_their_own_controller_and_not_for_a_later_one(maker, counts):
    world = World(node("n0"), node("n1"))
    world.waits(*[pod(f"d{i}", size=4, on="n0", gpus="n0-0", phase="Succeeded", owner="job-1") for i in range(3)])
    world.waits(pod("failed", size=4, on="n0", gpus="n0-0", phase="Failed", owner="job-1"))
    [again] = world.waits(pod("again", size=4, owner=maker))
    assert bool(world.fits(again)) is counts


def test_the_pods_of_one_controller_are_a_gang_without_a_name():
    world = World(*[node(f"n{i}") for i in range(4)])
    first = world.waits(*[pod(f"a{i}", gang="job:1", size=2) for i in range(2)])
    [second] = world.waits(pod("b0", gang="job:2", size=2))
    assert world.why(second) == "gang Job train waits for its pods: 1 of 2 are there"
    assert len(world.starts(*first)) == 2
    lonely = pod("lonely", gang="", size=2)
    assert "name the gang by slicekeeper.io/gang" in str(world.filter(lonely)["FailedAndUnresolvableNodes"])


def test_pods_with_a_gate_are_not_there_yet():
    world = World(node("n0"), node("n1"))
    free, gated = pod("p0", size=2), pod("p1", size=2, schedulingGates=[{"name": names.GATE}])
    world.waits(free, gated)
    assert world.why(free) == "gang g waits for its pods: 1 of 2 are there, 1 held back by scheduling gates"
    world.waits(pod("p1", size=2))
    assert len(world.fits(free)) == 1


def test_pods_that_name_several_schedulers_hold_nothing_and_are_told():
    world = World(node("n0", gpus=4))
    pods = world.waits(*(pod(f"p{i}", schedulerName="b" if i > 2 else "a") for i in range(4)))
    assert world.why(pods[0]) == "gang g: its pods name several schedulers (a, b) and must name one"
    assert not world.state.is_reserved("uid-p0")
    world.state.intake.drop_pod("uid-p3")
    other = pod("p4", schedulerName="a")
    world.waits(other)
    assert world.fits(other) == ["n0"]


def test_more_pods_than_the_gang_needs_are_placed_as_far_as_they_fit():
    world = World(node("n0"), node("n1", gpus=2))
    pods = world.waits(*[pod(f"p{i}", 100 if i else 200, size=2) for i in range(3)])
    assert len(world.starts(*pods)) >= 2


def test_a_pod_that_may_be_anywhere_leaves_the_only_place_of_another():
    nodes = [node("n0", memory=8192), node("n1", memory=16384, model="T4")]
    world = World(*nodes)
    anywhere = pod("a", 100, size=2)
    there_only = pod("b", 100, size=2, more={names.GPU_MODEL: "A100"})
    bound = world.starts(*world.waits(anywhere, there_only))
    assert {b["metadata"]["name"]: b["spec"]["nodeName"] for b in bound} == {"a": "n1", "b": "n0"}


def test_a_pod_leaves_the_only_node_that_kube_scheduler_offers_for_another():
    world = World(node("n0"), node("n1"))
    first, second = world.waits(pod("a", size=2), pod("b", size=2))
    assert world.fits(second, "n0") == ["n0"]
    assert world.fits(first) == ["n1"]
    world = World(node("n0"), node("n1"))
    first, second = world.waits(pod("a", size=2), pod("b", size=2))
    assert world.fits(first, "n0") == ["n0"]
    assert world.fits(second) == ["n1"]


def test_labels_hold_among_the_pods_of_a_gang():
    apart = [pod(f"p{i}", 20, size=3, more={names.GPU_ANTI_AFFINITY: "x"}) for i in range(3)]
    world = World(node("n0", gpus=2))
    world.waits(*apart)
    assert "can never fit" in world.why(apart[0])
    world = World(node("n0", gpus=3))
    world.waits(*apart)
    bound = world.starts(*apart)
    assert {b["metadata"]["annotations"][names.gpu_annotation("c")] for b in bound} == {"n0-0", "n0-1", "n0-2"}
    together = [pod(f"p{i}", 20, size=3, more={names.GPU_AFFINITY: "x"}) for i in range(3)]
    world = World(node("n0", gpus=3))
    world.waits(*together)
    bound = world.starts(*together)
    assert len(bound) == 3
    assert len({b["metadata"]["annotations"][names.gpu_annotation("c")] for b in bound}) == 1


def test_a_pod_that_joins_another_one_s_idle_gpu_may_be_bound_first():
    for first in (0, 1):
        world = World(node("n0"))
        pods = world.waits(pod("p0", 60, size=2, more={names.GPU_AFFINITY: "x"}), pod("p1", 30, size=2))
        assert len(world.starts(pods[first], pods[1 - first])) == 2


def test_what_was_reserved_for_a_pod_that_is_left_out_keeps_no_other_one_out():
    world = World(node("n0", gpus=2))
    pods = world.waits(*[pod(f"p{i}", 100, size=2) for i in range(3)])
    last = read_pod(pods[2], Resources())
    hold = Hold("n0", (Share("n0-0", 100, 0, whole=True),))
    assert world.state.reserve_all([(last, hold)], HOLD * 10**9)
    assert len(world.starts(*pods)) == 2


def test_unequal_pods_that_fill_the_free_gpus_exactly_start_together():
    """60 fits best on the GPU with 80 free, and then the others find no place one after the other."""
    taken = pod("old", 20, gang="", size=0, on="n1", gpus="n1-0", phase="Running")
    world = World(node("n0"), node("n1"))
    sizes = (60, 55, 40, 25)
    pods = world.waits(taken, *[pod(f"p{i}", core, size=len(sizes)) for i, core in enumerate(sizes)])[1:]
    assert len(world.starts(*pods)) == len(sizes)


def test_equal_pods_with_unequal_containers_start_together_if_they_fit():
    """The 50 percents fit best on the small GPU, and then the second pod finds no place."""
    world = World(node("n0", gpus=3, memory=8192))
    value = inventory.encode([inventory.Gpu(f"n0-{g}", "A100", 4096 if g == 0 else 8192) for g in range(3)])
    world.state.intake.set_node({"metadata": {"name": "n0", "annotations": {names.NODE_GPUS: value}}})
    wish = {names.GANG: "g", names.GANG_SIZE: "2"}
    two = [container(50, 16, "c"), container(80, 8, "d")]
    old = managed("old", container(20, 8), on="n0", annotations={names.gpu_annotation("c"): "n0-1"})
    pods = world.waits(old, *[managed(f"p{i}", *two, annotations=wish) for i in range(2)])[1:]
    assert len(world.starts(*pods)) == 2


def test_a_gang_is_not_said_to_fit_never_if_it_fits_in_another_order():
    world = World(node("n0"), node("n1"))
    sizes = (60, 50, 30, 20, 20, 20)
    pods = world.waits(
        pod("old", 100, gang="", size=0, on="n1", gpus="n1-0", phase="Running"),
        *[pod(f"p{i}", core, size=len(sizes)) for i, core in enumerate(sizes)],
    )[1:]
    assert "waits for room" in world.why(pods[0])


def test_unequal_pods_wait_if_no_node_has_room_for_one_of_them():
    taken = pod("old", 90, gang="", size=0, on="n0", gpus="n0-0", phase="Running")
    world = World(node("n0"))
    pods = world.waits(taken, pod("p0", 60, size=2), pod("p1", 20, size=2))[1:]
    assert "waits for room for all: 2 of 2" in world.why(pods[0])


def test_places_that_others_only_expect_make_no_gang_wait():
    world = World(node("n0"), node("n1"))
    world.fits(pod("other", gang="", size=0))
    pods = world.waits(*[pod(f"p{i}", size=2) for i in range(2)])
    assert world.fits(pods[0]) == []
    world.clock.advance(2_001)
    assert len(world.starts(*pods)) == 2


def test_kube_scheduler_preempts_for_no_single_pod_of_a_gang():
    world = World(node("n0"))
    victim = pod("v", gang="", size=0, on="n0", gpus="n0-0", phase="Running", more={names.BUDGET_STATE: "over-budget"})
    world.waits(victim, pod("p0", size=2), pod("p1", size=2))
    proposed = {"n0": {"Pods": [{"UID": "uid-v"}], "NumPDBViolations": 0}}

    def helped(obj):
        return preempt(world.state, world.gangs, gpu_pod(world.state, obj), proposed)["NodeNameToMetaVictims"]

    assert helped(pod("p0", size=2)) == {}
    assert helped(pod("alone", gang="", size=0)) == proposed


SIZE = {"g0": 2, "g1": 3, "g2": 4}


class Story:
    """The API server's objects are the truth, and kube-scheduler tries any pod.

    The watch shows the objects late, in order, and some twice; answers to Bindings may be lost.
    """

    def __init__(self, seed):
        self.rng = random.Random(seed)
        self.nodes = [node(f"n{i}", 2) for i in range(3)]
        self.world = World(*self.nodes)
        self.truth, self.behind, self.shown, self.turn = {}, [], [], 0

    def tell(self, obj):
        self.truth[obj["metadata"]["name"]] = obj
        self.behind.append(obj)

    def gang(self, obj):
        return obj["metadata"]["annotations"].get(names.GANG, "")

    def members(self, gang, *, bound):
        return [p for p in self.truth.values() if self.gang(p) == gang and ("nodeName" in p["spec"]) == bound]

    def check(self):
        sums = {}
        for obj in self.truth.values():
            core = int(obj["spec"]["containers"][0]["resources"]["limits"]["tencent.com/vcuda-core"])
            for gpu in filter(None, obj["metadata"]["annotations"].get(names.gpu_annotation("c"), "").split(",")):
                sums[gpu] = sums.get(gpu, 0) + core
        assert all(core <= 100 for core in sums.values())

    # What may happen; `n` and `core` are drawn.

    def new(self, n, core):
        self.turn += 1
        self.tell(pod(f"p{self.turn}", core, gang=f"g{n}", size=SIZE[f"g{n}"]))

    def single(self, n, core):
        self.turn += 1
        self.tell(pod(f"p{self.turn}", core, gang="", size=0))

    def watch(self, n, core):
        again = self.shown[len(self.shown) - self.rng.choice([0, 0, n]) :]  # the watch starts again a little earlier
        self.shown += self.behind[: 2 * n + 1]
        for obj in again + self.behind[: 2 * n + 1]:
            if obj.get("gone"):
                self.world.state.intake.drop_pod(obj["metadata"]["uid"])
            else:
                self.world.state.intake.set_pod(obj)
        del self.behind[: 2 * n + 1]

    def attempt(self, n, core):
        free = [p for p in self.truth.values() if "nodeName" not in p["spec"]]
        for obj in self.rng.sample(free, min(2 * n + 1, len(free))):
            among = self.rng.sample(self.world.nodes, self.rng.choice([2, 3, 3, 3]))
            found = self.world.fits(obj, *among)
            assert set(found) <= set(among)
            gang = self.gang(obj)
            new_gang = gang and not self.world.gangs.has_started(read_pod(obj, Resources()))
            new_gang = new_gang and not self.members(gang, bound=True)
            # Who is gone counts until the watch has shown that.
            known = [*self.members(gang, bound=False), *(p for p in self.behind if p.get("gone"))]
            there = self.world.state.places_of(p["metadata"]["uid"] for p in known if self.gang(p) == gang)
            lost = self.rng.choice([None] * 8 + [False, True])
            if found and (bound := self.world.bind(obj, self.rng.choice(found), lost=lost)) is not None:
                assert not new_gang or len({p.pod.uid for p in there}) >= SIZE[gang], "all have a place, or none"
                self.tell(bound)

    def end(self, n, core):
        there = [p for p in self.truth.values() if "nodeName" in p["spec"]] or list(self.truth.values())
        for obj in self.rng.sample(there, min(n + 1, len(there))):
            self.behind.append({**self.truth.pop(obj["metadata"]["name"]), "gone": True})

    def clock(self, n, core):
        self.world.clock.advance([500, 5_000, HOLD * 1000 + 1][n])

    def look(self, n, core):
        self.world.gangs.look()

    def overdue(self, n, core):
        for late in self.world.state.bindings.overdue():
            self.world.state.bindings.looked(late.uid, self.truth.get(late.name))

    def restart(self, n, core):
        self.behind.clear()
        self.shown.clear()
        self.world = World(*self.nodes, clock=self.world.clock)
        self.world.state.intake.set_pods(list(self.truth.values()))

    def finish(self):
        """When all is known and nothing is in the way, each gang starts that is whole and fits; then nothing stays."""
        self.watch(len(self.behind), 0)
        self.overdue(0, 0)
        for obj in [p for p in self.truth.values() if "nodeName" in p["spec"]]:
            self.truth.pop(obj["metadata"]["name"])
            self.world.state.intake.drop_pod(obj["metadata"]["uid"])
        self.world.clock.advance(100 * HOLD * 1000)
        self.overdue(0, 0)
        for gang, size in SIZE.items():
            members = self.members(gang, bound=False)
            bound = self.world.starts(*members)
            assert (len(bound) >= size) == (len(members) >= size), "there are GPUs for each"
            for obj in members:
                self.world.state.intake.drop_pod(obj["metadata"]["uid"])
                del self.truth[obj["metadata"]["name"]]
        for obj in self.truth.values():
            self.world.state.intake.drop_pod(obj["metadata"]["uid"])
        self.world.gangs.look()
        assert self.world.state.totals()[2] == 600
        assert not self.world.state.counts()
        assert not self.world.gangs._known


STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            ["new"] * 4 + ["attempt"] * 5 + ["watch"] * 3 + ["end", "clock", "look", "overdue", "restart", "single"]
        ),
        st.integers(0, 2),
        st.sampled_from([30, 60, 100]),
    ),
    min_size=10,
    max_size=60,
)


@settings(max_examples=150, deadline=None)
@given(STEPS, st.integers(0, 2**32))
def test_under_any_interleaving_gangs_start_whole_and_no_gpu_is_given_twice(steps, seed):
    story = Story(seed)
    for kind, n, core in steps:
        getattr(story, kind)(n, core)
        story.check()
    story.finish()
