# SPDX-License-Identifier: Apache-2.0
"""Expected fill against its definition, and what it keeps free for the pods to come."""

import pytest
from support.fleets import A100, MIX, T4, arrival, fleet_of, judge, share

from scheduler.placement.arrivals import Mix
from scheduler.placement.expected_fill import ExpectedFill, _most_gpus, _table
from scheduler.placement.fleet import Fleet

HALVES = [arrival(50, 1.0)]


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
    fleet.set_cpu_memory("b", 2.0, 1e6)
    prices = judge(fleet, share(50, cpu=500), ExpectedFill(Mix(MIX), fleet.publish()))
    assert prices["b"] < prices["a"]
    fleet.set_cpu_memory("a", 64.0, 2 * 4096.0)  # memory runs out as cores do
    fleet.set_cpu_memory("b", 64.0, 1e6)
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
    fleet.set_cpu_memory("a", 24.0, 1e6)
    fleet.set_cpu_memory("b", 40.0, 1e6)
    prices = judge(fleet, share(100, cpu=0), ExpectedFill(Mix(mix), fleet.publish()))
    assert prices["a"] < prices["b"]


def test_what_a_node_offers_need_not_be_known():
    fleet = fleet_of({"a": [80], "b": [100]}, cpu=float("inf"))
    prices = judge(fleet, share(30), ExpectedFill(Mix(HALVES), fleet.publish()))
    assert prices["a"] < prices["b"]
