# SPDX-License-Identifier: Apache-2.0
"""Classify database errors for the caller: a conflict with another transaction, no server, no space."""

from __future__ import annotations

import sqlite3

from sqlalchemy.exc import DBAPIError, OperationalError
from sqlalchemy.exc import TimeoutError as NoConnection

_LOST = frozenset({"40001", "40P01", "55P03", "23505"})
"""Lost against another transaction: serialisation, deadlock, lock timeout, a key that another wrote first."""

_TURNING = frozenset({"57P01", "57P02", "57P03"})
"""The server is being stopped or started."""

_PG_FULL = "53100"
_SQLITE_FULL = frozenset({sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_WRITE, sqlite3.SQLITE_IOERR_SHMSIZE})
"""A file-size limit and a quota show as a write that failed."""


def may_succeed_later(error: BaseException) -> bool:
    """Return whether the same transaction may succeed when it is run again."""
    return lost(error) or _unavailable(error)


def lost(error: BaseException) -> bool:
    """Return whether another transaction was faster."""
    return isinstance(error, DBAPIError) and getattr(error.orig, "sqlstate", "") in _LOST


def _unavailable(error: BaseException) -> bool:
    """Return whether the server, or a connection to it, is unavailable, which is no fault of any change."""
    if isinstance(error, NoConnection):
        return True
    if not isinstance(error, DBAPIError):
        return False
    state = getattr(error.orig, "sqlstate", "")  # SQLite's driver has none, PostgreSQL's has None without a server
    return error.connection_invalidated or state in _TURNING or (state is None and isinstance(error, OperationalError))


def out_of_room(error: BaseException) -> bool:
    """Return whether the database's disk is full.

    SQLite gives up the whole transaction then, so that rolling back to a savepoint fails too: the cause lies behind.
    """
    link: BaseException | None = error
    while link is not None:
        orig = link.orig if isinstance(link, DBAPIError) else None
        if getattr(orig, "sqlstate", "") == _PG_FULL or getattr(orig, "sqlite_errorcode", 0) in _SQLITE_FULL:
            return True
        link = link.__context__
    return False


def is_away(error: BaseException) -> bool:
    """Return whether the fault is the database's and not the caller's: it does not answer, or has no room."""
    return may_succeed_later(error) or out_of_room(error)
