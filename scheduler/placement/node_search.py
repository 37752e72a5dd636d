# SPDX-License-Identifier: Apache-2.0
"""Find out by an exact search whether several pieces fit on one node's GPUs together.

Slices are put one by one, the hardest first; a state seen before is not tried again, equal GPUs are tried once. Packing
is hard in general, so a caller gives a budget of steps: a pod of many odd pieces must not stop the scheduler.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from scheduler.placement.demand import Piece

MOST_PIECES: Final = 200
"""More are not searched for, only placed in the policy's order: the search goes one level deeper for each."""


@dataclass
class StepBudget:
    """Steps that searches may still take; at 0 they find nothing more."""

    steps: int


@dataclass(frozen=True)
class Bin:
    """One GPU: what is free, whether a share may go there, and whether a whole piece may."""

    core: int
    memory: int
    capacity: int
    takes_shares: bool
    takes_whole: bool

    def after(self, piece: Piece) -> Bin | None:
        """Return the GPU with `piece` on it, None if it does not fit."""
        if piece.whole:
            fits = self.takes_whole and self.capacity >= piece.memory_mib
            return Bin(0, 0, self.capacity, takes_shares=False, takes_whole=False) if fits else None
        if not self.takes_shares or self.core < piece.core or self.memory < piece.memory_mib:
            return None
        return Bin(
            self.core - piece.core, self.memory - piece.memory_mib, self.capacity, takes_shares=True, takes_whole=False
        )


def pack(bins: Sequence[Bin], pieces: Sequence[Piece], budget: StepBudget) -> list[int] | None:
    """Return for each piece the index of its GPU, or None if they do not fit together."""
    # States from which the remaining pieces were found not to fit.
    dead: set[tuple[int, tuple[Bin, ...]]] = set()

    def place(index: int, now: tuple[Bin, ...]) -> list[int] | None:
        if index == len(pieces):
            return []
        if (index, now) in dead or budget.steps <= 0:
            return None
        tried: set[Bin] = set()
        for column, gpu in enumerate(now):
            if gpu in tried:
                continue
            tried.add(gpu)
            budget.steps -= 1
            after = gpu.after(pieces[index])
            if after is None:
                continue
            rest = place(index + 1, (*now[:column], after, *now[column + 1 :]))
            if rest is not None:
                return [column, *rest]
        dead.add((index, now))
        return None

    return place(0, tuple(bins)) if len(pieces) <= MOST_PIECES else None
