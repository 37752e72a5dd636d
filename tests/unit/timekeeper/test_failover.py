# SPDX-License-Identifier: Apache-2.0
"""PostgreSQL fails over to a standby that follows in step; a deadlock is lost: the ledger is that of a quiet run."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import text
from support import scripted_history as history
from support.databases import Postgres, postgres

from slicekeeper.config.policy import BudgetPolicy, NamespacePolicy
from timekeeper.ledger import movement
from timekeeper.ledger.account import AccountRef
from timekeeper.ledger.books import Books
from timekeeper.store.db import migrate
from timekeeper.store.db.database import Database
from timekeeper.store.db.engine import make_engine

BUSY = AccountRef("uid-busy", "busy", NamespacePolicy(budget=BudgetPolicy(amount="1s", period="none")))
GRANTS, HALF = 40, len(history.STEPS) // 2


def grant(books: Books, number: int) -> bool:
    order = history.order(f"grant-{number}", 1_000 + number, history.T0 + HALF)
    return movement.grant(books, BUSY, order, valid_from=order.now, valid_to=None)


@pytest.fixture(scope="module")
def quiet(tmp_path_factory: pytest.TempPathFactory) -> object:
    url = f"sqlite:///{tmp_path_factory.mktemp('quiet')}/t.sqlite"
    engine = make_engine(url)
    migrate.upgrade(engine)
    books = Books(Database(engine), "default", carry=False)
    history.run(books, lambda: None)
    for number in range(GRANTS):
        grant(books, number)
    books.database.close()
    return history.checked(url)


@pytest.fixture
def primary() -> Iterator[Postgres]:
    with postgres() as server:
        yield server


def test_the_standby_takes_over_under_load(primary: Postgres, quiet: object) -> None:
    name = primary.make()
    engine = make_engine(primary.url(name))
    migrate.upgrade(engine)
    engine.dispose()
    with postgres(follows=primary) as standby:
        primary.wait_for_followers()
        hosts = "&".join(f"host=127.0.0.1:{server.port}" for server in (primary, standby))
        url = f"postgresql://timekeeper@/{name}?{hosts}&target_session_attrs=read-write"
        replicas = [Books(Database(make_engine(url)), "default", carry=False) for _ in range(2)]
        for step in history.STEPS[:HALF]:
            step(replicas[0])
        with ThreadPoolExecutor(8) as clients:
            booked = [clients.submit(grant, replicas[n % 2], n) for n in range(GRANTS)]
            booked[3].result(120)
            primary.stop(signal.SIGQUIT)
            standby.execute("SELECT pg_promote()")
            for one in booked:
                one.result(120)  # False if the primary had booked it, and the answer was lost with it
        history.run(replicas[1], lambda: None, HALF)
        for books in replicas:
            books.database.close()
        assert history.checked(standby.url(name)) == quiet


def test_a_deadlock_is_lost_and_run_again(primary: Postgres) -> None:
    name = primary.make()
    engine = make_engine(primary.url(name))
    migrate.upgrade(engine)
    books = Books(Database(engine), "default", carry=False)
    for step in history.STEPS[:4]:
        step(books)
    rows = "UPDATE namespace SET version = version + 1 WHERE name = :name"
    with engine.connect() as other, ThreadPoolExecutor(1) as clients:
        # This session never looks for a deadlock itself, so the timekeeper's finds it and is aborted.
        other.execute(text("SET LOCAL deadlock_timeout = '10min'"))
        other.execute(text(rows), {"name": "other"})
        transfer = clients.submit(history.STEPS[4], books)
        pid = other.execute(text("SELECT pg_backend_pid()")).scalar_one()
        while not primary.ask(
            f"SELECT count(*) FROM pg_locks l WHERE NOT granted AND {pid} = ANY(pg_blocking_pids(l.pid))"
        ):
            assert not transfer.done()
        other.execute(text(rows), {"name": "team"})  # held by the transfer, which waits for the other
        other.commit()
        assert transfer.result(60) is True
    assert primary.ask("SELECT sum(deadlocks) FROM pg_stat_database") >= 1
    history.run(books, lambda: None, 5)
    books.database.close()
    history.checked(primary.url(name))
