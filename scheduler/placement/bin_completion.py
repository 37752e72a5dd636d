# SPDX-License-Identifier: Apache-2.0
"""Distribute shares among GPUs so that all fit, filling one GPU after the other (bin completion).

The largest share left is put on each GPU that can hold it, and the GPU is filled up with the largest others that still
fit. A GPU is never left with more free than all GPUs together can spare, and a state that failed is not tried again.
Bin completion is by Martello and Toth, 1990, "Knapsack Problems", ch. 8, and Korf, 2002, "A New Algorithm for Optimal
Bin Packing". If the shares fill the GPUs exactly it fails far less often than a search that places one share after the
other, because it keeps small shares, with which any rest can be filled, until the end.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from scheduler.placement.node_search import StepBudget

GPUS_PER_STEP: Final = 8
"""Examining this many GPUs takes as long as another step."""


class Space(NamedTuple):
    """The free part of one GPU, and a bit for each demand that may use it."""

    core: int
    memory: int
    capacity: int
    idle: bool
    open_to: int


class Portion(NamedTuple):
    """A share of a GPU that others may join; `demand` is its demand's bit."""

    core: int
    memory: int
    demand: int


def complete(
    gpus: Counter[Space], shares: Counter[Portion], budget: StepBudget
) -> list[tuple[Space, list[Portion]]] | None:
    """Return GPUs and the shares on each; None if no way to place all was found within the budget."""
    spare = sum(gpu.core * count for gpu, count in gpus.items()) - sum(s.core * n for s, n in shares.items())
    return _Completion(gpus, shares, budget).run(spare) if spare >= 0 else None


class _Completion:
    """One search: equal GPUs and equal shares are counted, because they need not be distinguished."""

    def __init__(self, gpus: Counter[Space], shares: Counter[Portion], budget: StepBudget) -> None:
        self._gpus = gpus.copy()
        self._shares = sorted(shares, reverse=True)
        self._left = [shares[share] for share in self._shares]
        self._budget = budget
        self._dead: set[tuple[tuple[int, ...], frozenset[tuple[Space, int]]]] = set()

    def run(self, spare: int) -> list[tuple[Space, list[Portion]]] | None:
        """Place all shares that are left; `spare` is how much compute stays free then."""
        first = next((index for index, count in enumerate(self._left) if count), None)
        if first is None:
            return []
        state = tuple(self._left), frozenset(self._gpus.items())
        if state in self._dead:
            return None
        self._budget.steps -= 1 + len(self._gpus) // GPUS_PER_STEP
        share = self._shares[first]
        for gpu in sorted(gpu for gpu in self._gpus if self._fits(share, gpu, gpu.core, gpu.memory)):
            for chosen, core in self._fills(gpu, gpu.core - share.core, gpu.memory - share.memory, (first,)):
                if core > spare:
                    continue
                self._move(gpu, chosen, 1)
                rest = self.run(spare - core)
                if rest is not None:
                    return [(gpu, [self._shares[index] for index in chosen]), *rest]
                self._move(gpu, chosen, -1)
            if self._budget.steps <= 0:
                return None
        self._dead.add(state)
        return None

    def _fills(
        self, gpu: Space, core: int, memory: int, chosen: tuple[int, ...]
    ) -> Iterator[tuple[tuple[int, ...], int]]:
        """Yield choices of shares for a GPU that begin with `chosen`, and the compute that they leave.

        Large shares are tried first, none larger than the last one chosen. `core` and `memory` are what is free now.
        """
        self._budget.steps -= 1
        for index in range(chosen[-1], len(self._shares)):
            if self._budget.steps <= 0:
                return
            share = self._shares[index]
            if chosen.count(index) < self._left[index] and self._fits(share, gpu, core, memory):
                yield from self._fills(gpu, core - share.core, memory - share.memory, (*chosen, index))
        yield chosen, core

    @staticmethod
    def _fits(share: Portion, gpu: Space, core: int, memory: int) -> bool:
        return share.core <= core and share.memory <= memory and bool(share.demand & gpu.open_to)

    def _move(self, gpu: Space, chosen: Sequence[int], times: int) -> None:
        """Put the chosen shares on a GPU, which is closed then, or with −1 for `times` take them off again."""
        for index in chosen:
            self._left[index] -= times
        self._gpus[gpu] -= times
        if not self._gpus[gpu]:
            del self._gpus[gpu]
