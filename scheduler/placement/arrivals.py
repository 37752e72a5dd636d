# SPDX-License-Identifier: Apache-2.0
"""Statistics of arriving pods, by kind, from which policies that look ahead learn.

Counts fade: whenever `FULL` pods have been counted, all counts are halved, so they follow a mix that changes. Nothing
is stored: after a restart, the pods that the API server lists are counted, ended ones too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from scheduler.placement.demand import Demand
from slicekeeper.names import MIG
from slicekeeper.units import CORES_PER_GPU

FULL: Final = 20_000
"""Number of pods after which older ones begin to count less."""


MOST_KINDS: Final = 300
"""Maximum number of kinds in a mix. The time to learn grows with it, and users can create any number; openb has 126."""


@dataclass(frozen=True)
class Arrival:
    """A kind of pod: equal pieces, with the cores and MiB that it takes beside each of its GPUs.

    `weight` is its part of all pieces that arrive, 0 … 1.
    """

    core: int
    memory_mib: int
    gpus: int
    cpu: float
    ram: float
    models: tuple[str, ...]
    weight: float

    def wants(self, capacity: int) -> int:
        """Return the percentage that a piece takes of a GPU with `capacity` MiB; more than 100 does not fit."""
        return max(self.core, -(-self.memory_mib * CORES_PER_GPU // max(capacity, 1)))


@dataclass(frozen=True)
class Mix:
    """The mix of arriving pods."""

    kinds: Sequence[Arrival]
    """Their weights sum to 1."""
    without_gpus: float = 0.0
    """The fraction of all pods on nodes with GPUs that request none, 0 … 1."""


class Arrivals:
    """Counts pods by kind."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[int, int, int, float, float, tuple[str, ...]]] = Counter()
        self._counted = 0
        self._without_gpus = 0
        self.seen = 0
        """Total number of counted pods."""

    def add(self, demand: Demand) -> None:
        """Count one pod, once in its life."""
        if not demand.pieces or demand.mode == MIG:  # which is never placed on the GPUs that policies price
            return
        self.seen += 1
        self._counted += 1
        share = len(demand.pieces)
        groups = Counter((piece.core, piece.memory_mib) for piece in demand.pieces)
        for (core, memory), gpus in groups.items():
            kind = (core, memory, gpus, demand.cpu_milli / share / 1000, demand.ram_mib / share, demand.models)
            self._counts[kind] += 2 * gpus
        if self._counted >= FULL:
            self._counted //= 2
            self._without_gpus //= 2
            self._counts = Counter({kind: count // 2 for kind, count in self._counts.items() if count > 1})

    def add_without_gpus(self) -> None:
        """Count a pod that requests no GPU and uses cores on a node with GPUs."""
        self._without_gpus += 1

    def mix(self) -> Mix:
        """Return the most frequent kinds, at most MOST_KINDS."""
        found = self._counts.most_common(MOST_KINDS)
        total = sum(count for _, count in found)
        kinds = tuple(Arrival(*kind, weight=count / total) for kind, count in found)
        without = self._without_gpus / max(self._counted + self._without_gpus, 1)
        return Mix(kinds, without)
