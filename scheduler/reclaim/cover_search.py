# SPDX-License-Identifier: Apache-2.0
"""Find the fewest of some things that together are enough (a minimum cover), by exact search within a budget of steps.

Each thing gives an amount in each of a few dimensions (compute and memory of some GPUs); the sums must reach a need.
Which pods these things are, and which come first among equally small sets, is decided in `victim_choice`.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from scheduler.placement.node_search import StepBudget

Amounts = tuple[int, ...]


def smallest_cover(things: Sequence[Amounts], need: Amounts, most: int, budget: StepBudget) -> list[int] | None:
    """Return the indexes of at most `most` things that meet `need`, as few as there can be, None if none do.

    Among sets of that size the first in `things`' order is returned. When the budget is spent, what a simple choice of
    the largest things gives is returned: enough, but perhaps not the fewest.
    """
    need = tuple(max(amount, 0) for amount in need)
    if not any(need):
        return []
    if any(sum(thing[dimension] for thing in things) < amount for dimension, amount in enumerate(need)):
        return None
    for size in range(_at_least(things, need), min(most, len(things)) + 1):
        found = _of_size(things, need, size, 0, budget)
        if found is not None:
            return found
        if budget.steps <= 0:
            greedy = _largest_first(things, need)
            return greedy if len(greedy) <= most else None
    return None


def _at_least(things: Sequence[Amounts], need: Amounts) -> int:
    """Return a number that no set which meets `need` can go below."""
    least = 1
    for column, amount in zip(zip(*things, strict=True), need, strict=True):
        count = total = 0
        for value in sorted(column, reverse=True):
            if total >= amount:
                break
            total += value
            count += 1
        least = max(least, count)
    return least


def _of_size(things: Sequence[Amounts], need: Amounts, size: int, start: int, budget: StepBudget) -> list[int] | None:
    """Return the first set of exactly `size` things from `start` on that meets `need`."""
    if not any(need):
        return []
    if size == 0 or budget.steps <= 0:
        return None
    # Not even the largest things of each dimension would suffice.
    for dimension, amount in enumerate(need):
        if amount and sum(heapq.nlargest(size, (thing[dimension] for thing in things[start:]))) < amount:
            return None
    for index in range(start, len(things) - size + 1):
        if index > start and things[index] == things[index - 1]:
            continue  # without the one before, this one would be the same choice
        budget.steps -= 1
        rest = tuple(max(a - b, 0) for a, b in zip(need, things[index], strict=True))
        found = _of_size(things, rest, size - 1, index + 1, budget)
        if found is not None:
            return [index, *found]
    return None


def _largest_first(things: Sequence[Amounts], need: Amounts) -> list[int]:
    """Return a set that meets `need`: always the thing next that gives most of what is still missing."""
    chosen: list[int] = []
    left = list(need)
    while any(left):
        rest = [index for index in range(len(things)) if index not in chosen]
        best = max(rest, key=lambda index: sum(min(a, b) * 1000 // n for a, b, n in _scaled(things[index], left, need)))
        chosen.append(best)
        left = [max(a - b, 0) for a, b in zip(left, things[best], strict=True)]
    return sorted(chosen)


def _scaled(thing: Amounts, left: Sequence[int], need: Amounts) -> list[tuple[int, int, int]]:
    return [(a, b, n) for a, b, n in zip(thing, left, need, strict=True) if n]
