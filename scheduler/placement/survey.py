# SPDX-License-Identifier: Apache-2.0
"""The pure core: on which nodes a demand fits, on which GPUs, what that costs, and why it does not elsewhere.

Rules about company are KubeShare's, in its order: affinity (a GPU that holds the label; if none does, an idle
one), anti-affinity (no GPU that holds the label), exclusion (labels equal, none counts as a label). They are about
shares: a whole GPU is idle when it is given and nobody joins it afterwards.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Final

import numpy as np

from scheduler.placement.demand import Demand, Slice
from scheduler.placement.fleet_version import Bools, Ints, View
from scheduler.placement.mig import choose, suits
from scheduler.placement.policy import BestFit, Gpus, Piece, Policy
from scheduler.placement.search import Bin, StepBudget, pack
from slicekeeper.names import MIG

NOWHERE: Final = 1 << 50
"""The price of a GPU on which a slice does not fit."""

NODE_STEPS: Final = 2_000
"""Steps of exact search for one demand on one node: some 4 ms at the very most."""

SEARCH_STEPS: Final = 500_000
"""Steps for one demand on all nodes together."""


_ANY: Final = BestFit()
"""Prices cheaply, if it is only asked whether there is a place."""


class Why(IntEnum):
    """Why a node does not do. From `UUID` on, no pod's leaving would change it."""

    FITS = 0
    FULL = 1
    COMPANY = 2
    UUID = 3
    MODEL = 4
    HEALTH = 5
    TOO_SMALL = 6
    NO_GPUS = 7
    DAMAGED = 8
    NO_SLICE = 9

    @property
    def unresolvable(self) -> bool:
        """Whether evicting pods from the node could not help."""
        return self >= Why.UUID


@dataclass(frozen=True)
class Survey:
    """The answer for each node of a view: `gpus` has one column for each slice of the demand."""

    fits: Bools
    price: Ints
    gpus: Ints
    why: Ints


def survey(view: View, demand: Demand, policy: Policy, *, reasons: bool = True) -> Survey:
    """Judge every node of `view`; without `reasons`, what does not fit is merely FULL."""
    able = _able(view)
    if demand.mode == MIG:
        able[:] = False
    fits, price, gpus = _assign(_gpus(view), demand, able & _company(view, demand), able & view.idle, policy)
    _take_slices(view, demand, fits, price, gpus)
    why = np.where(fits, int(Why.FITS), int(Why.FULL))
    if reasons and not fits.all():
        failed = np.flatnonzero(~fits)
        if demand.mode == MIG:
            why[failed] = [_why_no_slice(view, row, demand) for row in failed.tolist()]
        else:
            why[failed] = _reasons(_only(view, failed), demand)
            # Whoever leaves a slice can help, even if nothing else of the node can.
            for row in _sliced(view, why >= int(Why.UUID)):
                if choose(view.sliced[row], demand, idle=True) is not None:
                    why[row] = int(Why.FULL)
    return Survey(fits, price, gpus, why)


def _take_slices(view: View, demand: Demand, fits: Bools, price: Ints, chosen: Ints) -> None:
    """Place the demand on MIG slices where it is nowhere else, at a price behind all others: the smaller, the better.

    On a GPU that is shared, a pod pays for what it asks for, and may use what others leave; on a slice it does neither.
    """
    for row in _sliced(view, ~fits):
        there = view.sliced[row]
        found = choose(there, demand)
        if found is not None:
            fits[row] = True
            price[row] = NOWHERE + sum(there.rows[at].size for at in found)
            chosen[row] = [there.gpus + at for at in found]


def _sliced(view: View, which: Bools) -> list[int]:
    """Return the nodes with MIG slices among some."""
    rows = np.fromiter(view.sliced, np.int64, len(view.sliced))
    found: list[int] = rows[which[rows]].tolist()
    return found


def _why_no_slice(view: View, row: int, demand: Demand) -> Why:
    """Return why a node has no slice for a demand that takes nothing else."""
    there = view.sliced.get(row)
    if not (view.capacity[row] > 0).any():
        return Why.NO_GPUS
    if there is not None and choose(there, demand, idle=True) is not None:
        return Why.FULL
    slices = there.rows if there is not None else ()
    named = [one for one in slices if demand.gpu_uuid in ("", one.mig.uuid, one.gpu)]
    right = [one for one in named if suits(one, demand)]
    reasons = (
        (slices, Why.NO_SLICE),
        (named, Why.UUID),
        (right, Why.MODEL),
        ([1 for one in right if one.mig.healthy], Why.HEALTH),
    )
    return next((reason for some, reason in reasons if not some), Why.NO_SLICE)


def shareable(view: View, demand: Demand) -> Bools:
    """Return the GPUs on which the demand's shares may go, however full they are."""
    return _able(view) & _company(view, demand)


def _able(view: View) -> Bools:
    return (view.capacity > 0) & view.named & view.model & view.healthy


def _company(view: View, demand: Demand) -> Bools:
    """Return where the rules about company let a share go."""
    allowed = ~view.foe & view.admits
    if demand.affinity:
        allowed &= view.friend if view.has_friends else view.idle
    if demand.alone:
        allowed &= view.idle
    return allowed


def _pieces(demand: Demand) -> list[Piece]:
    """Return the demand's slices as they are priced: equal whole ones together. The first carries CPU and memory."""
    pieces: list[Piece] = []
    for piece in demand.slices:
        last = pieces[-1] if pieces else None
        if last and piece.whole and last.whole and last.memory_mib == piece.memory_mib:
            pieces[-1] = replace(last, count=last.count + 1)
            continue
        beside = (0.0, 0.0) if pieces else (demand.cpu_milli / 1000, float(demand.ram_mib))
        pieces.append(Piece(piece.core, piece.memory_mib, piece.whole, 1, *beside))
    return pieces


def _assign(gpus: Gpus, demand: Demand, shares: Bools, wholes: Bools, policy: Policy) -> tuple[Bools, Ints, Ints]:
    """Place the demand's slices on each node: by the policy, one after the other, and if that fails by search."""
    slices = demand.slices
    count = len(gpus.core)
    every = np.arange(count)
    now = replace(gpus, core=gpus.core.copy(), memory=gpus.memory.copy(), idle=gpus.idle.copy())
    vacant = wholes.copy()
    fits = np.ones(count, np.bool_)
    price = np.zeros(count, np.int64)
    chosen = np.full((count, len(slices)), -1, np.int64)
    index = 0
    for piece in _pieces(demand):
        if not fits.any():
            break
        if piece.whole:
            possible = vacant & (now.capacity >= piece.memory_mib)
        else:
            possible = shares & (now.core >= piece.core) & (now.memory >= piece.memory_mib)
        prices = np.where(possible, policy.prices(now, piece, possible), NOWHERE)
        if piece.count > prices.shape[1]:
            fits[:] = False
            break
        if piece.count == 1:
            best = prices.argmin(axis=1)[:, None]
        else:
            best = prices.argsort(axis=1, kind="stable")[:, : piece.count]
        dearest = prices[every, best[:, -1]]
        fits &= dearest < NOWHERE
        price += np.where(fits, dearest, 0)
        chosen[:, index : index + piece.count] = np.where(fits[:, None], best, -1)
        index += piece.count
        if index < len(slices):
            taken, at = every[fits][:, None], best[fits]
            now.core[taken, at] -= piece.core
            now.memory[taken, at] -= now.memory[taken, at] if piece.whole else piece.memory_mib
            now.idle[taken, at] = False
            vacant[taken, at] = False
            now = replace(now, cpu=now.cpu - piece.cpu, ram=now.ram - piece.ram)
    if len(set(slices)) > 1:  # with equal slices, the order of placing cannot fail
        _search(gpus, slices, shares, wholes, fits, price, chosen)
    return fits, price, chosen


def _search(
    gpus: Gpus, slices: Sequence[Slice], shares: Bools, wholes: Bools, fits: Bools, price: Ints, chosen: Ints
) -> None:
    """Search exactly if the policy's order of placing found nothing; equal nodes are searched once."""
    known: dict[bytes, list[int] | None] = {}
    left = SEARCH_STEPS
    core = sum(piece.core for piece in slices)
    enough = np.where(shares | wholes, gpus.core, 0).sum(axis=1) >= core
    for row in np.flatnonzero(~fits & enough):
        parts = (gpus.core[row], gpus.memory[row], gpus.capacity[row], shares[row], wholes[row])
        key = b"".join(part.tobytes() for part in parts)
        if key not in known:
            bins = [Bin(*values) for values in zip(*(part.tolist() for part in parts), strict=True)]
            budget = StepBudget(min(NODE_STEPS, left))
            known[key] = pack(bins, slices, budget)
            left -= min(NODE_STEPS, left) - budget.steps
        found = known[key]
        if found is not None:
            fits[row] = True
            # Such a node is tight: it is priced behind all that the policy priced, and ahead of none.
            price[row] = NOWHERE - 1
            chosen[row] = found
        else:
            chosen[row] = -1


def _reasons(view: View, demand: Demand) -> Ints:
    """Return why the nodes of `view` do not do, the reason that nothing can change first."""
    there = view.capacity > 0
    named = there & view.named
    right = named & view.model
    able = right & view.healthy
    now = _gpus(view)
    empty = replace(now, core=np.where(able, 100, 0), memory=np.where(able, view.capacity, 0), idle=able)
    possible, _, _ = _assign(empty, demand, able, able, _ANY)
    free, _, _ = _assign(now, demand, able, able & view.idle, _ANY)
    checks = (
        (~there.any(axis=1), Why.NO_GPUS),
        (~named.any(axis=1), Why.UUID),
        (~right.any(axis=1), Why.MODEL),
        (~able.any(axis=1), Why.HEALTH),
        (~possible, Why.TOO_SMALL),
        (free, Why.COMPANY),
    )
    return np.select([check for check, _ in checks], [int(why) for _, why in checks], int(Why.FULL))


def _only(view: View, rows: Ints) -> View:
    return View(
        view.capacity[rows], view.core[rows], view.memory[rows], view.healthy[rows], view.idle[rows],
        view.model[rows], view.named[rows], view.friend[rows], view.foe[rows], view.admits[rows],
        view.has_friends, view.code[rows], view.cpu[rows], view.ram[rows],
    )  # fmt: skip


def _gpus(view: View) -> Gpus:
    return Gpus(view.capacity, view.core, view.memory, view.idle, view.code, view.cpu, view.ram)


def explain(why: int, demand: Demand) -> str:
    """Return a reason in words that a user understands; alike for all nodes, because kube-scheduler counts equals."""
    company = [
        f"{name} {label.partition('/')[2]}"
        for name, label in (
            ("affinity", demand.affinity),
            ("anti-affinity", demand.anti_affinity),
            ("exclusion", demand.exclusion),
        )
        if label
    ]
    if demand.alone:
        company.append("sharing exclusive")
    full = f"too little is free for {demand.asks} (what is held for other pods counts as taken)"
    if demand.mode == MIG:
        full = f"the MIG slices that could hold {demand.asks} are taken"
    return {
        Why.FULL: full,
        Why.COMPANY: f"free GPUs, but not with the company allowed ({', '.join(company) or 'they exclude other pods'})",
        Why.UUID: f"GPU {demand.gpu_uuid} is not on this node",
        Why.MODEL: f"no GPU of model {' or '.join(demand.models)}",
        Why.HEALTH: "no healthy GPU outside of MIG mode" if demand.mode != MIG else "its MIG slices are not healthy",
        Why.TOO_SMALL: f"its GPUs could not hold {demand.asks} even if they were idle",
        Why.NO_GPUS: "the node has no GPUs that Slicekeeper manages",
        Why.NO_SLICE: f"the node has no MIG slice for {demand.asks}, or not enough of them",
        Why.DAMAGED: "the node's list of GPUs cannot be read (annotation slicekeeper.io/gpus)",
    }.get(Why(why), "fits")


def best_of(fits: Bools, price: Ints, rank: Ints) -> int | None:
    """Return the index of the cheapest that fits, of the lowest rank among equals."""
    fitting = np.flatnonzero(fits)
    if not len(fitting):
        return None
    prices = price[fitting]
    equal = fitting[prices == prices.min()]
    return int(equal[rank[equal].argmin()])


MAX_SCORE: Final = 10
"""kube-scheduler's highest score of an extender."""


def scores(fits: Bools, price: Ints, best: int | None) -> Ints:
    """Return each node's score, 0 to 10: 10 for `best` alone, 9 to 0 for the others that fit, by their price.

    kube-scheduler chooses at random among equals, so one node alone has the most. Places on MIG slices are priced far
    behind all others, so they do not count when these are graded.
    """
    if best is None:
        return np.zeros(len(fits), np.int64)
    prices = price[fits]
    compared = prices[prices < NOWHERE] if (prices < NOWHERE).any() else prices
    least, span = int(compared.min()), int(compared.max() - compared.min())
    second = MAX_SCORE - 1
    graded = np.where(fits, np.maximum(second - (price - least) * second // max(span, 1), 0), 0)
    graded[best] = MAX_SCORE
    return graded
