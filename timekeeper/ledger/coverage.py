# SPDX-License-Identifier: Apache-2.0
"""Read what `timekeeper.core.reservation.gap` needs to check whether reservations stay covered until their end."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from sqlalchemy.orm import Session

from slicekeeper.units import Instant
from timekeeper.core.budget import BudgetState
from timekeeper.core.hierarchy import IN_FORCE, Tree
from timekeeper.core.record import AccountId, Aside, Forest
from timekeeper.core.reservation import Gap, gap
from timekeeper.ledger import settlement
from timekeeper.ledger.books import Books
from timekeeper.store import memberships, timelines
from timekeeper.store import reservations as store


def gap_of_withdrawal(books: Books, session: Session, budget: AccountId, now: Instant) -> Gap | None:
    """Return the gap in what covers the GPU time set aside in a budget and below it, after something was taken out."""
    tree = memberships.tree(session, [budget], IN_FORCE)
    asides = store.asides(session, tree.keys, now)
    return (
        gap_in(session, tree, settlement.settle_all(books, session, {budget: None}, now), asides, [budget], now)
        if asides
        else None
    )


def gap_in(
    session: Session,
    tree: Tree,
    states: Mapping[AccountId, BudgetState],
    asides: Sequence[Aside],
    budgets: Collection[AccountId],
    now: Instant,
) -> Gap | None:
    """Return the first gap in what covers the GPU time set aside in some budgets of a tree, and below them."""
    forest = Forest(timelines.records(session, tree.keys, max(s.at for s in states.values()), carry=False), tree.links)
    return gap({key: states[key] for key in tree.keys}, forest, asides, budgets, now)
