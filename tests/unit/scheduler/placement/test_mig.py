# SPDX-License-Identifier: Apache-2.0
"""MIG slices: one container each, the smallest that suffices, and never one for what a shared GPU has room for."""

import itertools
from dataclasses import replace

import numpy as np
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.gang_world import Jobs
from support.manual_clock import ManualClock
from support.scheduled_pods import container, managed

from scheduler.explain_wait import outlook
from scheduler.extender import filter_nodes, gpu_pod, preempt, prioritize_nodes
from scheduler.gangs import Gangs
from scheduler.held_places import HoldKind
from scheduler.pending_bindings import NoPlace
from scheduler.placement.assignment import NOWHERE
from scheduler.placement.demand import demand_of
from scheduler.placement.learner import Learner
from scheduler.placement.mig import MigRow, choose, in_order, sliced
from scheduler.placement.ranking import scores
from scheduler.pods import gpu_rows, read_pod
from scheduler.reclaim.victim_choice import NodeGpus, Tenant, choose_victims
from scheduler.scheduler_state import SchedulerState
from slicekeeper import names
from slicekeeper.config.settings import Resources
from slicekeeper.gpu import inventory
from slicekeeper.gpu.inventory import MOST_LEFT, Gpu, MigSlice
from slicekeeper.gpu.request import GpuRequest, PodRequest

MIB = 81_920
SIZES = {1: 9_728, 2: 19_968, 3: 40_448, 4: 40_448, 7: 81_408}
ASKS_MIG = {names.SHARING: names.MIG}
OVER = {names.BUDGET_STATE: names.OVER_BUDGET}


def divided(name, *compute, healthy=True):
    mig = tuple(MigSlice(f"MIG-{name}-{i}", SIZES[c], c, 7, healthy=healthy) for i, c in enumerate(compute))
    return Gpu(f"GPU-{name}", "A100", MIB, healthy=False, trouble="MIG mode", mig=mig)


def node(name, *gpus):
    return {"metadata": {"name": name, "annotations": {names.NODE_GPUS: inventory.encode(list(gpus))}}}


def pod(name, core=14, blocks=36, annotations=None, *, containers=1, on="", gpus=None, phase="Pending"):
    chosen = {names.gpu_annotation(f"c{i}"): uuid for i, uuid in enumerate(gpus or ())}
    return managed(
        name,
        *(container(core, blocks, f"c{i}") for i in range(containers)),
        on=on,
        phase=phase,
        annotations={names.BUDGET_STATE: names.IN_BUDGET, **(annotations or {}), **chosen},
    )


def new_state(clock, *nodes):
    made = SchedulerState(Resources(), Learner("best-fit"), clock, hold_seconds=30, lost_seconds=60)
    made.intake.set_nodes(nodes)
    made.intake.set_pods([])
    return made


def read(obj):
    return read_pod(obj, Resources())


def no_gangs(state):
    return Gangs(state, ManualClock(), None, Jobs(), hold_seconds=30)


def judged(state, obj):
    among = orjson.dumps(sorted(state.snapshot().nodes))
    return orjson.loads(filter_nodes(state, no_gangs(state), gpu_pod(state, obj), among))


def best(state, obj):
    among = orjson.dumps(sorted(state.snapshot().nodes))
    judged(state, obj)
    scored = orjson.loads(prioritize_nodes(state, no_gangs(state), gpu_pod(state, obj), among))
    return max(scored, key=lambda entry: entry["Score"])["Host"]


def bind(state, obj, on):
    """Bind a pod and let the watch show it; return each container's GPUs."""
    place = state.bindings.choose(read(obj), on)
    state.bindings.bound(obj["metadata"]["uid"], on)
    annotations = {names.gpu_annotation(name): ",".join(gpus) for name, gpus in place.gpus.items()}
    obj["metadata"]["annotations"] |= annotations
    obj["spec"]["nodeName"] = on
    state.intake.set_pod(obj)
    return place


def test_a_pod_that_asks_for_a_slice_gets_the_smallest_that_suffices_anywhere(clock):
    state = new_state(clock, node("n0", Gpu("GPU-a", "A100", MIB), divided("b", 3, 3)), node("n1", divided("c", 2, 4)))
    assert best(state, pod("a", 20, annotations=ASKS_MIG)) == "n1"
    assert bind(state, pod("a", 20, annotations=ASKS_MIG), "n1").gpus == {"c0": ("MIG-c-0",)}
    assert best(state, pod("b", 20, annotations=ASKS_MIG)) == "n0", "3 of 7 waste less than 4"
    assert bind(state, pod("b", 20, annotations=ASKS_MIG), "n0").gpus == {"c0": ("MIG-b-0",)}
    assert judged(state, pod("c", 57, 157, ASKS_MIG))["NodeNames"] == ["n1"]
    assert judged(state, pod("c", 58, 8, ASKS_MIG))["NodeNames"] == []
    assert judged(state, pod("c", 10, 159, ASKS_MIG))["NodeNames"] == [], "memory counts as compute does"


def test_a_gpu_in_mig_mode_takes_no_other_pods(clock):
    state = new_state(clock, node("n0", divided("a", 1, 1)))
    for annotations in ({names.SHARING: "shared"}, {names.SHARING: "exclusive"}):
        answer = judged(state, pod("p", 10, 8, annotations))
        assert answer["FailedAndUnresolvableNodes"] == {"n0": "no healthy GPU outside of MIG mode"}
    assert not judged(state, pod("p", 100, 0))["NodeNames"]
    assert state.totals() == (1, 1, 28, 2 * SIZES[1])


def test_an_adaptive_pod_is_on_a_slice_only_where_no_shared_gpu_has_room(clock):
    state = new_state(clock, node("n0", Gpu("GPU-a", "A100", MIB), divided("b", 1)), node("n1", divided("c", 1)))
    assert best(state, pod("a", 60)) == "n0"
    assert bind(state, pod("a", 60), "n0").gpus == {"c0": ("GPU-a",)}
    assert bind(state, pod("b", 40), "n0").gpus == {"c0": ("GPU-a",)}
    assert judged(state, pod("c", 10))["NodeNames"] == ["n0", "n1"]
    place = bind(state, pod("c", 10), "n0")
    assert place.gpus == {"c0": ("MIG-b-0",)}
    assert place.hold.on_slices
    assert place.why.endswith("the smallest slice that fits")
    assert judged(state, pod("d", 10))["NodeNames"] == ["n1"]
    state.intake.drop_pod("uid-b")
    assert best(state, pod("d", 10)) == "n0", "room on a shared GPU anywhere goes first"
    assert judged(state, pod("e", 10, annotations={names.SHARING: "shared"}))["NodeNames"] == ["n0"]
    assert judged(state, pod("e", 10, annotations={names.GPU_AFFINITY: "x"}))["NodeNames"] == [], "together on no slice"


def test_an_adaptive_pod_pays_for_no_more_than_twice_what_it_asks_for(clock):
    state = new_state(clock, node("n0", divided("a", 3)))
    size = max(42, SIZES[3] * 100 // MIB)
    half = -(-size // MOST_LEFT)
    assert judged(state, pod("a", half, 4))["NodeNames"] == ["n0"]
    assert judged(state, pod("a", half - 1, 4))["NodeNames"] == []
    assert judged(state, pod("a", 1, 100))["NodeNames"] == ["n0"], "of memory it uses more than half"
    assert judged(state, pod("a", 1, 4, ASKS_MIG))["NodeNames"] == ["n0"], "who asks for a slice gets it"


def test_each_container_has_a_slice_of_its_own_on_one_node(clock):
    state = new_state(clock, node("n0", divided("a", 1, 1), divided("b", 1)), node("n1", divided("c", 1)))
    three = pod("a", annotations=ASKS_MIG, containers=3)
    assert judged(state, three)["NodeNames"] == ["n0"]
    gpus = bind(state, three, "n0").gpus
    assert sorted(uuid for [uuid] in gpus.values()) == ["MIG-a-0", "MIG-a-1", "MIG-b-0"]
    assert judged(state, pod("b", annotations=ASKS_MIG))["NodeNames"] == ["n1"]


def test_identity_and_model_hold_for_slices(clock):
    other = replace_model(divided("c", 1), "H100")
    state = new_state(clock, node("n0", divided("a", 1), divided("b", 1)), node("n1", other))

    def place(**wishes):
        obj = pod("p", annotations={**ASKS_MIG, **wishes})
        [on] = judged(state, obj)["NodeNames"]
        place = state.bindings.choose(read(obj), on)
        state.bindings.refused("uid-p", on)
        return place.gpus["c0"][0]

    assert place(**{names.GPU_UUID: "MIG-b-0"}) == "MIG-b-0"
    assert place(**{names.GPU_UUID: "GPU-b"}) == "MIG-b-0", "any of this GPU's"
    assert place(**{names.GPU_MODEL: "H100"}) == "MIG-c-0"


def replace_model(gpu, model):
    return Gpu(gpu.uuid, model, gpu.memory_mib, healthy=False, mig=gpu.mig)


@pytest.mark.parametrize(
    ("gpus", "wishes", "why", "resolvable"),
    [
        ([Gpu("GPU-a", "A100", MIB)], {}, "the node has no MIG slice for 14 percent", False),
        ([divided("a", 1)], {"core": 15}, "the node has no MIG slice for 15 percent", False),
        ([divided("a", 1)], {"containers": 2}, "or not enough of them", False),
        ([divided("a", 1, healthy=False)], {}, "its MIG slices are not healthy", False),
        ([divided("a", 1)], {"uuid": "GPU-x"}, "GPU GPU-x is not on this node", False),
        ([divided("a", 1)], {"model": "H100"}, "no GPU of model H100", False),
        ([divided("a", 1, 1)], {"taken": True}, "the MIG slices that could hold 14 percent", True),
    ],
)
def test_why_a_node_has_no_slice_for_a_pod(clock, gpus, wishes, why, resolvable):
    state = new_state(clock, node("n0", *gpus))
    if wishes.pop("taken", False):
        bind(state, pod("one", annotations=ASKS_MIG), "n0")
        bind(state, pod("two", annotations=ASKS_MIG), "n0")
    annotations = dict(ASKS_MIG)
    annotations |= {names.GPU_UUID: wishes.pop("uuid")} if "uuid" in wishes else {}
    annotations |= {names.GPU_MODEL: wishes.pop("model")} if "model" in wishes else {}
    answer = judged(state, pod("p", annotations=annotations, **wishes))
    failed = answer["FailedNodes" if resolvable else "FailedAndUnresolvableNodes"]
    assert why in failed["n0"]


def test_a_pod_that_may_be_anywhere_can_be_helped_by_who_leaves_a_slice(clock):
    state = new_state(clock, node("n0", divided("a", 1)))
    bind(state, pod("one"), "n0")
    assert judged(state, pod("two"))["FailedNodes"].keys() == {"n0"}
    assert judged(state, pod("two", 15))["FailedAndUnresolvableNodes"].keys() == {"n0"}


def test_slices_that_come_and_go_are_followed(clock):
    state = new_state(clock, node("n0", divided("a", 1, 1)))
    bind(state, pod("one", annotations=ASKS_MIG), "n0")
    state.intake.set_node(node("n0", Gpu("GPU-a", "A100", MIB)))
    assert judged(state, pod("two", annotations=ASKS_MIG))["NodeNames"] == []
    assert judged(state, pod("two", 90))["NodeNames"] == ["n0"], "what was on a slice that is gone holds nothing else"
    state.intake.set_node(node("n0", divided("a", 1, 1)))
    assert bind(state, pod("two", annotations=ASKS_MIG), "n0").gpus == {"c0": ("MIG-a-1",)}
    whole = pod("whole", 100, 0, on="n0", gpus=["GPU-a"])
    state.intake.set_node(node("n0", divided("a", 1, 1, 1)))
    state.intake.set_pod(whole)
    assert judged(state, pod("three", annotations=ASKS_MIG))["NodeNames"] == [], "a pod has all of the GPU by its UUID"


def test_what_asks_for_slices_teaches_a_policy_nothing(clock):
    learner = Learner("best-fit")
    state = SchedulerState(Resources(), learner, clock, hold_seconds=30, lost_seconds=60)
    state.intake.set_nodes([node("n0", divided("a", 1, 1))])
    state.intake.set_pod(pod("a", annotations=ASKS_MIG))
    bind(state, pod("a", annotations=ASKS_MIG), "n0")
    state.intake.drop_pod("uid-a")
    assert learner.arrivals.seen == 0


def test_places_on_slices_leave_the_other_scores_as_they_are():
    fits = np.ones(5, np.bool_)
    price = np.array([0, 45, 90, NOWHERE + 14, NOWHERE + 42])
    assert scores(fits, price, 0).tolist() == [10, 5, 0, 0, 0]
    assert scores(fits[:3], price[:3], 0).tolist() == [10, 5, 0]
    assert scores(fits[3:], price[3:], 0).tolist() == [10, 0], "slices alone are told apart by their size"


PIECES = st.lists(st.tuples(st.sampled_from([5, 14, 20, 42]), st.sampled_from([4, 36, 70])), min_size=1, max_size=3)


@st.composite
def slices(draw):
    found = []
    for index in range(draw(st.integers(0, 5))):
        compute = draw(st.sampled_from([1, 2, 3, 7]))
        memory = draw(st.sampled_from([9_728, 19_968, 40_448]))
        free = draw(st.booleans())
        found.append(MigRow(MigSlice(f"MIG-{index}", memory, compute, 7), "GPU-0", "A100", MIB, free))
    return in_order(found)


@settings(max_examples=300, deadline=None)
@given(slices(), PIECES, st.sampled_from(["adaptive", "mig"]))
def test_slices_are_found_if_and_only_if_there_are_enough(rows, pieces, sharing):
    requests = tuple(GpuRequest(f"c{i}", core, blocks) for i, (core, blocks) in enumerate(pieces))
    demand = demand_of(PodRequest(requests, sharing=sharing), "team-a")

    def fits(row, piece):
        asked = max(piece.core, piece.memory_mib * 100 // MIB)
        enough = row.free and row.mig.core >= piece.core and row.mig.memory_mib >= piece.memory_mib
        return enough and (sharing == "mig" or row.size <= MOST_LEFT * asked)

    ways = [
        way
        for way in itertools.permutations(range(len(rows)), len(demand.pieces))
        if all(fits(rows[at], piece) for at, piece in zip(way, demand.pieces, strict=True))
    ]
    there = sliced(1, rows)
    found = choose(there, demand) if there is not None else None
    if found is None:
        assert not ways
    else:
        assert tuple(found) in ways
        if len(found) == 1:
            assert rows[found[0]].size == min(rows[way[0]].size for way in ways)


EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["choose", "choose", "lose", "retry", "end", "reconfigure", "agent", "filter", "time"]),
        st.integers(0, 6),
        st.integers(0, 1),
        st.sampled_from([5, 14, 28, 42]),
        st.sampled_from(["adaptive", "mig", "mig", "shared"]),
    ),
    max_size=30,
)
LAYOUTS = ((1, 1, 2), (3, 3), (1,), ())


@settings(max_examples=200, deadline=None)
@given(EVENTS)
def test_no_slice_is_given_twice_and_a_rebuild_is_the_same(events):  # noqa: C901 - each kind of event once
    clock = ManualClock()
    nodes = {f"n{i}": node(f"n{i}", Gpu(f"GPU-{i}", "A100", MIB), divided(f"m{i}", *LAYOUTS[i])) for i in range(2)}
    state = new_state(clock, *nodes.values())
    objects, lost = {}, {}
    for kind, p, n, core, sharing in events:
        name, where = f"p{p}", f"n{n}"
        obj = pod(name, core, 8, {names.SHARING: sharing})
        if kind == "choose" and name not in objects and name not in lost:
            try:
                place = bind(state, obj, where)
            except NoPlace:
                continue
            on_slice = any(uuid.startswith("MIG-") for [uuid] in place.gpus.values())
            assert on_slice == place.hold.on_slices
            assert on_slice or sharing != "mig"
            assert not on_slice or sharing != "shared"
            objects[name] = obj
        elif kind == "lose" and name not in objects and name not in lost:
            try:
                lost[name] = (state.bindings.choose(read(obj), where).gpus, where, obj)
            except NoPlace:
                continue
            state.bindings.lost(obj["metadata"]["uid"], where)
        elif kind == "retry" and name in lost:
            gpus, where, obj = lost.pop(name)
            assert bind(state, obj, where).gpus == gpus, "a second try gets the same"
            objects[name] = obj
        elif kind == "end" and name in objects:
            state.intake.set_pod({**objects.pop(name), "status": {"phase": "Succeeded"}})
        elif kind == "reconfigure":
            nodes[where] = node(where, Gpu(f"GPU-{n}", "A100", MIB), divided(f"m{n}", *LAYOUTS[p % len(LAYOUTS)]))
            state.intake.set_node(nodes[where])
        elif kind == "filter" and name not in objects and name not in lost:
            judged(state, obj)
        elif kind == "time":
            clock.advance(40_000)
        holders = [
            (share.uuid, place.pod.uid)
            for place in state.snapshot().places
            if place.kind is not HoldKind.TENTATIVE
            for share in place.hold.shares
            if share.uuid.startswith("MIG-")
        ]
        assert len(holders) == len({uuid for uuid, _ in holders})
    for name in list(lost):
        state.bindings.refused(f"uid-{name}", lost[name][1])
        state.bindings.looked(f"uid-{name}", None)
        state.intake.drop_pod(f"uid-{name}")
    clock.advance(100_000)
    state.version()  # what time has ended is gone
    fresh = new_state(clock, *nodes.values())
    fresh.intake.set_pods(list(objects.values()))
    assert fresh.totals() == state.totals()
    assert fresh.counts() == state.counts()
    for core, sharing in itertools.product((5, 14, 42), ("adaptive", "mig", "shared")):
        probe = pod("probe", core, 8, {names.SHARING: sharing})
        assert judged(fresh, probe) == judged(state, probe)


def test_a_pod_over_budget_in_a_slice_gives_way():
    gpus = (Gpu("GPU-a", "A100", MIB), divided("b", 1, 2))
    state = new_state(ManualClock(), node("n0", *gpus))
    for name, size, annotations in (
        ("shared", 100, {}),
        ("small", 14, ASKS_MIG),
        ("large", 28, ASKS_MIG),
    ):
        bind(state, pod(name, size, 8 if size < 100 else 0, {**annotations, **OVER}), "n0")
    tenants = [Tenant(place.pod.uid, place.hold, 1, at) for at, place in enumerate(state.snapshot().places)]

    def victims(core, annotations=None):
        found = choose_victims(
            read(pod("new", core, 8, annotations)).demand, [NodeGpus("n0", gpus, tuple(tenants))], has_friends=False
        )
        return found.victims if found else None

    assert victims(14, ASKS_MIG) == ("uid-small",)
    assert victims(20, ASKS_MIG) == ("uid-large",)
    assert victims(29, ASKS_MIG) is None
    assert victims(90) == ("uid-shared",)
    assert victims(14, {names.SHARING: "shared"}) == ("uid-shared",)
    tenants[0] = replace(tenants[0], rank=None)
    assert victims(20) == ("uid-large",), "an adaptive one may come into a slice"
    assert victims(9) == ("uid-small",)


def test_preemption_helps_only_where_a_slice_becomes_free():
    state = new_state(ManualClock(), node("n0", divided("a", 1, 1)))
    bind(state, pod("one", annotations={**ASKS_MIG, **OVER}), "n0")
    bind(state, pod("two", annotations=ASKS_MIG), "n0")
    asking = read(pod("new", annotations=ASKS_MIG))

    def helped(*victims):
        proposed = {"n0": {"Pods": [{"UID": uid} for uid in victims], "NumPDBViolations": 0}}
        return list(preempt(state, no_gangs(state), asking, proposed)["NodeNameToMetaVictims"])

    assert helped("uid-one") == ["n0"]
    assert helped("uid-two") == [], "it is in budget"


def test_explain_knows_slices():
    state = new_state(ManualClock(), node("n0", divided("a", 1, 3)), node("n1", Gpu("GPU-b", "A100", MIB)))
    bind(state, pod("one", 42, annotations={**ASKS_MIG, **OVER}), "n0")
    waits = pod("waits", 42, annotations=ASKS_MIG)
    state.intake.set_pod(waits)

    def look(obj):
        state.intake.set_pod(obj)
        return outlook(state.snapshot(), read(obj), state.policy, {}, 0)

    found = look(waits)
    assert found.give_way == ("team-a/one",)
    assert ("the MIG slices that could hold 42 percent of a GPU with 9216 MiB are taken", 1) in found.reasons
    assert any(text.startswith("14 percent of a GPU with the same memory") for text in found.helps)
    large = look(pod("large", 43, annotations=ASKS_MIG))
    assert large.give_way == ()
    assert large.helps == (
        "ask for no more than a MIG slice has (14 percent with 9728 MiB or 42 percent with 40448 MiB)",
    )
    wide = pod("wide", 200, 0)
    state.intake.set_node(node("n1", Gpu("GPU-b", "A100", MIB), divided("c", 3, 4)))
    less = f"ask for less on one node: the largest GPU outside of MIG mode has {MIB} MiB, the largest node 1 GPU"
    assert less in look(wide).helps
    state.intake.drop_node("n1")
    assert look(wide).helps == ("its GPUs are unhealthy or in MIG mode: `slicekeeper nodes -o wide` says why",)


def test_rows_of_a_divided_gpu_leave_nothing_else_free():
    [row] = gpu_rows([divided("a", 1, 2)], ())
    assert (row.core, row.memory, row.healthy, row.idle) == (0, 0, False, False)
    assert [one.free for one in row.mig] == [True, True]
