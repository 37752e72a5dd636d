# SPDX-License-Identifier: Apache-2.0
"""Choose the checkpoint from which a time line is continued, and the records that still matter after it.

A checkpoint is the states of budgets at an instant, all of which follow from the records up to then.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from sqlalchemy.orm import Session

from slicekeeper.units import Instant
from timekeeper.core import timeline
from timekeeper.core.account import AccountId
from timekeeper.core.budget_record import Forest, Records
from timekeeper.core.budget_state import BudgetState
from timekeeper.core.hierarchy import Tree
from timekeeper.store import hierarchy_links, timelines


def newest_checkpoint(
    session: Session, tree: Tree, before: Instant | None
) -> tuple[Tree, dict[AccountId, BudgetState]]:
    """Return the newest checkpoint before an instant (None: of all), and before it a tree with all linked since then.

    A budget that is not in the checkpoint had not begun at its instant.
    """
    while True:
        checkpoint = timelines.checkpoint_before(session, tree.keys, before)
        # It must also have the budgets that were linked then and no longer are, which it was chosen without.
        wider = hierarchy_links.tree(session, tree.keys, instant_of(checkpoint))
        if wider.keys == tree.keys:
            return wider, checkpoint
        tree = wider


def resume(
    session: Session,
    tree: Tree,
    checkpoint: dict[AccountId, BudgetState],
    at: Instant,
    *,
    carry: bool,
    until: Instant | None = None,
) -> tuple[Forest, dict[AccountId, BudgetState]]:
    """Return the records since a checkpoint, as `timelines.records` does, and the states from which to continue.

    Budgets that are not in it begin later, at `at` if there is no earlier record.
    """
    records = timelines.records(session, tree.keys, instant_of(checkpoint), carry=carry, until=until)
    forest = Forest(records, tree.links)
    return forest, timeline.begin_all(forest, at) | checkpoint


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
