# SPDX-License-Identifier: Apache-2.0
"""Accept budgets that Kubernetes objects define: each generation of an object once, and never an older one.

An operator may be late, send a request twice, run twice, or die between any two lines. So each request names the state
that the ledger had before the object was read: it is accepted only if nothing was accepted since. The times at which
objects were made do not order them: they are in whole seconds, and each API server's own.
"""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy.orm import Session

from slicekeeper.units import Instant
from timekeeper.core.budget_record import Rule
from timekeeper.core.refusal import ObjectOutdated, VersionMismatch
from timekeeper.ledger import hierarchy
from timekeeper.ledger.account import AccountRef, ensure_account, refuse_off
from timekeeper.ledger.books import Books
from timekeeper.ledger.budget import change_budget, fall_back
from timekeeper.store import accounts, budget_objects
from timekeeper.store.accounts import BudgetAccount, HolderKind
from timekeeper.store.budget_objects import AcceptedObject


@dataclass(frozen=True)
class Desired:
    """The budget that an object defines. `object.parent` None: the object does not set the parent.

    `seen` is the version (`version_of`) that the ledger had before the object was read.
    """

    object: AcceptedObject
    seen: str
    rule: Rule
    writer: str
    """The author of this generation, as known to the API server; empty if unknown."""
    reporter: str
    """The sender of the report: the operator."""
    now: Instant

    @property
    def actor(self) -> str:
        """The user that records name for the changes of this generation."""
        return self.writer or self.reporter

    @property
    def reason(self) -> str:
        """The reason that records give for them."""
        return f"generation {self.object.generation} of its object"


def keep(books: Books, ref: AccountRef, desired: Desired) -> None:
    """Accept a generation of an object that keeps a namespace's budget.

    Raises VersionMismatch if another state was accepted since the operator looked, ObjectOutdated if the object's
    generation goes back, LedgerError as `set_budget` and `set_parent` do.
    """

    def change(session: Session) -> None:
        account = ensure_account(books, session, ref, desired.now)
        if _is_new(session, account, desired):
            refuse_off(ref)
            _note(books, session, account, desired)
            change_budget(
                books, session, account, desired.rule, actor=desired.actor, if_match=None, reason=desired.reason
            )
            _move(books, session, account, desired)

    books.database.write(change)


def keep_parent(books: Books, name: str, kind: HolderKind, desired: Desired) -> None:
    """Accept a generation of an object that keeps a team or an organisation; create that if there is none.

    Raises as `keep` does.
    """

    def change(session: Session) -> None:
        found = accounts.find(session, books.cluster, accounts.parent_uid(name))
        if found is not None and not _is_new(session, found, desired):
            return
        account, _ = hierarchy.change_parent_budget(
            books, session, name, kind, desired.rule, actor=desired.actor, if_match=None, reason=desired.reason
        )
        _note(books, session, account, desired)
        _move(books, session, account, desired)

    books.database.write(change)


def release(books: Books, ref: AccountRef, uid: str, *, actor: str, now: Instant) -> None:
    """Record that an object was deleted, if it keeps the budget.

    A namespace has its policy's budget from now on. A team or an organisation keeps the budget that it has, because
    other budgets are under it. Neither changes its parent.
    """

    def change(session: Session) -> None:
        account = accounts.find(session, books.cluster, ref.uid)
        found = None if account is None else _last(session, account)
        if account is None or found is None or found.uid != uid or found.released is not None:
            return
        accounts.bump_version(session, account.id)
        ended = AcceptedObject(found.uid, found.created, found.generation, None, now)
        budget_objects.put(session, account.id, ended)
        detail = {"uid": uid, "generation": found.generation, "deleted": "true"}
        books.audit(session, actor=actor, action="object", about=account, detail=detail, now=now)
        if account.kind == "namespace":
            fall_back(books, session, account, ref.policy, now)

    books.database.write(change)


def version_of(found: AcceptedObject | None) -> str:
    """Return a text that is different for each accepted state of a budget's objects; empty before the first."""
    if found is None:
        return ""
    return f"{found.uid}:{found.generation}" + (":deleted" if found.released is not None else "")


def _is_new(session: Session, account: BudgetAccount, desired: Desired) -> bool:
    """Return whether an object's state has not been accepted yet.

    Raises VersionMismatch if another state was accepted since the operator looked, ObjectOutdated if the generation
    goes back although the object was read later.
    """
    found, state = _last(session, account), desired.object
    if found is not None and (found.uid, found.generation, found.released) == (state.uid, state.generation, None):
        return False
    if desired.seen != version_of(found):
        raise VersionMismatch(
            f"objectVersion: {desired.seen!r} is not that of the budget of {account.title}, which is "
            f"{version_of(found)!r}: read first that, and then the object again",
            "objectVersion",
        )
    if found is not None and found.uid == state.uid and found.generation > state.generation:
        raise ObjectOutdated(
            f"budget of {account.title}: the object with UID {found.uid} was already seen at generation "
            f"{found.generation}; if yours was restored from a backup, create it again"
        )
    return True


def _last(session: Session, account: BudgetAccount) -> AcceptedObject | None:
    return budget_objects.last(session, [account.id]).get(account.id)


def _note(books: Books, session: Session, account: BudgetAccount, desired: Desired) -> None:
    accounts.bump_version(session, account.id)
    budget_objects.put(session, account.id, desired.object)
    by = {"reportedBy": desired.reporter} if desired.writer else {"changedBy": "not known"}
    detail = {"uid": desired.object.uid, "generation": desired.object.generation, **by}
    books.audit(session, actor=desired.actor, action="object", about=account, detail=detail, now=desired.now)


def _move(books: Books, session: Session, account: BudgetAccount, desired: Desired) -> None:
    if desired.object.parent is not None:
        above = desired.object.parent or None
        hierarchy.move_below(
            books, session, account, above, reason=desired.reason, actor=desired.actor, now=desired.now
        )
