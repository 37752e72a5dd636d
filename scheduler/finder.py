# SPDX-License-Identifier: Apache-2.0
"""What `filter` and `prioritize` read: every node's price for a pod, by a published version of the fleet.

Nothing here takes a lock: versions never change, and what is remembered between calls is only ever replaced.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from scheduler.node_names import Roster
from scheduler.nodes import Nodes
from scheduler.placement.demand import Demand
from scheduler.placement.fleet_version import Bools, FleetVersion, Ints
from scheduler.placement.prices import Prices
from scheduler.placement.ranking import best_of
from scheduler.placement.reasons import Why
from scheduler.placement.survey import Survey
from scheduler.pods import Pod

SURVEYS: Final = 16
"""Pods whose last survey is kept for the next call."""


@dataclass(frozen=True)
class Found:
    """The nodes asked for, by their rows in `judged`, the whole fleet's answer, and those not judged, with why."""

    roster: Roster
    rows: Ints
    judged: Survey
    fits: Bools
    price: Ints
    best: int | None
    """An index into `rows`, `fits` and `price`, which are in the order asked."""
    others: dict[str, Why]


class Finder:
    """Prices, names, and what was seen recently. Safe from any thread."""

    def __init__(self, nodes: Nodes) -> None:
        self._nodes = nodes
        self.prices = Prices()
        self._roster = 0, Roster([])
        """Which names it is of, and the roster."""
        self._seen: dict[str, tuple[Demand, Survey, int]] = {}
        """What was seen last for a few pods, the latest last: `prioritize` follows `filter` at once."""

    def roster(self, fleet: FleetVersion) -> Roster:
        """Return the nodes of a version by row."""
        of, roster = self._roster
        if of != fleet.renamed:
            roster = Roster(fleet.names)
            self._roster = fleet.renamed, roster
        return roster

    def seen(self, pod: Pod) -> tuple[Survey, int] | None:
        """Return what was seen last for a pod, and the version it is of; None if that is not known."""
        known = self._seen.get(pod.uid)
        return known[1:] if known is not None and known[0] == pod.demand else None

    def remember(self, pod: Pod, judged: Survey, version: int) -> None:
        """Keep what was seen for the pod's next call."""
        self._seen.pop(pod.uid, None)
        self._seen[pod.uid] = pod.demand, judged, version
        for oldest in list(self._seen)[:-SURVEYS]:
            self._seen.pop(oldest, None)

    def found(self, roster: Roster, rows: Ints, unknown: Sequence[str], judged: Survey) -> Found:
        """Return the answer for the nodes of `rows`."""
        others = {name: Why.DAMAGED if name in self._nodes.damaged else Why.NO_GPUS for name in unknown}
        here = rows < len(judged.fits)
        if not here.all():  # nodes that have come since
            others |= {roster.names[row]: Why.NO_GPUS for row in rows[~here].tolist()}
            rows = rows[here]
        fits, price, rank = judged.fits[rows], judged.price[rows], roster.rank[rows]
        avoided = [row for row in map(roster.row, list(self._nodes.avoided)) if row >= 0]
        best = best_of(fits & ~np.isin(rows, avoided), price, rank) if avoided else None
        if best is None:
            best = best_of(fits, price, rank)
        return Found(roster, rows, judged, fits, price, best, others)
