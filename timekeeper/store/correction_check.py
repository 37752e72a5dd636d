# SPDX-License-Identifier: Apache-2.0
"""Check that the intervals of corrected pods are what their corrections say."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from sqlalchemy import select
from sqlalchemy.orm import Session

from timekeeper.store.db.models import IntervalCorrectionRow, WorkloadRow


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
