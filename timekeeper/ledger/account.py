# SPDX-License-Identifier: Apache-2.0
"""Open accounts: a namespace gets one with its first record."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy.orm import Session

from slicekeeper.config.policy import NamespacePolicy
from slicekeeper.units import EPOCH, Instant
from timekeeper.core.refusal import NamespaceOff
from timekeeper.ledger.books import Books
from timekeeper.ledger.budget_rule import policy_rule
from timekeeper.store import accounts
from timekeeper.store.accounts import BudgetAccount


@dataclass(frozen=True)
class AccountRef:
    """Names the account of a namespace, a team or an organisation; a namespace need not have one yet.

    `policy` determines the budget with which a namespace's account is opened.
    """

    uid: str
    name: str
    policy: NamespacePolicy


def refuse_off(ref: AccountRef, field: str = "namespace") -> None:
    """Refuse to change the budget of a namespace whose pods are charged to none; `field` names the namespace."""
    if ref.policy.mode == "off":
        raise NamespaceOff(
            f"{field}: no budget applies to {ref.name}, because the setting policy.exemptNamespaces has it, or its "
            "policy says mode: off; change that first",
            field,
        )


def ensure_account(books: Books, session: Session, ref: AccountRef, now: Instant) -> BudgetAccount:
    """Return an account; open it if it is a namespace's and does not exist yet.

    Raises Unknown if a team or an organisation does not exist: these are created explicitly.
    """
    found = accounts.find(session, books.cluster, ref.uid)
    if found is None and ref.uid == accounts.parent_uid(ref.name):
        found = accounts.require_parent(session, books.cluster, ref.name)
    if found is None:
        rule = policy_rule(ref.policy.budget, EPOCH)
        found = accounts.open_account(session, books.cluster, ref.uid, ref.name, rule, now)
    return found
