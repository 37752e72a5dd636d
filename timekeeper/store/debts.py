# SPDX-License-Identifier: Apache-2.0
"""Whether time over budget is owed in a cluster, and since when: the setting `timekeeper.debt` over time."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from sqlalchemy import delete, func, insert, select
from sqlalchemy.orm import Session

from slicekeeper.units import Instant
from timekeeper.core.account import AccountId
from timekeeper.core.budget_record import Debt
from timekeeper.store.db.models import DebtRule, Namespace


def of_cluster(session: Session, cluster: str) -> list[Debt]:
    """Return a cluster's rules, oldest first; if there are none, the setting applies from the start of time."""
    return _read(session, cluster)


def of_budgets(session: Session, keys: Collection[AccountId]) -> list[Debt]:
    """Return the rules of the one cluster that budgets belong to, as `of_cluster` does."""
    return _read(session, select(func.min(Namespace.cluster)).where(Namespace.id.in_(keys)).scalar_subquery())


def _read(session: Session, cluster: Any) -> list[Debt]:
    query = select(DebtRule.effective_at, DebtRule.debt).where(DebtRule.cluster == cluster)
    return [Debt(since, debt == "carry") for since, debt in session.execute(query.order_by(DebtRule.effective_at))]


def add(session: Session, cluster: str, debt: Debt) -> None:
    """Append a rule."""
    values = {"cluster": cluster, "effective_at": debt.since, "debt": word(debt.carry)}
    session.execute(insert(DebtRule).values(values))


def drop(session: Session, cluster: str, after: Instant) -> None:
    """Forget the rules that would begin later than an instant."""
    session.execute(delete(DebtRule).where(DebtRule.cluster == cluster, DebtRule.effective_at > after))


def word(carry: bool) -> str:
    """Return the value of the setting for a rule."""
    return "carry" if carry else "forgive"
