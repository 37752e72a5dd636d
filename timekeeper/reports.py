# SPDX-License-Identifier: Apache-2.0
"""Takes in sidecars' reports: each is judged against watermarks, in one transaction with their change."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy.orm import Session

from slicekeeper.wire.timekeeper import ReportOutcome, UsageReport
from timekeeper import counters
from timekeeper.counters import Bounds, Watermark
from timekeeper.identity import Caller
from timekeeper.intake import holders_of
from timekeeper.store import workloads
from timekeeper.store.database import Database
from timekeeper.store.models import Workload


def take(database: Database, caller: Caller, reports: Sequence[UsageReport], now: int) -> list[ReportOutcome]:
    """Return each report's outcome, in their order; accepted ones are on disk by then."""
    return database.write(lambda session: _take(session, caller, reports, now))


def _take(session: Session, caller: Caller, reports: Sequence[UsageReport], now: int) -> list[ReportOutcome]:
    uids = {r.pod_uid for r in reports if caller.operator or r.pod_uid == caller.pod_uid}
    pods = workloads.by_uid(session, uids)
    names = workloads.namespace_names(session, {pod.namespace_id for pod in pods.values()})
    marks = workloads.watermarks(session, set(pods))
    known = {(uid, container, epoch) for (uid, container), epochs in marks.items() for epoch in epochs}
    changed: dict[tuple[str, str, int], Watermark] = {}
    outcomes = []
    for report in reports:
        pod = pods.get(report.pod_uid)
        refusal = _stranger(report, caller, pod, names)
        if refusal or pod is None:
            outcomes.append(ReportOutcome(outcome="refused", reason=refusal))
            continue
        epochs = marks.setdefault((report.pod_uid, report.container), {})
        gpus = holders_of(pod.holders)[report.container]
        until = now if pod.ended_at is None else min(now, pod.ended_at)
        outcome, reason, mark = counters.judge(report, epochs, Bounds(gpus, pod.started_at, until))
        if mark is not None:
            epochs[report.epoch] = changed[report.pod_uid, report.container, report.epoch] = mark
        outcomes.append(ReportOutcome(outcome=outcome, reason=reason))
    workloads.keep_watermarks(session, changed, known, now)
    return outcomes


def _stranger(report: UsageReport, caller: Caller, pod: Workload | None, names: dict[int, str]) -> str:
    """Return why a report does not count at all, empty where it does."""
    if not caller.operator and caller.pod_uid != report.pod_uid:
        return counters.WRONG_POD
    if pod is None:
        return counters.UNKNOWN_POD
    if (names[pod.namespace_id], pod.pod_name) != (report.namespace, report.pod_name):
        return counters.WRONG_POD
    return "" if report.container in holders_of(pod.holders) else counters.UNKNOWN_CONTAINER
