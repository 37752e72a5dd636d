# SPDX-License-Identifier: Apache-2.0
"""Read the budgets of a tree with what is reserved in them: as this process knows them, or settled first."""

from __future__ import annotations

from sqlalchemy.orm import Session

from slicekeeper.units import Instant
from timekeeper.core.account import AccountId
from timekeeper.core.budget_record import Forest
from timekeeper.core.coverage import Cover
from timekeeper.core.hierarchy import IN_FORCE
from timekeeper.ledger import settlement
from timekeeper.ledger.books import Books
from timekeeper.ledger.standing import BudgetStanding
from timekeeper.store import hierarchy_links, reservations, timelines


def known(session: Session, standing: BudgetStanding, now: Instant) -> Cover:
    """Return the cover of a budget as this process knows it; another process may have changed it since."""
    states = standing.tree_standing.at(now)
    reserved = reservations.reserved(session, states[standing.account.id].at, states.keys())
    return Cover(states, standing.tree_standing.forest, reserved)


def settled(books: Books, session: Session, budget: AccountId, now: Instant) -> Cover:
    """Settle a budget, and return its cover.

    Settling updates the row of the root, so two transactions cannot reserve the same time.
    """
    everything = settlement.settle_all(books, session, {budget: None}, now)
    tree = hierarchy_links.tree(session, [budget], IN_FORCE)
    at = everything[budget].at
    records = timelines.records(session, tree.keys, at, carry=False)  # either would do: a `Cover` ignores debts
    reserved = reservations.reserved(session, at, tree.keys)
    return Cover({key: everything[key] for key in tree.keys}, Forest(records, tree.links), reserved)
