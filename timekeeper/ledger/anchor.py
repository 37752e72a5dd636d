# SPDX-License-Identifier: Apache-2.0
"""Choose the anchor to continue from, and the records that still matter after it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from sqlalchemy.orm import Session

from slicekeeper.units import Instant
from timekeeper.core.account import AccountId
from timekeeper.core.budget_record import Records
from timekeeper.core.budget_state import BudgetState
from timekeeper.core.hierarchy import Tree
from timekeeper.store import hierarchy_links, timelines


def anchored(session: Session, tree: Tree, before: Instant | None) -> tuple[Tree, dict[AccountId, BudgetState]]:
    """Return the newest anchor before an instant (None: of all), and a tree with all budgets linked to it since then.

    A budget that is not in the anchor had not begun at its instant.
    """
    while True:
        anchor = timelines.anchor_before(session, tree.keys, before)
        # The anchor must also have the budgets that were linked then and no longer are, which it was chosen without.
        wider = hierarchy_links.tree(session, tree.keys, instant_of(anchor))
        if wider.keys == tree.keys:
            return wider, anchor
        tree = wider


def instant_of(states: Mapping[AccountId, BudgetState]) -> Instant | None:
    """Return the instant of the states; None if there are none."""
    return next((state.at for state in states.values()), None)


def rest_of(records: Records, at: Instant) -> Records:
    """Return the records of a budget that still matter after an instant."""
    return replace(
        records,
        claims=[c for c in records.claims if c.goes_on(at)],
        grants=[g for g in records.grants if g.since > at],
        withdrawals=[w for w in records.withdrawals if w.at > at],
    )
