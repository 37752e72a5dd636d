# SPDX-License-Identifier: Apache-2.0
"""Elect which of several processes on one database runs the controller of a cluster.

On PostgreSQL it is the process that holds an advisory lock, which belongs to a session: it is free as soon as the
holder's connection is gone. If two processes believe for a moment that they hold it, the ledger is not affected,
because everything that they write is idempotent. On SQLite there is only one process.
"""

from __future__ import annotations

import logging
import zlib

from sqlalchemy import Connection, Engine, text
from sqlalchemy.exc import SQLAlchemyError

from timekeeper.store.db.engine import is_sqlite

log = logging.getLogger(__name__)

_CLASS = 0x51CE
"""Distinguishes our locks from others in the same database; the second key distinguishes clusters."""


class Leadership:
    """The right to run the controller. For one thread."""

    def __init__(self, engine: Engine, cluster: str) -> None:
        self._engine = engine
        self._key = zlib.crc32(cluster.encode()) - 2**31
        self._session: Connection | None = None
        self._held = is_sqlite(engine)
        self._alone = self._held

    def held(self) -> bool:
        """Return whether this process leads; it tries to if no other does.

        Raises SQLAlchemyError if that cannot be known.
        """
        if self._alone:
            return True
        try:
            if self._session is None:
                self._session = self._engine.connect().execution_options(isolation_level="AUTOCOMMIT")
            if self._held:
                self._session.execute(text("SELECT 1"))
            else:
                keys = {"class": _CLASS, "key": self._key}
                query = text("SELECT pg_try_advisory_lock(:class, :key)")
                self._held = bool(self._session.execute(query, keys).scalar_one())
                if self._held:
                    log.info("this process runs the controller from now on")
        except SQLAlchemyError:
            self.close()
            raise
        return self._held

    def close(self) -> None:
        """Let another process lead."""
        session, self._session = self._session, None
        self._held = self._alone
        if session is not None:
            session.invalidate()  # back in the pool the session would keep the lock
            session.close()
