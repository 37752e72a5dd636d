# SPDX-License-Identifier: Apache-2.0
"""What the watches show of nodes and pods: taken as it is, however damaged, and a rebuild equals what was built."""

from hypothesis import given, settings
from hypothesis import strategies as st
from support.manual_clock import ManualClock
from support.scheduler_state import fitting, free, judged, new_state, node, placed, pod, points, read

from scheduler.held_places import HoldKind
from scheduler.pending_bindings import NoPlace
from scheduler.placement.learner import Learner
from scheduler.scheduler_state import SchedulerState
from slicekeeper import names
from slicekeeper.config.settings import Resources


def test_a_list_that_tells_nothing_new_stirs_no_node(state):
    pods = [pod("a", on="n0", gpus="n0-0", phase="Running"), pod("b", on="n1", gpus="n1-0", phase="Running")]
    state.intake.set_pods(pods)
    state.changed_nodes(everything=True)
    state.intake.set_pods(pods)
    assert state.changed_nodes(everything=False) == {}
    pods[1] = pod("b", on="n1", gpus="n1-0", phase="Running", annotations={names.BUDGET_STATE: names.OVER_BUDGET})
    state.intake.set_pods(pods)
    assert state.changed_nodes(everything=False).keys() == {"n1"}
    state.intake.set_pods(pods[1:])
    assert state.changed_nodes(everything=False).keys() == {"n0"}


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


def test_cpu_and_memory_of_nodes_follow_bound_pods_and_those_about_to_be_there(clock):
    offers = {"allocatable": {"cpu": "8", "memory": "8Gi"}}
    state = new_state(clock, {**node("n0", gpus=2), "status": offers})

    def beside():
        view = state._cluster.fleet.view(["n0"], read(pod("x")).demand)
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


def refused(obj, message):
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
    return {**obj, "status": {"phase": "Pending", "conditions": [condition]}}


def test_a_place_that_kube_scheduler_gave_up_stays_behind_for_nobody(state):
    waits = pod("a")
    state.intake.set_pod(waits)
    placed(state, waits)
    assert state.counts()[HoldKind.TENTATIVE] == 1
    state.intake.set_pod(refused(waits, "its group lacks room"))
    assert HoldKind.TENTATIVE not in state.counts()


def test_another_change_of_a_refused_pod_leaves_its_new_place(state):
    waits = refused(pod("a"), "no room")
    state.intake.set_pod(waits)
    placed(state, waits)
    annotated = {**waits, "metadata": {**waits["metadata"], "resourceVersion": "9"}}
    state.intake.set_pod(annotated)
    assert state.counts()[HoldKind.TENTATIVE] == 1
    state.intake.set_pod(refused(annotated, "no room, again"))
    assert HoldKind.TENTATIVE not in state.counts()


def test_a_nominated_node_gets_the_same_answer_without_prioritize(state):
    waits = pod("a")
    state.intake.set_pod(waits)
    [best] = placed(state, waits)
    assert judged(state, waits, best)["NodeNames"] == [best]
    assert placed(state, waits, best) == [best]
    [held] = state.places_of(["uid-a"])
    assert (held.kind, held.hold.node) == (HoldKind.TENTATIVE, best)
    chosen = state.bindings.choose(read(waits), best)
    assert {share.uuid for share in chosen.hold.shares} == {share.uuid for share in held.hold.shares}
