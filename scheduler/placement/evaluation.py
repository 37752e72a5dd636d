# SPDX-License-Identifier: Apache-2.0
"""Evaluate nodes for a demand: on which of them it fits, on which GPUs, at what price, and why not on the others."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from scheduler.placement.affinity import admitting
from scheduler.placement.assignment import NOWHERE, assign
from scheduler.placement.best_fit import BestFit
from scheduler.placement.demand import Demand
from scheduler.placement.fleet_version import Bools, Ints, View
from scheduler.placement.mig import choose, suits
from scheduler.placement.policy import Gpus, Policy
from scheduler.placement.reasons import Why
from slicekeeper.names import MIG

_ANY: Final = BestFit()
"""A cheap policy, for when only the existence of a place matters."""


@dataclass(frozen=True)
class Evaluation:
    """The result for each of N nodes: `fits`, `price` and `why` have N entries, `gpus` N rows of one GPU per piece."""

    fits: Bools
    price: Ints
    gpus: Ints
    why: Ints


def evaluate(view: View, demand: Demand, policy: Policy, *, reasons: bool = True) -> Evaluation:
    """Evaluate every node of `view`; without `reasons`, `why` is FULL for every node that does not fit."""
    able = _able(view)
    if demand.mode == MIG:
        able[:] = False
    fits, price, gpus = assign(Gpus.of(view), demand, able & admitting(view, demand), able & view.idle, policy)
    _take_slices(view, demand, fits, price, gpus)
    why = np.where(fits, int(Why.FITS), int(Why.FULL))
    if reasons and not fits.all():
        failed = np.flatnonzero(~fits)
        if demand.mode == MIG:
            why[failed] = [_why_no_slice(view, row, demand) for row in failed.tolist()]
        else:
            why[failed] = _reasons(view.only(failed), demand)
            # A pod that leaves a slice can make room, even if nothing else on the node can.
            for row in _sliced(view, why >= int(Why.UUID)):
                if choose(view.sliced[row], demand, idle=True) is not None:
                    why[row] = int(Why.FULL)
    return Evaluation(fits, price, gpus, why)


def _take_slices(view: View, demand: Demand, fits: Bools, price: Ints, chosen: Ints) -> None:
    """Place the demand on MIG slices of nodes where it fits nowhere else, smaller slices first, after all other places.

    On a shared GPU, a pod is charged for what it requests and may use what others leave; on a slice it is charged for
    the whole slice, and can use no more.
    """
    for row in _sliced(view, ~fits):
        there = view.sliced[row]
        found = choose(there, demand)
        if found is not None:
            fits[row] = True
            price[row] = NOWHERE + sum(there.rows[at].size for at in found)
            chosen[row] = [there.gpus + at for at in found]


def _sliced(view: View, which: Bools) -> list[int]:
    """Return the rows of the nodes with MIG slices among those in `which`."""
    rows = np.fromiter(view.sliced, np.int64, len(view.sliced))
    found: list[int] = rows[which[rows]].tolist()
    return found


def _why_no_slice(view: View, row: int, demand: Demand) -> Why:
    """Return why a node has no slice for a demand that accepts nothing else."""
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
    """Return the GPUs that the demand's shares may use, however full they are."""
    return _able(view) & admitting(view, demand)


def _able(view: View) -> Bools:
    return (view.capacity > 0) & view.named & view.model & view.healthy


def _reasons(view: View, demand: Demand) -> Ints:
    """Return why the demand fits on no node of `view`; reasons that nothing can change come first."""
    there = view.capacity > 0
    named = there & view.named
    right = named & view.model
    able = right & view.healthy
    now = Gpus.of(view)
    empty = replace(now, core=np.where(able, 100, 0), memory=np.where(able, view.capacity, 0), idle=able)
    possible, _, _ = assign(empty, demand, able, able, _ANY)
    free, _, _ = assign(now, demand, able, able & view.idle, _ANY)
    checks = (
        (~there.any(axis=1), Why.NO_GPUS),
        (~named.any(axis=1), Why.UUID),
        (~right.any(axis=1), Why.MODEL),
        (~able.any(axis=1), Why.HEALTH),
        (~possible, Why.TOO_SMALL),
        (free, Why.COMPANY),
    )
    return np.select([check for check, _ in checks], [int(why) for _, why in checks], int(Why.FULL))
