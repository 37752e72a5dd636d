# SPDX-License-Identifier: Apache-2.0
"""GPU time that is set aside. What is left of a reservation is computed from its pod's record, never stored.

So nothing has to be written when it shrinks: a pod's reservation is reduced by what the pod has been charged, and is
over when the pod's interval is closed; one opened by hand is over when it expires.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from sqlalchemy import ColumnElement, case, or_, select, update
from sqlalchemy.orm import Session

from slicekeeper.units import EPOCH, NO_TIME, GpuMilliseconds, Instant
from timekeeper.core.account import AccountId
from timekeeper.core.coverage import ReservedTime, planned
from timekeeper.core.rate import RateBook
from timekeeper.store import rates
from timekeeper.store.db.chunks import chunks
from timekeeper.store.db.models import Namespace, ReservationRow, WorkloadRow


def by_id(session: Session, budget: AccountId, key: int) -> ReservationRow | None:
    """Return a namespace's reservation."""
    query = select(ReservationRow).where(ReservationRow.namespace_id == budget, ReservationRow.id == key)
    return session.scalars(query).one_or_none()


def pods(session: Session, cluster: str) -> dict[str, tuple[str, str]]:
    """Return the pods of a cluster that have an open reservation: namespace and name by UID."""
    query = select(ReservationRow.pod_uid, Namespace.name, ReservationRow.pod_name)
    query = query.join(Namespace, Namespace.id == ReservationRow.namespace_id)
    query = query.where(
        ReservationRow.pod_uid.is_not(None), ReservationRow.ended_at.is_(None), Namespace.cluster == cluster
    )
    return {str(uid): (namespace, name) for uid, namespace, name in session.execute(query)}


def end_pods(session: Session, uids: Collection[str], now: Instant) -> None:
    """End the reservations of pods: settled if the pod held GPUs, expired if it never did."""
    ran = select(WorkloadRow.pod_uid).where(WorkloadRow.pod_uid == ReservationRow.pod_uid).exists()
    for chunk in chunks(uids):
        session.execute(
            update(ReservationRow)
            .where(ReservationRow.pod_uid.in_(chunk), ReservationRow.ended_at.is_(None))
            .values(ended_at=now, outcome=case((ran, "settled"), else_="expired"))
        )


def exceeded(session: Session, uids: Collection[str]) -> list[tuple[ReservationRow, GpuMilliseconds]]:
    """Return the open reservations of pods that have ended and paid more than was set aside, with what they paid."""
    query = select(ReservationRow, WorkloadRow.started_at, WorkloadRow.ended_at, WorkloadRow.shares)
    query = query.join(WorkloadRow, WorkloadRow.pod_uid == ReservationRow.pod_uid)
    query = query.where(ReservationRow.ended_at.is_(None), WorkloadRow.ended_at.is_not(None))
    found, book = [], rates.read(session)
    for chunk in chunks(uids):
        for row, started, ended, shares in session.execute(query.where(ReservationRow.pod_uid.in_(chunk))):
            paid = GpuMilliseconds(book.claim("", started, ended, shares).gross(ended or EPOCH))
            if paid > row.amount_ms:
                found.append((row, paid))
    return found


def release(session: Session, key: int, now: Instant) -> None:
    """End a reservation by hand."""
    session.execute(update(ReservationRow).where(ReservationRow.id == key).values(ended_at=now, outcome="released"))


# What is set aside


def reserved(session: Session, at: Instant, namespaces: Collection[AccountId] | None = None) -> list[ReservedTime]:
    """Return what is set aside in all namespaces, or in some.

    A pod that is not bound yet counts as if it were bound at `at`.
    """
    some = () if namespaces is None else (ReservationRow.namespace_id.in_(namespaces),)
    return list(_open(session, at, *some).values())


def left(session: Session, rows: Sequence[ReservationRow], at: Instant) -> dict[int, GpuMilliseconds]:
    """Return what is left of reservations at an instant, by id; ended ones have nothing left."""
    found = _open(session, at, ReservationRow.id.in_([row.id for row in rows if row.ended_at is None]))
    return {row.id: found[row.id].rest(at) if row.id in found else NO_TIME for row in rows}


def _open(session: Session, at: Instant, *conditions: ColumnElement[bool]) -> dict[int, ReservedTime]:
    """Return the open reservations that meet conditions, by id, without those that have expired, or whose pod ended."""
    query = select(ReservationRow, WorkloadRow.started_at, WorkloadRow.shares)
    query = query.outerjoin(WorkloadRow, WorkloadRow.pod_uid == ReservationRow.pod_uid)
    query = query.where(ReservationRow.ended_at.is_(None), WorkloadRow.ended_at.is_(None), *conditions)
    # Nothing is written when one expires: every decision would read all those that were ever opened by hand.
    query = query.where(or_(ReservationRow.expires_at.is_(None), ReservationRow.expires_at > at))
    rows = session.execute(query).all()
    book = rates.read(session) if rows else RateBook([])
    return {row.id: _reserved_time(row, started, shares, book, at) for row, started, shares in rows}


def _reserved_time(
    row: ReservationRow, started: Instant | None, shares: str | None, book: RateBook, at: Instant
) -> ReservedTime:
    if row.expires_at is not None:
        return ReservedTime(row.namespace_id, row.amount_ms, until=row.expires_at)
    if started is None or shares is None:
        return planned(str(row.id), row.namespace_id, row.amount_ms, row.span_ms, at)
    claim = book.claim(str(row.id), started, Instant(started + max(row.span_ms, 1)), shares)
    needed = GpuMilliseconds(claim.gross(Instant(started + row.span_ms)))
    # On the GPU that it got, a pod may need less than on the most expensive one that it could have got.
    return ReservedTime(row.namespace_id, min(row.amount_ms, needed), claim)
