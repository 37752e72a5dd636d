# SPDX-License-Identifier: Apache-2.0
"""Expected fill: a place costs what the arrivals to come can no longer fill because of it. A rule of our own.

From the mix of pods that arrive, each model of GPU gets a table: how much of a GPU with so much free, and so many cores
beside it, the next `HORIZON` pieces are expected to fill. With class m of weight q wanting D of a GPU and c cores (pods
that want more GPUs than any node with the model has are left out):

    u₀ = 0;  u(R, C) ← u(R, C) + Σ q·[R ≥ D and C ≥ c]·(D + u(R − D, C − c) − u(R, C))

A node is worth the sum of its GPUs' u. Its free CPU (or its memory, if that is shorter) is divided among the GPUs as
they would use it if there were enough: the same recursion with the cores used in place of the GPU filled.

Every GPU is judged there as if all arrivals were for it alone. What the fleet as a whole has room for, and room for
pods that want several GPUs of one node, comes from `scheduler.placement.lost_places`. Among places that are nearly
equal, what is left of the GPU decides, as best fit does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from scheduler.placement.arrivals import Arrival, Mix
from scheduler.placement.demand import Demand
from scheduler.placement.fleet_version import Bools, FleetVersion, Floats, GpuModel, Ints
from scheduler.placement.lost_places import LostPlaces
from scheduler.placement.policy import Gpus, PieceGroup
from slicekeeper.gpu.inventory import is_wanted
from slicekeeper.units import CORES_PER_GPU

HORIZON: Final = 40
"""Slices looked ahead. Every GPU is judged as if all of them were for it alone: with 100, a gap looks as if it were
filled that is not, because the few pods of its size are shared by all GPUs."""

MOST_CORES: Final = 128
"""Cores beside one GPU that the tables tell apart; more are as good."""

LEFTOVER_PRICE: Final = 27.5
"""Price of what a piece leaves free of its GPU, in thousandths of a GPU if that were all of it. It costs as much again
to use an idle GPU."""

MICRO: Final = 1_000
"""EvaluationCache are in thousandths of a thousandth of a GPU, so that what is equal but for rounding stays equal."""

OFFSET: Final = 1 << 34


@dataclass(frozen=True)
class _Tables:
    """By model, percent of the GPU free, and cores beside it."""

    fill: Floats
    cores: Floats
    ram_per_core: float


class ExpectedFill:
    """The cheapest place by what it takes from the pods to come."""

    def __init__(self, mix: Mix, fleet: FleetVersion) -> None:
        """Build the tables: some tenths of a second for each model."""
        kinds = mix.kinds
        tables = [
            _table([kind for kind in kinds if kind.gpus <= most], model, HORIZON)
            for model, most in zip(fleet.models, _most_gpus(fleet), strict=True)
        ]
        cores = sum(arrival.weight * arrival.cpu for arrival in kinds)
        ram = sum(arrival.weight * arrival.ram for arrival in kinds)
        self._tables = _Tables(
            np.array([fill for fill, _ in tables]),
            np.array([used for _, used in tables]),
            ram / cores if cores and ram else 0.0,
        )
        self._lost_places = LostPlaces(kinds, fleet)

    def prices(self, gpus: Gpus, group: PieceGroup, possible: Bools) -> Ints:
        """Return what each place takes from the pods to come, in millionths of a GPU."""
        free, cpu, ram = gpus.free(), gpus.cpu - group.cpu, gpus.ram - group.ram
        model = np.minimum(gpus.model, len(self._tables.fill) - 1)  # one may have come since
        if group.whole:
            rows = np.flatnonzero(possible.any(axis=1))
            after = np.where(gpus.taken_whole(group), 0, free)[rows]
            columns, rest = None, np.zeros(len(rows))
        else:
            rows, columns = np.nonzero(possible)
            after = free[rows]
            capacity = gpus.capacity[rows, columns]
            memory = (gpus.memory[rows, columns] - group.memory_mib) * CORES_PER_GPU // np.maximum(capacity, 1)
            remains = np.minimum(gpus.core[rows, columns] - group.core, memory)
            after[np.arange(len(rows)), columns] = remains
            rest = remains / CORES_PER_GPU + (free[rows, columns] >= CORES_PER_GPU)
        cores, left = self._cores(gpus.cpu, gpus.ram), self._cores(cpu, ram)
        now, then = _value(self._tables, free, model, cores), _value(self._tables, after, model[rows], left[rows])
        lost = now[rows] - then + self._lost_places.price(gpus, free, rows, columns, after, cpu, ram)
        price = np.rint((lost + LEFTOVER_PRICE * rest) * MICRO).astype(np.int64) + OFFSET
        prices = np.zeros(free.shape, np.int64)
        if columns is None:
            prices[rows] = price[:, None]
        else:
            prices[rows, columns] = price
        return prices

    def _cores(self, cpu: Floats, ram: Floats) -> Floats:
        """Return the cores that pods can use: memory may run out before them."""
        per_core = self._tables.ram_per_core
        return np.maximum(np.minimum(cpu, ram / per_core if per_core else np.inf), 0.0)


def _most_gpus(fleet: FleetVersion) -> list[float]:
    """Return for each model how many GPUs the largest node with it has; no limit if there is no node now."""
    view = fleet.view_rows(np.arange(len(fleet.names)), Demand(()))
    there = view.capacity > 0
    sizes = np.where(there, there.sum(axis=1, keepdims=True), 0)
    found = np.zeros(len(fleet.models))
    np.maximum.at(found, view.code[there], sizes[there])
    most: list[float] = np.where(found, found, np.inf).tolist()
    return most


def _value(tables: _Tables, free: Ints, model: Ints, cores: Floats) -> Floats:
    """Return what nodes are worth, in thousandths of a GPU, summed over the last axis."""
    wanted = tables.cores[model, free]
    sums = wanted.sum(axis=-1, keepdims=True)
    share = np.minimum(cores, MOST_CORES * free.shape[-1])[..., None] * (wanted / np.maximum(sums, 1e-9))
    share = np.minimum(share, MOST_CORES - 1e-6)
    low = share.astype(np.int64)
    part = share - low
    fill = tables.fill[model, free, low] * (1 - part) + tables.fill[model, free, low + 1] * part
    total: Floats = fill.sum(axis=-1)
    return total


def _table(kinds: Sequence[Arrival], model: GpuModel, horizon: int) -> tuple[Floats, Floats]:
    """Return for one model what is filled (thousandths, by percent free and cores), and the cores used by that."""
    classes: dict[tuple[int, float], float] = {}
    for arrival in kinds:
        wants = arrival.wants(model.capacity)
        if is_wanted(model.name, arrival.models) and 0 < wants <= CORES_PER_GPU and arrival.cpu <= MOST_CORES:
            key = (wants, round(arrival.cpu, 1))
            classes[key] = classes.get(key, 0.0) + arrival.weight
    fill = np.zeros((CORES_PER_GPU + 1, MOST_CORES + 1))
    used = np.zeros(CORES_PER_GPU + 1)
    for _ in range(horizon):
        then, cores = fill.copy(), used.copy()
        for (wants, cpu), weight in classes.items():
            first = int(np.ceil(cpu))
            part = first - cpu
            rest = fill[: CORES_PER_GPU + 1 - wants]
            width = MOST_CORES + 1 - first
            gained = rest[:, :width] * (1 - part)
            if part:
                gained = gained + rest[:, 1 : width + 1] * part
            then[wants:, first:] += weight * (wants * 10 + gained - fill[wants:, first:])
            cores[wants:] += weight * (cpu + used[: CORES_PER_GPU + 1 - wants] - used[wants:])
        fill, used = then, cores
    return fill, used
