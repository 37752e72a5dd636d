# SPDX-License-Identifier: Apache-2.0
"""Open accounts: a namespace gets one with its first record."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy.orm import Session

from slicekeeper.config.policy import NamespacePolicy
from slicekeeper.units import EPOCH, Instant
from timekeeper.ledger.books import Books
from timekeeper.ledger.budget_rule import policy_rule
from timekeeper.store import accounts
from timekeeper.store.accounts import BudgetAccount


@dataclass(frozen=True)
class NamespaceRef:
    """A namespace by its UID, with the policy that it starts with; or a team or an organisation."""

    uid: str
    name: str
    policy: NamespacePolicy


def ensure_account(books: Books, session: Session, place: NamespaceRef, now: Instant) -> BudgetAccount:
    """Return a namespace's account, which is created if there is none, or a team's or an organisation's.

    Raises Unknown if one of the latter does not exist: these are created explicitly.
    """
    found = accounts.find(session, books.cluster, place.uid)
    if found is None and place.uid == accounts.parent_uid(place.name):
        found = accounts.require_parent(session, books.cluster, place.name)
    if found is None:
        rule = policy_rule(place.policy.budget, EPOCH)
        found = accounts.open_account(session, books.cluster, place.uid, place.name, rule, now)
    return found
