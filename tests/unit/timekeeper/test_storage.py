# SPDX-License-Identifier: Apache-2.0
"""A disk that is full and connections that are used up: a stated refusal, nothing half-written, on by itself after."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeout
from pathlib import Path

import pytest
from flask import Flask
from sqlalchemy import Connection, event, insert, select
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.exc import TimeoutError as NoConnection
from sqlalchemy.orm import Session
from support import scripted_history as history
from support.databases import postgres
from support.small_disk import fill_up, small_disk

from timekeeper.api import problems
from timekeeper.ledger.books import Books
from timekeeper.store.db import migrate
from timekeeper.store.db.database import Database
from timekeeper.store.db.engine import make_engine
from timekeeper.store.db.failures import out_of_room
from timekeeper.store.db.models import GpuSeen


def problem(error: SQLAlchemyError) -> tuple[int, str, str]:
    """Return what a client is told of an error: status, code, and when to come again."""
    app = Flask("t")
    problems.register(app)

    def fail() -> str:
        raise error

    app.add_url_rule("/", view_func=fail)
    answer = app.test_client().get("/")
    return answer.status_code, answer.json["code"], answer.headers["Retry-After"]


def large_note(session: Session) -> None:
    """Write more than pages that are there already could take in."""
    rows = [{"uuid": f"{n}-{'x' * 240}", "model": "y" * 250, "memory_mib": 1} for n in range(4_000)]
    session.execute(insert(GpuSeen), rows)


def through_a_full_disk(books: Books, full: Callable[[], None], room: Callable[[], None]) -> None:
    """Do the history; every third step meets a full disk, beside writes that are much larger than it."""
    for number, step in enumerate(history.STEPS):
        if number % 3 == 1:
            full()
            with ThreadPoolExecutor(4) as clients:
                notes = [clients.submit(books.database.write, large_note) for _ in range(3)]
                mine = clients.submit(step, books)
            for one in notes:
                error = one.exception()
                assert isinstance(error, SQLAlchemyError)
                assert problem(error) == (503, "storage-full", problems.RETRY_AFTER)
            error = mine.exception()  # a small write may still have found room
            assert error is None or out_of_room(error)
            room()
        step(books)
    with books.database.reading() as session:
        assert session.execute(select(GpuSeen.uuid)).all() == []


def migrated(url: str) -> Books:
    engine = make_engine(url)
    migrate.upgrade(engine)
    return Books(Database(engine), "default", carry=False)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> object:
    """The result of the history if nothing goes wrong."""
    url = f"sqlite:///{tmp_path_factory.mktemp('undisturbed')}/t.sqlite"
    books = migrated(url)
    history.run(books, lambda: None)
    books.database.close()
    return history.checked(url)


def test_a_file_that_may_not_grow(tmp_path: Path, undisturbed: object) -> None:
    url = f"sqlite:///{tmp_path}/t.sqlite"
    books, most = migrated(url), [2**30]

    @event.listens_for(books.database.engine, "begin")
    def limit(connection: Connection) -> None:
        connection.exec_driver_sql(f"PRAGMA max_page_count={most[0]}")

    def allow(pages: int) -> None:
        most[0] = pages

    through_a_full_disk(books, lambda: allow(1), lambda: allow(2**30))
    books.database.close()
    assert history.checked(url) == undisturbed


def test_a_full_disk_under_sqlite(undisturbed: object) -> None:
    with small_disk(4) as folder:
        url = f"sqlite:///{folder}/t.sqlite"
        books = migrated(url)
        through_a_full_disk(books, lambda: fill_up(folder), (folder / "filler").unlink)
        books.database.close()
        assert history.checked(url) == undisturbed


def test_a_full_disk_under_postgresql(undisturbed: object) -> None:
    with small_disk(24) as folder, postgres() as server:
        place = folder / "data"
        place.mkdir()
        shutil.chown(place, server.user.pw_uid, server.user.pw_gid)
        server.execute(f"CREATE TABLESPACE small LOCATION '{place}'")
        name = server.make(tablespace="small")
        books = migrated(server.url(name))
        through_a_full_disk(books, lambda: fill_up(folder), (folder / "filler").unlink)
        books.database.close()
        assert history.checked(server.url(name)) == undisturbed


def test_without_a_free_connection_a_request_is_refused_in_time_and_nothing_is_lost(database_url: str) -> None:
    books = Books(Database(make_engine(database_url)), "default", carry=False)
    pool = books.database.engine.pool
    pool._timeout = 0.05  # type: ignore[attr-defined]
    held = [books.database.engine.connect() for _ in range(pool._max_overflow + pool.size())]  # type: ignore[attr-defined]
    with pytest.raises(NoConnection) as found:
        books.standings()
    assert problem(found.value) == (503, "database-unavailable", problems.RETRY_AFTER)
    with ThreadPoolExecutor(1) as clients:
        waits = clients.submit(history.STEPS[0], books)
        with pytest.raises(FutureTimeout):
            waits.result(0.3)
        for connection in held:
            connection.close()
        waits.result(60)
    assert [standing.account.name for standing in books.standings()] == ["team"]
    books.database.close()
    history.checked(database_url)
