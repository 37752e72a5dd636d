# SPDX-License-Identifier: Apache-2.0
"""Read in snapshots, and write by threads that commit many writes at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from typing import TypeVar

from sqlalchemy import Engine
from sqlalchemy.orm import Session

from timekeeper.store.db.engine import is_sqlite
from timekeeper.store.db.writer import Handed, Work, Writer

T = TypeVar("T")
Item = TypeVar("Item")

_LARGE = 200
_BESIDE = 2
"""Number of writers for large items: one can run while PostgreSQL works for the other."""


class Database:
    """One database. `close` ends the writers; what was acknowledged is on disk."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._work = self._large = Work()
        self._writers = [Writer(engine, self._work, "ledger-writer", "namespace")]
        if not is_sqlite(engine):  # which lets one connection write
            self._large = Work()
            self._writers += [Writer(engine, self._large, f"batch-writer-{n}", "watermark") for n in range(_BESIDE)]

    @contextmanager
    def reading(self) -> Iterator[Session]:
        """Open a snapshot to read from."""
        with Session(self.engine, expire_on_commit=False) as session, session.begin():
            yield session

    def write(self, change: Callable[[Session], T]) -> T:
        """Run `change` in a transaction and return its result once that is committed.

        If `change` raises an error, only its own changes are undone. It may be run more than once: only the last run
        counts.
        """
        return self._hand_in(self._work, lambda session, _items: [change(session)], None)

    def write_reports(self, change: Callable[[Session, Sequence[Item]], Sequence[T]], item: Item, size: int) -> T:
        """As `write`, but reports that wait at the same time are given to the same change together.

        `size` is how many reports an item has. Reports change no row of the ledger: on PostgreSQL a large item, which
        gains nothing from being combined, is written in parallel to the ledger. If the change raises an error, it is
        run for each item separately.
        """
        return self._hand_in(self._large if size >= _LARGE else self._work, change, item)

    def _hand_in(self, work: Work, change: Callable[[Session, Sequence[Item]], Sequence[T]], item: Item) -> T:
        future: Future[T] = Future()
        work.put(Handed(change, item, future))
        return future.result()

    @property
    def alive(self) -> bool:
        """Whether all writers run."""
        return all(writer.alive for writer in self._writers)

    def close(self) -> None:
        """Write what has been submitted, and stop."""
        for writer in self._writers:
            writer.stop()
        for writer in self._writers:
            writer.join()
        self.engine.dispose()
