# SPDX-License-Identifier: Apache-2.0
"""From which anchor to go on, and what still matters after it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from sqlalchemy.orm import Session

from slicekeeper.units import Instant
from timekeeper.core.budget import BudgetState
from timekeeper.core.hierarchy import Tree
from timekeeper.core.record import AccountId, Records
from timekeeper.store import memberships, timelines


def anchored(session: Session, tree: Tree, before: Instant | None) -> tuple[Tree, dict[AccountId, BudgetState]]:
    """Return from which anchor before an instant (None: the latest) to go on, and what depends on a tree since.

    What is not in the anchor has not begun there.
    """
    while True:
        anchor = timelines.anchor_before(session, tree.keys, before)
        wider = memberships.tree(session, tree.keys, instant_of(anchor))
        if wider.keys == tree.keys:
            return wider, anchor
        tree = wider


def instant_of(states: Mapping[AccountId, BudgetState]) -> Instant | None:
    """Return of which instant states are, None if there are none."""
    return next((state.at for state in states.values()), None)


def rest_of(records: Records, at: Instant) -> Records:
    """Return what of a budget's records still matters after an instant."""
    return replace(
        records,
        claims=[c for c in records.claims if c.goes_on(at)],
        grants=[g for g in records.grants if g.since > at],
        withdrawals=[w for w in records.withdrawals if w.at > at],
    )
