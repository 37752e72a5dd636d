# SPDX-License-Identifier: Apache-2.0
"""Choose several whole GPUs of a node for one pod: those with the best links to each other.

NVLinks come first, the more the better, then a PCIe switch that both are below, then the same NUMA node. What counts
is the worst pair, because collective operations run at its pace, then all pairs together; among equals, what is left
idle keeps the most of its own. Only GPUs of the model that the policy chose are exchanged, which cost it the same.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import chain, combinations
from typing import Final

import numpy as np

from scheduler.placement.demand import Demand
from scheduler.placement.fleet_version import Ints, View
from slicekeeper.gpu.inventory import Gpu

NUMA: Final = 1
SWITCH: Final = 2
LINK: Final = 3
"""One NVLink; each more is one better."""

MOST_SETS: Final = 20_000
"""Maximum number of sets that are compared: those of 8 among 16 GPUs. For more, each set grows from one GPU by the best
next one."""


def closeness(one: Gpu, other: Gpu) -> int:
    """Return how well two GPUs reach each other, 0 if only through the whole machine."""
    links = max(one.links.get(other.uuid, 0), other.links.get(one.uuid, 0))
    if links > 0:
        return LINK - 1 + links
    if one.pcie_switch >= 0 and one.pcie_switch == other.pcie_switch:
        return SWITCH
    return NUMA if one.numa_node >= 0 and one.numa_node == other.numa_node else 0


def relinked(gpus: Sequence[Gpu], view: View, row: int, demand: Demand, columns: Sequence[int]) -> list[int]:
    """Return the columns of a demand's pieces, those of its whole GPUs exchanged for the best linked that are free.

    `row` of `view` is the node with `gpus` as it was when `columns` were found.
    """
    whole = [index for index, piece in enumerate(demand.pieces) if piece.whole]
    found = list(columns)
    if len(whole) < 2:
        return found
    codes = {int(view.code[row, found[index]]) for index in whole}
    memory = max(demand.pieces[index].memory_mib for index in whole)
    able = view.named[row] & view.model[row] & view.healthy[row] & view.idle[row] & (view.capacity[row] > 0)
    able = able & (view.capacity[row] >= memory) & np.isin(view.code[row], list(codes))
    free = np.flatnonzero(able).tolist()
    if len(codes) > 1 or len(free) <= len(whole):
        return found
    near = np.array([[closeness(gpus[one], gpus[other]) if one != other else 0 for other in free] for one in free])
    if not near.any():
        return found
    chosen = [free[place] for place in sorted(_best(near, len(whole)))]
    given_up = sorted({found[index] for index in whole} - set(chosen))
    shared = {column for index, column in enumerate(found) if index not in whole}
    # The pod's own shares may have been meant for one of these while it was idle: it goes on one that is given up.
    moved = dict(zip(sorted(shared & set(chosen)), given_up, strict=False))
    found = [moved.get(column, column) for column in found]
    for index, column in zip(whole, chosen, strict=True):
        found[index] = column
    return found


def _best(near: Ints, count: int) -> list[int]:
    """Return the best set of `count` GPUs by how near each pair is, the first among equals."""
    if math.comb(len(near), count) > MOST_SETS:
        sets = np.array([_grown(near, seed, count) for seed in range(len(near))])
    else:
        sets = np.fromiter(chain.from_iterable(combinations(range(len(near)), count)), np.int64).reshape(-1, count)
    inside = near[sets[:, :, None], sets[:, None, :]]
    worst = np.where(np.eye(count, dtype=np.bool_), np.iinfo(np.int64).max, inside).min(axis=(1, 2))
    total = inside.sum(axis=(1, 2))
    broken = near.sum(axis=1)[sets].sum(axis=1) - total  # what those that are left lose
    best: list[int] = sets[np.lexsort((broken, -total, -worst))[0]].tolist()
    return best


def _grown(near: Ints, seed: int, count: int) -> list[int]:
    chosen = [seed]
    while len(chosen) < count:
        rest = [place for place in range(len(near)) if place not in chosen]
        chosen.append(max(rest, key=lambda place: (near[place, chosen].min(), near[place, chosen].sum(), -place)))
    return sorted(chosen)
