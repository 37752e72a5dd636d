# SPDX-License-Identifier: Apache-2.0
"""Price the places that a pod takes from other kinds of pods: the fewer a fleet has left for a kind, the dearer.

A node has `places(k)` for pods of kind k: as many as its free GPUs, cores and memory admit if no other pod comes. With
P(k) places in the whole fleet, and N(k) pods of the kind in one that is full of the mix, a place costs

    PRICE · (part of all pods that are of kind k) · (GPUs that one asks for) · g / (1 + P(k) / (RESERVE · (N(k) + 1)))

for pods of g GPUs: a fleet has room for fewer of these, so each place that is lost refuses more of them. So a kind that
arrives often, asks for much and finds little room is protected, and places of which there are many cost next to
nothing. P(k) is counted when the prices are made. A rule of our own.

For pods that want several GPUs, a part of a place counts, too: a node that has f of what one more pod needs, and enough
GPUs in all, is worth `PART`·f² of a place. So pods of one GPU go to nodes that will never have room for such a pod, or
not soon, and it comes free on the others as pods end.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from scheduler.placement.arrivals import Arrival
from scheduler.placement.demand import Demand
from scheduler.placement.fleet_version import Bools, FleetVersion, Floats, GpuModel, Ints
from scheduler.placement.policy import Gpus
from slicekeeper.gpu.inventory import is_wanted
from slicekeeper.units import CORES_PER_GPU

PRICE: Final = 30_000.0
"""Price of the last places, in thousandths of a GPU. With more, kube-scheduler puts more pods without GPUs on the
nodes that are spared: with 40,000, 0.2 less is given out while openb's cluster fills than with 25,000."""

RESERVE: Final = 0.03
"""If a fleet has room for this part of the pods of a kind that it would hold if it were full, a place costs half of
what the last one costs."""

PART: Final = 0.25
"""Worth of almost a place for pods that want several GPUs. With twice as much, kube-scheduler puts pods without GPUs on
the nodes that are spared, and up to 2 less is given out of clusters that are short of CPU."""

PRICED_KINDS: Final = 32
"""Number of kinds that are considered, those that ask for the most GPUs in all. Twice as many change nothing that can
be measured."""

TINY: Final = 1e-6
"""Cores or MiB: what rounding may cost, and enough for a pod that wants none."""

Small = NDArray[np.float32]


class LostPlaces:
    """The prices of places for a mix and a fleet. Never changes once made."""

    def __init__(self, kinds: Sequence[Arrival], fleet: FleetVersion) -> None:
        """Count the places of the fleet: some milliseconds for 5,000 nodes."""
        most = sorted(kinds, key=lambda kind: kind.weight * kind.core, reverse=True)[:PRICED_KINDS]
        most.sort(key=lambda kind: kind.gpus == 1)
        self._several = sum(kind.gpus > 1 for kind in most)
        """The number of kinds that want several GPUs; they come first."""
        self._gpus = np.array([kind.gpus for kind in most], np.float32)
        self._cpu = np.array([max(kind.cpu * kind.gpus, TINY * TINY) for kind in most])
        self._ram = np.array([max(kind.ram * kind.gpus, TINY * TINY) for kind in most])
        self._admitted = np.array([_admitted(most, model) for model in fleet.models], np.float32)
        gpus = Gpus.of(fleet.view_rows(np.arange(len(fleet.names)), Demand(())))
        admits = self._admitted[gpus.model, gpus.free()].sum(axis=1)
        left = np.floor(self._places(admits, self._pods_by_cpu_memory(gpus.cpu, gpus.ram))).sum(axis=0)
        weight = np.array([kind.weight for kind in most])
        core = np.array([kind.core for kind in most])
        pods = weight / self._gpus / sum(kind.weight / kind.gpus for kind in kinds)
        pieces = (gpus.capacity > 0).sum() * CORES_PER_GPU / max((weight * core).sum(), 1e-9)
        reserve = RESERVE * (pieces * weight / self._gpus + 1)
        asked = pods * self._gpus**2 * core / CORES_PER_GPU
        self._price = (PRICE * asked / (1 + left / reserve)).astype(np.float32)
        self._part = PART * self._price[: self._several]

    def price(
        self, gpus: Gpus, free: Ints, rows: Ints, columns: Ints | None, after: Ints, cpu: Floats, ram: Floats
    ) -> Floats:
        """Return what the places cost that are lost if nodes change, in thousandths of a GPU.

        `free` percent of the GPUs are free now. Entry i is for the node `rows[i]`, of whose GPUs `after[i]` percent
        would then be free; only `columns[i]` changes, or any without `columns`. `cpu` and `ram` are the cores and MiB
        of each node that would be.
        """
        model = np.minimum(gpus.model, len(self._admitted) - 1)  # one may have come since
        before = self._admitted[model, free].sum(axis=1)
        if columns is None:
            then = self._admitted[model[rows], after].sum(axis=1)
        else:
            changed = model[rows, columns]
            now_free, then_free = free[rows, columns], after[np.arange(len(rows)), columns]
            then = before[rows] + self._admitted[changed, then_free] - self._admitted[changed, now_free]
        able = (gpus.capacity > 0).sum(axis=1, keepdims=True) >= self._gpus[: self._several]
        now = self._worth(self._places(before, self._pods_by_cpu_memory(gpus.cpu, gpus.ram)), able)
        worth = self._worth(self._places(then, self._pods_by_cpu_memory(cpu, ram)[rows]), able[rows])
        lost: Floats = (now[rows] - worth).astype(np.float64)
        return lost

    def _pods_by_cpu_memory(self, cpu: Floats, ram: Floats) -> Small:
        """Return for how many pods a node's cores and memory suffice (nodes × kinds)."""
        pods = np.minimum((cpu[:, None] + TINY) / self._cpu, (ram[:, None] + TINY) / self._ram)
        counts: Small = np.maximum(pods, 0.0).astype(np.float32)
        return counts

    def _places(self, on_gpus: Small, by_cpu_memory: Small) -> Small:
        places: Small = np.minimum(on_gpus / self._gpus, by_cpu_memory)
        return places

    def _worth(self, places: Small, able: Bools) -> Small:
        """Return what nodes' places are worth; `able` says which nodes are large enough for which several GPUs."""
        whole = np.floor(places)
        part = places[:, : self._several] - whole[:, : self._several]
        part *= part
        part *= able
        worth: Small = whole @ self._price + part @ self._part
        return worth


def _admitted(kinds: Sequence[Arrival], model: GpuModel) -> Floats:
    """Return how many pieces of each kind a GPU of the model admits, by the percent that is free of it."""
    found = np.zeros((CORES_PER_GPU + 1, len(kinds)))
    for index, kind in enumerate(kinds):
        wants = kind.wants(model.capacity)
        if is_wanted(model.name, kind.models) and 0 < wants <= CORES_PER_GPU:
            found[:, index] = np.arange(CORES_PER_GPU + 1) // wants
    return found
