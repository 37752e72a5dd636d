# SPDX-License-Identifier: Apache-2.0
"""Find the cheapest nodes for a pod in a published version of the fleet, and those for the next pod in advance.

Nothing here takes a lock: versions are immutable, and data kept between calls is only ever replaced.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from scheduler.node_names import Roster
from scheduler.nodes import Nodes
from scheduler.placement.demand import Demand
from scheduler.placement.evaluation import Evaluation, evaluate
from scheduler.placement.evaluation_cache import EvaluationCache
from scheduler.placement.fleet import Fleet
from scheduler.placement.fleet_version import Bools, FleetVersion, Ints
from scheduler.placement.policy import Policy
from scheduler.placement.ranking import best_of
from scheduler.placement.reasons import Why
from scheduler.pods import Hold, KnownPod, chosen_hold

EVALUATIONS: Final = 16
"""Number of pods whose last evaluation is kept for the next call."""

FIRST: Final = 16
"""Number of the cheapest nodes among which the best one is sought first."""


@dataclass(frozen=True)
class Cheapest:
    """The first of the nodes of a fleet that are cheapest for a demand, best first, by their rows in `evaluation`."""

    roster: Roster
    evaluation: Evaluation
    version: int
    rows: list[int]
    fitting: int
    """How many nodes fit."""


@dataclass(frozen=True)
class Found:
    """The requested nodes, by their rows in `evaluation`, the whole fleet's answer, and other nodes, with reasons."""

    roster: Roster
    rows: Ints
    evaluation: Evaluation
    fits: Bools
    price: Ints
    usable: Bools
    """Those that fit, without those to be avoided unless there are no others."""
    best: int | None
    """An index into `rows`, `fits`, `price` and `usable`, which are in the requested order."""
    others: dict[str, Why]

    @property
    def equals(self) -> Ints:
        """The indices of the nodes that are as good as the best, itself among them."""
        if self.best is None:
            return np.zeros(0, np.int64)
        return np.flatnonzero(self.usable & (self.price == self.price[self.best]))


class NodeFinder:
    """EvaluationCache, names, and recent results. Thread-safe."""

    def __init__(self, nodes: Nodes) -> None:
        self._nodes = nodes
        self.cache = EvaluationCache()
        self._roster = 0, Roster([])
        """The names of the roster, and the roster."""
        self._cheapest: tuple[Demand, Cheapest] | None = None
        """The last result of `cheapest`."""
        self._seen: dict[str, tuple[Demand, Evaluation, int]] = {}
        """The last results for a few pods, the latest last: `prioritize` follows `filter` at once."""
        self._last: Demand | None = None
        """What was asked for last."""
        self._next: Demand | None = None
        """What is probably asked for next, if it is priced quickly: `look_ahead` keeps other calls waiting."""

    def roster(self, fleet: FleetVersion) -> Roster:
        """Return the nodes of a version by row."""
        of, roster = self._roster
        if of != fleet.renamed:
            roster = Roster(fleet.names)
            self._roster = fleet.renamed, roster
        return roster

    def cheapest(self, fleet: FleetVersion, demand: Demand, policy: Policy) -> Cheapest:
        """Return the cheapest nodes of a version. If nothing has changed since the last call it takes no time."""
        roster = self.roster(fleet)
        evaluation, version = self.cache.evaluate(fleet, demand, policy)
        last = self._cheapest
        if last is not None and (last[0], last[1].roster) == (demand, roster) and last[1].evaluation is evaluation:
            return replace(last[1], version=version)
        fitting = np.flatnonzero(evaluation.fits[: len(roster.names)])
        prices = evaluation.price[fitting]
        equal = fitting[prices == prices.min()] if len(fitting) else fitting
        rank = roster.rank[equal]
        if len(rank) > FIRST:
            equal = equal[np.argpartition(rank, FIRST)[:FIRST]]
            rank = roster.rank[equal]
        found = Cheapest(roster, evaluation, version, equal[rank.argsort()].tolist(), len(fitting))
        self._cheapest = demand, found
        return found

    def expect_another(self, demand: Demand) -> None:
        """Expect what was asked for twice a third time: pods of one controller come together."""
        self._next = demand if demand == self._last and not demand.is_unequal else None
        self._last = demand

    def look_ahead(self, fleet: FleetVersion, policy: Policy) -> None:
        """Price a version for what is expected, if anything is."""
        expected = self._next
        if expected is not None:
            self.cheapest(fleet, expected, policy)

    def seen(self, pod: KnownPod) -> tuple[Evaluation, int] | None:
        """Return the last result for a pod, and its version; None if there is none."""
        known = self._seen.get(pod.uid)
        return known[1:] if known is not None and known[0] == pod.demand else None

    def remember(self, pod: KnownPod, evaluation: Evaluation, version: int) -> None:
        """Keep the result for the pod's next call."""
        self._seen.pop(pod.uid, None)
        self._seen[pod.uid] = pod.demand, evaluation, version
        for oldest in list(self._seen)[:-EVALUATIONS]:
            self._seen.pop(oldest, None)

    def found(self, roster: Roster, rows: Ints, unknown: Sequence[str], evaluation: Evaluation) -> Found:
        """Return the answer for the nodes of `rows`."""
        others = {name: Why.DAMAGED if name in self._nodes.damaged else Why.NO_GPUS for name in unknown}
        here = rows < len(evaluation.fits)
        if not here.all():  # nodes that are new since then
            others |= {roster.names[row]: Why.NO_GPUS for row in rows[~here].tolist()}
            rows = rows[here]
        fits, price, rank = evaluation.fits[rows], evaluation.price[rows], roster.rank[rows]
        avoided = [row for row in map(roster.row, list(self._nodes.avoided)) if row >= 0]
        usable = fits & ~np.isin(rows, avoided) if avoided else fits
        if not usable.any():
            usable = fits
        return Found(roster, rows, evaluation, fits, price, usable, best_of(usable, price, rank), others)


def cheapest_hold(
    fleet: Fleet, nodes: Sequence[str], pod: KnownPod, policy: Policy, *, has_friends: bool = False
) -> Hold | None:
    """Return what a pod would hold on the cheapest of some nodes, the first among equals; None if it fits on none."""
    view = fleet.view(nodes, pod.demand, has_friends=has_friends)
    evaluation = evaluate(view, pod.demand, policy, reasons=False)
    best = best_of(evaluation.fits, evaluation.price, np.arange(len(nodes)))
    if best is None:
        return None
    uuids = fleet.publish().uuids(nodes[best])
    return chosen_hold(pod, nodes[best], [uuids[column] for column in evaluation.gpus[best].tolist()])[0]
