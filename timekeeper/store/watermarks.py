# SPDX-License-Identifier: Apache-2.0
"""Sidecars' watermarks, and what judging a report needs of its pod: a few statements for any number of reports.

This is the one path that every running pod takes every few seconds, so its SQL is given to the drivers as it is:
statements built by SQLAlchemy for five hundred keys cost more than the database takes for them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final, NamedTuple

import msgspec
from sqlalchemy.orm import Session

from timekeeper.counters import Watermark

Key = tuple[str, str, int]
"""Pod's UID, container, epoch."""

Marks = dict[tuple[str, str], dict[int, Watermark]]
"""Watermarks by pod's UID and container, by epoch."""

_READ: Final = """
    SELECT CAST({array_of}({array}(
        w.pod_uid, n.name, w.pod_name, w.holders, w.started_at, w.ended_at, w.archived_at,
        m.container, m.epoch, m.seq, m.used_ms, m.monotonic_ns, m.hour, m.hour_base, m.observed_ms)) AS text)
    FROM workload w JOIN namespace n ON n.id = w.namespace_id LEFT JOIN watermark m ON m.pod_uid = w.pod_uid
    WHERE w.pod_uid IN (SELECT {uids})"""
"""One value for all rows: SQLite's driver gives up the interpreter's lock at each row, and has to wait for it again
while other threads serve requests."""

_ROWS: Final = msgspec.json.Decoder(list[tuple[Any, ...]])

_KEEP: Final = """
    INSERT INTO watermark (pod_uid, container, epoch, seq, used_ms, monotonic_ns, hour, hour_base, observed_ms,
    received_at) SELECT {fields} FROM {rows} AS r WHERE true
    ON CONFLICT (pod_uid, container, epoch) DO UPDATE SET seq = excluded.seq, used_ms = excluded.used_ms,
    monotonic_ns = excluded.monotonic_ns, received_at = excluded.received_at, hour = excluded.hour,
    hour_base = excluded.hour_base, observed_ms = excluded.observed_ms"""


class _Statements(NamedTuple):
    read: str
    keep: str


_TEXTS, _NUMBERS = range(2), range(2, 10)
_OF: Final = {
    "sqlite": _Statements(
        _READ.format(array_of="json_group_array", array="json_array", uids="value FROM json_each(?)"),
        _KEEP.format(
            fields=", ".join(f"json_extract(r.value, '$[{n}]')" for n in (*_TEXTS, *_NUMBERS)), rows="json_each(?)"
        ),
    ),
    "postgresql": _Statements(
        _READ.format(array_of="json_agg", array="json_build_array", uids="json_array_elements_text(%s)"),
        _KEEP.format(
            fields=", ".join([f"r->>{n}" for n in _TEXTS] + [f"(r->>{n})::bigint" for n in _NUMBERS]),
            rows="jsonb_array_elements(%s)",
        ),
    ),
}


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
    found = connection.exec_driver_sql(_OF[connection.dialect.name].read, (_json(list(uids)),)).scalar_one()
    pods: dict[str, Held] = {}
    marks: Marks = {}
    for row in _ROWS.decode(found or b"[]"):
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
    if rows:
        connection = session.connection()
        connection.exec_driver_sql(_OF[connection.dialect.name].keep, (_json(rows),))
