# SPDX-License-Identifier: Apache-2.0
"""Which thresholds of a budget were announced in which period: each once, however often the leader changes."""

from __future__ import annotations

from collections.abc import Collection

from sqlalchemy import insert, select
from sqlalchemy.orm import Session

from slicekeeper.units import Instant
from timekeeper.core.account import AccountId
from timekeeper.store.db.models import Threshold


def announced(session: Session, budget: AccountId, period: Instant) -> set[int]:
    """Return the thresholds of a period, by its start, that were announced."""
    query = select(Threshold.percent).where(Threshold.namespace_id == budget, Threshold.period_start == period)
    return set(session.scalars(query))


def add(session: Session, budget: AccountId, period: Instant, percents: Collection[int], now: Instant) -> None:
    """Record that thresholds were announced. If two processes do this at once, one fails, and reads them again."""
    if percents:
        rows = [
            {"namespace_id": budget, "period_start": period, "percent": percent, "told_at": now}
            for percent in sorted(percents)
        ]
        session.execute(insert(Threshold), rows)
