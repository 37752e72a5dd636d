# SPDX-License-Identifier: Apache-2.0
"""Correct a pod's interval by hand because its records were wrong: a clock, a node, a restored API server.

Start and end are records like those from the pod; the resulting charge is reversed and booked again, including time
over budget and debt, and in sealed periods by corrections in the open one. Later records of the pod do not move a
corrected start or end.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from sqlalchemy.orm import Session

from slicekeeper.clock import CLOCK_SKEW_MS
from slicekeeper.units import Instant, format_instant
from timekeeper.core.refusal import IntervalImplausible, PodRunning, PodUnknown
from timekeeper.ledger import settlement
from timekeeper.ledger.books import Books
from timekeeper.ledger.movement import Order, executed
from timekeeper.store import idempotent_rows, interval_corrections, movements, workloads
from timekeeper.store.accounts import BudgetAccount
from timekeeper.store.db.models import IntervalCorrectionRow, WorkloadRow

FLAG: Final = "corrected"


@dataclass(frozen=True)
class RequestedInterval:
    """The correct interval of a pod; None keeps the start or end in the ledger."""

    pod_uid: str
    start: Instant | None
    end: Instant | None
    order: Order


def correct(books: Books, find: Callable[[Session], BudgetAccount], wanted: RequestedInterval) -> bool:
    """Correct a pod's interval; return False if the ledger has this interval already, or did this under the same key.

    `find` returns the pod's account. Raises Unknown if the namespace had no such pod; Conflicting if an end is given
    for a running pod, the interval lies outside the pod's life, or the key was already used for another request.
    """

    def change(session: Session) -> bool:
        account = find(session)
        if executed(session, IntervalCorrectionRow, account, wanted.order, "interval") is not None:
            return False
        pod = workloads.by_uid(session, [wanted.pod_uid]).get(wanted.pod_uid)
        if pod is None or pod.namespace_id != account.id:
            raise PodUnknown(f"{account.title} had no pod {wanted.pod_uid} that held GPUs")
        start = pod.started_at if wanted.start is None else wanted.start
        end = pod.ended_at if wanted.end is None else wanted.end
        _check(session, pod, start, end, wanted)
        before, after = (pod.started_at, pod.ended_at), (start, end)
        # One that changes nothing is recorded too: a repetition of it must not undo a later one.
        _record(books, session, account, pod, start, end, wanted.order)
        if before == after:
            return False
        # The charge changes between each edge that moves and where it was.
        moved = [at for edges in zip(before, after, strict=True) if edges[0] != edges[1] for at in edges]
        since = min(at for at in moved if at is not None)
        settlement.settle_in(books, session, account.id, since, wanted.order.now, {wanted.pod_uid: before})
        return True

    return books.database.write(change)


def _record(
    books: Books,
    session: Session,
    account: BudgetAccount,
    pod: WorkloadRow,
    start: Instant,
    end: Instant | None,
    order: Order,
) -> None:
    """Append the correction, apply it to the pod's interval, and write it to the audit log."""
    started_before, ended_before = pod.started_at, pod.ended_at
    row = idempotent_rows.add(
        session,
        IntervalCorrectionRow,
        namespace_id=account.id,
        pod_uid=pod.pod_uid,
        started_at=start,
        ended_at=end,
        started_before=started_before,
        ended_before=ended_before,
        reason=order.reason,
        idempotency_key=order.key,
        request_hash=order.digest("interval"),
        actor=order.actor,
        booked_at=order.now,
    )
    if (start, end) != (started_before, ended_before):
        flags = ",".join(sorted({*filter(None, pod.flags.split(",")), FLAG}))
        workloads.correct(session, pod.pod_uid, start, end, flags)
    detail = {"id": row, "podUid": pod.pod_uid, "startMs": start, "startedMs": started_before, "reason": order.reason}
    if end is not None and ended_before is not None:
        detail |= {"endMs": end, "endedMs": ended_before}
    books.audit(session, actor=order.actor, action="interval", about=account, detail=detail, now=order.now)


def _check(session: Session, pod: WorkloadRow, start: Instant, end: Instant | None, wanted: RequestedInterval) -> None:
    """Refuse an interval that is not within the known life of the pod."""
    if wanted.end is not None and pod.ended_at is None:
        raise PodRunning(
            f"end: pod {pod.pod_uid} is still running; delete it, and correct its end once that is known; "
            "its start can be corrected now",
            "end",
        )
    begun = [pod.started_at, *(row.started_before for row in interval_corrections.of_pod(session, pod.pod_uid))]
    first = min(begun) if pod.created_at is None else pod.created_at
    now = wanted.order.now
    last = now if pod.closed_at is None else min(Instant(pod.closed_at + CLOCK_SKEW_MS), now)
    refunds = movements.refunds(session, [pod.namespace_id]).get(pod.pod_uid, [])
    last = min([last, *(row.valid_from for row in refunds)])  # the refunded interval had ended by then
    if start < first and wanted.start is not None:
        what = "began" if pod.created_at is None else "was created"
        raise _implausible("start", start, f"the pod {what} at {format_instant(first)}; use that or a later instant")
    if end is not None and end > last and wanted.end is not None:
        raise _implausible("end", end, f"it was seen to be over at {format_instant(last)}; use that or an earlier one")
    if start > (last if end is None else end):
        message = "the interval would end before it begins" if end is not None else "it is in the future"
        raise _implausible("end" if wanted.start is None else "start", start, message)


def _implausible(field: str, at: Instant, why: str) -> IntervalImplausible:
    return IntervalImplausible(f"{field}: {format_instant(at)} is not possible: {why}", field)
