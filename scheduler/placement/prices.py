# SPDX-License-Identifier: Apache-2.0
"""Price vectors: what every node of a fleet costs one shape of request, of which only changed rows are priced again."""

from __future__ import annotations

from collections import OrderedDict
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from scheduler.placement.demand import Demand
from scheduler.placement.fleet import Fleet, Ints
from scheduler.placement.policy import Policy
from scheduler.placement.survey import Survey, survey

MOST_SHAPES: Final = 128
"""Vectors kept; one is 0.1 MB at 5,000 nodes and one GPU."""


@dataclass(frozen=True)
class _Vector:
    """Rows of the fleet as a policy judged them at a version. Never changed, only replaced."""

    policy: Policy
    version: int
    has_friends: bool
    survey: Survey


class Prices:
    """The vectors of the shapes asked for of late. Safe from any thread."""

    def __init__(self, fleet: Fleet, lock: AbstractContextManager[object]) -> None:
        """`lock` keeps the fleet still; it is held while changed rows are copied, not while they are priced."""
        self._fleet = fleet
        self._lock = lock
        self._vectors: OrderedDict[Demand, _Vector] = OrderedDict()

    def copy(self, fleet: Fleet) -> Prices:
        """Return the vectors for a copy of the fleet that is one thread's own."""
        other = Prices(fleet, nullcontext())
        with self._lock:
            other._vectors = self._vectors.copy()
        return other

    def survey(self, demand: Demand, policy: Policy) -> tuple[Survey, int]:
        """Return the answer for every row of the fleet, rows of no node among them, and the version it is of."""
        with self._lock:
            fleet = self._fleet
            known = self._vectors.get(demand)
            has_friends = fleet.has_friends(demand)
            if known is not None and (known.policy is not policy or known.has_friends != has_friends):
                known = None
            rows = fleet.changed_since(known.version if known else 0)
            version = fleet.version
            view = fleet.view_rows(rows, demand) if len(rows) else None
        if view is None and known is not None:
            return known.survey, version
        if view is None:
            return _none(len(demand.slices)), version
        fresh = survey(view, demand, policy)
        whole = fresh if known is None else merged(known.survey, rows, fresh)
        with self._lock:
            self._vectors[demand] = _Vector(policy, version, has_friends, whole)
            self._vectors.move_to_end(demand)
            if len(self._vectors) > MOST_SHAPES:
                self._vectors.popitem(last=False)
        return whole, version


def _none(slices: int) -> Survey:
    empty = np.zeros(0, np.int64)
    return Survey(np.zeros(0, np.bool_), empty, np.zeros((0, slices), np.int64), empty)


def merged(old: Survey, rows: Ints, fresh: Survey) -> Survey:
    """Return `old` with the answers of `fresh` for some rows, in rising order; new rows come at the end."""
    size = max(len(old.fits), int(rows[-1]) + 1)
    fits, price, gpus, why = (_grown(array, size) for array in (old.fits, old.price, old.gpus, old.why))
    fits[rows], price[rows], why[rows], gpus[rows] = fresh.fits, fresh.price, fresh.why, fresh.gpus
    return Survey(fits, price, gpus, why)


def _grown(array: Any, size: int) -> Any:
    larger = np.zeros((size, *array.shape[1:]), array.dtype)
    larger[: len(array)] = array
    return larger
