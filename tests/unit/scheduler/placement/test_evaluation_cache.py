# SPDX-License-Identifier: Apache-2.0
"""Price vectors that are kept up against pricing every node."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.fleets import A100, MIX, T4, fleet_of, row, share

from scheduler.placement import evaluation_cache
from scheduler.placement.arrivals import Mix
from scheduler.placement.best_fit import BestFit
from scheduler.placement.evaluation import evaluate
from scheduler.placement.evaluation_cache import EvaluationCache
from scheduler.placement.fleet import Fleet
from scheduler.placement.learner import FIXED, LEARNING
from scheduler.placement.mig import MigRow
from slicekeeper import names
from slicekeeper.gpu.inventory import MigSlice

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
        replace(share(10), pieces=share(10).pieces * 2),
        replace(share(10), pieces=share(10).pieces + share(70).pieces),
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
    most=st.sampled_from([0, 2, evaluation_cache.MOST_STATES]),
)
def test_a_vector_that_is_kept_up_equals_pricing_every_node(changes, policy, most):
    fleet = Fleet()
    chosen = FIXED[policy]() if policy in FIXED else LEARNING[policy](Mix(MIX), fleet_of({"t4": [100]}).publish())
    kept = EvaluationCache()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(evaluation_cache, "MOST_STATES", most)
        for number, (name, cores, demand) in enumerate(changes):
            if cores:
                label = LABELS[number % 3]
                held = "ns/x" if label == "exclusion" else frozenset({"ns/x"})
                more = {label: held} if cores[0] == 20 else {}
                model = A100 if cores[-1] == 80 else T4
                fleet.set(name, [replace(row(f"{name}-{i}", c, model), **more) for i, c in enumerate(cores)])
                fleet.set_cpu_memory(name, float(sum(cores)), 4096.0)
                if cores[0] == 50:
                    free = MigRow(MigSlice(f"MIG-{name}", 9_728, 1, 7), f"{name}-0", T4.name, T4.capacity)
                    fleet.set(name, [replace(row(f"{name}-0", 50), mig=(free,))])
            else:
                fleet.remove(name)
            published = fleet.publish()
            mine, version = kept.evaluate(published, demand, chosen)
            every = evaluate(published.view_rows(np.arange(len(published.names)), demand), demand, chosen)
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
    kept, policy = EvaluationCache(), Counting()
    for i in range(0, 500, 50):
        fleet.set(f"n{i}", [row(f"n{i}-0", 50), row(f"n{i}-1", 50)])
        kept.evaluate(fleet.publish(), share(10), policy)
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
    judged, _ = EvaluationCache().evaluate(fleet.publish(), demand, BestFit())
    assert judged.fits[0] != judged.fits[1]


def test_chance_judges_nodes_in_the_same_state_apart():
    fleet = fleet_of({f"n{i}": [100] for i in range(20)})
    judged, _ = EvaluationCache().evaluate(fleet.publish(), share(10), FIXED["random"]())
    assert len(set(judged.price.tolist())) > 15
