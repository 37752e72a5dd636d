# SPDX-License-Identifier: Apache-2.0
"""Grants, refunds, adjustments and transfers: GPU time added to budgets, or taken out of them."""

from __future__ import annotations

import hashlib
from collections.abc import Collection

from sqlalchemy import func, or_, select, update
from sqlalchemy.orm import Session

from slicekeeper.units import EPOCH, GpuMilliseconds, Instant
from timekeeper.core.account import AccountId
from timekeeper.store.db.models import BudgetGrant, WorkloadRow


def grant_by_id(session: Session, budget: AccountId, key: int) -> BudgetGrant | None:
    """Return a grant of a namespace."""
    query = select(BudgetGrant).where(BudgetGrant.id == key, BudgetGrant.namespace_id == budget)
    return session.scalars(query.where(BudgetGrant.kind == "grant")).one_or_none()


def withdraw_grant(session: Session, key: int, now: Instant) -> None:
    """Withdraw a grant that has not begun."""
    session.execute(update(BudgetGrant).where(BudgetGrant.id == key).values(withdrawn_at=now))


def last_movement(session: Session, keys: Collection[AccountId], latest: Instant) -> Instant:
    """Return when the last movement of some budgets took place that did so at once, up to `latest`; EPOCH: none did."""
    query = select(func.max(BudgetGrant.valid_from)).where(BudgetGrant.namespace_id.in_(keys))
    at_once = or_(BudgetGrant.kind != "grant", BudgetGrant.valid_from == BudgetGrant.booked_at)
    return session.execute(query.where(at_once, BudgetGrant.valid_from <= latest)).scalar() or EPOCH


def granted_in_all(session: Session, budget: AccountId) -> GpuMilliseconds:
    """Return the sum of a namespace's movements, each counted as positive, in GPU-milliseconds."""
    query = select(func.sum(func.abs(BudgetGrant.amount_ms)))
    query = query.where(BudgetGrant.namespace_id == budget, BudgetGrant.withdrawn_at.is_(None))
    return GpuMilliseconds(int(session.execute(query).scalar() or 0))


def refunded(session: Session, budget: AccountId, pod_uid: str) -> GpuMilliseconds:
    """Return what has been refunded of a pod's charge."""
    query = select(func.sum(BudgetGrant.amount_ms - BudgetGrant.taken_back_ms)).where(
        BudgetGrant.namespace_id == budget, BudgetGrant.kind == "refund", BudgetGrant.counterpart == pod_uid
    )
    return GpuMilliseconds(int(session.execute(query).scalar() or 0))


def refunds(
    session: Session, keys: Collection[AccountId], since: Instant | None = None
) -> dict[str, list[BudgetGrant]]:
    """Return the refunds of some budgets' pods, oldest first, by the pod's UID.

    `since`: only those of pods that were refunded, or ended, at that instant or later.
    """
    query = select(BudgetGrant).where(BudgetGrant.namespace_id.in_(keys), BudgetGrant.kind == "refund")
    if since is not None:
        late = select(BudgetGrant.counterpart).where(BudgetGrant.kind == "refund", BudgetGrant.valid_from >= since)
        ended = select(WorkloadRow.pod_uid).where(WorkloadRow.ended_at >= since, WorkloadRow.namespace_id.in_(keys))
        query = query.where(or_(BudgetGrant.counterpart.in_(late), BudgetGrant.counterpart.in_(ended)))
    found: dict[str, list[BudgetGrant]] = {}
    query = query.order_by(BudgetGrant.valid_from, BudgetGrant.id).execution_options(populate_existing=True)
    for row in session.scalars(query):
        found.setdefault(row.counterpart, []).append(row)
    return found


def take_back(session: Session, key: int, amount: GpuMilliseconds) -> None:
    """Take back a part of a refund."""
    session.execute(update(BudgetGrant).where(BudgetGrant.id == key).values(taken_back_ms=amount))


def other_side(giver: AccountId, key: str) -> str:
    """Return the key under which the receiving side of a transfer is booked."""
    return "transfer:" + hashlib.sha256(f"{giver}:{key}".encode()).hexdigest()


def transfers(session: Session) -> list[BudgetGrant]:
    """Return both sides of all transfers."""
    return list(session.scalars(select(BudgetGrant).where(BudgetGrant.kind == "transfer").order_by(BudgetGrant.id)))
