# SPDX-License-Identifier: Apache-2.0
"""What the places of other kinds of pods cost, against counting them one by one."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.placement.arrivals import Arrival
from scheduler.placement.demand import Demand
from scheduler.placement.fleet import Fleet, GpuRow
from scheduler.placement.lost_places import PART, PRICE, RESERVE, LostPlaces
from scheduler.placement.policy import Gpus

MIB = 16_384
KINDS = (
    Arrival(30, 0, 1, 2.0, 4096.0, (), 0.3),
    Arrival(20, 8192, 1, 4.0, 0.0, ("A",), 0.2),
    Arrival(100, 0, 1, 8.0, 8192.0, (), 0.2),
    Arrival(100, 0, 2, 0.0, 1024.0, ("B",), 0.3),
)


def fleet_of(nodes):
    """Make a fleet of nodes: model, percent free of each GPU, cores, MiB."""
    fleet = Fleet()
    for index, (model, cores, cpu, ram) in enumerate(nodes):
        name = f"n{index}"
        gpus = [
            GpuRow(f"{name}-{at}", model, MIB, core=core, memory=-(-MIB * core // 100), idle=core == 100)
            for at, core in enumerate(cores)
        ]
        fleet.set(name, gpus)
        fleet.set_cpu_memory(name, cpu, ram)
    return fleet.publish()


def places(kind, node):
    """Count the pods of a kind that fit one after the other, as one would by hand."""
    model, cores, cpu, ram = node
    if kind.models and model not in kind.models:
        return 0
    wants = max(kind.core, -(-kind.memory_mib * 100 // MIB))
    free, count = list(cores), 0
    while True:
        found = [at for at, core in enumerate(free) if core >= wants][: kind.gpus]
        cpu, ram = cpu - kind.cpu * kind.gpus, ram - kind.ram * kind.gpus
        if len(found) < kind.gpus or cpu < 0 or ram < 0:
            return count
        for at in found:
            free[at] -= wants
        count += 1


def part(kind, node):
    """Return how much of one more pod of several GPUs there is room for, on a node that is large enough for it."""
    model, cores, cpu, ram = node
    if kind.gpus == 1 or len(cores) < kind.gpus or (kind.models and model not in kind.models):
        return 0.0
    here = sum(core >= kind.core for core in cores) / kind.gpus
    beside = (room / (one * kind.gpus) for room, one in ((cpu, kind.cpu), (ram, kind.ram)) if one)
    return min(here, *beside) - places(kind, node)


def worth(kind, node):
    return places(kind, node) + PART * part(kind, node) ** 2


def price(kind, nodes):
    pods = kind.weight / kind.gpus / sum(one.weight / one.gpus for one in KINDS)
    gpus = sum(len(cores) for _, cores, _, _ in nodes)
    full = gpus * 100 / sum(one.weight * one.core for one in KINDS) * kind.weight / kind.gpus
    left = sum(places(kind, node) for node in nodes)
    return PRICE * pods * kind.gpus**2 * kind.core / 100 / (1 + left / (RESERVE * (full + 1)))


NODES = st.lists(
    st.tuples(
        st.sampled_from("AB"),
        st.lists(st.sampled_from([0, 10, 30, 50, 60, 100]), min_size=1, max_size=4),
        st.sampled_from([0.0, 3.0, 8.0, 20.0, 64.0]),
        st.sampled_from([0.0, 4096.0, 20_000.0, 500_000.0]),
    ),
    min_size=1,
    max_size=5,
)


@settings(max_examples=150, deadline=None)
@given(NODES, st.data())
def test_a_place_costs_what_its_definition_says(nodes, data):
    fleet = fleet_of(nodes)
    gpus = Gpus.of(fleet.view_rows(np.arange(len(nodes)), Demand(())))
    row = data.draw(st.integers(0, len(nodes) - 1))
    model, cores, cpu, ram = nodes[row]
    column = data.draw(st.integers(0, len(cores) - 1))
    taken = data.draw(st.integers(0, cores[column]))
    after = gpus.free()[[row]]
    after[0, column] -= taken
    columns = data.draw(st.sampled_from([None, np.array([column])]))
    least, mib = min(2.0, cpu), min(4096.0, ram)
    lost = LostPlaces(KINDS, fleet).price(
        gpus, gpus.free(), np.array([row]), columns, after, gpus.cpu - least, gpus.ram - mib
    )
    then = (model, [core - taken * (at == column) for at, core in enumerate(cores)], cpu - least, ram - mib)
    expected = sum(price(kind, nodes) * (worth(kind, nodes[row]) - worth(kind, then)) for kind in KINDS)
    assert lost[0] == pytest.approx(expected, rel=1e-4, abs=0.05)


def test_the_fewer_places_are_left_the_dearer_is_one():
    def cost(free):
        fleet = fleet_of([("A", [100] * 4, 64.0, 5e5)] * free + [("A", [0] * 4, 64.0, 5e5)] * (8 - free))
        gpus = Gpus.of(fleet.view_rows(np.arange(1), Demand(())))
        after = gpus.free()
        after[0, 0] = 0
        return LostPlaces(KINDS, fleet).price(gpus, gpus.free(), np.array([0]), None, after, gpus.cpu, gpus.ram)[0]

    costs = [cost(free) for free in (1, 2, 4, 8)]
    assert costs == sorted(costs, reverse=True)
    assert costs[0] > 3 * costs[-1] > 0


def test_the_last_place_of_pods_of_several_gpus_costs_more_than_as_many_places_of_pods_of_one():
    """Four idle GPUs are on one node, or each on its own; both kinds ask for as much of all GPUs."""
    kinds = [Arrival(100, 0, 1, 0.0, 0.0, (), 0.5), Arrival(100, 0, 4, 0.0, 0.0, (), 0.5)]

    def cost(nodes):
        fleet = fleet_of(nodes)
        gpus = Gpus.of(fleet.view_rows(np.arange(len(nodes)), Demand(())))
        after = gpus.free()[[0]]
        after[0, 0] = 0
        return LostPlaces(kinds, fleet).price(gpus, gpus.free(), np.array([0]), None, after, gpus.cpu, gpus.ram)[0]

    rest = [("A", [0] * 8, 64.0, 5e5)] * 50
    together, alone = cost([("A", [100] * 4, 64.0, 5e5), *rest]), cost([("A", [100], 64.0, 5e5)] * 4 + rest)
    assert together > 4 * alone > 0


def test_unknown_cores_are_no_error():
    fleet = fleet_of([("A", [100, 50], float("inf"), float("inf"))])
    gpus = Gpus.of(fleet.view_rows(np.arange(1), Demand(())))
    lost = LostPlaces(KINDS, fleet).price(
        gpus, gpus.free(), np.array([0]), None, gpus.free() - 50, gpus.cpu - 1, gpus.ram - 1
    )
    assert np.isfinite(lost).all()
    assert lost[0] > 0


def test_room_for_pods_of_several_gpus_is_kept_on_nodes_that_are_large_enough_for_them():
    def cost(cores, ram=5e5):
        fleet = fleet_of([("B", cores, 64.0, ram)])
        gpus = Gpus.of(fleet.view_rows(np.arange(1), Demand(())))
        after = gpus.free()
        after[0, 0] = 0
        pairs = [Arrival(100, 0, 2, 4.0, 1024.0, (), 1.0)]
        return LostPlaces(pairs, fleet).price(gpus, gpus.free(), np.array([0]), None, after, gpus.cpu, gpus.ram)[0]

    assert cost([100]) == 0
    assert cost([100, 30]) > 0
    assert cost([100, 30], ram=0.0) == pytest.approx(0)
