# SPDX-License-Identifier: Apache-2.0
"""Placing against brute force: never over-committed, a place found if and only if there is one, the best one taken."""

import itertools
from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from support.fleets import names_of

from scheduler.placement.best_fit import BestFit
from scheduler.placement.demand import demand_of
from scheduler.placement.evaluation import evaluate
from scheduler.placement.fleet import Fleet, GpuRow
from scheduler.placement.ranking import best_of
from scheduler.placement.reasons import Why, explain
from slicekeeper.gpu.inventory import model_matches
from slicekeeper.gpu.request import GpuRequest, PodRequest

CORES = st.sampled_from([10, 30, 50, 60, 90, 100, 200])
LABELS = st.sampled_from(["", "", "team-a/x", "team-a/y"])


@st.composite
def gpus(draw, uuid="GPU"):
    capacity = draw(st.sampled_from([1024, 2048]))
    idle = draw(st.booleans())
    core = 100 if idle else draw(st.sampled_from([0, 10, 30, 50, 90]))
    return GpuRow(
        uuid,
        draw(st.sampled_from(["NVIDIA A100-SXM4-80GB", "Tesla T4"])),
        capacity,
        core=core,
        memory=capacity if idle else draw(st.integers(0, capacity // 256)) * 256,
        healthy=draw(st.integers(0, 9)) > 0,
        idle=idle,
        affinity=frozenset() if idle else frozenset({draw(LABELS)} - {""}),
        anti_affinity=frozenset() if idle else frozenset({draw(LABELS)} - {""}),
        exclusion="" if idle else draw(LABELS),
    )


@st.composite
def fleets(draw):
    return {
        f"n{n}": [replace(draw(gpus()), uuid=f"GPU-{n}-{g}") for g in range(draw(st.integers(0, 3)))]
        for n in range(draw(st.integers(1, 4)))
    }


@st.composite
def requests(draw):
    containers = tuple(
        GpuRequest(f"c{i}", core, draw(st.integers(0, 4)) or None)
        if core >= 100
        else GpuRequest(f"c{i}", core, draw(st.integers(1, 5)))
        for i, core in enumerate(draw(st.lists(CORES, min_size=1, max_size=3)))
    )
    shared_ok = all(c.is_fraction for c in containers)
    return PodRequest(
        containers,
        sharing=draw(st.sampled_from(["adaptive", "adaptive", "exclusive", "shared" if shared_ok else "adaptive"])),
        affinity=draw(st.sampled_from(["", "", "x"])),
        anti_affinity=draw(st.sampled_from(["", "", "x"])),
        exclusion=draw(st.sampled_from(["", "", "x"])),
        gpu_uuid=draw(st.sampled_from(["", "", "GPU-0-0"])),
        gpu_models=draw(st.sampled_from([(), (), ("A100",)])),
    )


def build(nodes):
    fleet = Fleet()
    for name, rows in nodes.items():
        if rows:
            fleet.set(name, rows)
    return fleet


def brute_force(nodes, name, request):  # noqa: C901 - every rule once, in plain words
    """Whether any way to give each container its GPUs keeps all the rules, written down plainly."""
    rows = nodes[name]
    labels = {
        kind: getattr(request, kind) and f"team-a/{getattr(request, kind)}"
        for kind in ("affinity", "anti_affinity", "exclusion")
    }
    friends = any(labels["affinity"] in gpu.affinity for some in nodes.values() for gpu in some)

    def able(gpu):
        named = request.gpu_uuid in ("", gpu.uuid)
        return gpu.healthy and named and (not request.gpu_models or "A100" in gpu.model)

    def company(gpu):
        if labels["affinity"] and not (labels["affinity"] in gpu.affinity if friends else gpu.idle):
            return False
        if labels["anti_affinity"] and labels["anti_affinity"] in gpu.anti_affinity:
            return False
        return gpu.idle or (gpu.exclusion == labels["exclusion"] and request.sharing != "exclusive")

    choices = [list(itertools.combinations(range(len(rows)), 1 if r.is_fraction else r.gpus)) for r in request.requests]
    for chosen in itertools.product(*choices):
        core, memory = [gpu.core for gpu in rows], [gpu.memory for gpu in rows]
        whole = set()
        good = True
        for r, places in zip(request.requests, chosen, strict=True):
            if r.is_fraction:
                continue
            for g in places:
                enough = rows[g].capacity * r.gpus >= r.memory_mib
                good = good and able(rows[g]) and rows[g].idle and g not in whole and enough
                whole.add(g)
        shares = [p[0] for r, p in zip(request.requests, chosen, strict=True) if r.is_fraction]
        if request.affinity and len(set(shares)) > 1:
            good = False
        for r, places in zip(request.requests, chosen, strict=True):
            if r.is_fraction:
                g = places[0]
                core[g] -= r.core
                memory[g] -= r.memory_mib
                good = good and able(rows[g]) and company(rows[g]) and g not in whole
        if good and min(core, default=0) >= 0 and min(memory, default=0) >= 0:
            return True
    return False


@settings(max_examples=400, deadline=None)
@given(fleets(), requests())
def test_finds_a_place_if_and_only_if_there_is_one(nodes, request):
    fleet = build(nodes)
    demand = demand_of(request, "team-a")
    names = names_of(fleet)
    result = evaluate(fleet.view(names, demand), demand, BestFit())
    assert {n: bool(f) for n, f in zip(names, result.fits, strict=True)} == {
        n: brute_force(nodes, n, request) for n in names
    }


@settings(max_examples=200, deadline=None)
@given(fleets(), requests())
def test_never_gives_more_than_there_is(nodes, request):
    fleet = build(nodes)
    demand = demand_of(request, "team-a")
    names = names_of(fleet)
    result = evaluate(fleet.view(names, demand), demand, BestFit())
    for row, name in enumerate(names):
        if not result.fits[row]:
            assert result.why[row] != Why.FITS
            assert explain(int(result.why[row]), demand) != "fits"
            continue
        taken = {}
        for piece, column in zip(demand.pieces, result.gpus[row], strict=True):
            taken.setdefault(int(column), []).append(piece)
        for column, pieces in taken.items():
            gpu = nodes[name][column]
            if any(p.whole for p in pieces):
                assert len(pieces) == 1
                assert gpu.idle
                assert gpu.capacity >= pieces[0].memory_mib
            else:
                assert sum(p.core for p in pieces) <= gpu.core
                assert sum(p.memory_mib for p in pieces) <= gpu.memory


@settings(max_examples=200, deadline=None)
@given(fleets(), requests())
def test_unresolvable_means_that_an_empty_node_would_not_do_either(nodes, request):
    demand = demand_of(request, "team-a")
    fleet = build(nodes)
    names = names_of(fleet)
    result = evaluate(fleet.view(names, demand), demand, BestFit())
    for row, name in enumerate(names):
        if result.why[row] < Why.UUID:
            continue
        empty = {name: [GpuRow(g.uuid, g.model, g.capacity, healthy=g.healthy) for g in nodes[name]]}
        assert not brute_force(empty, name, request)


@settings(max_examples=200, deadline=None)
@given(fleets(), st.sampled_from([10, 30, 50, 90]), st.integers(1, 5))
def test_best_fit_leaves_the_least_and_opens_an_idle_gpu_last(nodes, core, blocks):
    demand = demand_of(PodRequest((GpuRequest("c", core, blocks),)), "team-a")
    fleet = build(nodes)
    names = names_of(fleet)
    result = evaluate(fleet.view(names, demand), demand, BestFit())
    best = best_of(result.fits, result.price, np.arange(len(names)))
    fitting = [
        (gpu.idle, (gpu.core - core) * 100 + (gpu.memory - blocks * 256) * 10_000 // gpu.capacity)
        for name in names
        for gpu in nodes[name]
        if gpu.healthy and not gpu.exclusion and gpu.core >= core and gpu.memory >= blocks * 256
    ]
    if best is None:
        assert not fitting
        return
    gpu = nodes[names[best]][int(result.gpus[best][0])]
    taken = (gpu.idle, (gpu.core - core) * 100 + (gpu.memory - blocks * 256) * 10_000 // gpu.capacity)
    assert taken == min(fitting)


def test_equal_nodes_are_told_apart_by_name_whatever_the_order():
    fleet = build({name: [GpuRow(f"GPU-{name}", "A100", 1024)] for name in ("c", "a", "b")})
    demand = demand_of(PodRequest((GpuRequest("c", 50, 1),)), "x")
    for names in itertools.permutations(["a", "b", "c"]):
        result = evaluate(fleet.view(names, demand), demand, BestFit())
        assert names[best_of(result.fits, result.price, np.array([*map(ord, names)]))] == "a"


def test_a_whole_gpu_comes_from_the_node_with_the_fewest_idle_ones():
    idle = [GpuRow(f"GPU-{i}", "A100", 1024) for i in range(3)]
    fleet = build({"a": idle, "b": idle[:2], "c": idle})
    demand = demand_of(PodRequest((GpuRequest("c", 200, None),)), "x")
    names = names_of(fleet)
    result = evaluate(fleet.view(names, demand), demand, BestFit())
    assert names[best_of(result.fits, result.price, np.arange(3))] == "b"


def test_where_placing_in_order_fails_the_search_finds_the_place():
    # Best fit puts 50 % with little memory beside the tightest GPU, where the second container alone would fit.
    fleet = build(
        {
            "n": [
                GpuRow("GPU-0", "A100", 2048, core=60, memory=2048, idle=False),
                GpuRow("GPU-1", "A100", 2048, core=90, memory=512, idle=False),
            ]
        }
    )
    demand = demand_of(PodRequest((GpuRequest("a", 60, 1), GpuRequest("b", 50, 4))), "x")
    result = evaluate(fleet.view(["n"], demand), demand, BestFit())
    assert result.fits.tolist() == [True]
    assert result.gpus.tolist() == [[1, 0]]


def test_hundreds_of_slices_end_in_an_answer():
    rows = [GpuRow(f"GPU-{i}", "A100", 81_920) for i in range(8)]
    fleet = build({f"n{i}": rows for i in range(50)})
    odd = tuple(GpuRequest(f"c{i}", 1 + i % 7, 1 + i % 5) for i in range(190))
    names = names_of(fleet)
    for request in (PodRequest(odd), PodRequest(tuple(GpuRequest(f"c{i}", 6_400, None) for i in range(1000)))):
        demand = demand_of(request, "x")
        result = evaluate(fleet.view(names, demand), demand, BestFit())
        assert len(result.fits) == 50


def test_reasons_name_what_is_missing():
    rows = {
        "full": [GpuRow("GPU-0", "Tesla T4", 4096, core=10, memory=0, idle=False)],
        "sick": [GpuRow("GPU-1", "Tesla T4", 4096, healthy=False)],
        "small": [GpuRow("GPU-2", "Tesla T4", 1024)],
        "other": [GpuRow("GPU-3", "A100", 4096)],
        "foe": [GpuRow("GPU-4", "Tesla T4", 4096, core=90, memory=4096, idle=False, exclusion="x/secret")],
    }
    fleet = build(rows)
    demand = demand_of(PodRequest((GpuRequest("c", 50, 8),), gpu_models=("t4",)), "x")
    names = names_of(fleet)
    why = dict(zip(names, evaluate(fleet.view(names, demand), demand, BestFit()).why.tolist(), strict=True))
    assert why == {"full": Why.FULL, "sick": Why.HEALTH, "small": Why.TOO_SMALL, "other": Why.MODEL, "foe": Why.COMPANY}
    assert "50 percent of a GPU with 2048 MiB" in explain(Why.FULL, demand)
    assert "secret" not in explain(Why.COMPANY, demand)


def test_labels_of_another_namespace_say_nothing():
    fleet = build(
        {"n": [GpuRow("GPU-0", "A100", 4096, core=50, memory=2048, idle=False, anti_affinity=frozenset({"team-a/x"}))]}
    )
    request = PodRequest((GpuRequest("c", 50, 1),), anti_affinity="x")
    for namespace, fits in (("team-a", False), ("team-b", True)):
        demand = demand_of(request, namespace)
        assert evaluate(fleet.view(["n"], demand), demand, BestFit()).fits.tolist() == [fits]


def test_models_match_by_whole_words():
    for asked, model, good in (
        ("A100", "NVIDIA A100-SXM4-80GB", True),
        ("a100-sxm4", "NVIDIA A100-SXM4-80GB", True),
        ("A10", "NVIDIA A100-SXM4-80GB", False),
        ("SXM4-A100", "NVIDIA A100-SXM4-80GB", False),
        ("", "NVIDIA A100", False),
    ):
        assert model_matches(asked, model) is good


def test_rows_are_used_again_and_columns_grow():
    fleet = build({"a": [GpuRow("GPU-a", "A100", 1024)], "b": [GpuRow("GPU-b", "A100", 1024)]})
    fleet.remove("a")
    fleet.remove("a")
    fleet.set("c", [GpuRow(f"GPU-c{i}", "T4", 1024, core=0, idle=False) for i in range(5)])
    assert names_of(fleet) == ["b", "c"]
    assert fleet.publish().totals() == (6, 100, 6 * 1024)
    demand = demand_of(PodRequest((GpuRequest("c", 50, 1),)), "x")
    view = fleet.view(["c", "b"], demand)
    assert view.capacity.shape == (2, 5)
    assert np.array_equal(view.capacity[1], [1024, 0, 0, 0, 0])
