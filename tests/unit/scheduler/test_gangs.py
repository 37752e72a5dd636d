# SPDX-License-Identifier: Apache-2.0
"""Gangs: places for all or for none, the barrier before the first bind, deadlines and restarts."""

import threading
import time

import orjson
import pytest
from support.gang_world import HOLD, World, node, of_deployment, pod
from support.scheduled_pods import container, managed

from scheduler.extender import gpu_pod, preempt, prioritize_nodes
from scheduler.held_places import HoldKind
from scheduler.known_pods import KnownPods
from scheduler.pods import Hold, Share, read_pod
from slicekeeper import names
from slicekeeper.config.settings import Resources
from slicekeeper.gpu import inventory


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
    assert world.state.reserve([(last, hold)], HOLD * 10**9)
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


def test_a_rolling_update_is_not_a_second_gang():
    world = World(*[node(f"n{i}") for i in range(5)])
    old = world.starts(*world.waits(*[of_deployment(f"a{i}", "5d4f") for i in range(4)]))
    assert len(old) == 4
    new = of_deployment("b0", "9c8e")
    assert len(world.starts(*world.waits(new))) == 1, "its other pods are made when this one is ready"


def test_a_deployment_that_is_made_again_is_a_gang_again():
    world = World(*[node(f"n{i}") for i in range(5)])
    for obj in world.starts(*world.waits(*[of_deployment(f"a{i}", "5d4f") for i in range(4)])):
        world.state.intake.drop_pod(obj["metadata"]["uid"])
    again = world.waits(*[of_deployment(f"b{i}", "9c8e") for i in range(3)])
    assert "waits for its pods: 3 of 4" in world.why(again[0])


def test_a_rolling_update_may_raise_the_size():
    world = World(*[node(f"n{i}") for i in range(5)])
    assert len(world.starts(*world.waits(*[of_deployment(f"a{i}", "5d4f", size=2) for i in range(2)]))) == 2
    assert len(world.starts(*world.waits(of_deployment("b0", "9c8e", size=4)))) == 1


def test_a_label_alone_makes_no_pod_one_of_a_deployment():
    world = World(*[node(f"n{i}") for i in range(5)])
    world.starts(*world.waits(*[of_deployment(f"a{i}", "5d4f") for i in range(4)]))
    job = pod("b0", gang="job:j")
    job["metadata"]["ownerReferences"][0]["name"] = "serve-5d4f"
    job["metadata"]["labels"]["pod-template-hash"] = "5d4f"
    world.waits(job)
    assert "waits for its pods" in world.why(job)


def test_what_is_known_of_a_gangs_jobs_ends_with_the_gang():
    pods, member = KnownPods(), read_pod(pod("p", owner="a"), Resources())
    pods.put(member)
    pods.note_succeeded(member.gang.key, {"a": 1, "b": 2})
    assert pods.succeeded() == {"a": 1, "b": 2}
    pods.forget(member.uid)
    assert pods.succeeded() == {}


@pytest.mark.parametrize("gang", ["job:j", "g"])
def test_a_gang_stays_started_if_its_succeeded_pods_are_removed(gang):
    world = World(*[node(f"n{i}") for i in range(4)])
    bound = world.starts(*world.waits(*[pod(f"p{i}", gang=gang, owner="j") for i in range(4)]))
    assert len(bound) == 4
    for obj in bound:
        world.state.intake.drop_pod(obj["metadata"]["uid"])
    last = pod("p4", gang=gang, owner="j")
    world.waits(last)
    assert "waits for its pods: 1 of 4" in world.why(last)
    world.gangs.look()
    assert world.fits(last) == [], "nothing says yet that any has succeeded"
    world.jobs.says["j"] = 3
    world.gangs.look()
    assert world.calls.called == ["p4"], "kube-scheduler is made to try it again"
    assert len(world.starts(last)) == 1


def test_what_a_job_says_counts_once():
    world = World(*[node(f"n{i}") for i in range(4)])
    done = [pod(f"p{i}", gang="job:j", on=f"n{i}", phase="Succeeded") for i in range(2)]
    world.jobs.says["j"] = 2
    last = pod("p4", gang="job:j")
    world.waits(*done, last)
    world.fits(last)
    world.gangs.look()
    assert "waits for its pods: 1 of 2 are there, 2 have a place" in world.why(last)
