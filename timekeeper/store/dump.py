# SPDX-License-Identifier: Apache-2.0
"""A whole database as text, to be restored into either engine: JSON, a line for each row.

The first line names the revision of the tables; the last one counts the rows and bears the digest of all lines before
it, so that a file that was cut or changed is refused. What the engines have themselves (`pg_dump`) is faster for large
databases, but never crosses from one to the other.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any, BinaryIO, Final

import msgspec
from sqlalchemy import Connection, Engine, Table, func, insert, select
from sqlalchemy.exc import DataError, IntegrityError

from slicekeeper.errors import SettingsError
from timekeeper.store import migrate
from timekeeper.store.engine import WRITES
from timekeeper.store.models import Base

_FORMAT: Final = "slicekeeper-timekeeper"
_CHUNK: Final = 500


def dump(engine: Engine, out: BinaryIO) -> int:
    """Write one snapshot of a database; return how many rows it has."""
    digest, count = hashlib.sha256(), 0
    with engine.connect() as connection, connection.begin():
        head = {"format": _FORMAT, "revision": migrate.current(connection)}
        for line in _lines(connection, head):
            out.write(line)
            digest.update(line)
            count += 1
    out.write(_line({"rows": count - 1, "sha256": digest.hexdigest()}))
    return count - 1


def _lines(connection: Connection, head: dict[str, Any]) -> Iterator[bytes]:
    yield _line(head)
    for table in Base.metadata.sorted_tables:
        query = select(table).order_by(*table.primary_key.columns).execution_options(yield_per=1000)
        for row in connection.execute(query):
            yield _line([str(table.name), *row])


def _line(value: object) -> bytes:
    return msgspec.json.encode(value) + b"\n"


def restore(engine: Engine, source: BinaryIO) -> int:
    """Fill an empty, migrated database from a dump, all of it or nothing; return how many rows that are.

    Raises SettingsError where the database or the dump is not fit for it.
    """
    tables = {table.name: table for table in Base.metadata.sorted_tables}
    with engine.execution_options(**{WRITES: True}).connect() as connection, connection.begin():
        for table in tables.values():
            if connection.execute(select(func.count()).select_from(table)).scalar_one():
                raise SettingsError(f"timekeeper.database has rows in {table.name}: restore into an empty one")
        digest, count, waiting = hashlib.sha256(), 0, _Waiting(connection)
        for line in source:
            try:
                value = msgspec.json.decode(line)
            except msgspec.DecodeError as error:
                raise SettingsError(f"the dump is damaged after {count} rows: line {count + 2} is not JSON") from error
            if isinstance(value, list):
                try:
                    waiting.add(tables[value[0]], value[1:])
                except (IndexError, KeyError, ValueError, IntegrityError, DataError) as error:
                    raise SettingsError(f"the dump is damaged near row {count}: its rows do not fit") from error
                count += 1
            elif "rows" in value:
                if (value["rows"], value["sha256"]) != (count, digest.hexdigest()):
                    raise SettingsError("the dump was changed: its digest is not that of its lines")
                waiting.flush()
                _count_on(connection)
                return count
            else:
                _check_head(value, migrate.current(connection))
            digest.update(line)
        raise SettingsError(f"the dump was cut: it ends after {count} rows without its digest")


def _check_head(value: dict[str, Any], revision: str) -> None:
    if value.get("format") != _FORMAT:
        raise SettingsError("this is no dump of a timekeeper")
    if value.get("revision") != revision:
        raise SettingsError(
            f"the dump is of revision {value.get('revision')}, the database of {revision or 'base'}: "
            f"run `slicekeeper timekeeper migrate --to {value.get('revision')}` first, and on to head afterwards"
        )


class _Waiting:
    """Rows of one table at a time, written many at once."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._table: Table | None = None
        self._rows: list[dict[str, Any]] = []

    def add(self, table: Table, row: list[Any]) -> None:
        if table is not self._table or len(self._rows) >= _CHUNK:
            self.flush()
            self._table = table
        self._rows.append(dict(zip(table.columns.keys(), row, strict=True)))

    def flush(self) -> None:
        if self._table is not None and self._rows:
            self._connection.execute(insert(self._table), self._rows)
        self._rows = []


def _count_on(connection: Connection) -> None:
    """Have PostgreSQL's sequences go on behind the ids that are there; SQLite looks for itself."""
    if connection.dialect.name == "postgresql":
        for table in Base.metadata.sorted_tables:
            if "id" in table.columns:
                sequence = func.pg_get_serial_sequence(table.name, "id")
                connection.execute(select(func.setval(sequence, func.max(table.c.id))))
