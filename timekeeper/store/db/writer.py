# SPDX-License-Identifier: Apache-2.0
"""A thread that commits many writes at once.

A durable commit costs a sync of the disk. Callers submit functions; the thread runs all that are waiting, each in a
savepoint of its own, and commits once. The callers wait for that commit, so nothing is acknowledged that a power loss
could undo.

On PostgreSQL other processes write too. A change that loses against them, or is interrupted by a restart of the server,
is run again from its beginning: changes read their input within their transaction, and are idempotent. After a loss the
writer queues for the next try, so that no change loses forever.
"""

from __future__ import annotations

import logging
import queue
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

from sqlalchemy import Connection, Engine, text
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session
from tenacity import RetryCallState, Retrying, retry_if_exception, stop_after_delay, wait_random_exponential

from slicekeeper import threads
from timekeeper.store.db.engine import WRITES, is_sqlite
from timekeeper.store.db.failures import is_away, lost, may_succeed_later, out_of_room

log = logging.getLogger(__name__)

Change = Callable[[Session, Sequence[Any]], Sequence[Any]]
"""Takes items, and returns a result for each."""

_MOST_AT_ONCE = 512
_TOGETHER = 3
"""How often a batch is run as one before each of its changes gets a transaction of its own."""

_LONGEST_TRY = 20.0
"""Real seconds after which a change that always loses, or a server that stays away, is an error."""

_STATEMENTS_ALONE = {"synchronize_session": False}
"""No object is read again after a statement has changed it; comparing all of them would cost more than the writes."""


class Handed(NamedTuple):
    """An item that waits to be written by a change."""

    change: Change
    item: Any
    future: Future[Any]


class Work(queue.SimpleQueue["Handed | None"]):
    """The items that wait for one writer, or for several. Each None ends one of them."""


class Writer:
    """One thread with a connection of its own. After a loss it locks `table` on PostgreSQL, to wait for its turn.

    Only a lock can wait without having taken the transaction's snapshot before. It does not affect readers.
    """

    def __init__(self, engine: Engine, work: Work, name: str, table: str) -> None:
        self._engine = engine
        self._work = work
        self._queue = text(f"LOCK TABLE {table} IN SHARE ROW EXCLUSIVE MODE")
        self._connection: Connection | None = None
        self._stopping = False
        self._thread = threads.keep(name, self._run, lambda: self._stopping)

    @property
    def alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread.is_alive()

    def stop(self) -> None:
        """Let one of the writers that share this work end when everything submitted before is written."""
        self._stopping = True
        self._work.put(None)

    def join(self) -> None:
        """Wait until it has ended."""
        self._thread.join(timeout=30)

    def _run(self) -> None:
        while (first := self._work.get()) is not None:
            batch = [first]
            stop = False
            with suppress(queue.Empty):
                while len(batch) < _MOST_AT_ONCE and not stop:
                    following = self._work.get_nowait()
                    if following is None:
                        stop = True
                    else:
                        batch.append(following)
            self._commit(batch)
            if stop:
                break
        self._disconnect()

    @contextmanager
    def _writing(self, *, queued: bool) -> Iterator[Session]:
        """Open a transaction on the writer's connection, which is kept until an error occurs on it.

        So SQLite's pages stay in its cache, and PostgreSQL needs no check of the connection before each transaction.
        `queued`: wait until no other transaction writes to the table, and let none do so before the end.
        """
        try:
            if self._connection is None:
                self._connection = self._engine.connect().execution_options(**{WRITES: True})
            with Session(self._connection, execution_options=_STATEMENTS_ALONE) as session, session.begin():
                if queued and not is_sqlite(self._engine):
                    session.execute(self._queue)
                yield session
        except BaseException:
            self._disconnect()
            raise

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _commit(self, batch: list[Handed]) -> None:
        """Commit a batch, as one if that succeeds, and wake those that wait."""
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
            if len(batch) > 1 and (lost(error) or out_of_room(error)):
                for one in batch:
                    self._commit([one])
                return
            expected = isinstance(error, SQLAlchemyError)
            log.error("commit failed, %d writes undone: %s", len(batch), error, exc_info=not expected)
            for handed in batch:
                if not handed.future.done():
                    handed.future.set_exception(error)

    def _try(self, batch: Sequence[Handed], *, queued: bool) -> None:
        """Run and commit a batch once. Errors that are a change's own go to its caller."""
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
                    if not session.is_active or is_away(error):
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
            if is_away(error):
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


def _enough(state: RetryCallState, size: int) -> bool:
    """Return whether to give up a batch: after a loss it is soon divided, which does not help if there is no server."""
    error = state.outcome.exception() if state.outcome else None
    divided = size > 1 and state.attempt_number >= _TOGETHER and error is not None and lost(error)
    return divided or stop_after_delay(_LONGEST_TRY)(state)
