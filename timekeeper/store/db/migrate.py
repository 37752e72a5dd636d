# SPDX-License-Identifier: Apache-2.0
"""Run the migrations, which the wheel contains as the package `migrations`."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources import files

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from alembic.util import CommandError
from sqlalchemy import Connection, Engine, text

from slicekeeper.errors import SettingsError
from timekeeper.store.db.engine import WRITES, is_sqlite

# Alembic logs whenever the revision is read, and readiness probes read it every few seconds.
logging.getLogger("alembic.runtime.migration").setLevel(logging.WARNING)

_LOCK = 0x51CE_1EDA
"""Any number, the same in all processes: the lock that lets one of them migrate at a time."""


def upgrade(engine: Engine, revision: str = "head") -> str:
    """Bring the database up to a revision; return the one it has then.

    Raises SettingsError if it cannot go there.
    """
    return _walk(engine, revision, up=True)


def downgrade(engine: Engine, revision: str) -> str:
    """Take the database back to a revision (`base`: to nothing); return the one it has then.

    Raises SettingsError if there is no way to it, RuntimeError if the data does not fit that revision.
    """
    return _walk(engine, revision, up=False)


def _walk(engine: Engine, revision: str, *, up: bool) -> str:
    writing = engine.execution_options(**{WRITES: True})
    with _alone(engine), writing.connect() as connection, _without_foreign_keys(connection), connection.begin():
        config, found = _config(connection), current(connection)
        try:
            (command.upgrade if up else command.downgrade)(config, revision)
        except CommandError as error:
            raise _unfit(found, str(error)) from error
        _check_foreign_keys(connection)
        return current(connection)


@contextmanager
def _without_foreign_keys(connection: Connection) -> Iterator[None]:
    """Suspend foreign keys: SQLite changes a table by creating it again."""
    driver = connection.connection.driver_connection
    if driver is None or connection.dialect.name != "sqlite":
        yield
        return
    driver.execute("PRAGMA foreign_keys=OFF")
    try:
        yield
    finally:
        driver.execute("PRAGMA foreign_keys=ON")


def _check_foreign_keys(connection: Connection) -> None:
    """Raise an error if a migration left a dangling reference."""
    if connection.dialect.name == "sqlite":
        broken = connection.execute(text("PRAGMA foreign_key_check")).all()
        if broken:
            raise RuntimeError(f"the migration breaks references of {sorted({row[0] for row in broken})}")


@contextmanager
def _alone(engine: Engine) -> Iterator[None]:
    """Lock out other migrating processes; for SQLite, BEGIN IMMEDIATE does that.

    The lock has a connection of its own: within the transaction, the statement that waits would already have taken the
    snapshot, and would repeat the migration that another process has just completed.
    """
    if is_sqlite(engine):
        yield
        return
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(text("SET lock_timeout = '60s'"))
        connection.execute(text("SELECT pg_advisory_lock(:key)"), {"key": _LOCK})
        try:
            yield
        finally:
            connection.invalidate()  # back in the pool the session would keep the lock


def current(connection: Connection) -> str:
    """Return the revision that a database has, empty if it has none."""
    return MigrationContext.configure(connection).get_current_revision() or ""


def head() -> str:
    """Return the newest revision that this release knows."""
    return _scripts().get_current_head() or ""


def _scripts() -> ScriptDirectory:
    return ScriptDirectory.from_config(_config(None))


def is_current(engine: Engine) -> bool:
    """Return whether the database has the newest revision."""
    with engine.connect() as connection:
        return current(connection) == head()


def check(engine: Engine) -> None:
    """Check that the database has this release's revision.

    Raises SettingsError saying what to do if it has not.
    """
    if not is_current(engine):
        with engine.connect() as connection:
            found = current(connection)
        raise _unfit(found, f"this release needs {head()}; run `slicekeeper timekeeper migrate` first")


def _unfit(found: str, remedy: str) -> SettingsError:
    """Return the error of a database that is not at the required revision."""
    if found and found not in {script.revision for script in _scripts().walk_revisions()}:
        remedy = f"this release knows {head()} and none after it; a newer one migrated it, so run that one"
    return SettingsError(f"timekeeper.database is at revision {found or 'base'}: {remedy}")


def _config(connection: Connection | None) -> Config:
    config = Config()
    config.set_main_option("script_location", str(files("migrations")).replace("%", "%%"))
    config.attributes["connection"] = connection
    return config
