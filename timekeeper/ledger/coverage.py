# SPDX-License-Identifier: Apache-2.0
"""Read the budgets of a tree with what is set aside in them: as this process knows them, or settled."""

from __future__ import annotations

from sqlalchemy.orm import Session

from slicekeeper.units import Instant
from timekeeper.core.coverage import Cover
from timekeeper.core.hierarchy import IN_FORCE
from timekeeper.core.record import AccountId, Forest
from timekeeper.ledger import settlement
from timekeeper.ledger.books import Books
from timekeeper.ledger.standing import Position
from timekeeper.store import memberships, reservations, timelines


def known(session: Session, position: Position, now: Instant) -> Cover:
    """Return what this process knows; another one may have changed it."""
    states = position.together.at(now)
    asides = reservations.asides(session, states[position.account.id].at, states.keys())
    return Cover(states, position.together.forest, asides)


def settled(books: Books, session: Session, budget: AccountId, now: Instant) -> Cover:
    """Settle a budget, and return what is true.

    The row of its root is updated, so two transactions cannot reserve the same time.
    """
    everything = settlement.settle_all(books, session, {budget: None}, now)
    tree = memberships.tree(session, [budget], IN_FORCE)
    at = everything[budget].at
    records = timelines.records(session, tree.keys, at, carry=False)  # either would do: a `Cover` ignores debts
    asides = reservations.asides(session, at, tree.keys)
    return Cover({key: everything[key] for key in tree.keys}, Forest(records, tree.links), asides)
