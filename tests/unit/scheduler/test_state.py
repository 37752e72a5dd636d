# SPDX-License-Identifier: Apache-2.0
"""Who holds which GPU: places that end as they should, a rebuild that equals what the watch built, threads."""

import random
import threading

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.scheduled_pods import container, managed

from scheduler.extender import filter_nodes, gpu_pod, prioritize_nodes
from scheduler.gangs import Gangs
from scheduler.held_places import HoldKind
from scheduler.node_finder import Finder
from scheduler.pending_bindings import NoPlace
from scheduler.placement.learner import Learner
from scheduler.pods import Hold, Share, chosen_hold, read_pod
from scheduler.state import SchedulerState
from slicekeeper import names
from slicekeeper.clock import ManualClock
from slicekeeper.config.settings import Resources
from slicekeeper.gpu import inventory

HOLD, LOST = 30, 60
GPU_MIB = 8192


def node(name, gpus=1, memory=GPU_MIB, **annotations):
    value = inventory.encode([inventory.Gpu(f"{name}-{g}", "A100", memory) for g in range(gpus)])
    return {"metadata": {"name": name, "annotations": {names.NODE_GPUS: value, **annotations}}}


def pod(name, core=60, blocks=4, *, on="", gpus=None, phase="Pending", annotations=None, spec=None):
    given_ = {**(annotations or {}), **({names.gpu_annotation("c"): gpus} if gpus else {})}
    return managed(name, container(core, blocks), on=on, phase=phase, annotations=given_, **(spec or {}))


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def state(clock):
    return new_state(clock)


def new_state(clock, *nodes):
    made = SchedulerState(Resources(), Learner("best-fit"), clock, hold_seconds=HOLD, lost_seconds=LOST)
    made.intake.set_nodes(list(nodes) or [node("n0"), node("n1")])
    made.intake.set_pods([])
    return made


def no_gangs(state):
    return Gangs(state, ManualClock(), None, hold_seconds=HOLD)


def read(obj):
    return read_pod(obj, Resources())


def judged(state, obj, *among):
    return orjson.loads(filter_nodes(state, no_gangs(state), gpu_pod(state, obj), orjson.dumps(among or ["n0", "n1"])))


def fitting(state, obj, *among):
    return judged(state, obj, *among)["NodeNames"]


def placed(state, obj, *among):
    names = orjson.dumps(among or ["n0", "n1"])
    answer = filter_nodes(state, no_gangs(state), gpu_pod(state, obj), names, best_alone=True)
    state.look_ahead()
    return orjson.loads(answer)["NodeNames"]


def points(state, obj, *among):
    scored = orjson.loads(prioritize_nodes(state, no_gangs(state), gpu_pod(state, obj), orjson.dumps(among)))
    return {entry["Host"]: entry["Score"] for entry in scored}


def free(state):
    return state.totals()[2]


def test_two_sixty_percent_pods_never_share_a_gpu(state):
    assert fitting(state, pod("a")) == ["n0", "n1"]
    assert fitting(state, pod("b")) == ["n1"]
    assert fitting(state, pod("c")) == []
    assert state.counts()[HoldKind.TENTATIVE] == 2


def test_a_place_says_what_led_there_and_what_was_free(clock):
    state = new_state(clock, node("n0", 2), node("n1", 2))

    def why(obj, on):
        return state.bindings.choose(read(obj), on).why

    assert why(pod("a"), "n0") == "kube-scheduler's own rules; GPU before: idle"
    fitting(state, pod("b", 40))
    assert why(pod("b", 40), "n1") == (
        "kube-scheduler's own rules; best-fit would have taken node n0; GPU before: idle"
    )
    state.intake.set_node(node("n3", 2))
    state.intake.set_node(node("n4", 2))
    fitting(state, pod("f"), "n3", "n4")
    assert why(pod("f"), "n4") == "best-fit, as good as node n3; kube-scheduler chose between them; GPU before: idle"
    fitting(state, pod("c", 40))
    assert why(pod("c", 40), "n0") == (
        "best-fit, the cheapest of 2 nodes with room; GPU before: 40 percent and 7168 MiB free"
    )
    state.intake.set_node(node("n2", 2))
    fitting(state, pod("d", 200, 0), "n0", "n2")
    assert why(pod("d", 200, 0), "n2") == "the only room; GPU before: 2 times idle"
    state.intake.set_pod(pod("e", 10))
    found = chosen_hold(read(pod("e", 10)), "n1", ["n1-0"])[0]
    assert state.reserve(read(pod("e", 10)), found)
    assert why(pod("e", 10), "n1").startswith("room was made or kept for it; GPU before: 60 percent")


def test_a_list_that_tells_nothing_new_stirs_no_node(state):
    pods = [pod("a", on="n0", gpus="n0-0", phase="Running"), pod("b", on="n1", gpus="n1-0", phase="Running")]
    state.intake.set_pods(pods)
    state.stirred(everything=True)
    state.intake.set_pods(pods)
    assert state.stirred(everything=False) == {}
    pods[1] = pod("b", on="n1", gpus="n1-0", phase="Running", annotations={names.BUDGET_STATE: names.OVER_BUDGET})
    state.intake.set_pods(pods)
    assert state.stirred(everything=False).keys() == {"n1"}
    state.intake.set_pods(pods[1:])
    assert state.stirred(everything=False).keys() == {"n0"}


def test_a_pod_that_arrives_where_it_was_expected_changes_no_price(state):
    assert placed(state, pod("a")) == ["n0"]
    version, changes = state.version(), state.changes()
    state.stirred(everything=True)
    state.bindings.choose(read(pod("a")), "n0")
    assert state.stirred(everything=False).keys() == {"n0"}, "the reclaimer learns of it"
    state.bindings.bound("uid-a", "n0")
    state.intake.set_pod(pod("a", on="n0", gpus="n0-0"))
    assert state.counts() == {HoldKind.BOUND: 1}
    assert state.version() == version
    assert state.changes() > changes
    assert placed(state, pod("b")) == ["n1"]


@pytest.mark.parametrize(("second", "ahead"), [(20, True), (30, False)])
def test_a_search_for_unequal_containers_is_never_made_ahead(state, monkeypatch, second, ahead):
    limits = [{"tencent.com/vcuda-core": str(core), "tencent.com/vcuda-memory": "4"} for core in (20, second)]
    containers = [{"name": name, "resources": {"limits": one}} for name, one in zip("cd", limits, strict=True)]
    for name in "ab":
        assert placed(state, pod(name, spec={"containers": containers})) == ["n0"]
    state.intake.set_node(node("n1", 2))
    judged_ahead = []
    monkeypatch.setattr(Finder, "cheapest", lambda _self, _fleet, demand, _policy: judged_ahead.append(demand))
    state.look_ahead()
    assert bool(judged_ahead) is ahead


def test_looking_ahead_survives_that_another_thread_expects_nothing_any_more(state, monkeypatch):
    expected = iter([read(pod("a")).demand])
    monkeypatch.setattr(SchedulerState, "_next", property(lambda _state: next(expected, None)), raising=False)
    state.look_ahead()


def test_a_place_that_is_only_kept_longer_is_no_change(state):
    waiting = read(pod("a"))
    hold, _ = chosen_hold(waiting, "n0", ["n0-0"])
    state.intake.set_pod(pod("a"))
    assert state.reserve(waiting, hold)
    changes = state.changes()
    assert state.reserve(waiting, hold)
    state.release("uid-unknown")
    assert state.changes() == changes


def test_the_expected_place_is_not_taken_if_its_node_has_changed_since(clock):
    state = new_state(clock, node("n0", 2))
    assert placed(state, pod("a"), "n0") == ["n0"]
    state.intake.set_pod(pod("foreign", on="n0", gpus="n0-0", phase="Running"))
    assert state.bindings.choose(read(pod("a")), "n0").gpus["c"] == ("n0-1",)
    assert placed(state, pod("b", 30), "n0") == ["n0"]
    state.intake.set_node(node("n0", 1))
    with pytest.raises(NoPlace):
        state.bindings.choose(read(pod("b", 50)), "n0")
    assert state.bindings.choose(read(pod("b", 30)), "n0").gpus["c"] == ("n0-0",)


def test_the_expected_place_is_not_taken_for_another_request(state):
    assert placed(state, pod("a", 30)) == ["n0"]
    place = state.bindings.choose(read(pod("a", 100, None)), "n0")
    assert [(share.core, share.whole) for share in place.hold.shares] == [(100, True)]


def test_a_second_filter_replaces_the_first_hold(state):
    for _ in range(3):
        assert fitting(state, pod("a")) == ["n0", "n1"]
    assert state.counts()[HoldKind.TENTATIVE] == 1
    assert free(state) == 140


def test_prioritize_moves_the_hold_to_the_best_of_the_nodes_that_are_left(state):
    fitting(state, pod("a"))
    assert points(state, pod("a"), "n1") == {"n1": 10}
    assert fitting(state, pod("b")) == ["n0"]


def test_one_node_alone_has_the_highest_score(clock):
    state = new_state(clock, *[node(f"n{i}") for i in range(5)], node("used"))
    state.intake.set_pod(pod("x", 30, on="used", gpus="used-0", phase="Running"))
    scores = points(state, pod("a"), *[f"n{i}" for i in range(5)], "used")
    assert scores.pop("used") == 10
    assert all(0 < score <= 9 for score in scores.values()), "a node left out has none"


def test_a_tentative_hold_ends_with_time_and_bind_is_checked_anew(state, clock):
    assert fitting(state, pod("a"), "n0") == ["n0"]
    clock.advance(HOLD * 1000 + 1)
    assert fitting(state, pod("b"), "n0") == ["n0"]
    state.bindings.choose(read(pod("b")), "n0")
    with pytest.raises(NoPlace, match="not enough is free for 60 percent"):
        state.bindings.choose(read(pod("a")), "n0")


def test_bind_spares_others_tentative_places_and_takes_them_only_if_it_must(clock):
    state = new_state(clock, node("n0", gpus=2))
    fitting(state, pod("a"), "n0")
    first = state.bindings.choose(read(pod("b")), "n0")
    assert first.gpus == {"c": ("n0-1",)}
    second = state.bindings.choose(read(pod("c")), "n0")
    assert second.gpus == {"c": ("n0-0",)}
    assert state.counts()[HoldKind.TENTATIVE] == 0
    with pytest.raises(NoPlace):
        state.bindings.choose(read(pod("a")), "n0")


def test_a_bound_place_waits_for_the_watch_and_is_never_dropped_by_time(state, clock):
    a = pod("a")
    fitting(state, a)
    place = state.bindings.choose(read(a), "n0")
    state.bindings.bound("uid-a", "n0")
    clock.advance(10 * HOLD * 1000)
    assert fitting(state, pod("b"), "n0") == []
    assert [p.uid for p in state.bindings.overdue()] == ["uid-a"]
    state.intake.set_pod(a)  # an old event: not bound yet
    assert fitting(state, pod("b"), "n0") == []
    state.intake.set_pod(pod("a", on="n0", gpus=",".join(place.gpus["c"])))
    state.intake.set_pod(a)  # an old event again
    assert state.pod("uid-a").node == "n0"
    assert state.bindings.overdue() == []
    assert state.counts() == {HoldKind.BOUND: 1}


def test_a_list_that_is_older_than_a_binding_does_not_free_it(state):
    state.intake.set_pod(pod("a"))
    state.bindings.choose(read(pod("a")), "n0")
    state.bindings.bound("uid-a", "n0")
    state.intake.set_pods([])
    assert fitting(state, pod("b"), "n0") == []


def test_a_lost_answer_keeps_the_place_and_a_second_try_gets_the_same(clock):
    state = new_state(clock, node("n0", gpus=4), node("n1"))
    first = state.bindings.choose(read(pod("a")), "n0")
    with pytest.raises(NoPlace, match="under way"):
        state.bindings.choose(read(pod("a")), "n0")
    state.bindings.lost("uid-a", "n0")
    assert state.bindings.choose(read(pod("a")), "n0").gpus == first.gpus
    state.bindings.refused("uid-a", "n0")  # the second try; the first may still come through
    assert state.counts()[HoldKind.BINDING] == 1
    state.bindings.choose(read(pod("a")), "n1")
    assert state.counts()[HoldKind.BINDING] == 2
    state.bindings.bound("uid-a", "n1")
    assert state.counts()[HoldKind.BINDING] == 1
    assert fitting(state, pod("b", 100, None), "n1") == []


def test_a_refused_first_try_frees_the_place(state):
    state.bindings.choose(read(pod("a")), "n0")
    state.bindings.refused("uid-a", "n0")
    assert free(state) == 200


@pytest.mark.parametrize(
    ("answer", "left"),
    [
        (None, 0),
        (pod("a") | {"metadata": {"name": "a", "uid": "another"}}, 0),
        (pod("a", on="n0", gpus="n0-0", phase="Succeeded"), 0),
        (pod("a", on="n0", gpus="n0-0"), 1),
        (pod("a"), 0),
    ],
)
def test_an_overdue_place_is_judged_by_the_pod_itself(state, clock, answer, left):
    state.bindings.choose(read(pod("a")), "n0")
    assert state.bindings.overdue() == []
    state.bindings.lost("uid-a", "n0")
    clock.advance(LOST * 1000 - 1)
    assert state.bindings.overdue() == []
    clock.advance(1)
    assert len(state.bindings.overdue()) == 1
    state.bindings.looked("uid-a", answer)
    assert state.counts()[HoldKind.BINDING] == left
    state.bindings.looked("uid-a", None)
    assert free(state) == 200


def test_terminal_and_deleted_pods_free_their_place(state):
    state.intake.set_pod(pod("a", on="n0", gpus="n0-0", phase="Running"))
    state.intake.set_pod(pod("b", on="n1", gpus="n1-0", phase="Running"))
    assert free(state) == 80
    state.intake.set_pod(pod("a", on="n0", gpus="n0-0", phase="Succeeded"))
    state.intake.drop_pod("uid-b")
    assert free(state) == 200


def test_a_pod_under_deletion_holds_its_place_until_it_has_ended(state):
    leaving = pod("a", on="n0", gpus="n0-0", phase="Running")
    leaving["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    state.intake.set_pod(leaving)
    assert free(state) == 140


def test_a_deleted_pod_that_was_being_bound_stays_gone(state):
    state.bindings.choose(read(pod("a")), "n0")
    state.intake.drop_pod("uid-a")
    state.bindings.bound("uid-a", "n0")
    assert free(state) == 200


def test_the_node_can_come_back(state):
    state.intake.set_pod(pod("a", on="n0", gpus="n0-0", phase="Running"))
    state.intake.drop_node("n0")
    assert free(state) == 100
    assert judged(state, pod("b"), "n0")["FailedAndUnresolvableNodes"].keys() == {"n0"}
    state.intake.set_node(node("n0"))
    assert free(state) == 140


def test_an_edited_annotation_does_not_free_a_gpu(state):
    bad = {names.SHARING: "nonsense", names.CORE_LIMIT: "5", names.gpu_annotation("other"): "n1-0"}
    state.intake.set_pod(pod("a", on="n0", gpus="n0-0", annotations=bad, phase="Running"))
    assert free(state) == 140


def test_what_cannot_be_read_at_all_holds_its_gpus_whole(state):
    state.intake.set_pod(pod("a", core="1e99", on="n0", gpus="n0-0,n0-7", phase="Running"))
    assert free(state) == 100


def test_exclusive_holds_the_gpu_whatever_the_share(state):
    a = pod("a", 10, annotations={names.SHARING: "exclusive"})
    place = state.bindings.choose(read(a), "n0")
    assert place.hold.alone
    assert fitting(state, pod("b", 10), "n0") == []
    state.bindings.bound("uid-a", "n0")
    state.intake.set_pod(pod("a", 10, on="n0", gpus="n0-0", annotations={names.SHARING_MODE: "exclusive: asked for"}))
    assert fitting(state, pod("b", 10), "n0") == []
    assert free(state) == 100


def test_affinity_holds_between_filter_and_bind(state):
    wish = {names.GPU_AFFINITY: "x"}
    assert fitting(state, pod("a", 30, annotations=wish)) == ["n0", "n1"]
    assert fitting(state, pod("b", 30, annotations=wish)) == ["n0"]
    state.bindings.choose(read(pod("b", 30, annotations=wish)), "n1")  # kube-scheduler may know better
    with pytest.raises(NoPlace, match="affinity x"):
        state.bindings.choose(read(pod("a", 30, annotations=wish)), "n0")


def nothing(state):
    state.intake.set_node({"metadata": {"name": "n0", "annotations": {names.NODE_GPUS: "?"}}})


def another_gpu(state):
    value = inventory.encode([inventory.Gpu("other", "A100", GPU_MIB)])
    state.intake.set_node(node("n0", **{names.NODE_GPUS: value}))


@pytest.mark.parametrize("lose", [nothing, another_gpu, lambda state: state.intake.drop_node("n0")])
def test_a_label_is_on_one_gpu_even_if_that_gpu_is_not_in_sight(state, lose):
    wish = {names.GPU_AFFINITY: "x"}
    state.intake.set_pod(pod("a", 30, on="n0", gpus="n0-0", annotations=wish))
    lose(state)
    assert fitting(state, pod("b", 30, annotations=wish)) == []
    with pytest.raises(NoPlace, match="affinity x"):
        state.bindings.choose(read(pod("b", 30, annotations=wish)), "n1")
    state.intake.set_node(node("n0"))
    assert fitting(state, pod("b", 30, annotations=wish)) == ["n0"]
    lose(state)
    state.intake.drop_pod("uid-a")
    assert fitting(state, pod("b", 30, annotations=wish), "n1") == ["n1"]


def test_double_booking_by_others_leaves_nothing_and_never_less(state):
    for name in "abc":
        state.intake.set_pod(pod(name, on="n0", gpus="n0-0", phase="Running"))
    assert free(state) == 100


def test_reservations_keep_others_out_and_let_the_owner_in(state, clock):
    w = pod("w")
    state.intake.set_pod(w)
    assert fitting(state, w, "n0") == ["n0"]
    hold = state.bindings.choose(read(w), "n0").hold
    state.bindings.refused("uid-w", "n0")
    assert state.reserve(read(w), hold)
    assert fitting(state, pod("b"), "n0") == []
    with pytest.raises(NoPlace):
        state.bindings.choose(read(pod("b")), "n0")
    assert fitting(state, w, "n0") == ["n0"]
    clock.advance(HOLD * 1000 + 1)
    assert fitting(state, pod("b"), "n0") == ["n0"]
    state.release("uid-w")
    state.intake.set_pod(pod("w", on="n1", gpus="n1-0"))
    assert not state.reserve(read(w), hold)


def test_who_joins_a_reserved_gpu_does_not_keep_out_the_pod_whose_label_is_expected_there(state):
    w = pod("w", 60, annotations={names.GPU_AFFINITY: "x"})
    state.intake.set_pod(w)
    assert state.reserve(read(w), Hold("n0", (Share("n0-0", 60, 1024, whole=False),), affinity="team-a/x"))
    state.bindings.choose(read(pod("b", 30)), "n0")
    assert fitting(state, w) == ["n0"]
    assert state.bindings.choose(read(w), "n0").gpus == {"c": ("n0-0",)}


HOSTILE = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


PATHS = [
    ("metadata", "annotations"), ("metadata", "annotations", names.gpu_annotation("c")), ("metadata", "labels"),
    ("metadata", "namespace"), ("metadata", "creationTimestamp"), ("spec",), ("spec", "containers"), ("status",),
    ("spec", "nodeName"), ("spec", "priority"), ("spec", "containers", 0), ("status", "phase"),
]  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_damaged_objects_never_crash_it(data):
    state = new_state(ManualClock())
    obj = pod("a", on="n0", gpus="n0-0", phase="Running")
    for _ in range(data.draw(st.integers(1, 3))):
        path = data.draw(st.sampled_from(PATHS))
        at = obj
        try:
            for key in path[:-1]:
                at = at[key]
            at[path[-1]] = data.draw(HOSTILE)
        except (TypeError, KeyError, IndexError):
            continue
    state.intake.set_pod(obj)
    damaged = node("n1")
    damaged["metadata"]["annotations"][names.NODE_GPUS] = data.draw(st.text() | HOSTILE)
    state.intake.set_node(damaged)
    fitting(state, pod("b"))
    fitting(state, obj)


EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["pod", "pod", "pod", "finish", "drop", "node", "gone", "choose", "place", "place"]),
        st.integers(0, 5),
        st.integers(0, 2),
        st.sampled_from([10, 60, 100, 200]),
        st.integers(0, 1),
    ),
    max_size=25,
)


def arrive(state, name, core, where):
    """Bind a pod; return it as the watch shows it, None if there is no place."""
    try:
        place = state.bindings.choose(read(pod(name, core)), where)
    except NoPlace:
        state.intake.drop_pod(f"uid-{name}")
        return None
    state.bindings.bound(f"uid-{name}", where)
    bound = pod(name, core, 4, on=where, gpus=",".join(place.gpus["c"]))
    state.intake.set_pod(bound)
    return bound


@settings(max_examples=200, deadline=None)
@given(EVENTS)
def test_a_rebuild_equals_what_the_watch_has_built(events):
    clock = ManualClock()
    state = new_state(clock, node("n0", 2), node("n1", 2), node("n2", 2))
    objects, nodes = {}, {f"n{i}": node(f"n{i}", 2) for i in range(3)}
    for kind, p, n, core, g in events:
        name, where = f"p{p}", f"n{n}"
        if kind == "pod" and name not in objects:
            gpus = f"{where}-{g}" if core <= 100 else f"{where}-0,{where}-1"
            objects[name] = pod(name, core, 4, on=where, gpus=gpus, phase="Running")
            state.intake.set_pod(objects[name])
        elif kind == "finish" and name in objects:
            objects[name] = {**objects[name], "status": {"phase": "Failed"}}
            state.intake.set_pod(objects[name])
        elif kind == "drop" and name in objects:
            state.intake.drop_pod(objects.pop(name)["metadata"]["uid"])
        elif kind == "node":
            nodes[where] = node(where, 1 + g)
            state.intake.set_node(nodes[where])
        elif kind == "gone":
            nodes.pop(where, None)
            state.intake.drop_node(where)
        elif kind in ("choose", "place") and name not in objects:
            expected = placed(state, pod(name, core), "n0", "n1", "n2") if kind == "place" else []
            where = expected[0] if expected else where
            others = f"f{p}"  # another scheduler's pod, which comes in between
            objects[others] = pod(others, 20, 1, on=where, gpus=f"{where}-{g}", phase="Running")
            state.intake.set_pod(objects[others])
            arrived = arrive(state, name, core, where)
            objects |= {name: arrived} if arrived else {}
    fresh = new_state(clock, *nodes.values()) if nodes else new_state(clock)
    if not nodes:
        fresh.intake.set_nodes([])
    fresh.intake.set_pods(list(objects.values()))
    assert fresh.totals() == state.totals()
    assert fresh.counts() == state.counts()
    for core in (10, 50, 100, 200):
        probe = pod("probe", core, 4 if core < 100 else None)
        among = ["n0", "n1", "n2"]
        assert judged(fresh, probe, *among) == judged(state, probe, *among)
        graded = points(state, probe, *among)
        assert points(fresh, probe, *among) == graded
        for one in (fresh, state):
            one.intake.drop_pod("uid-probe")
            assert placed(one, probe, *among) == [name for name, score in graded.items() if score == 10]
            one.intake.drop_pod("uid-probe")


def test_threads_never_give_a_gpu_twice(clock):
    """Sixteen threads filter, bind, lose answers and end pods; an independent sum is checked all along."""
    state = new_state(clock, *[node(f"n{i}", 2) for i in range(3)])
    among = ["n0", "n1", "n2"]
    held: dict[str, int] = {}
    lock = threading.Lock()
    errors: list[str] = []
    bound = [0]

    def work(number):
        rng = random.Random(number)
        for turn in range(40):
            name, core = f"p{number}-{turn}", rng.choice([20, 40, 60, 100])
            obj = pod(name, core)
            nodes = rng.choice([fitting, placed])(state, obj, *among)
            if not nodes:
                continue
            where = rng.choice(nodes)
            try:
                place = state.bindings.choose(read(obj), where)
            except NoPlace:
                continue
            gpu = place.gpus["c"][0]
            with lock:
                held[gpu] = held.get(gpu, 0) + core
                bound[0] += 1
                if held[gpu] > 100:
                    errors.append(f"{gpu} holds {held[gpu]}")
            if rng.random() < 0.3:
                state.bindings.lost(f"uid-{name}", where)
                assert state.bindings.choose(read(obj), where).gpus["c"][0] == gpu
            state.bindings.bound(f"uid-{name}", where)
            state.intake.set_pod(pod(name, core, on=where, gpus=gpu, phase="Running"))
            with lock:
                held[gpu] -= core
            state.intake.drop_pod(f"uid-{name}")

    threads = [threading.Thread(target=work, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert bound[0] > 50
    clock.advance((HOLD + 1) * 1000)
    assert fitting(state, pod("last", 200, None), *among) == among
    state.intake.drop_pod("uid-last")
    assert free(state) == 600


def test_a_place_that_was_expected_and_not_taken_at_once_lets_others_in(state, clock):
    assert fitting(state, pod("a"), "n0") == ["n0"]
    assert fitting(state, pod("b"), "n0") == []
    clock.advance(2_001)
    assert fitting(state, pod("b"), "n0") == ["n0"]
    assert fitting(state, pod("a"), "n0") == [], "now b expects it"


def test_cpu_and_memory_of_nodes_follow_bound_pods_and_those_about_to_be_there(clock):
    offers = {"allocatable": {"cpu": "8", "memory": "8Gi"}}
    state = new_state(clock, {**node("n0", gpus=2), "status": offers})

    def beside():
        view = state._held.fleet.view(["n0"], read(pod("x")).demand)
        return view.cpu[0], view.ram[0]

    other = {
        "metadata": {"uid": "other"},
        "status": {"phase": "Running"},
        "spec": {"nodeName": "n0", "containers": [{"resources": {"requests": {"cpu": "2", "memory": "1Gi"}}}]},
    }
    assert beside() == (8.0, 8192.0)
    for _ in range(2):
        state.intake.set_other(other)
        assert beside() == (6.0, 7168.0)
    mine = pod("a")
    mine["spec"]["containers"][0]["resources"]["requests"] = {"cpu": "3"}
    state.bindings.choose(read(mine), "n0")
    assert beside() == (3.0, 7168.0), "it counts from its binding"
    mine["spec"]["nodeName"] = "n0"
    state.intake.set_pod(mine)
    assert beside() == (3.0, 7168.0), "and once only"
    state.intake.set_others([])
    assert beside() == (5.0, 8192.0), "the list of the others says nothing of managed pods"
    mine["spec"]["containers"][0]["resources"]["requests"] = {"cpu": "1"}
    state.intake.set_pod(mine)
    assert beside() == (7.0, 8192.0), "resized while it runs"
    state.intake.drop_node("n0")
    state.intake.set_node({**node("n0", gpus=2), "status": offers})
    assert beside() == (7.0, 8192.0)
    state.intake.set_others([other])
    state.intake.set_pod({**mine, "status": {"phase": "Succeeded"}})
    assert beside() == (6.0, 7168.0), "it has ended"
    state.intake.set_pod({**mine, "metadata": {**mine["metadata"], "uid": "uid-b"}})
    assert beside()[0] == 5.0
    state.intake.set_pods([])
    assert beside()[0] == 6.0, "it is gone"
    state.intake.drop_other("other")
    assert beside() == (8.0, 8192.0)


def test_pods_that_take_cores_beside_gpus_and_no_gpu_are_counted_once_as_arrivals(clock):
    learner = Learner("fgd")
    state = SchedulerState(Resources(), learner, clock, hold_seconds=30, lost_seconds=60)
    state.intake.set_node(node("n0", gpus=2))
    bound = {"status": {"phase": "Running"}, "spec": {"nodeName": "n0", "containers": []}}
    plain = {"metadata": {"uid": "plain"}, **bound}
    of_the_node = {"metadata": {"uid": "log", "ownerReferences": [{"kind": "DaemonSet", "name": "log"}]}, **bound}
    elsewhere = {"metadata": {"uid": "far"}, **bound, "spec": {"nodeName": "without-gpus", "containers": []}}
    mine = pod("a", on="n0", gpus="n0-0", phase="Running")
    state.intake.set_pod(mine)
    for _ in range(2):
        state.intake.set_others([plain, of_the_node, elsewhere])
        state.intake.set_other(plain)
    assert learner.arrivals.mix().without_gpus == 1 / 2, "one of two pods"
