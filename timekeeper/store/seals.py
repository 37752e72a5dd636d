# SPDX-License-Identifier: Apache-2.0
"""Seals: the instant up to which a namespace's ledger is closed, and its balances at that instant."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Final

import msgspec
from sqlalchemy import func, insert, select, update
from sqlalchemy.orm import Session

from slicekeeper.units import EPOCH, GpuMilliseconds, Instant
from timekeeper.core.account import AccountId
from timekeeper.store.accounts import BudgetAccount
from timekeeper.store.db.models import Account, Entry, Namespace, Seal, Transaction

BY_ITSELF: Final = "timekeeper"
"""The author of seals after the grace period; all others were requested."""


def until(session: Session, budget: AccountId) -> Instant:
    """Return the instant up to and including which nothing is booked any more; 0: nothing is sealed."""
    return session.execute(select(Namespace.sealed_until).where(Namespace.id == budget)).scalar_one()


def put(session: Session, budget: AccountId, at: Instant, *, actor: str, now: Instant) -> None:
    """Seal everything up to an instant; the namespace must be settled up to it.

    A row with the balances is added if anything was booked since the previous seal.
    """
    before = until(session, budget)
    if at <= before:
        return
    last, count = _booked(session, budget, before, at)
    if count:
        sums = Counter(latest(session, budget, before)[1])
        sums.update(_moved(session, budget, before, at))
        session.execute(
            insert(Seal).values(
                namespace_id=budget,
                until=at,
                sealed_at=now,
                actor=actor,
                last_txn=last,
                transactions=count,
                balances=msgspec.json.encode(dict(sums), order="sorted").decode(),
            )
        )
    session.execute(update(Namespace).where(Namespace.id == budget).values(sealed_until=at))


def latest(session: Session, budget: AccountId, at: Instant) -> tuple[Instant, dict[str, GpuMilliseconds]]:
    """Return the end of the newest seal at an instant or earlier, and the sums by account up to it."""
    query = select(Seal.until, Seal.balances).where(Seal.namespace_id == budget, Seal.until <= at)
    row = session.execute(query.order_by(Seal.until.desc()).limit(1)).one_or_none()
    return (
        (EPOCH, {}) if row is None else (row.until, msgspec.json.decode(row.balances, type=dict[str, GpuMilliseconds]))
    )


def _booked(session: Session, budget: AccountId, after: Instant, at: Instant) -> tuple[int, int]:
    """Return the newest transaction that is effective in (after, at], and how many there are."""
    query = select(func.coalesce(func.max(Transaction.id), 0), func.count(Transaction.id)).where(
        Transaction.namespace_id == budget, Transaction.effective_at > after, Transaction.effective_at <= at
    )
    last, count = session.execute(query).one()
    return int(last), int(count)


def _moved(session: Session, budget: AccountId, after: Instant, at: Instant) -> dict[str, GpuMilliseconds]:
    """Return by how much the accounts moved in (after, at]."""
    query = (
        select(Account.kind, func.sum(Entry.amount_ms))
        .join(Entry, Entry.account_id == Account.id)
        .join(Transaction, Transaction.id == Entry.txn_id)
        .where(Transaction.namespace_id == budget, Transaction.effective_at > after, Transaction.effective_at <= at)
        .group_by(Account.kind)
    )
    return {kind: GpuMilliseconds(int(total)) for kind, total in session.execute(query)}


def broken(session: Session, account: BudgetAccount) -> Iterator[str]:
    """Yield what has changed in a namespace's sealed periods since they were sealed."""
    where = f"{account.kind} {account.name} ({account.uid})"
    after, sums = EPOCH, Counter[str]()
    for seal in session.scalars(select(Seal).where(Seal.namespace_id == account.id).order_by(Seal.until)):
        last, count = _booked(session, account.id, after, seal.until)
        sums.update(_moved(session, account.id, after, seal.until))
        sealed = msgspec.json.decode(seal.balances, type=dict[str, GpuMilliseconds])
        if (last, count) != (seal.last_txn, seal.transactions):
            yield f"{where}: what was sealed up to {seal.until} has {count} transactions, not {seal.transactions}"
        elif {k: v for k, v in sums.items() if v} != {k: v for k, v in sealed.items() if v}:
            yield f"{where}: what was sealed up to {seal.until} amounts to {dict(sums)}, not to {sealed}"
        after = seal.until
    _, stray = _booked(session, account.id, after, account.sealed_until)
    if stray:
        yield f"{where}: {stray} transactions were booked into what is sealed up to {account.sealed_until}"
