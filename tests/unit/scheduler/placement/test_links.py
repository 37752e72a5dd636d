# SPDX-License-Identifier: Apache-2.0
"""Which GPUs a pod gets that wants several whole ones: tables of machines, and every set against brute force."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.manual_clock import ManualClock
from support.scheduled_pods import container, managed

from scheduler.placement import links
from scheduler.placement.learner import Learner
from scheduler.placement.links import closeness
from scheduler.pods import read_pod
from scheduler.scheduler_state import SchedulerState
from slicekeeper import names
from slicekeeper.config.settings import Resources
from slicekeeper.gpu import inventory


def machine(count, *, pairs=(), switches=(), numas=(), models=(), unhealthy=()):
    """Return the GPUs g0, g1, … of a machine; `pairs` are `(one, other, NVLinks)`."""
    return [
        inventory.Gpu(
            f"g{i}",
            models[i] if models else "A100",
            8192,
            numa_node=numas[i] if numas else -1,
            links={f"g{b if a == i else a}": n for a, b, n in pairs if i in (a, b)},
            pcie_switch=switches[i] if switches else -1,
            healthy=i not in unhealthy,
        )
        for i in range(count)
    ]


def pod(name, *asked, on="", model=""):
    containers = [container(core, 4 if core < 100 else 0, f"c{i}") for i, core in enumerate(asked)]
    annotations = {names.gpu_annotation("c0"): on} if on else {}
    annotations |= {names.GPU_MODEL: model} if model else {}
    return managed(name, *containers, on="n" if on else "", annotations=annotations)


def placed(gpus, *asked, taken=(), shared=(), model="", policy="best-fit"):
    state = SchedulerState(Resources(), Learner(policy), ManualClock(), hold_seconds=30, lost_seconds=60)
    state.intake.set_node({"metadata": {"name": "n", "annotations": {names.NODE_GPUS: inventory.encode(gpus)}}})
    for gpu in taken:
        state.intake.set_pod(pod(f"t{gpu}", 100, on=f"g{gpu}"))
    for gpu in shared:
        state.intake.set_pod(pod(f"s{gpu}", 30, on=f"g{gpu}"))
    found = state.bindings.choose(read_pod(pod("new", *asked, model=model), Resources()), "n").gpus
    return " ".join(",".join(found[f"c{i}"]) for i in range(len(asked)))


# Two boards of four GPUs: all four of a board have one NVLink with each other, the neighbours two.
BOARDS = [
    (a, b, 2 if b == a + 1 and a % 2 == 0 else 1) for x in (0, 4) for a, b in itertools.combinations(range(x, x + 4), 2)
]
BRIDGED = [(0, 3, 4), (1, 2, 4)]


@pytest.mark.parametrize(
    ("gpus", "asked", "taken", "expected"),
    [
        (machine(4, pairs=BRIDGED), 200, (), "g0,g3"),  # the first two are not linked
        (machine(4, pairs=BRIDGED), 200, (0,), "g1,g2"),
        (machine(4, pairs=BRIDGED), 200, (0, 1), "g2,g3"),
        (machine(4, pairs=BRIDGED), 400, (), "g0,g1,g2,g3"),
        (machine(4, pairs=BRIDGED, switches=(0, 0, 1, 1)), 200, (), "g0,g3"),  # NVLink before a switch
        (machine(4, switches=(0, 1, 0, 1)), 200, (), "g0,g2"),
        (machine(4, switches=(0, 1, 1, 0), numas=(0, 0, 1, 1)), 200, (), "g0,g3"),  # a switch before a NUMA node
        (machine(4, numas=(0, 1, 1, 0)), 200, (), "g0,g3"),
        (machine(4), 200, (), "g0,g1"),  # nothing is known: as the policy has it
        (machine(8, pairs=BOARDS), 200, (), "g0,g1"),  # two links before one
        (machine(8, pairs=BOARDS), 200, (0,), "g2,g3"),  # the board that is broken already; g4 and g5 are as near
        (machine(8, pairs=BOARDS), 200, (0, 2), "g4,g5"),  # one link is less than two
        (machine(8, pairs=BOARDS), 300, (1,), "g0,g2,g3"),
        (machine(8, pairs=BOARDS), 400, (0,), "g4,g5,g6,g7"),
        (machine(8, pairs=BOARDS), 400, (0, 4), "g1,g2,g3,g5"),  # no four are linked: three and one
        (machine(3, pairs=[(0, 1, 1), (1, 2, 1)], numas=(0, 0, 1)), 200, (1,), "g0,g2"),
        (machine(4, pairs=BRIDGED, unhealthy=(3,)), 200, (), "g1,g2"),
    ],
)
def test_whole_gpus_that_are_linked_best(gpus, asked, taken, expected):
    assert placed(gpus, asked, taken=taken) == expected


def test_only_gpus_that_the_policy_has_no_reason_against_are_exchanged():
    mixed = machine(4, pairs=[(0, 2, 4)], models=("A100", "A100", "T4", "T4"))
    assert placed(mixed, 200, model="A100") == "g0,g1"
    assert placed(mixed, 200, model="T4") == "g2,g3"
    assert placed(machine(4, pairs=BRIDGED), 200, shared=(0,)) == "g1,g2", "a shared GPU is not whole"


def test_several_containers_and_shares_beside_them():
    assert placed(machine(4, pairs=BRIDGED), 100, 100) == "g0 g3"
    assert placed(machine(4, pairs=BRIDGED), 200, 40, shared=(0,)) == "g1,g2 g0"
    assert placed(machine(4, pairs=[(2, 3, 4)]), 200, 40, 40) == "g2,g3 g0 g0"
    assert placed(machine(3, pairs=[(1, 2, 4)]), 200, 40) == "g1,g2 g0", "a share keeps no pair apart"


@pytest.mark.parametrize("policy", ["fgd", "packing", "spread", "expected-fill"])
def test_whatever_the_policy(policy):
    assert placed(machine(4, pairs=BRIDGED), 200, policy=policy) == "g0,g3"


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_no_set_is_better(data):
    count = data.draw(st.integers(2, 7))
    wanted = data.draw(st.integers(2, count))
    pairs = [(a, b, data.draw(st.integers(0, 3))) for a, b in itertools.combinations(range(count), 2)]
    numas = [data.draw(st.integers(-1, 1)) for _ in range(count)]
    switches = [data.draw(st.integers(-1, 1)) for _ in range(count)]
    gpus = machine(count, pairs=pairs, numas=numas, switches=switches)

    def worth(chosen):
        inside = [closeness(gpus[a], gpus[b]) for a, b in itertools.combinations(chosen, 2)]
        return min(inside), sum(inside)

    chosen = [int(uuid[1:]) for uuid in placed(gpus, 100 * wanted).split(",")]
    assert worth(chosen) == max(map(worth, itertools.combinations(range(count), wanted)))


def test_a_machine_with_very_many_gpus_is_not_searched_for_ever():
    count = 40
    gpus = machine(count, pairs=[(a, a + 20, 1) for a in range(20)], numas=[a % 20 // 10 for a in range(count)])
    near = np.array([[closeness(a, b) if a is not b else 0 for b in gpus] for a in gpus])
    chosen = links._best(near, 8)
    assert {gpus[place].numa_node for place in chosen} == {gpus[chosen[0]].numa_node}
    assert sum(near[a, b] for a, b in itertools.combinations(chosen, 2)) == 24 + 4 * links.LINK
