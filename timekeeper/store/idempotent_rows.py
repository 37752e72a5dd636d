# SPDX-License-Identifier: Apache-2.0
"""What requests append to an account, once per idempotency key: movements, reservations, corrections of intervals."""

from __future__ import annotations

from typing import Any, TypeVar

from sqlalchemy import ColumnElement, insert, select
from sqlalchemy.orm import Session

from timekeeper.core.account import AccountId
from timekeeper.store.db.models import BudgetGrant, IntervalCorrectionRow, ReservationRow

Row = TypeVar("Row", BudgetGrant, IntervalCorrectionRow, ReservationRow)


def add(session: Session, table: type[Row], **values: Any) -> int:
    """Append a row; return its id."""
    return session.execute(insert(table).values(values).returning(table.id)).scalar_one()


def under(session: Session, table: type[Row], account: AccountId, key: str) -> Row | None:
    """Return the row that was booked under an idempotency key."""
    query = select(table).where(table.namespace_id == account, table.idempotency_key == key)
    return session.scalars(query).one_or_none()


def page(
    session: Session,
    table: type[Row],
    account: AccountId,
    *conditions: ColumnElement[bool],
    before: int | None = None,
    limit: int | None = None,
) -> list[Row]:
    """Return an account's rows that meet conditions, newest first, beginning before an id."""
    query = select(table).where(table.namespace_id == account, *conditions)
    if before is not None:
        query = query.where(table.id < before)
    return list(session.scalars(query.order_by(table.id.desc()).limit(limit)))
