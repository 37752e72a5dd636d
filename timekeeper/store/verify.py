# SPDX-License-Identifier: Apache-2.0
"""Checks a ledger against itself and against the records: every projection is rebuilt and compared."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from sqlalchemy import Engine, func, select
from sqlalchemy.orm import Session, aliased

from timekeeper import timeline
from timekeeper.ledger import difference
from timekeeper.records import Forest
from timekeeper.store import audit, bookings, namespaces, prices, seals, workloads
from timekeeper.store.models import Account, Entry, Transaction
from timekeeper.store.namespaces import Known


@dataclass(frozen=True)
class Verification:
    """What was found; no differences: the ledger is right."""

    namespaces: int
    transactions: int
    entries: int
    differences: list[str]

    @property
    def summary(self) -> str:
        """One line for a person."""
        verdict = f"{len(self.differences)} differences" if self.differences else "no difference"
        return f"{self.namespaces} namespaces, {self.transactions} transactions, {self.entries} entries: {verdict}"


def verify(engine: Engine, *, carry: bool) -> Verification:
    """Compare a database's projections with what its records and entries say. Reads one snapshot, writes nothing."""
    with Session(engine) as session, session.begin():
        places = namespaces.everyone(session)
        differences = [*_unbalanced(session), *_bad_reversals(session), *_transfers(session), *audit.broken(session)]
        for place in places:
            differences += _balances(session, place)
            differences += _bookings(session, place, carry=carry)
            differences += _refunds(session, place)
            differences += seals.broken(session, place)
        return Verification(
            namespaces=len(places),
            transactions=session.execute(select(func.count(Transaction.id))).scalar_one(),
            entries=session.execute(select(func.count(Entry.id))).scalar_one(),
            differences=differences,
        )


def _unbalanced(session: Session) -> Iterator[str]:
    total = func.sum(Entry.amount_ms)
    for key, amount in session.execute(select(Entry.txn_id, total).group_by(Entry.txn_id).having(total != 0)):
        yield f"transaction {key}: its entries sum to {amount}, not to zero"


def _bad_reversals(session: Session) -> Iterator[str]:
    undone, undo = aliased(Entry), aliased(Entry)
    query = (
        select(Transaction.id)
        .join(undone, undone.txn_id == Transaction.reverses)
        .outerjoin(
            undo,
            (undo.txn_id == Transaction.id)
            & (undo.account_id == undone.account_id)
            & (undo.amount_ms == -undone.amount_ms),
        )
        .where(Transaction.reverses.is_not(None), undo.id.is_(None))
    )
    for key in session.scalars(query.distinct()):
        yield f"transaction {key}: it is not the opposite of what it reverses"


def _transfers(session: Session) -> Iterator[str]:
    """Yield the transfers of which one side lacks, or is not the opposite of the other."""
    rows = namespaces.transfers(session)
    given = {namespaces.other_side(r.namespace_id, r.idempotency_key): r for r in rows if r.amount_ms < 0}
    for row in rows:
        if row.amount_ms > 0:
            other = given.pop(row.idempotency_key, None)
            if other is None or other.amount_ms != -row.amount_ms:
                yield f"transfer {row.id}: nobody gave the {row.amount_ms} that it brings"
    for row in given.values():
        yield f"transfer {row.id}: the {-row.amount_ms} that it takes went to nobody"


def _refunds(session: Session, place: Known) -> Iterator[str]:
    refunded: Counter[str] = Counter()
    for row in namespaces.grants(session, place.id, "refund"):
        refunded[row.counterpart] += row.amount_ms
    pods = workloads.by_uid(session, refunded)
    book = prices.read(session)
    for uid, amount in refunded.items():
        pod = pods.get(uid)
        gross = 0 if pod is None else book.claim(uid, pod.started_at, pod.ended_at, pod.shares).gross(place.settled_at)
        if amount > gross:
            yield f"namespace {place.name} ({place.uid}): pod {uid} was refunded {amount} of a charge of {gross}"


def _balances(session: Session, place: Known) -> Iterator[str]:
    query = (
        select(Account.kind, Account.balance_ms, func.coalesce(func.sum(Entry.amount_ms), 0))
        .outerjoin(Entry, Entry.account_id == Account.id)
        .where(Account.namespace_id == place.id)
        .group_by(Account.id, Account.kind, Account.balance_ms)
    )
    for kind, cached, rebuilt in session.execute(query):
        if cached != rebuilt:
            yield f"namespace {place.name} ({place.uid}): account {kind} holds {cached}, its entries sum to {rebuilt}"


def _bookings(session: Session, place: Known, *, carry: bool) -> Iterator[str]:
    where = f"namespace {place.name} ({place.uid})"
    records = namespaces.records(session, place.id, None, carry=carry)
    start = timeline.begin(records, place.settled_at)
    begun, forest = {place.id: start}, Forest({place.id: records})
    outcome = timeline.advance(begun, forest, max(place.settled_at, start.at))
    wrong, missing = difference(bookings.standing(session, place.id, None), outcome.postings[place.id])
    for booked in wrong:
        yield f"{where}: transaction {booked.transaction} does not follow from the records: {booked.posting}"
    for posting in missing:
        yield f"{where}: missing: {posting}"
    for anchor in namespaces.anchors(session, place.id):
        if timeline.advance(begun, forest, anchor.at).states[place.id] != anchor:
            yield f"{where}: the anchor at {anchor.at} is not what the records give"
