# SPDX-License-Identifier: Apache-2.0
"""Fragmentation gradient descent (Weng et al., USENIX ATC 2023), as published: the place that fragments the least.

A node's fragmentation is the part of its free GPUs that the mix of arriving pods could not use. The score is an
integer, 0 to 100; equal scores are very frequent, and the paper leaves them open: here the node that is left with the
least cores and GPUs is taken, the paper's best fit, and there the GPU with the least left.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from scheduler.placement.arrivals import Arrival, Mix
from scheduler.placement.fleet_version import Bools, FleetVersion, Floats, Ints
from scheduler.placement.policy import Gpus, PieceGroup
from slicekeeper.gpu.inventory import is_wanted
from slicekeeper.units import CORES_PER_GPU

COVERED: Final = 0.95
"""Part of the arriving pods whose kinds are looked at, the most frequent first."""

LARGE_CORES: Final = 128
LARGE_GPUS: Final = 8
"""What a large node has: for the best fit, its cores count as much as its GPUs."""

_TIE: Final = 1 << 32


@dataclass(frozen=True)
class _Kinds:
    """One entry for each kind of pod: how often it arrives, what it wants, and on which models it may be."""

    weight: Floats
    core: Ints
    gpus: Ints
    cpu: Floats
    on_model: Bools


class FragmentationGradient:
    """The place with the least increase of expected fragmentation."""

    def __init__(self, mix: Mix, fleet: FleetVersion) -> None:
        """Take the kinds of pods that make up most of the mix."""
        pods: dict[Arrival, float] = {}
        for one in mix.kinds:
            kind = replace(one, memory_mib=0, ram=0.0, weight=0.0)  # FGD knows neither memory
            pods[kind] = pods.get(kind, 0.0) + one.weight / one.gpus
        kinds: list[Arrival] = []
        covered = 0.0
        for kind in sorted(pods, key=pods.__getitem__, reverse=True):
            if covered >= COVERED * sum(pods.values()):
                break
            kinds.append(kind)
            covered += pods[kind]
        with_gpus = 1 - mix.without_gpus
        self._without_gpus = mix.without_gpus
        self._kinds = _Kinds(
            np.array([with_gpus * pods[kind] / covered for kind in kinds]),
            np.array([min(kind.core, CORES_PER_GPU) for kind in kinds]),
            np.array([kind.gpus for kind in kinds]),
            np.array([kind.cpu * kind.gpus for kind in kinds]),
            np.array([[is_wanted(model.name, kind.models) for model in fleet.models] for kind in kinds]),
        )

    def prices(self, gpus: Gpus, group: PieceGroup, possible: Bools) -> Ints:
        """Return 100 less the published score; what best fit says comes after that."""
        kinds = self._kinds
        if group.whole:
            rows = np.flatnonzero(possible.any(axis=1))
            after = np.where(gpus.taken_whole(group), 0, gpus.core)[rows]
        else:
            rows, columns = np.nonzero(possible)
            at, after = np.arange(len(rows)), gpus.core[rows]
            after[at, columns] -= group.core
        before = _fragments(kinds, gpus.core, gpus.model, gpus.cpu)
        then = _fragments(kinds, after, gpus.model[rows], (gpus.cpu - group.cpu)[rows])
        # Pods that want no GPU can use none: to them all that is free is a fragment, and what is taken is one less.
        taken = self._without_gpus * (gpus.core[rows].sum(axis=1) - after.sum(axis=1))
        gradient = (
            (before[rows] - then + taken) * 10 / 1000
        )  # percent of a GPU to thousandths; the paper divides by 1000
        score = 100 - (100 / (1 + np.exp(-gradient))).astype(np.int64)
        prices = np.zeros(gpus.core.shape, np.int64)
        if group.whole:
            prices[rows] = score[:, None]
        else:
            prices[rows, columns] = score
        return prices * _TIE + _left(gpus)


def _left(gpus: Gpus) -> Ints:
    """Return what is free of each node, in thousandths of a large one's cores and GPUs, then of each GPU."""
    cpu = np.where(np.isfinite(gpus.cpu), gpus.cpu, 0.0)
    free = np.where(gpus.capacity > 0, gpus.core, 0).sum(axis=1) / CORES_PER_GPU
    node = (1000 * cpu / LARGE_CORES + 1000 * free / LARGE_GPUS).astype(np.int64)
    left: Ints = node[:, None] * (CORES_PER_GPU + 1) + np.minimum(gpus.core, CORES_PER_GPU)
    return np.minimum(left, _TIE - 1)


def _fragments(kinds: _Kinds, core: Ints, model: Ints, cpu: Floats) -> Floats:
    """Return how many percent of each node's free GPUs an arriving pod is expected not to be able to use."""
    enough = core[:, None, :] >= kinds.core[None, :, None]
    model = np.minimum(model, kinds.on_model.shape[1] - 1)  # one may have come since
    right = kinds.on_model[:, model].transpose(1, 0, 2)
    usable = enough & right
    runs = (usable.sum(axis=2) >= kinds.gpus) & (cpu[:, None] >= kinds.cpu)
    free = core.sum(axis=1)
    wasted = free[:, None] - np.where(runs, (core[:, None, :] * usable).sum(axis=2), 0)
    fragments: Floats = (wasted * kinds.weight).sum(axis=1)
    return fragments
