# SPDX-License-Identifier: Apache-2.0
"""Process sidecars' reports: each is compared with the watermarks, in the transaction that moves these.

Requests that wait at the same time are processed together, so a thousand sidecars cost about as much as a batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from sqlalchemy.orm import Session

from slicekeeper.units import Instant
from slicekeeper.wire.timekeeper import ReportOutcome, UsageReport
from timekeeper.core.caller import Caller
from timekeeper.core.usage_report import (
    POD_ARCHIVED,
    UNKNOWN_CONTAINER,
    UNKNOWN_POD,
    WRONG_POD,
    Bounds,
    HourUsed,
    Watermark,
    advance,
    judge,
)
from timekeeper.store import usage, watermarks
from timekeeper.store.db.database import Database
from timekeeper.store.watermarks import MarkKey, Marks, MeteredPod
from timekeeper.store.workloads import holders_of

_ACCEPTED, _DUPLICATE = ReportOutcome(outcome="accepted"), ReportOutcome(outcome="duplicate")


class ReportRequest(NamedTuple):
    """One request: its sender, its reports, and when it arrived."""

    caller: Caller
    reports: Sequence[UsageReport]
    now: Instant


def take(database: Database, caller: Caller, reports: Sequence[UsageReport], now: Instant) -> list[ReportOutcome]:
    """Process reports; return their outcomes in order. Accepted reports are on disk by then."""
    return database.write_reports(_take, ReportRequest(caller, reports, now), len(reports))


def _take(session: Session, requests: Sequence[ReportRequest]) -> list[list[ReportOutcome]]:
    uids = {
        report.pod_uid
        for request in requests
        for report in request.reports
        if request.caller.operator or report.pod_uid == request.caller.pod_uid
    }
    known = watermarks.read(session, uids)
    batch = _Batch(known.pods, known.marks)
    answers = [batch.outcomes(request) for request in requests]
    watermarks.keep(session, batch.changed, known.places)
    usage.add(session, batch.over)
    return answers


class _Batch:
    """Compares reports with what is known of their pods, and collects what must be written.

    A report is compared with the watermark that an earlier one of the batch has moved, before that is written.
    """

    def __init__(self, pods: dict[str, MeteredPod], marks: Marks) -> None:
        self._pods = pods
        self._marks = marks
        self.changed: dict[MarkKey, tuple[Watermark, Instant]] = {}
        """The new watermarks, each with the instant at which its report arrived."""
        self.over: list[tuple[str, str, HourUsed]] = []
        """The hours that are over, by pod and container."""

    def outcomes(self, request: ReportRequest) -> list[ReportOutcome]:
        """Return the outcomes of a request's reports, in order."""
        # The last report of a counter was read just before it was sent; how much older the others are, their own
        # monotonic clock says. So reports that waited on the pod's disk count in the hours in which they were read.
        newest_ns = {(one.pod_uid, one.container, one.epoch): one.monotonic_ns for one in request.reports}
        return [self._outcome(report, request, newest_ns) for report in request.reports]

    def _outcome(self, report: UsageReport, request: ReportRequest, newest_ns: dict[MarkKey, int]) -> ReportOutcome:
        pod = self._pods.get(report.pod_uid)
        refusal = _refusal(report, request.caller, pod)
        if refusal or pod is None:
            return ReportOutcome(outcome="refused", reason=refusal)
        epochs = self._marks.setdefault((report.pod_uid, report.container), {})
        until = request.now if pod.ended_at is None else min(request.now, pod.ended_at)
        bounds = Bounds(holders_of(pod.holders)[report.container], pod.started_at, until)
        outcome, reason, mark = judge(report, epochs, bounds)
        if mark is not None:
            key = (report.pod_uid, report.container, report.epoch)
            read_at = Instant(request.now - max(newest_ns[key] - report.monotonic_ns, 0) // 1_000_000)
            mark, hour = advance(epochs.get(report.epoch), mark, read_at)
            if hour is not None:
                self.over.append((report.pod_uid, report.container, hour))
            epochs[report.epoch] = mark
            self.changed[key] = mark, request.now
        if outcome == "refused":
            return ReportOutcome(outcome="refused", reason=reason)
        return _ACCEPTED if outcome == "accepted" else _DUPLICATE


def _refusal(report: UsageReport, caller: Caller, pod: MeteredPod | None) -> str:
    """Return why a report does not count at all, empty if it does."""
    if not caller.operator and caller.pod_uid != report.pod_uid:
        return WRONG_POD
    if pod is None:
        return UNKNOWN_POD
    if pod.archived_at is not None:
        return POD_ARCHIVED
    if (pod.namespace, pod.pod_name) != (report.namespace, report.pod_name):
        return WRONG_POD
    return "" if report.container in holders_of(pod.holders) else UNKNOWN_CONTAINER
