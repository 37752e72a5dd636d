# SPDX-License-Identifier: Apache-2.0
"""Connections. SQLite: WAL, BEGIN IMMEDIATE for writers, synchronous=FULL, foreign keys. PostgreSQL: REPEATABLE READ.

Under REPEATABLE READ a transaction fails if it changes a row that another one has changed in the meantime, and is run
again (`timekeeper.store.db.writer`). Every change of a namespace's records also increments its `version`, so two
transactions that have not seen each other's changes never both succeed.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import Engine, create_engine, event, make_url
from sqlalchemy.exc import ArgumentError

from slicekeeper.errors import SettingsError

WRITES = "slicekeeper_writes"
"""Execution option of connections that write: SQLite takes its lock at BEGIN, not at the first write."""

_SESSION = (
    "-c synchronous_commit=on -c lock_timeout=20s -c statement_timeout=600s -c idle_in_transaction_session_timeout=600s"
)


def make_engine(url: str) -> Engine:
    """Return an engine for a database URL; `postgresql://` means the driver that we bring.

    Raises SettingsError if the URL cannot be used.
    """
    try:
        parsed = make_url(url)
        backend = parsed.get_backend_name()
        if backend == "sqlite":
            # Readers must not starve: each server thread may hold a connection in addition to the writer's.
            engine = create_engine(parsed, pool_size=32, max_overflow=32)
        elif backend == "postgresql":
            engine = create_engine(
                parsed.set(drivername="postgresql+psycopg"),
                isolation_level="REPEATABLE READ",
                pool_size=8,
                max_overflow=8,
                pool_timeout=10,
                pool_pre_ping=True,
                connect_args={"connect_timeout": 5, "options": _SESSION},
            )
        else:
            raise _refused(url, f"{backend} is not among the databases that are tested")
    except (ArgumentError, ModuleNotFoundError) as error:
        raise _refused(url, str(error)) from error
    if backend == "sqlite":
        event.listen(engine, "connect", _prepare)
        event.listen(engine, "begin", _begin)
    return engine


def is_sqlite(engine: Engine) -> bool:
    """Return whether this is the embedded default."""
    return engine.dialect.name == "sqlite"


def _refused(url: str, why: str) -> SettingsError:
    return SettingsError(
        f"timekeeper.database is {_shown(url)!r}: {why}; for example "
        "sqlite:////var/lib/slicekeeper/timekeeper.sqlite or postgresql://timekeeper@db/timekeeper"
    )


def _shown(url: str) -> str:
    """Return a URL without its password."""
    try:
        return make_url(url).render_as_string(hide_password=True)
    except ArgumentError:
        return url


def _prepare(connection: Any, _record: object) -> None:
    connection.isolation_level = None  # the driver must not begin transactions by itself
    cursor = connection.cursor()
    # 16 MiB of pages instead of 2: reports look up pods whose UIDs are anywhere in an index.
    for pragma in (
        "busy_timeout=20000",
        "journal_mode=WAL",
        "synchronous=FULL",
        "foreign_keys=ON",
        "cache_size=-16384",
    ):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


def _begin(connection: Any) -> None:
    writes = connection.get_execution_options().get(WRITES)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")
