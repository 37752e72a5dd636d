# SPDX-License-Identifier: Apache-2.0
"""Reading in snapshots, and writing by one thread that commits many writes at once.

A commit that lasts costs a sync of the disk. Writers hand in functions; the thread runs what has gathered, each in a
savepoint of its own, and commits once. Who handed one in waits for that commit, so nothing is acknowledged that a
power loss could take back.

On PostgreSQL other processes write too. What loses against them, and what a restart of the server cut off, is run
again from its beginning: changes read what they decide from within their transaction, and are idempotent.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any, TypeVar

from sqlalchemy import Engine
from sqlalchemy.exc import DBAPIError, OperationalError, SQLAlchemyError
from sqlalchemy.orm import Session
from tenacity import RetryCallState, Retrying, retry_if_exception, stop_after_delay, wait_random_exponential

from timekeeper.store.engine import WRITES

log = logging.getLogger(__name__)

T = TypeVar("T")
Handed = tuple[Callable[[Session], Any], "Future[Any]"]
_MOST_AT_ONCE = 512
_TOGETHER = 3
"""How often a batch is run as one before each of its changes gets a transaction of its own."""

_LONGEST_TRY = 20.0
"""Real seconds after which a change that always loses, or a server that stays away, is an error."""

_AGAIN = frozenset({"40001", "40P01", "55P03", "23505", "57P01", "57P02", "57P03"})
"""Lost against another transaction: serialisation, deadlock, lock timeout, a key that another wrote first. Or the
server is being stopped or started."""

_STATEMENTS_ALONE = {"synchronize_session": False}
"""Nothing reads an object again that a statement has changed; comparing them all would cost more than the writes."""


class Database:
    """One database. `close` ends the writer; what was acknowledged is on disk."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._writing = engine.execution_options(**{WRITES: True})
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
        future: Future[T] = Future()
        self._queue.put((change, future))
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
                return

    def _commit(self, batch: list[Handed]) -> None:
        """Commit a batch, as one where that succeeds, and tell who waits."""
        attempt = Retrying(
            retry=retry_if_exception(may_succeed_later),
            stop=lambda state: _enough(state, len(batch)),
            wait=wait_random_exponential(multiplier=0.005, max=1.0),
            reraise=True,
        )
        try:
            attempt(self._try, batch)
        except Exception as error:
            if len(batch) > 1 and may_succeed_later(error):
                for one in batch:
                    self._commit([one])
                return
            log.error("commit failed, %d writes undone: %s", len(batch), error, exc_info=not _expected(error))
            for _, future in batch:
                if not future.done():
                    future.set_exception(error)

    def _try(self, batch: Sequence[Handed]) -> None:
        """Run and commit a batch once. Errors that are a change's own go to who handed it in."""
        done: list[tuple[Future[Any], Any]] = []
        failed: list[tuple[Future[Any], Exception]] = []
        with Session(self._writing, execution_options=_STATEMENTS_ALONE) as session, session.begin():
            for change, future in batch:
                try:
                    with session.begin_nested():
                        done.append((future, change(session)))
                except Exception as error:
                    if not session.is_active or may_succeed_later(error):
                        raise
                    failed.append((future, error))
        for future, result in done:
            future.set_result(result)
        for future, refusal in failed:
            future.set_exception(refusal)


def may_succeed_later(error: BaseException) -> bool:
    """Whether the same transaction may succeed when it is run again."""
    if not isinstance(error, DBAPIError):
        return False
    state = getattr(error.orig, "sqlstate", "")  # SQLite's driver has none, PostgreSQL's has None without a server
    return error.connection_invalidated or state in _AGAIN or (state is None and isinstance(error, OperationalError))


def _enough(state: RetryCallState, size: int) -> bool:
    return stop_after_delay(_LONGEST_TRY)(state) or (size > 1 and state.attempt_number >= _TOGETHER)


def _expected(error: Exception) -> bool:
    return isinstance(error, SQLAlchemyError)
