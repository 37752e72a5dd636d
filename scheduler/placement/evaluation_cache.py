# SPDX-License-Identifier: Apache-2.0
"""Keep the evaluation of a whole fleet for each demand asked for recently; only changed rows are evaluated again.

Nodes in the same state have the same result, so one of them is evaluated for all. Nodes of one type that are filled one
after the other come to the same states again and again.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from scheduler.placement.demand import Demand
from scheduler.placement.evaluation import Evaluation, evaluate
from scheduler.placement.fleet_version import FleetVersion, Ints
from scheduler.placement.policy import Policy
from scheduler.placement.random_place import Random

MOST_DEMANDS: Final = 128
"""Evaluations kept; one is 0.1 MB at 5,000 nodes and one GPU."""

MOST_STATES: Final = 256
"""States of nodes kept with an evaluation, half a KiB each if nodes have 8 GPUs. If there are more, none is kept."""


@dataclass(frozen=True)
class _States:
    """What is known of states: by their bytes, which row of `evaluation` has the answer."""

    index: dict[bytes, int]
    evaluation: Evaluation


@dataclass(frozen=True)
class _FleetEvaluation:
    """Rows of the fleet as a policy judged them at a version. Never changed, only replaced."""

    policy: Policy
    version: int
    has_friends: bool
    evaluation: Evaluation
    states: _States


class EvaluationCache:
    """Evaluations by demand. Safe from any thread, without a lock: they are only replaced.

    Two threads may compute the same one at once; the later one stays.
    """

    def __init__(self) -> None:
        self._known: dict[Demand, _FleetEvaluation] = {}
        """In the order of their last use."""

    def copy(self) -> EvaluationCache:
        """Return the same evaluations, for a copy of the fleet that changes separately."""
        other = EvaluationCache()
        other._known = self._known.copy()
        return other

    def evaluate(self, fleet: FleetVersion, demand: Demand, policy: Policy) -> tuple[Evaluation, int]:
        """Return the answer for every row, rows of no node among them, and the version it is of.

        That is `fleet`'s, or a later one that another thread has asked for.
        """
        known = self._known.get(demand)
        has_friends = fleet.has_friends(demand)
        if known is not None and (known.policy is not policy or known.has_friends != has_friends):
            known = None
        if known is None or known.version < fleet.version:
            none = _none(demand)
            known = _renewed(fleet, demand, known or _FleetEvaluation(policy, 0, has_friends, none, _States({}, none)))
        self._known.pop(demand, None)
        self._known[demand] = known
        if len(self._known) > MOST_DEMANDS:
            for oldest in list(self._known)[: len(self._known) - MOST_DEMANDS]:
                self._known.pop(oldest, None)
        return known.evaluation, known.version


def _none(demand: Demand) -> Evaluation:
    empty = np.zeros(0, np.int64)
    return Evaluation(np.zeros(0, np.bool_), empty, np.zeros((0, len(demand.pieces)), np.int64), empty)


def _renewed(fleet: FleetVersion, demand: Demand, known: _FleetEvaluation) -> _FleetEvaluation:
    rows, states, found = fleet.changed_since(known.version), known.states, known.evaluation
    if len(rows):
        if _state_decides(fleet, demand, known.policy):
            fresh, states = _by_state(fleet, rows, demand, known)
        else:
            fresh = evaluate(fleet.view_rows(rows, demand), demand, known.policy)
        found = merged(found, rows, fresh)
    return replace(known, version=fleet.version, evaluation=found, states=states)


def _state_decides(fleet: FleetVersion, demand: Demand, policy: Policy) -> bool:
    """Whether nodes in the same state get the same answer: no UUID, label, MIG slice, effort or chance matters."""
    labels = demand.affinity or demand.anti_affinity or demand.exclusion
    slices = fleet.sliced and demand.takes_slices
    return not (demand.gpu_uuid or labels or slices or demand.is_unequal or isinstance(policy, Random))


def _by_state(fleet: FleetVersion, rows: Ints, demand: Demand, known: _FleetEvaluation) -> tuple[Evaluation, _States]:
    """Evaluate rows, of each new state one; return the answers for all, and the states known then."""
    states = known.states
    of_rows = fleet.states(rows)
    new = {state: row for state, row in zip(of_rows, rows.tolist(), strict=True) if state not in states.index}
    if new:
        fresh = evaluate(fleet.view_rows(np.array(list(new.values())), demand), demand, known.policy)
        count = len(states.index)
        index = states.index | dict(zip(new, range(count, count + len(new)), strict=True))
        states = _States(index, merged(states.evaluation, np.arange(count, len(index)), fresh))
    at = np.array([states.index[state] for state in of_rows])
    found = states.evaluation
    answers = Evaluation(found.fits[at], found.price[at], found.gpus[at], found.why[at])
    return answers, states if len(states.index) <= MOST_STATES else _States({}, _none(demand))


def merged(old: Evaluation, rows: Ints, fresh: Evaluation) -> Evaluation:
    """Return `old` with the answers of `fresh` for some rows, in rising order; new rows come at the end."""
    size = max(len(old.fits), int(rows[-1]) + 1)
    fits, price, gpus, why = (_grown(array, size) for array in (old.fits, old.price, old.gpus, old.why))
    fits[rows], price[rows], why[rows], gpus[rows] = fresh.fits, fresh.price, fresh.why, fresh.gpus
    return Evaluation(fits, price, gpus, why)


def _grown(array: Any, size: int) -> Any:
    larger = np.zeros((size, *array.shape[1:]), array.dtype)
    larger[: len(array)] = array
    return larger
