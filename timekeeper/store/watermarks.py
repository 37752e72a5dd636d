# SPDX-License-Identifier: Apache-2.0
"""Sidecars' watermarks, and what judging a report needs of its pod: a few statements for any number of reports.

This is the one path that every running pod takes every few seconds, so its SQL is given to the drivers as it is:
statements built by SQLAlchemy for five hundred keys cost more than the database takes for them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final, NamedTuple

import msgspec
from sqlalchemy.orm import Session

from timekeeper.counters import Watermark

Key = tuple[str, str, int]
"""Pod's UID, container, epoch."""

Marks = dict[tuple[str, str], dict[int, Watermark]]
"""Watermarks by pod's UID and container, by epoch."""

_FOUND: Final = """
    SELECT w.pod_uid, n.name, w.pod_name, w.holders, w.started_at, w.ended_at, w.archived_at,
    m.container, m.epoch, m.seq, m.used_ms, m.monotonic_ns, m.hour, m.hour_base, m.observed_ms
    FROM workload w JOIN namespace n ON n.id = w.namespace_id LEFT JOIN watermark m ON m.pod_uid = w.pod_uid
    WHERE w.pod_uid IN (SELECT """
_AMONG: Final = {"sqlite": "value FROM json_each(?))", "postgresql": "json_array_elements_text(%s))"}

_ROW: Final = """
    INSERT INTO watermark (pod_uid, container, epoch, seq, used_ms, monotonic_ns, hour, hour_base, observed_ms,
    received_at) """
_FROM_JSON: Final = """
    SELECT r->>0, r->>1, (r->>2)::bigint, (r->>3)::bigint, (r->>4)::bigint, (r->>5)::bigint, (r->>6)::bigint,
    (r->>7)::bigint, (r->>8)::bigint, (r->>9)::bigint
    FROM json_array_elements(%s) AS r"""
_MOVES: Final = """
    ON CONFLICT (pod_uid, container, epoch) DO UPDATE SET seq = excluded.seq, used_ms = excluded.used_ms,
    monotonic_ns = excluded.monotonic_ns, received_at = excluded.received_at, hour = excluded.hour,
    hour_base = excluded.hour_base, observed_ms = excluded.observed_ms"""
_KEEP_EACH: Final = _ROW + "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)" + _MOVES
_KEEP_ALL: Final = _ROW + _FROM_JSON + _MOVES


class Held(NamedTuple):
    """A pod that holds or held GPUs."""

    namespace: str
    pod_name: str
    holders: str
    """JSON: GPUs held, by container."""
    started_at: int
    ended_at: int | None
    archived_at: int | None


def read(session: Session, uids: Collection[str]) -> tuple[dict[str, Held], Marks]:
    """Return what is known of pods, and their watermarks."""
    connection = session.connection()
    statement = _FOUND + _AMONG[connection.dialect.name]
    pods: dict[str, Held] = {}
    marks: Marks = {}
    for row in connection.exec_driver_sql(statement, (_json(list(uids)),)).all():
        uid, container, epoch = row[0], row[7], row[8]
        pods[uid] = Held(*row[1:7])
        if container is not None:
            marks.setdefault((uid, container), {})[epoch] = Watermark(*row[8:])
    return pods, marks


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()


def keep(session: Session, changed: Mapping[Key, tuple[Watermark, int]]) -> None:
    """Write watermarks, each with the instant at which its report came; in one order, so that nobody deadlocks."""
    rows = [
        (uid, container, *mark, at)
        for (uid, container, _), (mark, at) in sorted(changed.items(), key=lambda item: item[0])
    ]
    if not rows:
        return
    connection = session.connection()
    if connection.dialect.name == "postgresql":
        connection.exec_driver_sql(_KEEP_ALL, (_json(rows),))
    else:
        connection.exec_driver_sql(_KEEP_EACH, rows)
