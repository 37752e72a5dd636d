# SPDX-License-Identifier: Apache-2.0
"""Several processes on one PostgreSQL: what loses is run again, the server may go away, one controller leads."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from fractions import Fraction
from pathlib import Path

import pytest
from sqlalchemy import Engine, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session
from support.databases import Postgres
from support.openings import opening

from slicekeeper.config.policy import BudgetPolicy, NamespacePolicy
from slicekeeper.errors import Conflict
from timekeeper.ledger import movement, workload
from timekeeper.ledger.account import AccountRef
from timekeeper.ledger.books import Books
from timekeeper.ledger.movement import Order
from timekeeper.ledger.verify import verify
from timekeeper.ledger.workload import Closing
from timekeeper.store.db import migrate, writer
from timekeeper.store.db.database import Database
from timekeeper.store.db.engine import make_engine
from timekeeper.store.db.leadership import Leadership

T0 = 1_767_225_600_000
POLICY = NamespacePolicy(budget=BudgetPolicy(amount="20s", period="hour"))


@pytest.fixture
def url(server: Postgres) -> Iterator[str]:
    with server.made() as made:
        engine = make_engine(made)
        migrate.upgrade(engine)
        engine.dispose()
        yield made


@pytest.fixture
def replicas(url: str) -> Iterator[list[Books]]:
    made = [Books(Database(make_engine(url)), "default", carry=False) for _ in range(3)]
    yield made
    for books in made:
        books.database.close()


def together(*work: Callable[[], None]) -> None:
    """Run things at once; an error of any is raised."""
    errors: list[BaseException] = []

    def attempt(one: Callable[[], None]) -> None:
        try:
            one()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=attempt, args=(one,)) for one in work]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def life(books: Books, index: int) -> None:
    """Tell of a pod's whole life, twice, as two controllers would."""
    uid, start = f"pod-{index % 12}", T0 + index % 12 * 900
    workload.apply(books, [opening(uid, start, Fraction(1, 3))], [], {"team": POLICY}, T0 + 30_000)
    workload.apply(
        books,
        [opening(uid, start, Fraction(1, 3))],
        [Closing(uid, start + 7_001, "finished")],
        {"team": POLICY},
        T0 + 40_000,
    )


def grant(books: Books, key: str, amount: int = 1_000) -> bool:
    order = Order(amount, "why", key, str(amount).encode(), "me", T0 + 50_000)
    return movement.grant(books, AccountRef("uid-team", "team", POLICY), order, valid_from=T0 + 50_000, valid_to=None)


def undisturbed(tmp_path: Path) -> tuple[int, int, int]:
    engine = make_engine(f"sqlite:///{tmp_path}/t.sqlite")
    migrate.upgrade(engine)
    books = Books(Database(engine), "default", carry=False)
    for index in range(12):
        life(books, index)
    for key in range(8):
        grant(books, str(key))
    found = figures(books)
    books.database.close()
    return found


def figures(books: Books) -> tuple[int, int, int]:
    assert verify(books.database.engine, carry=False).differences == []
    state = books.require("team").at(T0 + 60_000)
    return state.balance, state.used, state.over


def test_what_replicas_write_at_once_ends_in_the_ledger_of_one(replicas: list[Books], tmp_path: Path) -> None:
    booked: list[bool] = []
    lives = [lambda books=books, i=i: life(books, i) for books in replicas for i in range(24)]
    grants = [lambda books=books, k=k: booked.append(grant(books, str(k))) for books in replicas for k in range(8)]
    together(*lives, *grants)  # type: ignore[arg-type]
    assert [figures(books) for books in replicas] == [undisturbed(tmp_path)] * 3
    assert sorted(booked) == [False] * 16 + [True] * 8


def test_a_crash_and_a_restart_of_the_server_lose_and_double_nothing(
    server: Postgres, replicas: list[Books], tmp_path: Path
) -> None:
    def disturb() -> None:
        for how in (signal.SIGINT, signal.SIGQUIT):
            time.sleep(0.1)
            server.stop(how)
            time.sleep(0.2)
            server.start()

    def work(books: Books) -> None:
        for index in range(24):
            life(books, index)
            time.sleep(0.02)
        for key in range(8):
            grant(books, str(key))

    together(disturb, *(lambda books=books: work(books) for books in replicas))  # type: ignore[misc]
    assert [figures(books) for books in replicas] == [undisturbed(tmp_path)] * 3


@pytest.mark.parametrize("state", ["40001", "40P01"])
def test_forced_losses_are_run_again_and_another_change_of_the_batch_is_not_harmed(
    replicas: list[Books], state: str
) -> None:
    database, tries = replicas[0].database, [0]

    def unlucky(session: Session) -> int:
        tries[0] += 1
        session.execute(text(f"INSERT INTO watch_mark (cluster, confirmed_at) VALUES ('x{tries[0]}', 1)"))
        if tries[0] <= 5:
            session.execute(text(f"DO $$ BEGIN RAISE EXCEPTION 'forced' USING ERRCODE = '{state}'; END $$"))
        return tries[0]

    def refused(_session: Session) -> None:
        raise Conflict("no", 409, "no")

    found: list[int] = []
    others = [lambda key=key: found.append(grant(replicas[0], str(key))) for key in range(6)]
    with pytest.raises(Conflict):
        together(lambda: found.append(database.write(unlucky)), *others, lambda: database.write(refused))  # type: ignore[arg-type]
    assert sorted(found) == [True] * 6 + [6]
    with database.reading() as session:
        assert session.execute(text("SELECT cluster FROM watch_mark")).scalars().all() == ["x6"]


def test_a_server_that_stays_away_is_an_error_and_its_return_is_noticed(
    server: Postgres, replicas: list[Books], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "_LONGEST_TRY", 0.3)
    server.stop()
    try:
        with pytest.raises(DBAPIError):
            grant(replicas[0], "k")
    finally:
        server.start()
    assert grant(replicas[0], "k")


def test_whoever_has_lost_is_not_lost_against_again(url: str, replicas: list[Books]) -> None:
    """Another process moves the namespace in every moment that it gets: between our snapshot and our own move."""
    grant(replicas[0], "first")
    moves = "UPDATE namespace SET version = version + 1"
    rival, tries = make_engine(url), list[bool]()

    def change(session: Session) -> None:
        session.execute(text("SELECT version FROM namespace"))
        with rival.connect() as connection:
            connection.execute(text("SET LOCAL lock_timeout = '50ms'"))
            try:
                connection.execute(text(moves))
                connection.commit()
                tries.append(True)
            except DBAPIError:
                tries.append(False)
        session.execute(text(moves))

    replicas[1].database.write(change)
    rival.dispose()
    assert tries == [True, False]


@pytest.fixture
def engines(url: str) -> Iterator[list[Engine]]:
    made = [make_engine(url) for _ in range(2)]
    yield made
    for engine in made:
        engine.dispose()


def test_one_leads_until_its_connection_is_gone(engines: list[Engine]) -> None:
    first, second = (Leadership(engine, "default") for engine in engines)
    other = Leadership(engines[1], "another cluster")
    with closing(first), closing(second), closing(other):
        assert [first.held(), second.held(), other.held(), first.held()] == [True, False, True, True]
        with engines[1].connect() as connection:  # returns when they have ended, not when they have been told to
            ended = "SELECT pg_terminate_backend(pid, 60000) FROM pg_locks WHERE locktype = 'advisory'"
            assert connection.execute(text(ended)).scalars().all() == [True, True]
        with pytest.raises(DBAPIError):
            first.held()
        assert second.held()
        assert not first.held()
        second.close()
        deadline = time.monotonic() + 60  # the server frees the lock when it notices that the connection is gone
        while not first.held() and time.monotonic() < deadline:
            time.sleep(0.01)
        assert first.held()
