# SPDX-License-Identifier: Apache-2.0
"""Reading in snapshots, and writing by one thread that commits many writes at once.

A commit that lasts costs a sync of the disk. Writers hand in functions; the thread runs what has gathered, each in a
savepoint of its own, and commits once. Who handed one in waits for that commit, so nothing is acknowledged that a
power loss could take back.

On PostgreSQL other processes write too. What loses against them, and what a restart of the server cut off, is run
again from its beginning: changes read what they decide from within their transaction, and are idempotent. Whoever has
lost queues for the next try, so that nobody loses for ever.
"""

from __future__ import annotations

import logging
import queue
import sqlite3
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar

from sqlalchemy import Connection, Engine, text
from sqlalchemy.exc import DBAPIError, OperationalError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as NoConnection
from sqlalchemy.orm import Session
from tenacity import RetryCallState, Retrying, retry_if_exception, stop_after_delay, wait_random_exponential

from timekeeper.store.engine import WRITES, is_sqlite

log = logging.getLogger(__name__)

T = TypeVar("T")
Item = TypeVar("Item")
Change = Callable[[Session, Sequence[Any]], Sequence[Any]]
"""Takes items, and returns a result for each."""


class Handed(NamedTuple):
    """What waits to be written: an item for a change."""

    change: Change
    item: Any
    future: Future[Any]


_MOST_AT_ONCE = 512
_TOGETHER = 3
"""How often a batch is run as one before each of its changes gets a transaction of its own."""

_QUEUE = text("LOCK TABLE namespace IN SHARE ROW EXCLUSIVE MODE")
"""The one statement that waits without having taken the transaction's snapshot before."""

_LONGEST_TRY = 20.0
"""Real seconds after which a change that always loses, or a server that stays away, is an error."""

_LOST = frozenset({"40001", "40P01", "55P03", "23505"})
"""Lost against another transaction: serialisation, deadlock, lock timeout, a key that another wrote first."""

_TURNING = frozenset({"57P01", "57P02", "57P03"})
"""The server is being stopped or started."""

_PG_FULL = "53100"
_SQLITE_FULL = frozenset({sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_WRITE, sqlite3.SQLITE_IOERR_SHMSIZE})
"""A file-size limit and a quota show as a write that failed."""

_STATEMENTS_ALONE = {"synchronize_session": False}
"""Nothing reads an object again that a statement has changed; comparing them all would cost more than the writes."""


class Database:
    """One database. `close` ends the writer; what was acknowledged is on disk."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._connection: Connection | None = None
        self._queue: queue.SimpleQueue[Handed | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="ledger-writer", daemon=True)
        self._thread.start()

    @contextmanager
    def reading(self) -> Iterator[Session]:
        """Open a snapshot to read from."""
        with Session(self.engine, expire_on_commit=False) as session, session.begin():
            yield session

    def write(self, change: Callable[[Session], T]) -> T:
        """Run `change` in a transaction and return its result once that is committed.

        An error that `change` raises undoes what it did and nothing else. It may be run more than once: only what it
        did last counts.
        """
        return self.write_with_others(lambda session, _items: [change(session)], None)

    def write_with_others(self, change: Callable[[Session, Sequence[Item]], Sequence[T]], item: Item) -> T:
        """As `write`, but items that wait for the same change at the same time are given to it together.

        Where it raises an error, it is run for each of them alone.
        """
        future: Future[T] = Future()
        self._queue.put(Handed(change, item, future))
        return future.result()

    @property
    def alive(self) -> bool:
        """Whether the writer runs."""
        return self._thread.is_alive()

    def close(self) -> None:
        """Write what has been handed in, and stop."""
        self._queue.put(None)
        self._thread.join(timeout=30)
        self.engine.dispose()

    def _run(self) -> None:
        while (first := self._queue.get()) is not None:
            batch = [first]
            stop = False
            while len(batch) < _MOST_AT_ONCE and not self._queue.empty():
                following = self._queue.get()
                if following is None:
                    stop = True
                    break
                batch.append(following)
            self._commit(batch)
            if stop:
                break
        self._disconnect()

    @contextmanager
    def _writing(self, *, queued: bool) -> Iterator[Session]:
        """Open a transaction on a connection that the writer keeps until something goes wrong on it.

        So SQLite's pages stay in its cache, and PostgreSQL is not asked before each transaction whether it is there.
        `queued`: wait until no other process moves a namespace, and let none do so before the end. Readers and reports
        don't notice.
        """
        try:
            if self._connection is None:
                self._connection = self.engine.connect().execution_options(**{WRITES: True})
            with Session(self._connection, execution_options=_STATEMENTS_ALONE) as session, session.begin():
                if queued and not is_sqlite(self.engine):
                    session.execute(_QUEUE)
                yield session
        except BaseException:
            self._disconnect()
            raise

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _commit(self, batch: list[Handed]) -> None:
        """Commit a batch, as one where that succeeds, and tell who waits."""
        attempts = Retrying(
            retry=retry_if_exception(may_succeed_later),
            stop=lambda state: _enough(state, len(batch)),
            wait=wait_random_exponential(multiplier=0.005, max=1.0),
            reraise=True,
        )
        try:
            for trial in attempts:
                with trial:
                    self._try(batch, queued=trial.retry_state.attempt_number > 1)
        except Exception as error:
            if len(batch) > 1 and (_lost(error) or out_of_room(error)):
                for one in batch:
                    self._commit([one])
                return
            log.error("commit failed, %d writes undone: %s", len(batch), error, exc_info=not _expected(error))
            for handed in batch:
                if not handed.future.done():
                    handed.future.set_exception(error)

    def _try(self, batch: Sequence[Handed], *, queued: bool) -> None:
        """Run and commit a batch once. Errors that are a change's own go to who handed it in."""
        groups = _together(batch)
        if len(groups) == 1:
            self._try_alone(groups[0], queued=queued)
            return
        done: list[tuple[Future[Any], Any]] = []
        failed: list[tuple[Future[Any], Exception]] = []
        waiting = deque(groups)
        with self._writing(queued=queued) as session:
            while waiting:
                group = waiting.popleft()
                try:
                    with session.begin_nested():
                        results = group[0].change(session, [handed.item for handed in group])
                    done += zip((handed.future for handed in group), results, strict=True)
                except Exception as error:
                    if not session.is_active or may_succeed_later(error) or out_of_room(error):
                        raise
                    if len(group) > 1:
                        waiting.extendleft([handed] for handed in reversed(group))
                    else:
                        failed.append((group[0].future, error))
        for future, result in done:
            future.set_result(result)
        for future, refusal in failed:
            future.set_exception(refusal)

    def _try_alone(self, group: Sequence[Handed], *, queued: bool) -> None:
        """Run and commit one change once. It needs no savepoint, which would cost a server two more round trips."""
        try:
            with self._writing(queued=queued) as session:
                results = group[0].change(session, [handed.item for handed in group])
        except Exception as error:
            if may_succeed_later(error) or out_of_room(error):
                raise
            if len(group) == 1:
                group[0].future.set_exception(error)
            else:
                for handed in group:
                    self._commit([handed])
            return
        for handed, result in zip(group, results, strict=True):
            handed.future.set_result(result)


def _together(batch: Sequence[Handed]) -> list[list[Handed]]:
    """Return a batch by changes, in the order in which each was first handed in."""
    groups: dict[Change, list[Handed]] = {}
    for handed in batch:
        groups.setdefault(handed.change, []).append(handed)
    return list(groups.values())


def may_succeed_later(error: BaseException) -> bool:
    """Whether the same transaction may succeed when it is run again."""
    return _lost(error) or _away(error)


def _lost(error: BaseException) -> bool:
    return isinstance(error, DBAPIError) and getattr(error.orig, "sqlstate", "") in _LOST


def _away(error: BaseException) -> bool:
    """Whether the server, or a connection to it, is not to be had: no fault of any change."""
    if isinstance(error, NoConnection):
        return True
    if not isinstance(error, DBAPIError):
        return False
    state = getattr(error.orig, "sqlstate", "")  # SQLite's driver has none, PostgreSQL's has None without a server
    return error.connection_invalidated or state in _TURNING or (state is None and isinstance(error, OperationalError))


def out_of_room(error: BaseException) -> bool:
    """Whether the database's disk is full.

    SQLite gives up the whole transaction then, so that rolling back to a savepoint fails too: the cause lies behind.
    """
    link: BaseException | None = error
    while link is not None:
        orig = link.orig if isinstance(link, DBAPIError) else None
        if getattr(orig, "sqlstate", "") == _PG_FULL or getattr(orig, "sqlite_errorcode", 0) in _SQLITE_FULL:
            return True
        link = link.__context__
    return False


def _enough(state: RetryCallState, size: int) -> bool:
    """Whether to give up a batch: one that lost is soon divided, which would not help one that has no server."""
    error = state.outcome.exception() if state.outcome else None
    divided = size > 1 and state.attempt_number >= _TOGETHER and error is not None and _lost(error)
    return divided or stop_after_delay(_LONGEST_TRY)(state)


def _expected(error: Exception) -> bool:
    return isinstance(error, SQLAlchemyError)
