# SPDX-License-Identifier: Apache-2.0
"""Sidecars' watermarks, and what is needed of a pod to judge its report: a few statements for any number of reports.

Every running pod uses this path every few seconds, so its SQL is given to the drivers as text: for five hundred keys,
building the statements with SQLAlchemy takes longer than the database needs for them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any, Final, NamedTuple

import msgspec
from sqlalchemy import Connection
from sqlalchemy.orm import Session

from slicekeeper.units import Instant
from timekeeper.core.usage_report import Watermark
from timekeeper.store.db.models import RUNNING_INDEX

MarkKey = tuple[str, str, int]
"""Pod's UID, container, epoch."""

Marks = dict[tuple[str, str], dict[int, Watermark]]
"""Watermarks by pod's UID and container, by epoch."""

_READ: Final = """
    SELECT CAST({array_of}({array}(
        w.pod_uid, (SELECT name FROM namespace WHERE id = w.namespace_id), w.pod_name, w.holders, w.started_at,
        w.ended_at, w.archived_at, m.container, m.epoch, m.seq, m.used_ms, m.monotonic_ns, m.hour, m.hour_base,
        m.observed_ms, m.peak_memory_mib, m.{place})) AS text)
    FROM workload w {pods} LEFT JOIN watermark m ON m.pod_uid = w.pod_uid
    WHERE w.pod_uid {among}"""
"""One value for all rows: SQLite's driver releases the interpreter's lock at each row, and must wait for it again while
other threads serve requests."""

_ROWS: Final = msgspec.json.Decoder(list[tuple[Any, ...]])

_MOVE: Final = """
    UPDATE watermark SET seq = {0}, used_ms = {1}, monotonic_ns = {2}, hour = {3}, hour_base = {4}, observed_ms = {5},
    peak_memory_mib = {6}, received_at = {7} FROM {rows} AS r WHERE watermark.{place} = {8}"""
"""By the rows' physical places, which were read before: no key is looked up again."""

_ADD: Final = """
    INSERT INTO watermark (seq, used_ms, monotonic_ns, hour, hour_base, observed_ms, peak_memory_mib,
    received_at, pod_uid, container, epoch) SELECT {fields} FROM {rows} AS r"""


class _Statements(NamedTuple):
    read_running: str
    read: str
    move: str
    add: str


def _statements(
    *,
    array_of: str,
    array: str,
    among: str,
    rows: str,
    place: str,
    field: Callable[[int, str], str],
    place_type: str = "",
    running_by: str = "",
) -> _Statements:
    """Return the statements in one database's SQL.

    `array_of` aggregates rows into a JSON array, `array` makes one of a row's values; `among` tests for one of the
    given keys; `rows` are the elements of a JSON array, of which `field` returns one by index and type; `place` is the
    column of a row's physical place, of type `place_type`; `running_by` names the index of running pods.
    """
    numbers = [field(n, "bigint") for n in range(8)]
    read = partial(_READ.format, array_of=array_of, array=array, among=among, place=place)
    return _Statements(
        read(pods=running_by) + " AND w.ended_at IS NULL",
        read(pods=""),
        _MOVE.format(*numbers, field(8, place_type), rows=rows, place=place),
        _ADD.format(fields=", ".join([*numbers, field(8, "text"), field(9, "text"), field(10, "bigint")]), rows=rows),
    )


_OF: Final = {
    "sqlite": _statements(
        array_of="json_group_array",
        array="json_array",
        among="IN (SELECT value FROM json_each(?))",
        rows="json_each(?)",
        place="rowid",
        field=lambda n, _type: f"json_extract(r.value, '$[{n}]')",
        running_by=f"INDEXED BY {RUNNING_INDEX}",
    ),
    "postgresql": _statements(
        array_of="json_agg",
        array="json_build_array",
        among="= ANY(%s::varchar[])",
        rows="jsonb_array_elements(%s)",
        place="ctid",
        field=lambda n, of_type: f"(r->>{n})::{of_type}",
        place_type="tid",
    ),
}


class MeteredPod(NamedTuple):
    """A pod that holds or held GPUs."""

    namespace: str
    pod_name: str
    holders: str
    """JSON: GPUs held, by container."""
    started_at: Instant
    ended_at: Instant | None
    archived_at: Instant | None


class KnownMarks(NamedTuple):
    """What is known of pods and their watermarks; `places` of rows hold until the transaction ends."""

    pods: dict[str, MeteredPod]
    marks: Marks
    places: dict[MarkKey, Any]


def read(session: Session, uids: Collection[str]) -> KnownMarks:
    """Return what is known of pods. Nearly all that report are running: a small index contains only these."""
    connection = session.connection()
    of = _OF[connection.dialect.name]
    known = KnownMarks({}, {}, {})
    _read(connection, of.read_running, uids, known)
    rest = [uid for uid in uids if uid not in known.pods]
    if rest:
        _read(connection, of.read, rest, known)
    return known


def _read(connection: Connection, statement: str, uids: Collection[str], known: KnownMarks) -> None:
    among = _json(sorted(uids))  # in the order of the index
    if connection.dialect.name == "postgresql":
        among = f"{{{among[1:-1]}}}"  # an array's literal quotes as JSON does
    found = connection.exec_driver_sql(statement, (among,)).scalar_one()
    for row in _ROWS.decode(found or b"[]"):
        uid, container, epoch = row[0], row[7], row[8]
        known.pods[uid] = MeteredPod(*row[1:7])
        if container is not None:
            known.marks.setdefault((uid, container), {})[epoch] = Watermark(*row[8:16])
            known.places[uid, container, epoch] = row[16]


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()


def keep(session: Session, changed: Mapping[MarkKey, tuple[Watermark, Instant]], places: Mapping[MarkKey, Any]) -> None:
    """Write watermarks, each with the instant at which its report arrived; always in one order, to avoid deadlocks."""
    moved: list[tuple[Any, ...]] = []
    added: list[tuple[Any, ...]] = []
    for key, (mark, at) in sorted(changed.items(), key=lambda item: item[0]):
        if key in places:
            moved.append((*mark[1:], at, places[key]))
        else:
            added.append((*mark[1:], at, *key))
    connection = session.connection()
    of = _OF[connection.dialect.name]
    for statement, rows in ((of.move, moved), (of.add, added)):
        if rows:
            connection.exec_driver_sql(statement, (_json(rows),))
