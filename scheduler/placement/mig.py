# SPDX-License-Identifier: Apache-2.0
"""Choose a node's MIG slices for a pod: one for each container, the smallest that suffices.

Slices are not columns of the fleet's arrays: a slice is given whole, so no policy prices what is left of it, and rows
stay as narrow as the GPUs are few. They lie beside the row, and are looked at only for pods that may be on one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from scheduler.placement.demand import Demand, Piece
from slicekeeper.gpu.inventory import MigSlice, holds, is_wanted, size_of
from slicekeeper.names import MIG


@dataclass(frozen=True, slots=True)
class MigRow:
    """One slice as it is now."""

    mig: MigSlice
    gpu: str
    """Its GPU's UUID."""
    model: str
    """Its GPU's model."""
    capacity: int
    """Its GPU's memory."""
    free: bool = True

    @property
    def size(self) -> int:
        """The larger of its parts of its GPU's compute and memory, in percent."""
        return size_of(self.mig.core, self.mig.memory_mib, self.capacity)


class Sliced(NamedTuple):
    """A node's slices, the smallest first; its GPUs have the columns before them."""

    gpus: int
    rows: tuple[MigRow, ...]
    free: tuple[int, int]
    """The most compute, and the most memory, that a free one has: what asks for more needs no search."""
    well: tuple[int, int]
    """The same of those that are healthy."""


def sliced(gpus: int, rows: Sequence[MigRow]) -> Sliced | None:
    """Return the slices of a node with so many GPUs, None if it has none."""
    if not rows:
        return None
    ordered = in_order(rows)
    free, well = _most(row for row in ordered if row.free), _most(row for row in ordered if row.mig.healthy)
    return Sliced(gpus, ordered, free, well)


def in_order(rows: Sequence[MigRow]) -> tuple[MigRow, ...]:
    """Return slices, the smallest first."""
    return tuple(sorted(rows, key=lambda row: (row.size, row.mig.core, row.mig.memory_mib, row.mig.uuid)))


def _most(rows: Iterable[MigRow]) -> tuple[int, int]:
    slices = [row.mig for row in rows]
    return max((mig.core for mig in slices), default=0), max((mig.memory_mib for mig in slices), default=0)


def suits(row: MigRow, demand: Demand, piece: Piece | None = None) -> bool:
    """Whether a demand may be on a slice by UUID and model; and if a piece of it is given, whether that fits there."""
    if demand.gpu_uuid not in ("", row.mig.uuid, row.gpu) or not is_wanted(row.model, demand.models):
        return False
    if piece is None:
        return True
    adaptive = demand.mode != MIG
    return not piece.whole and holds(row.mig, row.capacity, piece.core, piece.memory_mib, adaptive=adaptive)


def choose(there: Sliced, demand: Demand, *, idle: bool = False) -> list[int] | None:
    """Return for each piece of a demand the index of its slice, None if there are not enough; `idle`: if all were free.

    Pieces come the hardest first and slices the smallest first, so each piece gets the smallest that is left; one that
    finds none makes earlier ones move on (augmenting paths in a bipartite graph; Kuhn, 1955).
    """
    core, memory = there.well if idle else there.free
    rows = there.rows
    if any(piece.core > core or piece.memory_mib > memory for piece in demand.pieces):
        return None
    able = [
        [at for at, row in enumerate(rows) if (row.free or (idle and row.mig.healthy)) and suits(row, demand, piece)]
        for piece in demand.pieces
    ]
    taken: dict[int, int] = {}
    """Which piece is on a slice."""

    def seat(piece: int, seen: set[int]) -> bool:
        for at in able[piece]:
            if at not in seen:
                seen.add(at)
                if at not in taken or seat(taken[at], seen):
                    taken[at] = piece
                    return True
        return False

    if not demand.pieces or not all(seat(piece, set()) for piece in range(len(able))):
        return None
    return [at for _, at in sorted((piece, at) for at, piece in taken.items())]
