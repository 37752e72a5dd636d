# SPDX-License-Identifier: Apache-2.0
"""Budgets that Kubernetes objects keep: what an object says is taken once per generation, and never an older one.

An operator may be late, ask twice, run twice, or die between any two lines. So each request has what orders it: when
the object was made (its name can be used again, by an object of another UID), and its generation, which the API server
counts up with each change of its spec.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy.orm import Session

from slicekeeper.units import Instant
from timekeeper.core.record import AccountId, Rule
from timekeeper.core.refusal import ObjectOutdated
from timekeeper.ledger import hierarchy
from timekeeper.ledger.account import ensure
from timekeeper.ledger.books import Books
from timekeeper.ledger.budget import change_budget, fall_back
from timekeeper.ledger.movement import NamespaceRef
from timekeeper.ledger.standing import Position
from timekeeper.store import accounts, budget_objects
from timekeeper.store.accounts import BudgetAccount, Kind
from timekeeper.store.budget_objects import Kept


@dataclass(frozen=True)
class Desired:
    """The budget that an object asks for. `kept.parent` None: it leaves the parent to others."""

    kept: Kept
    rule: Rule
    writer: str
    """Who wrote this generation, as the API server knows them; empty if it is not known."""
    reporter: str
    """Who reported it: the operator."""
    now: Instant

    @property
    def actor(self) -> str:
        """Who stands in the records for what follows from this generation."""
        return self.writer or self.reporter


def keep(books: Books, place: NamespaceRef, desired: Desired) -> bool:
    """Have an object keep a namespace's budget; return whether that was news.

    Raises ObjectOutdated if a newer state was taken, LedgerError as `set_budget` and `put_under` do.
    """

    def change(session: Session) -> bool:
        account = ensure(books, session, place.uid, place.name, place.policy, desired.now)
        if not _is_news(session, account, desired.kept):
            return False
        _note(books, session, account, desired)
        change_budget(books, session, account, desired.rule, actor=desired.actor, if_match=None)
        _place(books, session, account, desired)
        return True

    return books.database.write(change)


def keep_parent(books: Books, name: str, kind: Kind, desired: Desired) -> bool:
    """Have an object keep a team or an organisation, which is made if there is none; as `keep` otherwise."""

    def change(session: Session) -> bool:
        found = accounts.find(session, books.cluster, accounts.parent_uid(name))
        if found is not None and not _is_news(session, found, desired.kept):
            return False
        account, _ = hierarchy.change_parent(
            books, session, name, kind, desired.rule, actor=desired.actor, if_match=None
        )
        _note(books, session, account, desired)
        _place(books, session, account, desired)
        return True

    return books.database.write(change)


def release(books: Books, place: NamespaceRef, uid: str, *, actor: str, now: Instant) -> bool:
    """Note that an object was deleted; return False if it does not keep the budget.

    A namespace has its policy's budget from now on. A team or an organisation keeps the budget that it has, because
    others are under it. The parent of either stays.
    """

    def change(session: Session) -> bool:
        account = accounts.find(session, books.cluster, place.uid)
        found = None if account is None else budget_objects.last(session, account.id)
        if account is None or found is None or found.uid != uid or found.released is not None:
            return False
        accounts.touch(session, account.id)
        ended = Kept(found.uid, found.created, found.generation, None, now)
        budget_objects.put(session, account.id, ended)
        detail = {"uid": uid, "generation": found.generation, "deleted": "true"}
        books.note(session, actor=actor, action="object", about=account, detail=detail, now=now)
        if account.kind == "namespace":
            fall_back(books, session, account, place.policy, now)
        return True

    return books.database.write(change)


def keeping(books: Books, positions: Sequence[Position]) -> dict[AccountId, Kept]:
    """Return the objects that keep some budgets now."""
    with books.database.reading() as session:
        return budget_objects.keeping(session, [position.account.id for position in positions])


def _is_news(session: Session, account: BudgetAccount, state: Kept) -> bool:
    """Whether an object says what was not taken yet.

    Raises ObjectOutdated if it is late. If times cannot decide, as between two objects of one second, or for an object
    that was believed deleted, it is taken: the next look finds the one that is there, and nothing is stuck.
    """
    found = budget_objects.last(session, account.id)
    if found is None:
        return True
    if found.uid == state.uid and found.generation == state.generation and found.released is None:
        return False
    late = found.generation > state.generation if found.uid == state.uid else found.created > state.created
    if late:
        raise ObjectOutdated(
            f"budget of {account.title}: the object with UID {found.uid} was already seen at generation "
            f"{found.generation}; if yours was restored from a backup, create it again"
        )
    return True


def _note(books: Books, session: Session, account: BudgetAccount, desired: Desired) -> None:
    accounts.touch(session, account.id)
    budget_objects.put(session, account.id, desired.kept)
    by = {"reportedBy": desired.reporter} if desired.writer else {"changedBy": "not known"}
    detail = {"uid": desired.kept.uid, "generation": desired.kept.generation, **by}
    books.note(session, actor=desired.actor, action="object", about=account, detail=detail, now=desired.now)


def _place(books: Books, session: Session, account: BudgetAccount, desired: Desired) -> None:
    if desired.kept.parent is not None:
        above, reason = desired.kept.parent or None, f"generation {desired.kept.generation} of its object"
        hierarchy.change_place(books, session, account, above, reason=reason, actor=desired.actor, now=desired.now)
