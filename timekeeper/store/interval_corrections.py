# SPDX-License-Identifier: Apache-2.0
"""Corrected intervals of pods: the values before, the author and the reason."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from sqlalchemy import select
from sqlalchemy.orm import Session

from timekeeper.core.account import AccountId
from timekeeper.store.db.models import IntervalCorrectionRow, WorkloadRow


def newest(session: Session, budget: AccountId) -> dict[str, IntervalCorrectionRow]:
    """Return the newest correction of each of a namespace's pods that has one, by the pod's UID."""
    query = select(IntervalCorrectionRow).where(IntervalCorrectionRow.namespace_id == budget)
    return {row.pod_uid: row for row in session.scalars(query.order_by(IntervalCorrectionRow.id))}


def of_pod(session: Session, uid: str) -> list[IntervalCorrectionRow]:
    """Return a pod's corrections, oldest first."""
    query = select(IntervalCorrectionRow).where(IntervalCorrectionRow.pod_uid == uid)
    return list(session.scalars(query.order_by(IntervalCorrectionRow.id)))


def broken(session: Session) -> Iterator[str]:
    """Yield the pods whose interval is not that of their last correction, or whose corrections do not follow."""
    query = select(IntervalCorrectionRow, WorkloadRow).join(
        WorkloadRow, WorkloadRow.pod_uid == IntervalCorrectionRow.pod_uid
    )
    rows: dict[str, list[tuple[IntervalCorrectionRow, WorkloadRow]]] = {}
    for row, pod in session.execute(query.order_by(IntervalCorrectionRow.id)):
        rows.setdefault(pod.pod_uid, []).append((row, pod))
    for uid, mine in rows.items():
        (last, pod), finding = mine[-1], f"pod {uid}: its interval is not what its corrections say"
        # A pod that ran when its start was corrected may have ended since.
        if pod.started_at != last.started_at or last.ended_at not in (None, pod.ended_at):
            yield finding
        for (one, _), (following, _) in pairwise(mine):
            if following.started_before != one.started_at or one.ended_at not in (None, following.ended_before):
                yield finding
