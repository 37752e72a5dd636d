# SPDX-License-Identifier: Apache-2.0
"""Transactions and entries: book, reverse, read. Balances move in the same transaction as their entries."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

from sqlalchemy import ColumnElement, case, func, insert, select, update
from sqlalchemy.orm import Session, aliased

from timekeeper.ledger import AccountKind, Booked, entries, idempotency_key
from timekeeper.records import Posting, PostingKind
from timekeeper.store.models import Account, Entry, Transaction
from timekeeper.timeline import CHILD

REVERSAL = "reversal"
_CHUNK = 500


def due_at(table: type[Transaction] = Transaction) -> ColumnElement[int]:
    """Return when a transaction would be effective had everything been known in time: a correction is so later."""
    return func.coalesce(table.corrects_at, table.effective_at)


def _effect(due: int, floor: int, now: int) -> dict[str, int | None]:
    """Return when something that falls due at an instant is effective: never in what is sealed."""
    if due > floor:
        return {"effective_at": due, "corrects_at": None}
    return {"effective_at": max(now, floor + 1), "corrects_at": due}


def standing(session: Session, namespace: int, after: int | None) -> list[Booked]:
    """Return the postings settled after an instant (None: ever) that nothing has reversed."""
    undo = aliased(Transaction)
    query = select(
        Transaction.id,
        due_at(),
        Transaction.kind,
        Transaction.subject,
        Transaction.started_at,
        Transaction.amount_ms,
        Transaction.effective_at,
    ).where(
        Transaction.namespace_id == namespace,
        Transaction.kind != REVERSAL,
        ~select(undo.id).where(undo.reverses == Transaction.id).exists(),
    )
    if after is not None:
        # The first alone has an index; a correction is effective after what it corrects.
        query = query.where(Transaction.effective_at > after, due_at() > after)
    return [
        Booked(key, Posting(at, cast(PostingKind, kind), subject, start, amount), effective_at)
        for key, at, kind, subject, start, amount, effective_at in session.execute(query)
    ]


def book(session: Session, namespace: int, postings: Sequence[Posting], now: int, floor: int) -> None:
    """Append transactions for postings; those up to `floor`, which is sealed, as corrections."""
    if not postings:
        return
    versions = _reversed_versions(session, namespace, postings)
    seen: Counter[Posting] = Counter()
    rows = []
    for posting in postings:
        version = versions[posting] + seen[posting]
        seen[posting] += 1
        rows.append(
            {
                "namespace_id": namespace,
                "kind": posting.kind,
                "idempotency_key": idempotency_key(namespace, posting, version),
                "subject": posting.key,
                "started_at": posting.start,
                "amount_ms": posting.amount,
                "booked_at": now,
                "reverses": None,
                **_effect(posting.at, floor, now),
            }
        )
    keys = session.scalars(insert(Transaction).returning(Transaction.id, sort_by_parameter_order=True), rows).all()
    _enter(session, namespace, [(key, entries(posting)) for key, posting in zip(keys, postings, strict=True)])


def _reversed_versions(session: Session, namespace: int, postings: Sequence[Posting]) -> Counter[Posting]:
    """Return how often each posting was booked before: then it was reversed, and gets the next key."""
    found: Counter[Posting] = Counter()
    subjects = sorted({posting.key for posting in postings})
    wanted = set(postings)
    for start in range(0, len(subjects), _CHUNK):
        query = select(
            due_at(),
            Transaction.kind,
            Transaction.subject,
            Transaction.started_at,
            Transaction.amount_ms,
        ).where(
            Transaction.namespace_id == namespace,
            Transaction.kind != REVERSAL,
            Transaction.subject.in_(subjects[start : start + _CHUNK]),
        )
        for at, kind, subject, begun, amount in session.execute(query):
            posting = Posting(at, cast(PostingKind, kind), subject, begun, amount)
            found[posting] += posting in wanted
    return found


def reverse(session: Session, namespace: int, wrong: Sequence[Booked], now: int, floor: int) -> None:
    """Append the opposite of postings that late knowledge has shown to be wrong; as `book` does."""
    if not wrong:
        return
    rows = [
        {
            "namespace_id": namespace,
            "kind": REVERSAL,
            "idempotency_key": f"{REVERSAL}:{booked.transaction}",
            "subject": booked.posting.key,
            "started_at": booked.posting.start,
            "amount_ms": -booked.posting.amount,
            "booked_at": now,
            "reverses": booked.transaction,
            **_effect(booked.effective_at, floor, now),
        }
        for booked in wrong
    ]
    keys = session.scalars(insert(Transaction).returning(Transaction.id, sort_by_parameter_order=True), rows).all()
    opposite = [
        (key, tuple((account, -amount) for account, amount in entries(booked.posting)))
        for key, booked in zip(keys, wrong, strict=True)
    ]
    _enter(session, namespace, opposite)


def _enter(session: Session, namespace: int, bookings: list[tuple[int, tuple[tuple[AccountKind, int], ...]]]) -> None:
    accounts = account_ids(session, namespace)
    rows = [
        {"txn_id": key, "account_id": accounts[kind], "amount_ms": amount}
        for key, sides in bookings
        for kind, amount in sides
    ]
    if rows:
        session.execute(insert(Entry), rows)
    moved: Counter[AccountKind] = Counter()
    for _, sides in bookings:
        for kind, amount in sides:
            moved[kind] += amount
    for kind, amount in moved.items():
        session.execute(
            update(Account).where(Account.id == accounts[kind]).values(balance_ms=Account.balance_ms + amount)
        )


def account_ids(session: Session, namespace: int) -> dict[AccountKind, int]:
    """Return a namespace's accounts."""
    query = select(Account.kind, Account.id).where(Account.namespace_id == namespace)
    return {cast(AccountKind, kind): key for kind, key in session.execute(query)}


def balances(session: Session, namespace: int) -> dict[AccountKind, int]:
    """Return the cached balances of a namespace's accounts."""
    query = select(Account.kind, Account.balance_ms).where(Account.namespace_id == namespace)
    return {cast(AccountKind, kind): balance for kind, balance in session.execute(query)}


def booked_by_pod(session: Session, uids: Sequence[str]) -> dict[str, tuple[int, int]]:
    """Return what stands in the ledger for pods: charged to the budget, and over budget."""
    query = (
        select(
            Transaction.subject,
            func.sum(case((Account.kind == "charged", Entry.amount_ms), else_=0)),
            func.sum(case((Account.kind == "over-budget", Entry.amount_ms), else_=0)),
        )
        .join(Entry, Entry.txn_id == Transaction.id)
        .join(Account, Account.id == Entry.account_id)
        .where(Transaction.subject.in_(uids))
        .group_by(Transaction.subject)
    )
    return {subject: (int(charged), int(over)) for subject, charged, over in session.execute(query)}


@dataclass(frozen=True)
class Line:
    """An entry as a statement shows it."""

    id: int
    account: str
    amount_ms: int
    transaction: Transaction


def lines(session: Session, namespace: int, after: int, limit: int) -> list[Line]:
    """Return a namespace's entries in the order of booking, from the one after an id on."""
    query = (
        select(Entry.id, Account.kind, Entry.amount_ms, Transaction)
        .join(Transaction, Transaction.id == Entry.txn_id)
        .join(Account, Account.id == Entry.account_id)
        .where(Account.namespace_id == namespace, Entry.id > after)
        .order_by(Entry.id)
        .limit(limit)
    )
    return [Line(key, kind, amount, txn) for key, kind, amount, txn in session.execute(query)]


def charged_below(session: Session, key: int, since: int | None) -> Counter[int]:
    """Return what those below a budget were charged of it, as booked, since its period began (None: ever)."""
    undone = aliased(Transaction)
    kind, due = func.coalesce(undone.kind, Transaction.kind), func.coalesce(due_at(undone), due_at())
    query = (
        select(Transaction.subject, func.sum(Transaction.amount_ms))
        .outerjoin(undone, undone.id == Transaction.reverses)
        .where(Transaction.namespace_id == key, kind == "charge", Transaction.subject.startswith(CHILD))
        .group_by(Transaction.subject)
    )
    if since is not None:
        query = query.where(due > since)
    rows = session.execute(query)
    return Counter({int(subject.removeprefix(CHILD)): int(amount) for subject, amount in rows})


@dataclass(frozen=True)
class Caused:
    """A booking and the posting that it makes, or takes back: then `reverses` names the transaction."""

    transaction: int
    posting: Posting
    reverses: int | None
    corrects: bool
    effective_at: int


def causes(session: Session, namespace: int, at: int) -> list[Caused]:
    """Return all bookings that fall due up to an instant, in that order; what is reversed beside its reversal."""
    undone = aliased(Transaction)
    due = func.coalesce(due_at(undone), due_at())
    query = (
        select(Transaction, func.coalesce(undone.kind, Transaction.kind), due)
        .outerjoin(undone, undone.id == Transaction.reverses)
        .where(Transaction.namespace_id == namespace, due <= at)
        .order_by(due, Transaction.id)
    )
    return [
        Caused(
            row.id,
            Posting(instant, cast(PostingKind, kind), row.subject, row.started_at, row.amount_ms),
            row.reverses,
            row.corrects_at is not None,
            row.effective_at,
        )
        for row, kind, instant in session.execute(query)
    ]
