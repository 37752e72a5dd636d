# SPDX-License-Identifier: Apache-2.0
"""Budgets that Kubernetes objects keep: what an object says is taken once per generation, and never an older one.

Whoever tells of an object may be late, be told twice, be two, or die between any two lines. So each telling bears what
orders it: when the object was made (its name can be used again, by an object of another UID), and its generation, which
the API server counts up with each change of its spec.
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
from timekeeper.ledger.movement import Place
from timekeeper.ledger.standing import Position
from timekeeper.store import accounts, kept
from timekeeper.store.accounts import Kind, Known
from timekeeper.store.kept import Kept


@dataclass(frozen=True)
class Telling:
    """What an object says. `kept.parent` None: it leaves the parent to others."""

    kept: Kept
    rule: Rule
    actor: str
    now: Instant


def keep(books: Books, place: Place, told: Telling) -> bool:
    """Have an object keep a namespace's budget; return whether it was not known to say so.

    Raises ObjectOutdated if a newer state was taken, LedgerError as `set_budget` and `put_under` do.
    """

    def change(session: Session) -> bool:
        known = ensure(books, session, place.uid, place.name, place.policy, told.now)
        if not _is_news(session, known, told.kept):
            return False
        _note(books, session, known, told)
        change_budget(books, session, known, told.rule, actor=told.actor, if_match=None)
        _place(books, session, known, told)
        return True

    return books.database.write(change)


def keep_parent(books: Books, name: str, kind: Kind, told: Telling) -> bool:
    """Have an object keep a team or an organisation, which is made if there is none; as `keep` otherwise."""

    def change(session: Session) -> bool:
        found = accounts.find(session, books.cluster, accounts.parent_uid(name))
        if found is not None and not _is_news(session, found, told.kept):
            return False
        known, _ = hierarchy.change_parent(books, session, name, kind, told.rule, actor=told.actor, if_match=None)
        _note(books, session, known, told)
        _place(books, session, known, told)
        return True

    return books.database.write(change)


def release(books: Books, place: Place, uid: str, *, actor: str, now: Instant) -> bool:
    """Note that an object was deleted; return False if it does not keep the budget.

    A namespace has its policy's budget from now on. A team or an organisation keeps the budget that it has, because
    others are under it. The parent of either stays.
    """

    def change(session: Session) -> bool:
        known = accounts.find(session, books.cluster, place.uid)
        found = None if known is None else kept.last(session, known.id)
        if known is None or found is None or found.uid != uid or found.released is not None:
            return False
        accounts.touch(session, known.id)
        ended = Kept(found.uid, found.created, found.generation, None, now)
        kept.put(session, known.id, ended)
        detail = {"uid": uid, "generation": found.generation, "deleted": "true"}
        books.note(session, actor=actor, action="object", about=known, detail=detail, now=now)
        if known.kind == "namespace":
            fall_back(books, session, known, place.policy, now)
        return True

    return books.database.write(change)


def keeping(books: Books, positions: Sequence[Position]) -> dict[AccountId, Kept]:
    """Return the objects that keep some budgets now."""
    with books.database.reading() as session:
        return kept.keeping(session, [position.known.id for position in positions])


def _is_news(session: Session, known: Known, told: Kept) -> bool:
    """Whether an object says what was not taken yet.

    Raises ObjectOutdated if it is late. Where times do not tell, as of two objects of one second, or of an object that
    was believed deleted, it is taken: who looks again tells of the one that is there, and nothing is stuck.
    """
    found = kept.last(session, known.id)
    if found is None:
        return True
    if found.uid == told.uid and found.generation == told.generation and found.released is None:
        return False
    late = found.generation > told.generation if found.uid == told.uid else found.created > told.created
    if late:
        raise ObjectOutdated(
            f"budget of {known.title}: the object with UID {found.uid} was already seen at generation "
            f"{found.generation}; if yours was restored from a backup, create it again"
        )
    return True


def _note(books: Books, session: Session, known: Known, told: Telling) -> None:
    accounts.touch(session, known.id)
    kept.put(session, known.id, told.kept)
    detail = {"uid": told.kept.uid, "generation": told.kept.generation}
    books.note(session, actor=told.actor, action="object", about=known, detail=detail, now=told.now)


def _place(books: Books, session: Session, known: Known, told: Telling) -> None:
    if told.kept.parent is not None:
        above, reason = told.kept.parent or None, f"generation {told.kept.generation} of its object"
        hierarchy.change_place(books, session, known, above, reason=reason, actor=told.actor, now=told.now)
