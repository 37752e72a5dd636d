# SPDX-License-Identifier: Apache-2.0
"""Corrected intervals of pods: the values before, the author and the reason."""

from __future__ import annotations

from typing import Final

from sqlalchemy import select
from sqlalchemy.orm import Session

from timekeeper.core.account import AccountId
from timekeeper.store.db.models import IntervalCorrectionRow

CHANGED: Final = (
    IntervalCorrectionRow.started_at != IntervalCorrectionRow.started_before
) | IntervalCorrectionRow.ended_at.is_distinct_from(IntervalCorrectionRow.ended_before)
"""Condition on a correction: the interval was another one before."""


def newest(session: Session, budget: AccountId) -> dict[str, IntervalCorrectionRow]:
    """Return the newest correction that changed something, of each of a namespace's pods, by the pod's UID."""
    query = select(IntervalCorrectionRow).where(IntervalCorrectionRow.namespace_id == budget, CHANGED)
    return {row.pod_uid: row for row in session.scalars(query.order_by(IntervalCorrectionRow.id))}


def of_pod(session: Session, uid: str) -> list[IntervalCorrectionRow]:
    """Return a pod's corrections, oldest first."""
    query = select(IntervalCorrectionRow).where(IntervalCorrectionRow.pod_uid == uid)
    return list(session.scalars(query.order_by(IntervalCorrectionRow.id)))
