# SPDX-License-Identifier: Apache-2.0
"""The search for places of unequal pods together: it finds what there is, keeps the rules, and ends in good time."""

import itertools
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.placement.bin_completion import Space
from scheduler.placement.demand import Demand, Piece
from scheduler.placement.joint_search import search_jointly
from scheduler.placement.node_search import StepBudget

EVERYBODY = (1 << 40) - 1


def gpu(core=100, memory=16, capacity=16, open_to=EVERYBODY):
    return Space(core, memory, capacity, core == 100 and memory == capacity, open_to)


def share(core, memory=1, **more):
    return Demand((Piece(("c",), core, memory, whole=False),), **more)


def whole(count, memory=0):
    return Demand((Piece(("c",), 100, memory, whole=True),) * count, alone=True)


def found(nodes, demands, steps=6_000):
    """Search, with a bit for each demand that differs, and check what was found."""
    bits = {demand: 1 << index for index, demand in enumerate(dict.fromkeys(demands))}
    places = search_jointly(nodes, [(bits[demand], demand) for demand in demands], StepBudget(steps))
    if places is not None:
        check(nodes, demands, bits, places)
    return places


def check(nodes, demands, bits, places):
    left = {(n, g): [one.core, one.memory] for n, node in enumerate(nodes) for g, one in enumerate(node)}
    company = {}
    for pod, (demand, (n, columns)) in enumerate(zip(demands, places, strict=True)):
        for piece, g in zip(demand.pieces, columns, strict=True):
            there = nodes[n][g]
            assert there.open_to & bits[demand]
            assert there.idle or not (piece.whole or demand.alone)
            assert there.capacity >= piece.memory_mib
            left[n, g][0] -= piece.core
            left[n, g][1] -= there.capacity if piece.whole else piece.memory_mib
            company.setdefault((n, g), []).append((pod, piece, demand))
    assert all(core >= 0 and memory >= 0 for core, memory in left.values())
    for there in company.values():
        pods = {pod for pod, _, _ in there}
        assert len(pods) == 1 or not any(piece.whole or d.alone or d.anti_affinity for _, piece, d in there)


def fits_somehow(nodes, demands):
    """Try every assignment of shares to GPUs, with all of one pod on one node."""
    spaces = [(n, g) for n, node in enumerate(nodes) for g in range(len(node))]
    choices = [
        [here for here in itertools.product(spaces, repeat=len(demand.pieces)) if len({n for n, _ in here}) == 1]
        for demand in demands
    ]
    for choice in itertools.product(*choices):
        left = {(n, g): [nodes[n][g].core, nodes[n][g].memory] for n, g in spaces}
        for demand, here in zip(demands, choice, strict=True):
            for piece, at in zip(demand.pieces, here, strict=True):
                left[at][0] -= piece.core
                left[at][1] -= piece.memory_mib
        if all(core >= 0 and memory >= 0 for core, memory in left.values()):
            return True
    return False


def parts_of(total, rng):
    """Return sizes that are `total` together."""
    sizes = []
    while total:
        sizes.append(min(total, rng.choice([10, 15, 20, 25, 30, 35, 40, 45, 50, 60])))
        total -= sizes[-1]
    return sizes


@pytest.mark.parametrize("count", [2, 5, 8, 16, 32])
def test_pods_that_fill_the_free_gpus_exactly_find_their_places(count):
    rng = random.Random(count)
    for _ in range(40):
        free = [100 - rng.choice([0, 0, 20, 30, 50]) for _ in range(count)]
        sizes = sorted(itertools.chain.from_iterable(parts_of(core, rng) for core in free), reverse=True)
        nodes = [[gpu(core) for core in free[at : at + 4]] for at in range(0, count, 4)]
        assert found(nodes, [share(size, 0) for size in sizes], steps=6_000 + 100 * len(sizes))


def test_so_do_pods_with_several_containers_and_whole_gpus_among_them():
    rng = random.Random(1)
    for _ in range(40):
        nodes, demands = [], []
        for _ in range(3):
            free = [100 - rng.choice([0, 0, 20, 30, 50]) for _ in range(2)]
            nodes.append([gpu(core) for core in free])
            if 100 in free and rng.random() < 0.3:
                free.remove(100)
                demands.append(whole(1))
            loose = list(itertools.chain.from_iterable(parts_of(core, rng) for core in free))
            rng.shuffle(loose)
            while loose:
                some = sorted(loose[: rng.choice([1, 1, 2, 3])], reverse=True)
                del loose[: len(some)]
                demands.append(Demand(tuple(Piece((f"c{i}",), core, 0, whole=False) for i, core in enumerate(some))))
        demands.sort(key=lambda demand: -sum(piece.core for piece in demand.pieces))
        assert found(nodes, demands, steps=20_000)


SHARES = st.lists(st.tuples(st.integers(1, 100), st.integers(1, 16)), min_size=1, max_size=5)
FREE = st.lists(
    st.lists(st.tuples(st.integers(0, 100), st.integers(0, 16)), min_size=1, max_size=2), min_size=1, max_size=2
)


@settings(max_examples=300, deadline=None)
@given(FREE, SHARES, st.booleans())
def test_it_finds_places_if_and_only_if_there_are_some(free, shares, are_two_together):
    nodes = [[gpu(core, memory) for core, memory in node] for node in free]
    demands = [share(core, memory) for core, memory in shares]
    if are_two_together:
        demands[:2] = [Demand(tuple(demand.pieces[0] for demand in demands[:2]))]
    assert (found(nodes, demands) is not None) == fits_somehow(nodes, demands)


def test_the_slices_of_one_pod_are_on_one_node():
    both = Demand((Piece(("a",), 60, 1, whole=False), Piece(("b",), 50, 1, whole=False)))
    assert found([[gpu(60), gpu(40)], [gpu(50), gpu(50)]], [both]) is None
    [(node, columns)] = found([[gpu(60), gpu(40)], [gpu(50), gpu(60)]], [both])
    assert (node, columns) == (1, [1, 0])


def test_whole_gpus_take_idle_ones_and_those_with_enough_memory():
    nodes = [[gpu(99), gpu(), gpu(memory=8, capacity=8)], [gpu(), gpu()]]
    places = found(nodes, [whole(2, memory=9), whole(1), share(99)])
    assert places[0] == (1, [0, 1])
    assert found(nodes, [whole(2, memory=9), whole(1, memory=9), whole(1, memory=9)]) is None


def test_pods_go_only_where_they_may():
    first, second = share(60), share(50)
    assert found([[gpu(open_to=1), gpu(open_to=3)]], [first, second]) == [(0, [0]), (0, [1])]
    assert found([[gpu(open_to=1), gpu(open_to=1)]], [first, second]) is None


def test_nothing_comes_to_a_gpu_that_its_pod_wants_to_be_without_others():
    apart = share(20, anti_affinity="ns/x")
    assert found([[gpu(), gpu()]], [apart, apart, share(10)]) is None
    assert found([[gpu(), gpu(), gpu(50)]], [apart, apart, share(10)])
    assert found([[gpu(90), gpu(80)]], [share(20, alone=True)]) is None


@pytest.mark.parametrize("pieces", [1, 2])
def test_it_ends_with_its_steps(pieces):
    """Two fit on each of 32 GPUs, and there are 66, which by the sums of the GPUs would fit."""
    rng = random.Random(7)
    nodes = [[gpu() for _ in range(8)] for _ in range(4)]
    asked = [tuple(Piece((f"c{i}",), rng.randint(34, 43), 1, whole=False) for i in range(pieces)) for _ in range(66)]
    budget = StepBudget(1_000)
    assert search_jointly(nodes, [(1, Demand(some)) for some in asked[: 66 // pieces]], budget) is None
    assert budget.steps > -8 * 4  # at most one more look at all GPUs
