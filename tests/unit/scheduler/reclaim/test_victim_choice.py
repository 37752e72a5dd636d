# SPDX-License-Identifier: Apache-2.0
"""Who gives way: as few as brute force finds, of the lowest class, never one that may not be taken."""

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.placement.best_fit import BestFit
from scheduler.placement.demand import demand_of
from scheduler.placement.evaluation import evaluate
from scheduler.placement.fleet import Fleet
from scheduler.placement.node_search import StepBudget
from scheduler.pods import Hold, Share, gpu_rows
from scheduler.reclaim.cover_search import smallest_cover
from scheduler.reclaim.victim_choice import NodeGpus, Tenant, choose_victims
from slicekeeper.gpu.inventory import Gpu, MigSlice
from slicekeeper.gpu.request import GpuRequest, PodRequest

GPU_MIB = 2048
LABELS = st.sampled_from(["", "", "", "team-a/x"])
SLICES = st.sampled_from([1, 3, 4, 7])


@st.composite
def nodes(draw):
    made = []
    uids = itertools.count()
    for n in range(draw(st.integers(1, 2))):
        gpus = tuple(
            Gpu(f"GPU-{n}-{g}", "A100", GPU_MIB, healthy=draw(st.integers(0, 9)) > 0)
            for g in range(draw(st.integers(1, 3)))
        )
        free = {gpu.uuid: [100, GPU_MIB] for gpu in gpus}
        tenants = []
        if draw(st.booleans()):
            compute = draw(st.lists(SLICES, max_size=4))
            mig = tuple(MigSlice(f"MIG-{n}-{i}", 256 * c, c, 7) for i, c in enumerate(compute))
            gpus += (Gpu(f"GPU-{n}-m", "A100", GPU_MIB, healthy=False, mig=mig),)
            for one in mig:
                if draw(st.booleans()):
                    hold = Hold(f"n{n}", (Share(one.uuid, 10, 256, whole=False),))
                    uid = next(uids)
                    tenants.append(Tenant(f"u{uid}", hold, draw(st.sampled_from([None, 0, 1, 2])), uid))
        for _ in range(draw(st.integers(0, 5))):
            shares = []
            for uuid in draw(st.lists(st.sampled_from([*free]), min_size=1, max_size=2, unique=True)):
                core, memory = draw(st.sampled_from([(10, 256), (30, 256), (50, 1024), (20, 1024), (100, 0)]))
                if core == 100 and free[uuid] == [100, GPU_MIB]:
                    free[uuid] = [0, 0]
                    shares.append(Share(uuid, 100, 0, whole=True))
                elif core < 100 and free[uuid][0] >= core and free[uuid][1] >= memory:
                    free[uuid] = [free[uuid][0] - core, free[uuid][1] - memory]
                    shares.append(Share(uuid, core, memory, whole=False))
            if shares:
                hold = Hold(f"n{n}", tuple(shares), False, draw(LABELS), draw(LABELS), draw(LABELS))
                uid = next(uids)
                tenants.append(Tenant(f"u{uid}", hold, draw(st.sampled_from([None, 0, 1, 2])), uid))
        made.append(NodeGpus(f"n{n}", gpus, tuple(tenants)))
    return made


@st.composite
def demands(draw):
    containers = tuple(
        GpuRequest(f"c{i}", core, None if core >= 100 else draw(st.sampled_from([1, 4])))
        for i, core in enumerate(draw(st.lists(st.sampled_from([30, 50, 60, 90, 100, 200]), min_size=1, max_size=2)))
    )
    labels = {kind: draw(st.sampled_from(["", "", "x"])) for kind in ("affinity", "anti_affinity", "exclusion")}
    may_mig = all(r.is_fraction for r in containers) and not labels["affinity"]
    sharing = draw(st.sampled_from(["adaptive", "exclusive", *["mig"] * may_mig]))
    return demand_of(PodRequest(containers, sharing=sharing, **labels), "team-a")


def has_friends(some, demand):
    return bool(demand.affinity) and any(
        t.hold.affinity == demand.affinity and any(not s.whole for s in t.hold.shares)
        for node in some
        for t in node.tenants
    )


def fits(node, gone, demand, *, friends):
    fleet = Fleet()
    fleet.set(node.name, gpu_rows(node.gpus, [t.hold for t in node.tenants if t.uid not in gone]))
    view = fleet.view([node.name], demand, has_friends=friends)
    return bool(evaluate(view, demand, BestFit()).fits[0])


def brute_force(some, demand):
    """Return the fewest victims, with the lowest possible highest class among them; None if nothing helps."""
    friends = has_friends(some, demand)
    best = None
    for node in some:
        takeable = [
            t
            for t in node.tenants
            if t.rank is not None and not (demand.affinity and t.hold.affinity == demand.affinity)
        ]
        for size in range(1, len(takeable) + 1):
            for gone in itertools.combinations(takeable, size):
                if fits(node, {t.uid for t in gone}, demand, friends=friends):
                    found = (size, max(t.rank for t in gone))
                    best = found if best is None else min(best, found)
    return best


@settings(max_examples=400, deadline=None)
@given(nodes(), demands())
def test_the_fewest_give_way_and_of_the_lowest_class(some, demand):
    friends = has_friends(some, demand)
    if any(fits(node, (), demand, friends=friends) for node in some):
        return  # it would not be asked
    choice = choose_victims(demand, some, has_friends=friends)
    expected = brute_force(some, demand)
    if choice is None:
        assert expected is None
        return
    node = next(node for node in some if node.name == choice.node)
    ranks = {t.uid: t.rank for t in node.tenants}
    assert all(ranks[uid] is not None for uid in choice.victims)
    assert fits(node, choice.victims, demand, friends=friends)
    assert (len(choice.victims), max(ranks[uid] for uid in choice.victims)) == expected


AMOUNTS = st.tuples(st.integers(0, 6), st.integers(0, 6))


@settings(max_examples=400, deadline=None)
@given(st.lists(AMOUNTS, max_size=7), st.tuples(st.integers(0, 15), st.integers(0, 15)))
def test_cover_is_as_small_as_brute_force_finds(things, need):
    def enough(chosen):
        return all(sum(things[i][d] for i in chosen) >= need[d] for d in range(2))

    sizes = [k for k in range(len(things) + 1) if any(map(enough, itertools.combinations(range(len(things)), k)))]
    found = smallest_cover(things, need, 99, StepBudget(10_000))
    if found is None:
        assert not sizes
    else:
        assert enough(found)
        assert len(found) == len(set(found)) == min(sizes)
        assert smallest_cover(things, need, len(found) - 1, StepBudget(10_000)) is None or not any(need)


def test_a_spent_budget_still_gives_enough():
    things = [(1 + i % 13, 1 + (i * 7) % 11) for i in range(60)]
    found = smallest_cover(things, (200, 180), 60, StepBudget(3))
    assert found is not None
    assert sum(things[i][0] for i in found) >= 200
    assert sum(things[i][1] for i in found) >= 180


def test_a_hundred_small_tenants_are_no_trouble():
    gpu = Gpu("GPU-0", "A100", 81_920)
    tenants = tuple(
        Tenant(f"u{i:03}", Hold("n0", (Share("GPU-0", 1, 256 * (1 + i % 3), whole=False),)), i % 3, i)
        for i in range(100)
    )
    some = [NodeGpus("n0", (gpu,), tenants)]
    half = choose_victims(demand_of(PodRequest((GpuRequest("c", 50, 4),)), "x"), some, has_friends=False)
    whole = choose_victims(demand_of(PodRequest((GpuRequest("c", 100, None),)), "x"), some, has_friends=False)
    assert len(half.victims) == 50
    assert len(whole.victims) == 100


def test_nobody_is_taken_where_an_in_budget_pod_is_in_the_way():
    share = Share("GPU-0", 60, 256, whole=False)
    some = [NodeGpus("n0", (Gpu("GPU-0", "A100", GPU_MIB),), (Tenant("u0", Hold("n0", (share,))),))]
    assert choose_victims(demand_of(PodRequest((GpuRequest("c", 50, 1),)), "x"), some, has_friends=False) is None
