# SPDX-License-Identifier: Apache-2.0
"""Price vectors: the price of every node of a fleet for one shape of request; only changed rows are priced again.

Nodes that are in the same state cost the same, so one of them is priced for all. Nodes of one type that are filled one
after the other come to the same states again and again.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from scheduler.placement.demand import Demand
from scheduler.placement.fleet_version import FleetVersion, Ints
from scheduler.placement.policy import Policy
from scheduler.placement.random_place import Random
from scheduler.placement.survey import Survey, survey

MOST_SHAPES: Final = 128
"""Vectors kept; one is 0.1 MB at 5,000 nodes and one GPU."""

MOST_STATES: Final = 256
"""States of nodes kept with a vector, about half a KiB each if nodes have 8 GPUs. If there are more, none is kept."""


@dataclass(frozen=True)
class _States:
    """What is known of states: by their bytes, which row of `survey` has the answer."""

    index: dict[bytes, int]
    survey: Survey


@dataclass(frozen=True)
class _Vector:
    """Rows of the fleet as a policy judged them at a version. Never changed, only replaced."""

    policy: Policy
    version: int
    has_friends: bool
    survey: Survey
    states: _States


class Prices:
    """The vectors of the shapes asked for recently. Safe from any thread, without a lock: vectors are only replaced.

    Two threads may compute the same one at once; the later one stays.
    """

    def __init__(self) -> None:
        self._vectors: dict[Demand, _Vector] = {}
        """In the order of their last use."""

    def copy(self) -> Prices:
        """Return the same vectors, for a copy of the fleet that changes separately."""
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
            none = _none(demand)
            known = _renewed(fleet, demand, known or _Vector(policy, 0, has_friends, none, _States({}, none)))
        self._vectors.pop(demand, None)
        self._vectors[demand] = known
        if len(self._vectors) > MOST_SHAPES:
            for oldest in list(self._vectors)[: len(self._vectors) - MOST_SHAPES]:
                self._vectors.pop(oldest, None)
        return known.survey, known.version


def _none(demand: Demand) -> Survey:
    empty = np.zeros(0, np.int64)
    return Survey(np.zeros(0, np.bool_), empty, np.zeros((0, len(demand.pieces)), np.int64), empty)


def _renewed(fleet: FleetVersion, demand: Demand, known: _Vector) -> _Vector:
    rows, states, found = fleet.changed_since(known.version), known.states, known.survey
    if len(rows):
        if _state_decides(fleet, demand, known.policy):
            fresh, states = _by_state(fleet, rows, demand, known)
        else:
            fresh = survey(fleet.view_rows(rows, demand), demand, known.policy)
        found = merged(found, rows, fresh)
    return replace(known, version=fleet.version, survey=found, states=states)


def _state_decides(fleet: FleetVersion, demand: Demand, policy: Policy) -> bool:
    """Whether nodes in the same state get the same answer: no UUID, label, MIG slice, effort or chance matters."""
    labels = demand.affinity or demand.anti_affinity or demand.exclusion
    slices = fleet.sliced and demand.takes_slices
    return not (demand.gpu_uuid or labels or slices or demand.is_unequal or isinstance(policy, Random))


def _by_state(fleet: FleetVersion, rows: Ints, demand: Demand, known: _Vector) -> tuple[Survey, _States]:
    """Survey rows, of each new state one; return the answers for all, and the states known then."""
    states = known.states
    of_rows = fleet.states(rows)
    new = {state: row for state, row in zip(of_rows, rows.tolist(), strict=True) if state not in states.index}
    if new:
        fresh = survey(fleet.view_rows(np.array(list(new.values())), demand), demand, known.policy)
        count = len(states.index)
        index = states.index | dict(zip(new, range(count, count + len(new)), strict=True))
        states = _States(index, merged(states.survey, np.arange(count, len(index)), fresh))
    at = np.array([states.index[state] for state in of_rows])
    found = states.survey
    answers = Survey(found.fits[at], found.price[at], found.gpus[at], found.why[at])
    return answers, states if len(states.index) <= MOST_STATES else _States({}, _none(demand))


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
