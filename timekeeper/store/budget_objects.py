# SPDX-License-Identifier: Apache-2.0
"""Which Kubernetes objects keep which budgets."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from sqlalchemy import insert, select, update
from sqlalchemy.orm import Session

from slicekeeper.units import Instant
from timekeeper.core.account import AccountId
from timekeeper.store.db.models import BudgetObject


@dataclass(frozen=True)
class AcceptedObject:
    """The newest accepted state of an object that defines a budget."""

    uid: str
    created: Instant
    """By the API server's clock; for people only, it determines no order."""
    generation: int
    parent: str | None
    """The parent that it names, empty for none; None: it does not set the parent."""
    released: Instant | None = None
    """When its deletion became known: since then it keeps nothing."""


def last(session: Session, keys: Collection[AccountId]) -> dict[AccountId, AcceptedObject]:
    """Return the objects that were the last to keep some budgets, whether they still do or not."""
    query = select(BudgetObject).where(BudgetObject.namespace_id.in_(keys))
    rows = session.scalars(query.execution_options(populate_existing=True))
    return {
        row.namespace_id: AcceptedObject(row.uid, row.created_at, row.generation, row.parent, row.released_at)
        for row in rows
    }


def put(session: Session, key: AccountId, state: AcceptedObject) -> None:
    """Record the accepted state of an object that defines a budget."""
    values = {
        "uid": state.uid,
        "created_at": state.created,
        "generation": state.generation,
        "parent": state.parent,
        "released_at": state.released,
    }
    if session.get(BudgetObject, key) is None:
        session.execute(insert(BudgetObject).values(namespace_id=key, **values))
    else:
        session.execute(update(BudgetObject).where(BudgetObject.namespace_id == key).values(**values))
