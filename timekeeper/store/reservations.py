# SPDX-License-Identifier: Apache-2.0
"""GPU time that is set aside. What is left of a reservation is computed from its pod's record, never stored.

So nothing has to happen at the instant at which it shrinks: a pod's is smaller by what the pod has been charged, and
nothing once the pod's interval is closed; one made by hand is nothing once it has expired.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from typing import Any

from sqlalchemy import Select, case, insert, or_, select, update
from sqlalchemy.orm import Session

from timekeeper.store import prices
from timekeeper.store.models import Namespace, Reservation, Workload
from timekeeper.store.prices import PriceBook

_CHUNK = 500


def add(session: Session, values: dict[str, Any]) -> int:
    """Append a reservation; return its id."""
    return session.execute(insert(Reservation).values(values).returning(Reservation.id)).scalar_one()


def by_id(session: Session, namespace: int, key: int) -> Reservation | None:
    """Return a namespace's reservation."""
    query = select(Reservation).where(Reservation.namespace_id == namespace, Reservation.id == key)
    return session.scalars(query).one_or_none()


def under(session: Session, namespace: int, key: str) -> Reservation | None:
    """Return the reservation that was made under an idempotency key."""
    query = select(Reservation).where(Reservation.namespace_id == namespace, Reservation.idempotency_key == key)
    return session.scalars(query).one_or_none()


def page(session: Session, namespace: int, before: int | None, limit: int) -> list[Reservation]:
    """Return a namespace's reservations, newest first, from the one before an id on."""
    query = select(Reservation).where(Reservation.namespace_id == namespace)
    if before is not None:
        query = query.where(Reservation.id < before)
    return list(session.scalars(query.order_by(Reservation.id.desc()).limit(limit)))


def pods(session: Session, cluster: str) -> dict[str, tuple[str, str]]:
    """Return the pods of a cluster that have an open reservation: namespace and name by UID."""
    query = select(Reservation.pod_uid, Namespace.name, Reservation.pod_name)
    query = query.join(Namespace, Namespace.id == Reservation.namespace_id)
    query = query.where(Reservation.pod_uid.is_not(None), Reservation.ended_at.is_(None), Namespace.cluster == cluster)
    return {str(uid): (namespace, name) for uid, namespace, name in session.execute(query)}


def end_pods(session: Session, uids: Collection[str], now: int) -> None:
    """End the reservations of pods: settled where the pod held GPUs, expired where it never did."""
    ran = select(Workload.pod_uid).where(Workload.pod_uid == Reservation.pod_uid).exists()
    ordered = sorted(uids)
    for start in range(0, len(ordered), _CHUNK):
        session.execute(
            update(Reservation)
            .where(Reservation.pod_uid.in_(ordered[start : start + _CHUNK]), Reservation.ended_at.is_(None))
            .values(ended_at=now, outcome=case((ran, "settled"), else_="expired"))
        )


def release(session: Session, key: int, now: int) -> None:
    """End a reservation by hand."""
    session.execute(update(Reservation).where(Reservation.id == key).values(ended_at=now, outcome="released"))


# What is set aside


def _open_ones() -> Select[Reservation, int, str]:
    query = select(Reservation, Workload.started_at, Workload.shares)
    query = query.outerjoin(Workload, Workload.pod_uid == Reservation.pod_uid)
    return query.where(Reservation.ended_at.is_(None), or_(Workload.pod_uid.is_(None), Workload.ended_at.is_(None)))


def held(session: Session, namespace: int, at: int) -> int:
    """Return what is set aside in a namespace at an instant."""
    return held_by_namespace(session, at, namespace)[namespace]


def held_by_namespace(session: Session, at: int, namespace: int | None = None) -> Counter[int]:
    """Return what is set aside at an instant, by namespace."""
    query = _open_ones()
    if namespace is not None:
        query = query.where(Reservation.namespace_id == namespace)
    total: Counter[int] = Counter()
    for row, rest in _rests(session, query, at):
        total[row.namespace_id] += rest
    return total


def left(session: Session, rows: Sequence[Reservation], at: int) -> dict[int, int]:
    """Return what is left of reservations at an instant, by id; ended ones have nothing left."""
    wanted = [row.id for row in rows if row.ended_at is None]
    found = _rests(session, _open_ones().where(Reservation.id.in_(wanted)), at) if wanted else []
    return dict.fromkeys((row.id for row in rows), 0) | {row.id: rest for row, rest in found}


def _rests(session: Session, query: Select[Reservation, int, str], at: int) -> list[tuple[Reservation, int]]:
    rows = session.execute(query).all()
    book = prices.read(session) if rows else PriceBook([])
    return [(row, _rest(row, started, shares, book, at)) for row, started, shares in rows]


def _rest(row: Reservation, started: int | None, shares: str | None, book: PriceBook, at: int) -> int:
    if row.expires_at is not None:
        return row.amount_ms if at < row.expires_at else 0
    if started is None or shares is None:
        return row.amount_ms
    claim = book.claim("", started, None, shares)
    # On the GPU that it got, a pod may need less than on the dearest that it could have got.
    needed = min(row.amount_ms, claim.gross(started + row.span_ms))
    return max(needed - claim.gross(at), 0)
