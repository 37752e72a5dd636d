# SPDX-License-Identifier: Apache-2.0
"""Which thresholds of a budget were told, in which period: each once, whoever leads and however often it restarts."""

from __future__ import annotations

from collections.abc import Collection

from sqlalchemy import insert, select
from sqlalchemy.orm import Session

from timekeeper.store.db.models import Threshold


def told(session: Session, namespace: int, period: int) -> set[int]:
    """Return the thresholds of a period, by its start, that were told."""
    query = select(Threshold.percent).where(Threshold.namespace_id == namespace, Threshold.period_start == period)
    return set(session.scalars(query))


def note(session: Session, namespace: int, period: int, percents: Collection[int], now: int) -> None:
    """Note that thresholds were told. Another process that does the same at once loses, and reads what stands."""
    if percents:
        rows = [
            {"namespace_id": namespace, "period_start": period, "percent": percent, "told_at": now}
            for percent in sorted(percents)
        ]
        session.execute(insert(Threshold), rows)
