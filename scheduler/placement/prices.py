# SPDX-License-Identifier: Apache-2.0
"""Price vectors: what every node of a fleet costs one shape of request, of which only changed rows are priced again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from scheduler.placement.demand import Demand
from scheduler.placement.fleet_version import FleetVersion, Ints
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
    """The vectors of the shapes asked for recently. Safe from any thread, without a lock: vectors are only replaced.

    Two threads may work out the same one at once; the later one stays.
    """

    def __init__(self) -> None:
        self._vectors: dict[Demand, _Vector] = {}
        """The one used last is the last."""

    def copy(self) -> Prices:
        """Return the same vectors, for a fleet that goes its own way from here."""
        other = Prices()
        other._vectors = self._vectors.copy()
        return other

    def survey(self, fleet: FleetVersion, demand: Demand, policy: Policy) -> tuple[Survey, int]:
        """Return the answer for every row, rows of no node among them, and the version it is of.

        That is `fleet`'s, or a later one that another thread has asked for.
        """
        known = self._vectors.get(demand)
        has_friends = fleet.has_friends(demand)
        if known is not None and (known.policy is not policy or known.has_friends != has_friends):
            known = None
        if known is None or known.version < fleet.version:
            known = _Vector(policy, fleet.version, has_friends, _renewed(fleet, demand, policy, known))
        self._vectors.pop(demand, None)
        self._vectors[demand] = known
        if len(self._vectors) > MOST_SHAPES:
            for oldest in list(self._vectors)[: len(self._vectors) - MOST_SHAPES]:
                self._vectors.pop(oldest, None)
        return known.survey, known.version


def _renewed(fleet: FleetVersion, demand: Demand, policy: Policy, known: _Vector | None) -> Survey:
    rows = fleet.changed_since(known.version if known else 0)
    if not len(rows):
        return known.survey if known is not None else _none(len(demand.slices))
    fresh = survey(fleet.view_rows(rows, demand), demand, policy)
    return fresh if known is None else merged(known.survey, rows, fresh)


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
