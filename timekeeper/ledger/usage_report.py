# SPDX-License-Identifier: Apache-2.0
"""Process sidecars' reports: each is compared with watermarks, in the transaction that changes these.

Requests that wait at the same time are processed together, so a thousand sidecars cost about as much as a batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from sqlalchemy.orm import Session

from slicekeeper.units import Instant
from slicekeeper.wire.timekeeper import ReportOutcome, UsageReport
from timekeeper.core.caller import Caller
from timekeeper.core.usage import (
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


class Heard(NamedTuple):
    """One request: its sender, its reports, and when it arrived."""

    caller: Caller
    reports: Sequence[UsageReport]
    now: Instant


def take(database: Database, caller: Caller, reports: Sequence[UsageReport], now: Instant) -> list[ReportOutcome]:
    """Process reports; return their outcomes in order. Accepted reports are on disk by then."""
    return database.write_reports(_take, Heard(caller, reports, now), len(reports))


def _take(session: Session, requests: Sequence[Heard]) -> list[list[ReportOutcome]]:
    uids = {r.pod_uid for it in requests for r in it.reports if it.caller.operator or r.pod_uid == it.caller.pod_uid}
    known = watermarks.read(session, uids)
    changed: dict[MarkKey, tuple[Watermark, Instant]] = {}
    over: list[tuple[str, str, HourUsed]] = []
    answers = []
    for it in requests:
        newest = _newest(it.reports)
        answers.append([_judge(report, it, known.pods, known.marks, changed, over, newest) for report in it.reports])
    watermarks.keep(session, changed, known.places)
    usage.add(session, over)
    return answers


def _newest(reports: Sequence[UsageReport]) -> dict[MarkKey, int]:
    """Return the monotonic instant of each counter's last report, which was read just before it was sent."""
    return {(one.pod_uid, one.container, one.epoch): one.monotonic_ns for one in reports}


_ACCEPTED, _DUPLICATE = ReportOutcome(outcome="accepted"), ReportOutcome(outcome="duplicate")


def _judge(
    report: UsageReport,
    it: Heard,
    pods: dict[str, MeteredPod],
    marks: Marks,
    changed: dict[MarkKey, tuple[Watermark, Instant]],
    over: list[tuple[str, str, HourUsed]],
    newest: dict[MarkKey, int],
) -> ReportOutcome:
    uid, container = report.pod_uid, report.container
    pod = pods.get(uid)
    refusal = _stranger(report, it.caller, pod)
    if refusal or pod is None:
        return ReportOutcome(outcome="refused", reason=refusal)
    epochs = marks.setdefault((uid, container), {})
    until = it.now if pod.ended_at is None else min(it.now, pod.ended_at)
    bounds = Bounds(holders_of(pod.holders)[container], pod.started_at, until)
    outcome, reason, mark = judge(report, epochs, bounds)
    if mark is not None:
        key = (uid, container, report.epoch)
        read_at = Instant(it.now - max(newest[key] - report.monotonic_ns, 0) // 1_000_000)
        mark, hour = advance(epochs.get(report.epoch), mark, read_at)
        if hour is not None:
            over.append((uid, container, hour))
        epochs[report.epoch] = mark
        changed[key] = mark, it.now
    if outcome == "refused":
        return ReportOutcome(outcome="refused", reason=reason)
    return _ACCEPTED if outcome == "accepted" else _DUPLICATE


def _stranger(report: UsageReport, caller: Caller, pod: MeteredPod | None) -> str:
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
