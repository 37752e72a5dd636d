# SPDX-License-Identifier: Apache-2.0
"""Pods that hold or held GPUs, their counters, and the GPUs themselves."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import msgspec
from sqlalchemy import Select, bindparam, func, insert, literal, not_, or_, select, tuple_, update
from sqlalchemy.orm import Session

from slicekeeper.gpu.inventory import Gpu, MigSlice, is_slice
from slicekeeper.units import Instant
from timekeeper.core.account import AccountId
from timekeeper.store import accounts
from timekeeper.store.db.chunks import chunks
from timekeeper.store.db.models import GpuSeen, Namespace, UnmeteredPod, WatchMark, WatermarkRow, WorkloadRow


def by_uid(session: Session, uids: Collection[str]) -> dict[str, WorkloadRow]:
    """Return the workloads of pods."""
    found: dict[str, WorkloadRow] = {}
    for chunk in chunks(uids):
        found |= {w.pod_uid: w for w in session.scalars(select(WorkloadRow).where(WorkloadRow.pod_uid.in_(chunk)))}
    return found


def unmetered(session: Session, uids: Collection[str]) -> set[str]:
    """Return those of some pods that are recorded as not metered."""
    found: set[str] = set()
    for chunk in chunks(uids):
        found |= set(session.scalars(select(UnmeteredPod.pod_uid).where(UnmeteredPod.pod_uid.in_(chunk))))
    return found


def add_unmetered(session: Session, uids: Collection[str], now: Instant) -> None:
    """Record that pods are not metered."""
    if uids:
        session.execute(insert(UnmeteredPod), [{"pod_uid": uid, "seen_at": now} for uid in sorted(uids)])


def add(session: Session, rows: list[dict[str, Any]]) -> None:
    """Append workloads."""
    if rows:
        session.execute(insert(WorkloadRow), rows)


def close(session: Session, ends: list[dict[str, Any]]) -> None:
    """Note the ends of workloads: `uid`, `end`, `source`, `flags`, and `seen` (when). An existing end stays."""
    table = WorkloadRow.__table__
    statement = (
        update(WorkloadRow)
        .where(table.c.pod_uid == bindparam("uid"), table.c.ended_at.is_(None))
        .values(
            ended_at=bindparam("end"),
            end_source=bindparam("source"),
            flags=bindparam("flags"),
            closed_at=bindparam("seen"),
        )
    )
    if ends:
        session.connection().execute(statement, ends)


def ended_after(session: Session, cluster: str, at: Instant) -> list[WorkloadRow]:
    """Return the workloads of a cluster that end later than an instant."""
    query = select(WorkloadRow).join(Namespace, Namespace.id == WorkloadRow.namespace_id)
    query = query.where(WorkloadRow.archived_at.is_(None), WorkloadRow.ended_at > at, Namespace.cluster == cluster)
    return list(session.scalars(query.order_by(WorkloadRow.pod_uid)))


def limit_end(session: Session, workload: WorkloadRow, latest: Instant) -> None:
    """End a workload at an instant, or when it began if that is later, and flag it for clocks that differed."""
    flags = {*filter(None, workload.flags.split(",")), "clock-skew"}
    end = max(latest, workload.started_at)
    values = {"ended_at": end, "flags": ",".join(sorted(flags)), "closed_at": max(end, workload.closed_at or 0)}
    session.execute(update(WorkloadRow).where(WorkloadRow.pod_uid == workload.pod_uid).values(values))


def correct(session: Session, uid: str, start: Instant, end: Instant | None, flags: str) -> None:
    """Give a workload its corrected interval."""
    values = {"started_at": start, "ended_at": end, "flags": flags}
    session.execute(update(WorkloadRow).where(WorkloadRow.pod_uid == uid).values(values))


def heard(session: Session, uid: str, now: Instant) -> None:
    """Note a sign of life."""
    session.execute(update(WorkloadRow).where(WorkloadRow.pod_uid == uid).values(heard_at=now))


def open_intervals(session: Session, cluster: str) -> dict[str, tuple[str, str]]:
    """Return the pods of a cluster whose interval is open: namespace and name by UID."""
    query = select(WorkloadRow.pod_uid, Namespace.name, WorkloadRow.pod_name).join(
        Namespace, Namespace.id == WorkloadRow.namespace_id
    )
    rows = session.execute(query.where(WorkloadRow.ended_at.is_(None), Namespace.cluster == cluster))
    return {uid: (namespace, name) for uid, namespace, name in rows}


def page(
    session: Session,
    cluster: str,
    budget: AccountId | None,
    before: tuple[Instant, str] | None,
    limit: int,
    state: str = "all",
) -> list[tuple[WorkloadRow, str]]:
    """Return a namespace's workloads, or a cluster's, latest start first, beginning before a position.

    `state` is `running`, `closed` or `all`. Each comes with its namespace's name.
    """
    if budget is None:
        mine = _page(before, limit).join(Namespace, Namespace.id == WorkloadRow.namespace_id)
        mine = mine.where(Namespace.cluster == cluster)
    else:
        mine = _page(before, limit).where(WorkloadRow.namespace_id == budget)
    if state != "all":
        is_open = WorkloadRow.ended_at.is_(None)
        mine = mine.where(is_open if state == "running" else not_(is_open))
    pods = list(session.scalars(mine))
    known = accounts.by_id(session, {pod.namespace_id for pod in pods})
    return [(pod, known[pod.namespace_id].name) for pod in pods]


def _page(before: tuple[Instant, str] | None, limit: int) -> Select[WorkloadRow]:
    query = select(WorkloadRow).order_by(WorkloadRow.started_at.desc(), WorkloadRow.pod_uid.desc()).limit(limit)
    if before is None:
        return query
    at, uid = before
    return query.where(tuple_(WorkloadRow.started_at, WorkloadRow.pod_uid) < tuple_(literal(at), literal(uid)))


@dataclass(frozen=True)
class UsageSum:
    """The number of pods, for how many of them usage is known, and its sum in GPU-milliseconds."""

    pods: int
    known: int
    total: int


def used(session: Session, budget: AccountId, since: Instant) -> UsageSum:
    """Return the usage, over their whole lives, of a namespace's pods that ran at an instant or later."""
    reported = (
        select(func.sum(WatermarkRow.used_ms)).where(WatermarkRow.pod_uid == WorkloadRow.pod_uid).scalar_subquery()
    )
    pods = (
        select(func.coalesce(WorkloadRow.used_ms, reported).label("ms"))
        .where(WorkloadRow.namespace_id == budget, or_(WorkloadRow.ended_at.is_(None), WorkloadRow.ended_at > since))
        .subquery()
    )
    query = select(func.count(), func.count(pods.c.ms), func.coalesce(func.sum(pods.c.ms), 0)).select_from(pods)
    count, known, total = session.execute(query).one()
    return UsageSum(count, known, int(total))


# Signs of life


def last_heard(session: Session, uids: Sequence[str]) -> dict[str, Instant]:
    """Return when each of some pods last reported counters."""
    found: dict[str, Instant] = {}
    for chunk in chunks(uids):
        query = select(WatermarkRow.pod_uid, func.max(WatermarkRow.received_at))
        query = query.where(WatermarkRow.pod_uid.in_(chunk)).group_by(WatermarkRow.pod_uid)
        found |= {uid: at for uid, at in session.execute(query)}  # noqa: C416 - rows are no plain tuples
    return found


def unobserved_ms(session: Session, cluster: str, since: Instant) -> dict[str, int]:
    """Return for how long, by namespace, pods ran that ended after an instant and whose sidecars never reported."""
    spoke = select(WatermarkRow.pod_uid).where(WatermarkRow.pod_uid == WorkloadRow.pod_uid).exists()
    query = (
        select(Namespace.name, func.sum(WorkloadRow.ended_at - WorkloadRow.started_at))
        .join(Namespace, Namespace.id == WorkloadRow.namespace_id)
        .where(WorkloadRow.ended_at > since, WorkloadRow.heard_at.is_(None), Namespace.cluster == cluster, ~spoke)
        .group_by(Namespace.name)
    )
    return {name: int(total or 0) for name, total in session.execute(query)}


# GPUs


def gpus(session: Session) -> dict[str, Gpu]:
    """Return every GPU that was ever published."""
    of_slice = (GpuSeen.slice_mib, GpuSeen.slice_compute, GpuSeen.slice_of)
    rows = session.execute(select(GpuSeen.uuid, GpuSeen.model, GpuSeen.memory_mib, *of_slice))
    return {
        uuid: Gpu(uuid, model, memory, mig=(MigSlice(uuid, own, compute, of),) if own else ())
        for uuid, model, memory, own, compute, of in rows
    }


def keep_gpus(session: Session, seen: Collection[Gpu]) -> None:
    """Note GPUs and how they are described now."""
    known = gpus(session)
    rows = [_described(gpu) for gpu in seen]
    new = [row for row in rows if row["uuid"] not in known]
    if new:
        session.execute(insert(GpuSeen), new)
    old = [row for row in rows if row["uuid"] in known]
    if old:
        session.execute(update(GpuSeen), old)


def _described(gpu: Gpu) -> dict[str, str | int]:
    mig = gpu.mig[0] if is_slice(gpu.uuid) else None
    return {
        "uuid": gpu.uuid,
        "model": gpu.model,
        "memory_mib": gpu.memory_mib,
        "slice_mib": mig.memory_mib if mig else 0,
        "slice_compute": mig.compute if mig else 0,
        "slice_of": mig.of if mig else 0,
    }


# The watch


def confirm(session: Session, cluster: str, at: Instant) -> None:
    """Note that the watch of a cluster's pods is complete up to an instant."""
    changed = session.execute(update(WatchMark).where(WatchMark.cluster == cluster).values(confirmed_at=at))
    if not changed.rowcount:  # type: ignore[attr-defined]
        session.execute(insert(WatchMark).values(cluster=cluster, confirmed_at=at))


def confirmed(session: Session, cluster: str) -> Instant | None:
    """Return the last instant at which the watch was known to be complete."""
    return session.execute(select(WatchMark.confirmed_at).where(WatchMark.cluster == cluster)).scalar_one_or_none()


@lru_cache(4096)
def holders_of(text: str) -> Mapping[str, int]:
    """Return the GPUs that a workload's containers hold."""
    return msgspec.json.decode(text, type=dict[str, int])
