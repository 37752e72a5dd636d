# SPDX-License-Identifier: Apache-2.0
"""Transactions and entries: book, reverse, read. Balances move in the same transaction as their entries."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, cast

from sqlalchemy import ColumnElement, Select, and_, case, func, insert, select, union_all, update
from sqlalchemy.orm import Session, aliased

from slicekeeper.units import NO_TIME, GpuMilliseconds, Instant
from timekeeper.core.account import AccountId
from timekeeper.core.posting import AccountKind, Booked, Posting, PostingKind, entries, idempotency_key
from timekeeper.core.timeline import CHILD
from timekeeper.store.db.chunks import chunks
from timekeeper.store.db.models import Account, Entry, Transaction, WorkloadRow

REVERSAL = "reversal"


def due_at(table: type[Transaction] = Transaction) -> ColumnElement[Instant]:
    """Return when a transaction would be effective if everything had been known in time; a correction is later."""
    return func.coalesce(table.corrects_at, table.effective_at)


def _effect(due: Instant, floor: Instant, now: Instant) -> dict[str, Instant | None]:
    """Return when a booking that is due at an instant is effective: never in a sealed period."""
    if due > floor:
        return {"effective_at": due, "corrects_at": None}
    return {"effective_at": max(now, Instant(floor + 1)), "corrects_at": due}


def valid(session: Session, budget: AccountId, after: Instant | None, until: Instant | None = None) -> list[Booked]:
    """Return the postings that were not reversed and are due after an instant (None: all), up to another."""
    query = _valid().where(Transaction.namespace_id == budget)
    if after is not None:
        # Only the first condition has an index; a correction is effective after what it corrects.
        query = query.where(Transaction.effective_at > after, due_at() > after)
    if until is not None:
        query = query.where(due_at() <= until)
    return [_booked(row) for row in session.execute(query)]


def valid_in_order(session: Session, keys: Collection[AccountId]) -> Iterator[tuple[AccountId, Booked]]:
    """Yield some budgets' postings that were not reversed, by when they are due; never all are in memory."""
    query = _valid().where(Transaction.namespace_id.in_(keys)).order_by(due_at())
    for row in session.execute(query.execution_options(yield_per=1000)):
        yield row.namespace_id, _booked(row)


def _valid() -> Select[*tuple[Any, ...]]:
    undo = aliased(Transaction)
    return select(
        Transaction.id,
        due_at().label("due"),
        Transaction.kind,
        Transaction.subject,
        Transaction.started_at,
        Transaction.amount_ms,
        Transaction.effective_at,
        Transaction.namespace_id,
    ).where(Transaction.kind != REVERSAL, ~select(undo.id).where(undo.reverses == Transaction.id).exists())


def _booked(row: Any) -> Booked:
    posting = Posting(row.due, cast(PostingKind, row.kind), row.subject, row.started_at, row.amount_ms)
    return Booked(row.id, posting, row.effective_at)


def book(session: Session, budget: AccountId, postings: Sequence[Posting], now: Instant, floor: Instant) -> None:
    """Append transactions for postings; those up to `floor`, which is sealed, as corrections."""
    if not postings:
        return
    versions = _reversed_versions(session, budget, postings)
    seen: Counter[Posting] = Counter()
    rows = []
    for posting in postings:
        version = versions[posting] + seen[posting]
        seen[posting] += 1
        rows.append(
            {
                "namespace_id": budget,
                "kind": posting.kind,
                "idempotency_key": idempotency_key(budget, posting, version),
                "subject": posting.key,
                "started_at": posting.start,
                "amount_ms": posting.amount,
                "booked_at": now,
                "reverses": None,
                **_effect(posting.at, floor, now),
            }
        )
    keys = session.scalars(insert(Transaction).returning(Transaction.id, sort_by_parameter_order=True), rows).all()
    _enter(session, budget, [(key, entries(posting)) for key, posting in zip(keys, postings, strict=True)])


def _reversed_versions(session: Session, budget: AccountId, postings: Sequence[Posting]) -> Counter[Posting]:
    """Return how often each posting was booked before: then it was reversed, and gets the next key."""
    found: Counter[Posting] = Counter()
    wanted = set(postings)
    for subjects in chunks({posting.key for posting in postings}):
        query = select(
            due_at(), Transaction.kind, Transaction.subject, Transaction.started_at, Transaction.amount_ms
        ).where(Transaction.namespace_id == budget, Transaction.kind != REVERSAL, Transaction.subject.in_(subjects))
        for at, kind, subject, begun, amount in session.execute(query):
            posting = Posting(at, cast(PostingKind, kind), subject, begun, amount)
            found[posting] += posting in wanted
    return found


def reverse(session: Session, budget: AccountId, wrong: Sequence[Booked], now: Instant, floor: Instant) -> None:
    """Append the opposites of postings that late records have shown to be wrong, as `book` does."""
    if not wrong:
        return
    rows = [
        {
            "namespace_id": budget,
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
        (key, tuple((account, GpuMilliseconds(-amount)) for account, amount in entries(booked.posting)))
        for key, booked in zip(keys, wrong, strict=True)
    ]
    _enter(session, budget, opposite)


def _enter(
    session: Session, budget: AccountId, bookings: list[tuple[int, tuple[tuple[AccountKind, GpuMilliseconds], ...]]]
) -> None:
    """Append the entries of transactions, and move the cached balances by their sums: one statement per account."""
    accounts = account_ids(session, budget)
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
    for kind, total in moved.items():
        session.execute(
            update(Account).where(Account.id == accounts[kind]).values(balance_ms=Account.balance_ms + total)
        )


def account_ids(session: Session, budget: AccountId) -> dict[AccountKind, int]:
    """Return a namespace's accounts."""
    query = select(Account.kind, Account.id).where(Account.namespace_id == budget)
    return {cast(AccountKind, kind): key for kind, key in session.execute(query)}


def balances(session: Session, budget: AccountId) -> dict[AccountKind, GpuMilliseconds]:
    """Return the cached balances of a namespace's accounts."""
    query = select(Account.kind, Account.balance_ms).where(Account.namespace_id == budget)
    return {cast(AccountKind, kind): balance for kind, balance in session.execute(query)}


class PodCharges(NamedTuple):
    """What the ledger has booked for a pod, less what was reversed."""

    charged: GpuMilliseconds
    """Paid from the budget."""
    over_budget: GpuMilliseconds


_NO_CHARGES: Final = PodCharges(NO_TIME, NO_TIME)


def booked_by_pod(session: Session, uids: Sequence[str]) -> dict[str, PodCharges]:
    """Return the charges of each pod in `uids`; those of a pod without bookings are zero."""
    query = (
        select(
            Transaction.subject,
            func.sum(case((Account.kind == "charged", Entry.amount_ms), else_=0)),
            func.sum(case((Account.kind == "over-budget", Entry.amount_ms), else_=0)),
        )
        .join(Entry, Entry.txn_id == Transaction.id)
        .join(Account, Account.id == Entry.account_id)
        .join(
            WorkloadRow,
            and_(WorkloadRow.namespace_id == Transaction.namespace_id, WorkloadRow.pod_uid == Transaction.subject),
        )
        .group_by(Transaction.subject)
    )
    charges = dict.fromkeys(uids, _NO_CHARGES)
    for chunk in chunks(uids):
        for uid, charged, over in session.execute(query.where(WorkloadRow.pod_uid.in_(chunk))):
            charges[uid] = PodCharges(GpuMilliseconds(int(charged)), GpuMilliseconds(int(over)))
    return charges


@dataclass(frozen=True)
class StatementEntry:
    """An entry as a statement shows it."""

    id: int
    account: str
    amount_ms: GpuMilliseconds
    transaction: Transaction


def lines(session: Session, budget: AccountId, after: int, limit: int) -> list[StatementEntry]:
    """Return a namespace's entries in the order of booking, beginning after an id."""
    kinds = {key: kind for kind, key in account_ids(session, budget).items()}
    # Account by account, so that the index gives the next ones of each, however many entries there are.
    mine = [
        select(Entry).where(Entry.account_id == account, Entry.id > after).order_by(Entry.id).limit(limit).subquery()
        for account in kinds
    ]
    found = union_all(*(select(one) for one in mine)).subquery()
    query = (
        select(found.c.id, found.c.account_id, found.c.amount_ms, Transaction)
        .join(Transaction, Transaction.id == found.c.txn_id)
        .order_by(found.c.id)
        .limit(limit)
    )
    return [StatementEntry(key, kinds[account], amount, txn) for key, account, amount, txn in session.execute(query)]


def charged_below(session: Session, key: AccountId, since: Instant | None) -> Counter[AccountId]:
    """Return the booked charges of the budgets below one, since its period began (None: always)."""
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
    return Counter({AccountId(int(subject.removeprefix(CHILD))): int(amount) for subject, amount in rows})


@dataclass(frozen=True)
class Caused:
    """A booking with its posting; if it takes a posting back, `reverses` is that posting's transaction."""

    transaction: int
    posting: Posting
    reverses: int | None
    corrects: bool
    effective_at: Instant
    pod_name: str
    """Empty if it concerns no pod."""
    ended: str
    """The source of the pod's end, if the posting ends with the pod."""


def causes(session: Session, budget: AccountId, after: Instant, at: Instant) -> Iterator[Caused]:
    """Yield the bookings that are effective after an instant and due up to another, in the order in which they are due.

    A reversal comes beside the booking that it reverses.
    """
    undone = aliased(Transaction)
    due = func.coalesce(due_at(undone), due_at())
    query = (
        select(
            Transaction.id,
            func.coalesce(undone.kind, Transaction.kind),
            due,
            Transaction.subject,
            Transaction.started_at,
            Transaction.amount_ms,
            Transaction.reverses,
            Transaction.corrects_at,
            Transaction.effective_at,
            WorkloadRow.pod_name,
            WorkloadRow.ended_at,
            WorkloadRow.end_source,
        )
        .outerjoin(undone, undone.id == Transaction.reverses)
        .outerjoin(WorkloadRow, WorkloadRow.pod_uid == Transaction.subject)
        .where(Transaction.namespace_id == budget, Transaction.effective_at > after, due <= at)
        .order_by(due, Transaction.id)
        .execution_options(yield_per=1000)
    )
    for key, kind, instant, subject, start, amount, reverses, corrects, effective, name, end, source in session.execute(
        query
    ):
        posting = Posting(instant, cast(PostingKind, kind), subject, start, amount)
        ended = source if end == instant else ""
        yield Caused(key, posting, reverses, corrects is not None, effective, name or "", ended)
