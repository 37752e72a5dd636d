# SPDX-License-Identifier: Apache-2.0
"""GPU time that pods held and used, by the hour: added by reports, summed by the database, deleted by retention."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Literal

from sqlalchemy import (
    BigInteger,
    and_,
    case,
    cast,
    delete,
    func,
    insert,
    or_,
    select,
    text,
    tuple_,
    union_all,
    update,
)
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from slicekeeper.units import Instant
from timekeeper.core import usage_report
from timekeeper.core.account import AccountId
from timekeeper.core.period import bounds
from timekeeper.core.usage_report import HourUsed, in_this_hour
from timekeeper.store import watermarks, workloads
from timekeeper.store.db.models import Namespace, UsageHour, WatermarkRow, WorkloadRow
from timekeeper.store.statements import span_table

GroupBy = Literal["namespace", "workload", "model"]
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

_CHECK_VIOLATION: Final = "23514"

_TOGETHER: Final = 96
"""Intervals that one statement reads."""


def add(session: Session, over: Sequence[tuple[str, str, HourUsed]]) -> None:
    """Append hours that are over, by pod and container."""
    if over:
        session.execute(
            insert(UsageHour),
            [
                {
                    "pod_uid": uid,
                    "container": container,
                    "epoch": one.epoch,
                    "hour": one.hour,
                    "used_ms": one.used_ms,
                    "observed_ms": one.observed_ms,
                }
                for uid, container, one in over
            ],
        )


@dataclass(frozen=True)
class UsageQuery:
    """The requested usage; an empty text, or no account, selects all. Running pods count up to `now`."""

    cluster: str
    spans: Sequence[tuple[Instant, Instant]]
    group_by: GroupBy
    now: Instant
    account: AccountId | None = None
    pod_uid: str = ""
    model: str = ""


@dataclass(frozen=True)
class GroupUsage:
    """GPU-milliseconds of one group in one interval. `used` None: nothing is known."""

    span: int
    group: str
    pods: int
    unknown_pods: int
    allocated: int
    used: int | None
    unobserved: int


def by_interval(session: Session, wanted: UsageQuery, after: tuple[int, str], limit: int) -> list[GroupUsage]:
    """Return usage by interval and group, in that order, beginning after a position.

    A few intervals are read at a time: a statement compares each of its intervals with each of the pods in them, which
    for all hours of a month and all pods of a month would be a thousand times as much.
    """
    found: list[GroupUsage] = []
    for first in range(max(after[0], 0) // _TOGETHER * _TOGETHER, len(wanted.spans), _TOGETHER):
        few = replace(wanted, spans=wanted.spans[first : first + _TOGETHER])
        rows = _by_interval(session, few, (after[0] - first, after[1]), limit - len(found))
        found += [replace(row, span=row.span + first) for row in rows]
        if len(found) >= limit:
            break
    return found


def _by_interval(session: Session, wanted: UsageQuery, after: tuple[int, str], limit: int) -> list[GroupUsage]:
    """Return usage of a few intervals.

    The statement has three steps: `span` (the intervals), `held` (a row for each interval and each pod that held GPUs
    in it) and `seen` (what those pods reported in it); then it sums up by group.
    """
    span = span_table(wanted.spans)
    pods = _held(span, wanted, after, limit)
    seen = _seen(span, pods, wanted.spans[0][0], wanted.spans[-1][1])
    # Reports are kept by the hour, and an interval may end within one: of that hour, no more is observed than is held.
    observed = _smaller(func.coalesce(seen.c.observed, 0), pods.c.wall)
    query = (
        select(
            pods.c.index,
            pods.c.name,
            func.count(),
            func.count(seen.c.used),
            func.sum(_gpu_ms(pods, pods.c.wall)),
            func.sum(seen.c.used),
            func.sum(_gpu_ms(pods, pods.c.wall - observed)),
        )
        .select_from(pods)
        .outerjoin(seen, and_(seen.c.index == pods.c.index, seen.c.pod_uid == pods.c.pod_uid))
        .group_by(pods.c.index, pods.c.name)
        .order_by(pods.c.index, pods.c.name)
        .limit(limit)
    )
    return [
        GroupUsage(
            index, name, count, count - known, int(allocated), None if used is None else int(used), int(unobserved)
        )
        for index, name, count, known, allocated, used, unobserved in session.execute(query)
    ]


def _held(span: Any, wanted: UsageQuery, after: tuple[int, str], limit: int) -> Any:
    """Return how many milliseconds (`wall`) of each interval each of the wanted pods held its GPUs."""
    first, last = wanted.spans[0][0], wanted.spans[-1][1]
    # Clocks differ: a pod may begin or end later than now. What is still to come has not been held.
    ended = _smaller(func.coalesce(WorkloadRow.ended_at, wanted.now), wanted.now)
    wall = _smaller(ended, span.c.until) - _greater(WorkloadRow.started_at, span.c.start)
    group = {"namespace": Namespace.name, "workload": WorkloadRow.pod_uid, "model": WorkloadRow.models}[wanted.group_by]
    held = (
        select(span.c.index, group.label("name"), WorkloadRow.pod_uid, WorkloadRow.gpus_ppm, wall.label("wall"))
        .select_from(span)
        .join(WorkloadRow, and_(WorkloadRow.started_at < span.c.until, ended > span.c.start))
        .join(Namespace, Namespace.id == WorkloadRow.namespace_id)
        .where(Namespace.cluster == wanted.cluster, tuple_(span.c.index, group) > tuple_(*after))
        .where(WorkloadRow.started_at <= wanted.now)
        # Implied by the join, but only constants let the database use the indexes of start and end.
        .where(or_(WorkloadRow.ended_at.is_(None), WorkloadRow.ended_at > first), WorkloadRow.started_at < last)
    )
    for field, given in (
        (WorkloadRow.namespace_id, wanted.account),
        (WorkloadRow.pod_uid, wanted.pod_uid),
        (WorkloadRow.models, wanted.model),
    ):
        if given:
            held = held.where(field == given)
    if wanted.group_by == "workload":  # then each row is a group, and a page reads only its own rows
        held = held.order_by(span.c.index, group).limit(limit)
    return held.cte("held")


def _smaller(one: Any, other: Any) -> Any:
    """Return the smaller of two values; SQLite and PostgreSQL have no common function for that."""
    return case((one < other, one), else_=other)


def _greater(one: Any, other: Any) -> Any:
    """Return the greater of two values."""
    return case((one > other, one), else_=other)


def _gpu_ms(pods: Any, wall: Any) -> Any:
    """Return GPU-milliseconds, rounded for each pod, so that a sum over a million pods fits 64 bits."""
    return (wall * pods.c.gpus_ppm + 500_000) // 1_000_000


def _seen(span: Any, pods: Any, first: Instant, last: Instant) -> Any:
    """Return the reported usage of pods in each interval: from completed hours, and from watermarks.

    A pod's observed time is that of its container with the most: its containers report side by side.
    """
    mine = select(pods.c.pod_uid)
    over = select(UsageHour.pod_uid, UsageHour.container, UsageHour.hour, UsageHour.used_ms, UsageHour.observed_ms)
    running = select(
        WatermarkRow.pod_uid,
        WatermarkRow.container,
        WatermarkRow.hour,
        (WatermarkRow.used_ms - WatermarkRow.hour_base).label("used_ms"),
        WatermarkRow.observed_ms,
    )
    rows = union_all(
        over.where(UsageHour.hour >= first, UsageHour.hour < last, UsageHour.pod_uid.in_(mine)),
        running.where(WatermarkRow.hour >= first, WatermarkRow.hour < last, WatermarkRow.pod_uid.in_(mine)),
    ).cte("reported")
    containers = (
        select(
            span.c.index,
            rows.c.pod_uid,
            rows.c.container,
            func.sum(rows.c.used_ms).label("used"),
            cast(func.sum(rows.c.observed_ms), BigInteger).label("observed"),
        )
        .select_from(span)
        .join(rows, and_(rows.c.hour >= span.c.start, rows.c.hour < span.c.until))
        .group_by(span.c.index, rows.c.pod_uid, rows.c.container)
    ).cte("container")
    return (
        select(
            containers.c.index,
            containers.c.pod_uid,
            func.sum(containers.c.used).label("used"),
            func.max(containers.c.observed).label("observed"),
        ).group_by(containers.c.index, containers.c.pod_uid)
    ).cte("seen")


# Retention


def archivable(session: Session, cluster: str, before: Instant, limit: int) -> list[str]:
    """Return pods that ended before an instant, in a period that is sealed, and still have their watermarks."""
    query = (
        select(WorkloadRow.pod_uid)
        .join(Namespace, Namespace.id == WorkloadRow.namespace_id)
        .where(
            WorkloadRow.archived_at.is_(None),
            WorkloadRow.ended_at < before,
            WorkloadRow.ended_at <= Namespace.sealed_until,
            Namespace.cluster == cluster,
        )
    )
    return list(session.scalars(query.order_by(WorkloadRow.ended_at).limit(limit)))


def archive(session: Session, uids: Collection[str], now: Instant) -> None:
    """Delete pods' watermarks; the usage and the last sign of life that they contain are kept."""
    pods, marks = workloads.by_uid(session, uids), watermarks.read(session, uids).marks
    heard = workloads.last_heard(session, sorted(uids))
    totals: dict[str, list[int | None]] = {}
    peaks: dict[str, list[int | None]] = {}
    over = []
    for (uid, container), epochs in marks.items():
        over += [(uid, container, in_this_hour(mark)) for mark in epochs.values() if mark.hour]
        totals.setdefault(uid, []).append(usage_report.used(epochs))
        peaks.setdefault(uid, []).append(usage_report.peak_memory(epochs))
    add(session, over)
    session.execute(
        update(WorkloadRow),
        [
            {
                "pod_uid": uid,
                "archived_at": now,
                "heard_at": heard.get(uid, pod.heard_at),
                "used_ms": usage_report.total(totals.get(uid, ())),
                "peak_memory_mib": usage_report.total(peaks.get(uid, ())),
            }
            for uid, pod in pods.items()
        ],
    )
    session.execute(delete(WatermarkRow).where(WatermarkRow.pod_uid.in_(list(pods))))


def forget_hours(session: Session, before: Instant, limit: int) -> int:
    """Delete at most `limit` hours before an instant; return how many."""
    key = (UsageHour.pod_uid, UsageHour.container, UsageHour.epoch, UsageHour.hour)
    old = select(*key).where(UsageHour.hour < before).limit(limit)
    return int(session.execute(delete(UsageHour).where(tuple_(*key).in_(old))).rowcount)  # type: ignore[attr-defined]


def rotate_partitions(session: Session, now: Instant, before: Instant) -> None:
    """On PostgreSQL, drop the partitions of months before an instant, and create those of this month and the next.

    All other rows are in the partition `usage_hour_rest`; if it already has rows of a month, that month stays there.
    Any number of processes may do this at once.
    """
    if session.get_bind().dialect.name != "postgresql":
        return
    there = _partitions(session)
    missing = [month for month in _months(now) if month[0] not in there and not _holds(session, month[1], month[2])]
    old = [name for name in there if _ends_before(name, before)]
    if missing or old:
        # One process at a time from here on. Our snapshot of the catalogue may be older than what another process has
        # just done, so each statement accepts that its table already exists, or no longer does.
        session.execute(text("LOCK TABLE usage_hour IN SHARE UPDATE EXCLUSIVE MODE"))
    for name, start, end in missing:
        try:
            with session.begin_nested():
                made = f"CREATE TABLE IF NOT EXISTS {name} PARTITION OF usage_hour FOR VALUES"
                session.execute(text(f"{made} FROM ({start}) TO ({end})"))
        except IntegrityError as error:
            if getattr(error.orig, "sqlstate", "") != _CHECK_VIOLATION:
                raise
            # Since our snapshot, rows of the month were added to the rest: so the month stays there.
    for name in old:
        session.execute(text(f"DROP TABLE IF EXISTS {name}"))


def _months(now: Instant) -> list[tuple[str, Instant, Instant]]:
    """Return this and the next month: their partition's name, start and end."""
    found, at = [], now
    for _ in range(2):
        start, at = bounds(at, "month", "UTC") or (at, at)
        found.append((f"usage_hour_{_EPOCH + timedelta(milliseconds=start):%Y_%m}", start, at))
    return found


def _holds(session: Session, start: Instant, end: Instant) -> bool:
    """Return whether there are hours in an interval."""
    held = select(UsageHour.hour).where(UsageHour.hour >= start, UsageHour.hour < end).limit(1)
    return session.execute(held).first() is not None


def _ends_before(name: str, before: Instant) -> bool:
    """Return whether a month's partition lies before an instant; the rest never does."""
    year, _, month = name.removeprefix("usage_hour_").partition("_")
    if not month:
        return False
    return datetime(int(year), int(month), 1, tzinfo=UTC) + timedelta(days=32) < _EPOCH + timedelta(milliseconds=before)


def _partitions(session: Session) -> list[str]:
    query = text("SELECT inhrelid::regclass::text FROM pg_inherits WHERE inhparent = 'usage_hour'::regclass")
    return sorted(session.scalars(query))
