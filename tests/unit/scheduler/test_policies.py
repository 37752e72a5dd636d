# SPDX-License-Identifier: Apache-2.0
"""The policies: expected fill against its definition, price vectors against pricing everything, and what is learned."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.placement import prices
from scheduler.placement.arrivals import FULL, MOST_KINDS, Arrival, Arrivals, Mix
from scheduler.placement.best_fit import BestFit
from scheduler.placement.demand import Demand, Slice
from scheduler.placement.expected_fill import ExpectedFill, _most_gpus, _table
from scheduler.placement.fgd import FragmentationGradient
from scheduler.placement.fleet import Fleet, GpuRow
from scheduler.placement.fleet_version import GpuModel
from scheduler.placement.learner import ENOUGH, FIXED, LEARNING, Learner
from scheduler.placement.mig import MigRow
from scheduler.placement.prices import Prices
from scheduler.placement.ranking import scores
from scheduler.placement.survey import survey
from slicekeeper import names
from slicekeeper.gpu.inventory import MigSlice

T4 = GpuModel("Tesla T4", 16_384)
A100 = GpuModel("NVIDIA A100-SXM4-80GB", 81_920)


def arrival(core, weight, *, gpus=1, cpu=4.0, memory=0, models=()):
    return Arrival(core, memory, gpus, cpu, cpu * 4096, models, weight)


MIX = [arrival(50, 0.5), arrival(80, 0.3, cpu=8.0), arrival(100, 0.2, cpu=12.0)]
HALVES = [arrival(50, 1.0)]


def share(core, memory=0, cpu=4000, **more):
    return Demand((Slice(("c",), core, memory, whole=core >= 100),), cpu_milli=cpu, ram_mib=cpu * 4, **more)


def row(name, core, model=T4):
    memory = model.capacity if core == 100 else -(-model.capacity * core // 100)
    return GpuRow(name, model.name, model.capacity, core=core, memory=memory, idle=core == 100)


def fleet_of(nodes, cpu=64.0):
    made = Fleet()
    for name, cores in nodes.items():
        made.set(name, [row(f"{name}-{index}", core) for index, core in enumerate(cores)])
        made.set_beside(name, cpu, cpu * 4096)
    return made


def judge(fleet, demand, policy):
    names = fleet.names()
    return dict(zip(names, survey(fleet.view(names, demand), demand, policy).price.tolist(), strict=True))


def filled(free, cores, left, mix):
    """Return what the next `left` arrivals fill, by the definition in words."""
    if not left:
        return 0.0
    without = total = filled(free, cores, left - 1, mix)
    for one in mix:
        if free >= one.core and cores >= one.cpu:
            taken = one.core * 10 + filled(free - one.core, cores - one.cpu, left - 1, mix)
            total += one.weight * (taken - without)
    return total


@pytest.mark.parametrize(("free", "cores"), [(100, 128), (100, 10), (100, 4), (90, 12), (50, 4), (50, 3), (30, 99)])
def test_the_table_is_what_the_definition_says(free, cores):
    fill, used = _table(MIX, T4, 5)
    assert fill[free, cores] == pytest.approx(filled(free, cores, 5, MIX))
    assert used[100] > used[50] > used[40] == 0


def test_a_class_counts_for_the_models_that_it_may_be_on_and_by_the_larger_of_compute_and_memory():
    only = [arrival(50, 1.0, models=("A100",))]
    assert _table(only, T4, 40)[0].max() == 0
    assert _table(only, A100, 40)[0][50, 128] == pytest.approx(500)
    half_of_a_t4 = [arrival(10, 1.0, memory=8192)]
    assert _table(half_of_a_t4, T4, 40)[0][49, 128] == 0
    assert _table(half_of_a_t4, A100, 40)[0][49, 128] > 0


def test_pods_of_more_gpus_than_a_node_has_fill_none_of_its_gpus():
    pairs = [arrival(50, 0.5), arrival(100, 0.5, gpus=2)]
    alone, two = fleet_of({"a": [100]}).publish(), fleet_of({"a": [100, 100]}).publish()
    none = Fleet().publish()
    assert _most_gpus(alone) == [1]
    assert _most_gpus(two) == [2]
    assert _most_gpus(none) == []
    fill = [ExpectedFill(Mix(pairs), fleet)._tables.fill[0, :, 128] for fleet in (alone, two)]
    assert (fill[0] <= fill[1]).all()
    assert fill[0][50] == fill[1][50] == pytest.approx(500)


def test_expected_fill_leaves_gaps_that_others_can_use():
    """A pod of 30 among pods of 50: 80 free still takes one afterwards; 100 takes one less, 50 none."""
    fleet = fleet_of({"a": [80], "b": [100], "c": [50]})
    prices = judge(fleet, share(30), ExpectedFill(Mix(HALVES), fleet.publish()))
    assert prices["a"] < min(prices["b"], prices["c"])


def test_expected_fill_knows_that_a_gpu_without_cores_beside_it_is_worth_nothing():
    """Of two equal GPUs the one is taken whose node has no cores for others: this pod asks for nearly none."""
    fleet = fleet_of({"a": [100], "b": [100]})
    fleet.set_beside("b", 2.0, 1e6)
    prices = judge(fleet, share(50, cpu=500), ExpectedFill(Mix(MIX), fleet.publish()))
    assert prices["b"] < prices["a"]
    fleet.set_beside("a", 64.0, 2 * 4096.0)  # memory runs out as cores do
    fleet.set_beside("b", 64.0, 1e6)
    prices = judge(fleet, share(50, cpu=500), ExpectedFill(Mix(MIX), fleet.publish()))
    assert prices["a"] < prices["b"]


@pytest.mark.parametrize("cpu", [64.0, float("inf")])
def test_expected_fill_keeps_room_for_pods_that_want_several_gpus(cpu):
    """One GPU comes from a node without room for four anyway, or from one that still has that room afterwards."""
    mix = [arrival(100, 0.6), arrival(100, 0.4, gpus=4)]
    fleet = fleet_of({"a": [100] * 4, "b": [100] * 7, "c": [100] * 3 + [0]}, cpu=cpu)
    prices = judge(fleet, share(100), ExpectedFill(Mix(mix), fleet.publish()))
    assert max(prices["b"], prices["c"]) < prices["a"]


def test_room_without_the_cores_is_none():
    """Neither node has room for the four GPUs of the others: the one with idle GPUs has no cores for them."""
    mix = [arrival(100, 0.6, cpu=0.0), arrival(100, 0.4, gpus=4, cpu=8.0)]
    fleet = fleet_of({"a": [100] * 4, "b": [100] * 4})
    fleet.set_beside("a", 24.0, 1e6)
    fleet.set_beside("b", 40.0, 1e6)
    prices = judge(fleet, share(100, cpu=0), ExpectedFill(Mix(mix), fleet.publish()))
    assert prices["a"] < prices["b"]


def test_what_a_node_offers_need_not_be_known():
    fleet = fleet_of({"a": [80], "b": [100]}, cpu=float("inf"))
    prices = judge(fleet, share(30), ExpectedFill(Mix(HALVES), fleet.publish()))
    assert prices["a"] < prices["b"]


@pytest.mark.parametrize("name", LEARNING)
def test_a_model_that_came_after_learning_is_priced(name):
    fleet = fleet_of({"a": [80]})
    policy = LEARNING[name](Mix(MIX), fleet.publish())
    fleet.set("new", [row("new-0", 100, A100)])
    assert judge(fleet, share(30), policy)["new"] >= 0


def test_fgd_by_hand():
    """One kind of pod wants 50. A pod of 30 on 100 free leaves 70, all useful; on 60 free it leaves 30 of waste."""
    fleet = fleet_of({"a": [100], "b": [60]})
    policy = FragmentationGradient(Mix([arrival(50, 1.0)]), fleet.publish())
    prices = judge(fleet, share(30), policy)
    assert prices["a"] >> 32 == 100 - 50
    assert prices["b"] >> 32 == 100 - int(100 / (1 + np.exp(0.3)))


def test_fgd_counts_pods_without_gpus_which_can_use_nothing_that_is_free():
    fleet = fleet_of({"a": [100], "b": [60]})
    policy = FragmentationGradient(Mix([arrival(50, 1.0)], without_gpus=0.2), fleet.publish())
    prices = judge(fleet, share(30), policy)
    assert prices["a"] >> 32 == 100 - int(100 / (1 + np.exp(-0.2 * 0.3)))
    assert prices["b"] >> 32 == 100 - int(100 / (1 + np.exp(0.8 * 0.3 - 0.2 * 0.3)))


def test_of_equals_fgd_takes_the_node_that_is_left_with_the_least_cores_and_gpus():
    fleet = fleet_of({"few-cores": [100, 0], "more-cores": [100, 0], "more-gpus": [100, 100]})
    for node, cores in (("few-cores", 8.0), ("more-cores", 16.0), ("more-gpus", 8.0)):
        fleet.set_beside(node, cores, 1e6)
    prices = judge(fleet, share(30, cpu=1000), FragmentationGradient(Mix([arrival(50, 1.0, cpu=1.0)]), fleet.publish()))
    assert len({price >> 32 for price in prices.values()}) == 1
    assert prices["few-cores"] < prices["more-cores"] < prices["more-gpus"]


DEMANDS = st.sampled_from(
    [
        share(30),
        share(60, 4096),
        share(100),
        replace(share(30), affinity="ns/x"),
        replace(share(30), anti_affinity="ns/x"),
        replace(share(30), exclusion="ns/x"),
        replace(share(30), gpu_uuid="c-0"),
        replace(share(30), models=(A100.name,)),
        replace(share(7, 1024), may_slice=True),
        replace(share(7, 1024), mode=names.MIG),
        replace(share(10), slices=share(10).slices * 2),
        replace(share(10), slices=share(10).slices + share(70).slices),
    ]
)
LABELS = ("affinity", "anti_affinity", "exclusion")
CHANGES = st.lists(
    st.tuples(st.sampled_from("abcdefgh"), st.lists(st.sampled_from([0, 20, 50, 80, 100]), max_size=3), DEMANDS),
    min_size=1,
    max_size=12,
)


@settings(max_examples=120, deadline=None)
@given(
    changes=CHANGES,
    policy=st.sampled_from(["best-fit", "packing", "spread", *LEARNING]),
    most=st.sampled_from([0, 2, prices.MOST_STATES]),
)
def test_a_vector_that_is_kept_up_equals_pricing_every_node(changes, policy, most):
    fleet = Fleet()
    chosen = FIXED[policy]() if policy in FIXED else LEARNING[policy](Mix(MIX), fleet_of({"t4": [100]}).publish())
    kept = Prices()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prices, "MOST_STATES", most)
        for number, (name, cores, demand) in enumerate(changes):
            if cores:
                label = LABELS[number % 3]
                held = "ns/x" if label == "exclusion" else frozenset({"ns/x"})
                more = {label: held} if cores[0] == 20 else {}
                model = A100 if cores[-1] == 80 else T4
                fleet.set(name, [replace(row(f"{name}-{i}", c, model), **more) for i, c in enumerate(cores)])
                fleet.set_beside(name, float(sum(cores)), 4096.0)
                if cores[0] == 50:
                    free = MigRow(MigSlice(f"MIG-{name}", 9_728, 1, 7), f"{name}-0", T4.name, T4.capacity)
                    fleet.set(name, [replace(row(f"{name}-0", 50), mig=(free,))])
            else:
                fleet.remove(name)
            published = fleet.publish()
            mine, version = kept.survey(published, demand, chosen)
            every = survey(published.view_rows(np.arange(len(published.names)), demand), demand, chosen)
            assert version == fleet.version
            for field in ("fits", "why", "gpus", "price"):
                known = slice(None) if field in ("fits", "why") else every.fits
                assert (getattr(mine, field)[known] == getattr(every, field)[known]).all(), field


def test_nodes_in_the_same_state_are_priced_once():
    asked = []

    class Counting(BestFit):
        def prices(self, gpus, piece, possible):
            asked.append(len(gpus.core))
            return super().prices(gpus, piece, possible)

    fleet = fleet_of({f"n{i}": [100, 50] for i in range(500)})
    kept, policy = Prices(), Counting()
    for i in range(0, 500, 50):
        fleet.set(f"n{i}", [row(f"n{i}-0", 50), row(f"n{i}-1", 50)])
        kept.survey(fleet.publish(), share(10), policy)
    assert asked == [2]


FREE = MigRow(MigSlice("MIG-b", 9_728, 1, 7), "b-0", T4.name, T4.capacity)


@pytest.mark.parametrize(
    ("demand", "other"),
    [
        (replace(share(30), gpu_uuid="b-0"), {}),
        (replace(share(30), affinity="ns/x"), {"affinity": frozenset({"ns/x"})}),
        (replace(share(30), anti_affinity="ns/x"), {"anti_affinity": frozenset({"ns/x"})}),
        (replace(share(30), exclusion="ns/x"), {"exclusion": "ns/x"}),
        (replace(share(7), mode=names.MIG), {"mig": (FREE,)}),
    ],
)
def test_what_no_number_says_tells_nodes_apart(demand, other):
    fleet = Fleet()
    fleet.set("a", [replace(row("a-0", 50), exclusion="ns/y" if demand.exclusion else "")])
    fleet.set("b", [replace(row("b-0", 50), **other)])
    judged, _ = Prices().survey(fleet.publish(), demand, BestFit())
    assert judged.fits[0] != judged.fits[1]


def test_chance_judges_nodes_in_the_same_state_apart():
    fleet = fleet_of({f"n{i}": [100] for i in range(20)})
    judged, _ = Prices().survey(fleet.publish(), share(10), FIXED["random"]())
    assert len(set(judged.price.tolist())) > 15


@pytest.mark.parametrize("name", [*FIXED, *LEARNING])
def test_every_policy_takes_every_demand(name):
    fleet = fleet_of({"a": [100, 80, 50], "b": [100, 100, 100], "c": [0]})
    policy = FIXED[name]() if name in FIXED else LEARNING[name](Mix(MIX), fleet.publish())
    for demand in (
        share(30),
        share(100),
        Demand(share(100).slices * 2),
        Demand((*share(100).slices, *share(20).slices)),
    ):
        prices = survey(fleet.view(fleet.names(), demand), demand, policy)
        assert prices.fits.tolist()[1]
        assert not prices.fits.tolist()[2]
        assert 0 <= prices.price[1] < 1 << 50


def test_spread_and_packing_go_opposite_ways():
    fleet = fleet_of({"empty": [100, 100], "used": [100, 60]})
    assert min(judge(fleet, share(30), FIXED["spread"]()).items(), key=lambda item: item[1])[0] == "empty"
    assert min(judge(fleet, share(30), FIXED["packing"]()).items(), key=lambda item: item[1])[0] == "used"


def test_the_best_node_alone_has_ten_points():
    given_ = scores(np.array([True, True, False, True]), np.array([5, 5, 0, 9]), 1)
    assert given_.tolist() == [9, 10, 0, 0]
    assert scores(np.array([False]), np.array([0]), None).tolist() == [0]


def test_it_is_best_fit_until_enough_pods_have_arrived_and_then_learned_again_as_more_come():
    learner = Learner("expected-fill")
    for _ in range(ENOUGH - 1):
        learner.arrivals.add(share(30))
    assert learner.due([T4]) is None
    assert isinstance(learner.policy, BestFit)
    learner.arrivals.add(share(30))
    mix = learner.due([T4])
    learner.learn(mix, fleet_of({"t4": [100]}).publish())
    assert [round(one.weight, 9) for one in mix.kinds] == [1.0]
    assert isinstance(learner.policy, ExpectedFill)
    learner.arrivals.add(share(30))
    assert learner.due([T4]) is None
    assert learner.due([T4, A100]) is not None
    for _ in range(ENOUGH):
        learner.arrivals.add(share(50))
    assert len(learner.due([T4]).kinds) == 2


def test_a_mix_counts_slices_and_old_pods_fade():
    arrivals = Arrivals()
    arrivals.add(Demand(()))
    for _ in range(FULL):
        arrivals.add(share(30))
    for _ in range(FULL):
        arrivals.add(Demand(share(100).slices * 4))
    mix = {one.core: one for one in arrivals.mix().kinds}
    assert arrivals.seen == 2 * FULL
    assert mix[100].gpus == 4
    assert mix[100].weight > 0.85
    assert sum(one.weight for one in mix.values()) == pytest.approx(1)


def test_a_mix_knows_what_part_of_the_pods_wants_no_gpu_and_old_ones_fade():
    arrivals = Arrivals()
    for _ in range(3 * FULL // 4):
        arrivals.add(share(30))
    for _ in range(FULL // 4):
        arrivals.add_without_gpus()
    assert arrivals.mix().without_gpus == pytest.approx(1 / 4)
    for _ in range(4 * FULL):
        arrivals.add(share(30))
    assert arrivals.mix().without_gpus < 0.02


def test_whoever_makes_pods_of_ever_new_kinds_does_not_make_learning_slow():
    arrivals = Arrivals()
    for cpu in range(1, 3 * MOST_KINDS):
        arrivals.add(share(20, cpu=cpu))
    arrivals.add(share(70))
    arrivals.add(share(70))
    mix = arrivals.mix().kinds
    assert len(mix) == MOST_KINDS
    assert mix[0].core == 70, "the most frequent one stays"
    assert sum(one.weight for one in mix) == pytest.approx(1)
