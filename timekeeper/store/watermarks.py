# SPDX-License-Identifier: Apache-2.0
"""Sidecars' watermarks, and what judging a report needs of its pod: a few statements for any number of reports.

This is the one path that every running pod takes every few seconds, so its SQL is given to the drivers as it is:
statements built by SQLAlchemy for five hundred keys cost more than the database takes for them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec
from sqlalchemy.orm import Session

from timekeeper.counters import Watermark

Key = tuple[str, str, int]
"""Pod's UID, container, epoch."""

_HOLDING: Final = """
    SELECT w.pod_uid, n.name, w.pod_name, w.holders, w.started_at, w.ended_at
    FROM workload w JOIN namespace n ON n.id = w.namespace_id WHERE w.pod_uid """
_READ: Final = "SELECT pod_uid, container, epoch, seq, used_ms, monotonic_ns FROM watermark WHERE pod_uid "
_AMONG: Final = {"sqlite": "IN (SELECT value FROM json_each(?))", "postgresql": "= ANY(%s::text[])"}

_ROW: Final = "INSERT INTO watermark (pod_uid, container, epoch, seq, used_ms, monotonic_ns, received_at) "
_MOVES: Final = """
    ON CONFLICT (pod_uid, container, epoch) DO UPDATE SET seq = excluded.seq, used_ms = excluded.used_ms,
    monotonic_ns = excluded.monotonic_ns, received_at = excluded.received_at"""
_KEEP_EACH: Final = _ROW + "VALUES (?, ?, ?, ?, ?, ?, ?)" + _MOVES
_KEEP_ALL: Final = _ROW + "SELECT * FROM unnest(%s::text[], %s::text[]" + ", %s::bigint[]" * 5 + ")" + _MOVES


class Held(NamedTuple):
    """A pod that holds or held GPUs."""

    namespace: str
    pod_name: str
    holders: str
    """JSON: GPUs held, by container."""
    started_at: int
    ended_at: int | None


def holding(session: Session, uids: Collection[str]) -> dict[str, Held]:
    """Return what is known of pods, by UID."""
    return {row[0]: Held(*row[1:]) for row in _among(session, _HOLDING, uids)}


def read(session: Session, uids: Collection[str]) -> dict[tuple[str, str], dict[int, Watermark]]:
    """Return the watermarks of pods: by pod and container, by epoch."""
    found: dict[tuple[str, str], dict[int, Watermark]] = {}
    for uid, container, epoch, seq, used_ms, monotonic_ns in _among(session, _READ, uids):
        found.setdefault((uid, container), {})[epoch] = Watermark(epoch, seq, used_ms, monotonic_ns)
    return found


def _among(session: Session, statement: str, uids: Collection[str]) -> Sequence[Any]:
    connection = session.connection()
    given = list(uids) if connection.dialect.name == "postgresql" else msgspec.json.encode(list(uids)).decode()
    return connection.exec_driver_sql(statement + _AMONG[connection.dialect.name], (given,)).all()


def keep(session: Session, changed: Mapping[Key, tuple[Watermark, int]]) -> None:
    """Write watermarks, each with the instant at which its report came; in one order, so that nobody deadlocks."""
    rows = [
        (uid, container, epoch, mark.seq, mark.used_ms, mark.monotonic_ns, at)
        for (uid, container, epoch), (mark, at) in sorted(changed.items(), key=lambda item: item[0])
    ]
    if not rows:
        return
    connection = session.connection()
    if connection.dialect.name == "postgresql":
        connection.exec_driver_sql(_KEEP_ALL, tuple(map(list, zip(*rows, strict=True))))
    else:
        connection.exec_driver_sql(_KEEP_EACH, rows)
