# SPDX-License-Identifier: Apache-2.0
"""Write a whole database as text that can be restored into either engine: JSON, one line for each row.

The first line has the revision of the tables and their columns, as the database has them and not as this release would
create them: so a ledger can be dumped and restored both before and after a migration. The last line has the number of
rows and the digest of all earlier lines, so that a truncated or changed file is refused. The engines' own tools
(`pg_dump`) are faster for large databases, but cannot move data between engines.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from typing import Any, BinaryIO, Final

import msgspec
from sqlalchemy import Connection, Engine, MetaData, Table, func, insert, select
from sqlalchemy.exc import CompileError, DataError, IntegrityError

from slicekeeper.errors import SettingsError
from timekeeper.store.db import migrate
from timekeeper.store.db.engine import WRITES

_FORMAT: Final = "slicekeeper-timekeeper"
_CHUNK: Final = 500


def dump(engine: Engine, out: BinaryIO) -> int:
    """Write one snapshot of a database; return how many rows it has.

    Raises SettingsError if it has no tables.
    """
    digest, count = hashlib.sha256(), 0
    with engine.connect() as connection, connection.begin():
        tables = _tables(connection)
        revision = migrate.current(connection)
        if not revision:
            raise SettingsError("timekeeper.database is at revision base: there is nothing to dump")
        columns = {str(table.name): list(map(str, sorted(table.columns.keys()))) for table in tables}
        head = {"format": _FORMAT, "revision": revision, "columns": columns}
        for line in _lines(connection, head, tables):
            out.write(line)
            digest.update(line)
            count += 1
    out.write(_line({"rows": count - 1, "sha256": digest.hexdigest()}))
    return count - 1


def _tables(connection: Connection) -> list[Table]:
    """Return the tables of a database, each after those that it refers to."""
    found = MetaData()
    found.reflect(connection, only=lambda name, _: name != "alembic_version" and not name.startswith("usage_hour_"))
    return found.sorted_tables


def _lines(connection: Connection, head: dict[str, Any], tables: list[Table]) -> Iterator[bytes]:
    yield _line(head)
    for table in tables:
        columns = [table.columns[name] for name in sorted(table.columns.keys())]
        query = select(*columns).order_by(*table.primary_key.columns).execution_options(yield_per=1000)
        for row in connection.execute(query):
            yield _line([str(table.name), *row])


def _line(value: object) -> bytes:
    return msgspec.json.encode(value) + b"\n"


def restore(engine: Engine, source: BinaryIO) -> int:
    """Fill an empty, migrated database from a dump, all of it or nothing; return how many rows that are.

    Raises SettingsError if the database is not empty, or the dump is damaged or of another revision.
    """
    with engine.execution_options(**{WRITES: True}).connect() as connection, connection.begin():
        tables = {table.name: table for table in _tables(connection)}
        for table in tables.values():
            if connection.execute(select(func.count()).select_from(table)).scalar_one():
                raise SettingsError(f"timekeeper.database has rows in {table.name}: restore into an empty database")
        digest, count, waiting = hashlib.sha256(), 0, _WaitingRows(connection)
        columns: dict[str, list[str]] = {}
        for line in source:
            try:
                value = msgspec.json.decode(line)
            except msgspec.DecodeError as error:
                raise SettingsError(f"the dump is damaged after {count} rows: line {count + 2} is not JSON") from error
            if isinstance(value, list):
                try:
                    waiting.add(tables[value[0]], columns[value[0]], value[1:])
                except (IndexError, KeyError, ValueError, IntegrityError, DataError, CompileError) as error:
                    raise SettingsError(f"the dump is damaged near row {count}: its rows do not fit") from error
                count += 1
            elif isinstance(value, dict) and "rows" in value:
                if (value["rows"], value.get("sha256")) != (count, digest.hexdigest()):
                    raise SettingsError("the dump was changed: its digest does not match its lines")
                waiting.flush()
                _count_on(connection, tables.values())
                return count
            else:
                columns = _columns(value, migrate.current(connection))
            digest.update(line)
        raise SettingsError(f"the dump is incomplete: it ends after {count} rows without its digest")


def _columns(value: object, revision: str) -> dict[str, list[str]]:
    """Return the tables' columns by a dump's first line, if it fits a database of a revision."""
    if not isinstance(value, dict) or value.get("format") != _FORMAT:
        raise SettingsError("this is not a timekeeper's dump")
    if value.get("revision") != revision:
        raise SettingsError(
            f"the dump is of revision {value.get('revision')}, the database of {revision or 'base'}: "
            f"run `slicekeeper timekeeper migrate --to {value.get('revision')}` first, and on to head afterwards"
        )
    columns: dict[str, list[str]] = value.get("columns", {})
    return columns


class _WaitingRows:
    """Rows of one table at a time, written many at once."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._table: Table | None = None
        self._rows: list[dict[str, Any]] = []

    def add(self, table: Table, columns: list[str], row: list[Any]) -> None:
        if table is not self._table or len(self._rows) >= _CHUNK:
            self.flush()
            self._table = table
        self._rows.append(dict(zip(columns, row, strict=True)))

    def flush(self) -> None:
        if self._table is not None and self._rows:
            self._connection.execute(insert(self._table), self._rows)
        self._rows = []


def _count_on(connection: Connection, tables: Iterable[Table]) -> None:
    """Let PostgreSQL's sequences continue after the restored ids; SQLite has none."""
    if connection.dialect.name == "postgresql":
        for table in tables:
            if "id" in table.columns:
                sequence = func.pg_get_serial_sequence(table.name, "id")
                connection.execute(select(func.setval(sequence, func.max(table.c.id))))
