# SPDX-License-Identifier: Apache-2.0
"""Several processes on one PostgreSQL that each find something missing, and all make it at once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction

import pytest
from sqlalchemy import Connection, Engine, text
from sqlalchemy.orm import Session
from support.databases import Postgres
from support.openings import opening

from slicekeeper.config.policy import BudgetPolicy, NamespacePolicy
from slicekeeper.gpu.inventory import Gpu
from timekeeper.core.usage_report import HourUsed
from timekeeper.ledger import rate, retention, workload
from timekeeper.ledger.books import Books
from timekeeper.ledger.debt import follow_debt
from timekeeper.ledger.verify import verify
from timekeeper.store import usage, workloads
from timekeeper.store.db import migrate
from timekeeper.store.db.database import Database
from timekeeper.store.db.engine import make_engine

T0 = 1_767_225_600_000
DAY = 86_400_000
POLICY = NamespacePolicy(budget=BudgetPolicy(amount="20s", period="hour"))
JANUARY = f"CREATE TABLE usage_hour_2026_01 PARTITION OF usage_hour FOR VALUES FROM ({T0}) TO ({T0 + 31 * DAY})"
PARTITIONS = "SELECT inhrelid::regclass::text FROM pg_inherits WHERE inhparent = 'usage_hour'::regclass ORDER BY 1"


@pytest.fixture
def empty(server: Postgres) -> Iterator[str]:
    with server.made() as made:
        yield made


@pytest.fixture
def url(empty: str) -> str:
    engine = make_engine(empty)
    migrate.upgrade(engine)
    engine.dispose()
    return empty


@pytest.fixture
def database(url: str) -> Iterator[Database]:
    made = Database(make_engine(url))
    yield made
    made.close()


@pytest.fixture
def rival(url: str) -> Iterator[Connection]:
    """Give another process's connection."""
    engine = make_engine(url)
    with engine.connect() as connection:
        yield connection
    engine.dispose()


def turn(session: Session, now: int = T0, before: int = 0) -> None:
    usage.rotate_partitions(session, now, before)


def partitions(database: Database) -> list[str]:
    with database.reading() as session:
        return list(session.scalars(text(PARTITIONS)))


def test_another_process_makes_the_partition_while_this_one_is_about_to(database: Database, rival: Connection) -> None:
    rival.execute(text(JANUARY))
    with ThreadPoolExecutor(1) as threads:
        waits = threads.submit(retention.sweep, database, "default", raw_days=14, usage_days=60, now=T0)
        threading.Event().wait(0.3)
        rival.commit()
        waits.result(30)
    assert partitions(database) == ["usage_hour_2026_01", "usage_hour_2026_02", "usage_hour_rest"]


def test_another_process_has_made_the_partition_since_our_snapshot(database: Database, rival: Connection) -> None:
    def change(session: Session) -> None:
        session.execute(text("SELECT 1 FROM namespace"))
        rival.execute(text(JANUARY))
        rival.commit()
        turn(session)

    database.write(change)
    assert partitions(database) == ["usage_hour_2026_01", "usage_hour_2026_02", "usage_hour_rest"]


def test_another_process_has_dropped_the_partition_since_our_snapshot(database: Database, rival: Connection) -> None:
    database.write(turn)

    def change(session: Session) -> None:
        session.execute(text("SELECT 1 FROM namespace"))
        rival.execute(text("DROP TABLE IF EXISTS usage_hour_2026_01"))
        rival.commit()
        turn(session, T0 + 200 * DAY, T0 + 100 * DAY)

    database.write(change)
    assert partitions(database) == ["usage_hour_2026_07", "usage_hour_2026_08", "usage_hour_rest"]


def test_a_month_whose_rows_came_into_the_rest_since_our_snapshot_stays_there(
    database: Database, rival: Connection
) -> None:
    def change(session: Session) -> None:
        session.execute(text("SELECT 1 FROM namespace"))
        with Session(rival) as other, other.begin():
            usage.add(other, [("a", "main", HourUsed(1, T0, 1, 1))])
        turn(session)

    database.write(change)
    assert partitions(database) == ["usage_hour_2026_02", "usage_hour_rest"]


def test_many_processes_sweep_at_once(url: str) -> None:
    made = [Database(make_engine(url)) for _ in range(4)]
    try:
        at_once(
            *(lambda d=d: retention.sweep(d, "default", raw_days=14, usage_days=60, now=T0) for d in made)  # type: ignore[misc]
        )
        assert partitions(made[0]) == ["usage_hour_2026_01", "usage_hour_2026_02", "usage_hour_rest"]
        later = T0 + 200 * DAY
        at_once(
            *(lambda d=d: retention.sweep(d, "default", raw_days=14, usage_days=60, now=later) for d in made)  # type: ignore[misc]
        )
        assert partitions(made[0]) == ["usage_hour_2026_07", "usage_hour_2026_08", "usage_hour_rest"]
    finally:
        for one in made:
            one.close()


def test_many_processes_migrate_at_once(empty: str) -> None:
    engines: list[Engine] = [make_engine(empty) for _ in range(4)]
    try:
        at_once(*(lambda e=e: migrate.upgrade(e) for e in engines))  # type: ignore[misc]
        assert all(migrate.is_current(engine) for engine in engines)
    finally:
        for engine in engines:
            engine.dispose()


def test_whatever_a_new_ledger_lacks_many_processes_make_once(url: str) -> None:
    made = [Books(Database(make_engine(url)), "default", carry=False) for _ in range(4)]
    gpu = Gpu(uuid="GPU-1", model="A100", memory_mib=40960)

    def first(books: Books) -> None:
        follow_debt(books, T0)
        rate.follow_settings(books, {"A100": Fraction(2)}, T0)
        books.database.write(lambda session: workloads.keep_gpus(session, [gpu]))
        books.database.write(lambda session: workloads.confirm(session, "default", T0))
        workload.apply(books, [opening("a", T0, model="A100")], [], {"team": POLICY}, T0)

    try:
        at_once(*(lambda books=books: first(books) for books in made))  # type: ignore[misc]
        with made[0].database.reading() as session:
            counts = {
                table: session.execute(text(f"SELECT count(*) FROM {table}")).scalar_one()
                for table in ("namespace", "budget_rule", "debt_rule", "rate", "gpu", "watch_mark", "workload")
            }
        assert counts == dict.fromkeys(counts, 1)
        assert verify(made[0].database.engine, carry=False).differences == []
    finally:
        for books in made:
            books.database.close()


def at_once(*work: Callable[[], object]) -> None:
    """Run things at once; an error of any is raised."""
    gate = threading.Barrier(len(work))

    def pass_gate(one: Callable[[], object]) -> None:
        gate.wait(30)
        one()

    with ThreadPoolExecutor(len(work)) as threads:
        for done in [threads.submit(pass_gate, one) for one in work]:
            done.result(60)
