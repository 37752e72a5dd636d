# SPDX-License-Identifier: Apache-2.0
"""Assign the pieces of one demand to the GPUs of every node: by the policy's prices, and if that fails by search.

Among GPUs of the same price the first in the node's order is taken.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from scheduler.placement.demand import Demand, Piece
from scheduler.placement.fleet_version import Bools, Ints
from scheduler.placement.node_search import Bin, StepBudget, pack
from scheduler.placement.policy import Gpus, PieceGroup, Policy

NOWHERE: Final = 1 << 50
"""The price of a GPU on which a piece does not fit."""

NODE_STEPS: Final = 2_000
"""Steps of exact search for one demand on one node: at most about 4 ms."""

SEARCH_STEPS: Final = 500_000
"""Steps for one demand on all nodes together."""


def _groups(demand: Demand) -> list[PieceGroup]:
    """Return the demand's pieces for pricing: equal whole ones together. The first includes CPU and memory."""
    groups: list[PieceGroup] = []
    for piece in demand.pieces:
        last = groups[-1] if groups else None
        if last and piece.whole and last.whole and last.memory_mib == piece.memory_mib:
            groups[-1] = replace(last, count=last.count + 1)
            continue
        cpu_memory = (0.0, 0.0) if groups else (demand.cpu_milli / 1000, float(demand.ram_mib))
        groups.append(PieceGroup(piece.core, piece.memory_mib, piece.whole, 1, *cpu_memory))
    return groups


def assign(gpus: Gpus, demand: Demand, shares: Bools, wholes: Bools, policy: Policy) -> tuple[Bools, Ints, Ints]:
    """Place the demand's pieces on each node: one after the other by the policy, and by search if that fails."""
    count = len(gpus.core)
    every = np.arange(count)
    now = replace(gpus, core=gpus.core.copy(), memory=gpus.memory.copy(), idle=gpus.idle.copy())
    vacant = wholes.copy()
    fits = np.ones(count, np.bool_)
    price = np.zeros(count, np.int64)
    chosen = np.full((count, len(demand.pieces)), -1, np.int64)
    index = 0
    for group in _groups(demand):
        if not fits.any():
            break
        if group.whole:
            possible = vacant & (now.capacity >= group.memory_mib)
        else:
            possible = shares & (now.core >= group.core) & (now.memory >= group.memory_mib)
        prices = np.where(possible, policy.prices(now, group, possible), NOWHERE)
        if group.count > prices.shape[1]:
            fits[:] = False
            break
        if group.count == 1:
            best = prices.argmin(axis=1)[:, None]
        else:
            best = prices.argsort(axis=1, kind="stable")[:, : group.count]
        dearest = prices[every, best[:, -1]]
        fits &= dearest < NOWHERE
        price += np.where(fits, dearest, 0)
        chosen[:, index : index + group.count] = np.where(fits[:, None], best, -1)
        index += group.count
        if index < len(demand.pieces):
            taken, at = every[fits][:, None], best[fits]
            now.core[taken, at] -= group.core
            now.memory[taken, at] -= now.memory[taken, at] if group.whole else group.memory_mib
            now.idle[taken, at] = False
            vacant[taken, at] = False
            now = replace(now, cpu=now.cpu - group.cpu, ram=now.ram - group.ram)
    if demand.is_unequal:
        _search(gpus, demand.pieces, shares, wholes, fits, price, chosen)
    return fits, price, chosen


def _search(
    gpus: Gpus, pieces: Sequence[Piece], shares: Bools, wholes: Bools, fits: Bools, price: Ints, chosen: Ints
) -> None:
    """Search exactly on nodes where placing in order failed; equal nodes are searched once."""
    known: dict[bytes, list[int] | None] = {}
    left = SEARCH_STEPS
    core = sum(piece.core for piece in pieces)
    enough = np.where(shares | wholes, gpus.core, 0).sum(axis=1) >= core
    for row in np.flatnonzero(~fits & enough):
        parts = (gpus.core[row], gpus.memory[row], gpus.capacity[row], shares[row], wholes[row])
        key = b"".join(part.tobytes() for part in parts)
        if key not in known:
            bins = [Bin(*values) for values in zip(*(part.tolist() for part in parts), strict=True)]
            budget = StepBudget(min(NODE_STEPS, left))
            known[key] = pack(bins, pieces, budget)
            left -= min(NODE_STEPS, left) - budget.steps
        found = known[key]
        if found is not None:
            fits[row] = True
            # Such a node is tight: it costs more than all that the policy priced.
            price[row] = NOWHERE - 1
            chosen[row] = found
        else:
            chosen[row] = -1
