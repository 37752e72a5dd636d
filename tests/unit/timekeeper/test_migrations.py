# SPDX-License-Identifier: Apache-2.0
"""Migrations walked up and down on real databases, with data in it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from databases import Databases
from sqlalchemy import Engine, inspect, text

from slicekeeper.errors import SettingsError
from timekeeper.store.db import migrate
from timekeeper.store.db.engine import make_engine
from timekeeper.store.db.models import Base


@pytest.fixture
def engine(databases: Databases) -> Iterator[Engine]:
    with databases.empty() as url:
        made = make_engine(url)
        yield made
        made.dispose()


def test_up_down_and_up_again(engine: Engine) -> None:
    assert not migrate.is_current(engine)
    assert migrate.upgrade(engine) == migrate.head()
    assert migrate.is_current(engine)
    with engine.begin() as connection:
        connection.execute(text("INSERT INTO watch_mark VALUES ('c', 1)"))
    assert migrate.upgrade(engine) == migrate.head()
    assert migrate.downgrade(engine, "base") == ""
    assert inspect(engine).get_table_names() == ["alembic_version"]
    assert migrate.upgrade(engine) == migrate.head()


def test_the_migrations_make_what_the_models_say(engine: Engine) -> None:
    migrate.upgrade(engine)
    ours = {"include_name": lambda name, kind, _: kind != "table" or not str(name).startswith("usage_hour_")}
    with engine.connect() as connection:
        assert compare_metadata(MigrationContext.configure(connection, opts=ours), Base.metadata) == []
    inspector = inspect(engine)
    checks = {check["name"] for table in Base.metadata.tables for check in inspector.get_check_constraints(table)}
    assert {"ck_entry_amount", "ck_account_kind", "ck_workload_interval"} <= checks


@pytest.mark.parametrize("url", ["nonsense", "oracle+none://x", ""])
def test_a_bad_database_url_is_named(url: str) -> None:
    with pytest.raises(SettingsError, match=r"timekeeper\.database is"):
        make_engine(url)


def test_open_reservations_are_not_given_away_by_a_step_down(engine: Engine) -> None:
    migrate.upgrade(engine)
    namespace = (
        "INSERT INTO namespace (id, cluster, uid, name, opened_at, settled_at, version)"
        " VALUES (1, 'c', 'u', 'n', 1, 1, 1)"
    )
    reservation = (
        "INSERT INTO reservation (namespace_id, pod_uid, pod_name, amount_ms, span_ms, reason, idempotency_key,"
        " request_hash, actor, opened_at, ended_at, outcome)"
        " VALUES (1, 'p', 'p', 1, 1, '', 'pod:p', '', 'me', 1, NULL, '')"
    )
    with engine.begin() as connection:
        connection.execute(text(namespace))
        connection.execute(text(reservation))
    with pytest.raises(RuntimeError, match="1 reservations are open"):
        migrate.downgrade(engine, "0003")
    with engine.begin() as connection:
        connection.execute(text("UPDATE reservation SET ended_at = 2, outcome = 'settled'"))
    migrate.downgrade(engine, "0003")
    assert not inspect(engine).has_table("reservation")
    assert migrate.upgrade(engine) == migrate.head()
    with engine.connect() as connection:
        assert connection.execute(text("SELECT uid FROM namespace")).scalar_one() == "u"


def test_indexes_come_and_go_with_data_beneath_them(engine: Engine) -> None:
    migrate.upgrade(engine)
    rows = (
        "INSERT INTO namespace (id, cluster, uid, name, opened_at, settled_at, version)"
        " VALUES (1, 'c', 'u', 'n', 1, 1, 1)",
        "INSERT INTO account (id, namespace_id, kind, balance_ms) VALUES (1, 1, 'budget', -5), (2, 1, 'charged', 5)",
        "INSERT INTO workload (pod_uid, namespace_id, pod_name, node, gpus, holders, gpu_class, shares, opened_at,"
        " started_at, ended_at, end_source, flags) VALUES ('p', 1, 'p', 'n', '', '{}', '', '{}', 1, 1, 6, '', '')",
        "INSERT INTO txn (id, namespace_id, kind, idempotency_key, subject, started_at, effective_at, amount_ms,"
        " booked_at) VALUES (1, 1, 'charge', 'k', 'p', 1, 6, 5, 7)",
        "INSERT INTO entry (id, txn_id, account_id, amount_ms) VALUES (1, 1, 1, -5), (2, 1, 2, 5)",
    )
    with engine.begin() as connection:
        for row in rows:
            connection.execute(text(row.replace(":", r"\:")))

    def indexes() -> set[str | None]:
        return {one["name"] for table in ("workload", "txn", "entry") for one in inspect(engine).get_indexes(table)}

    after = indexes()
    assert migrate.downgrade(engine, "0008") == "0008"
    assert "ix_txn_subject" in indexes() - after
    assert migrate.upgrade(engine) == migrate.head()
    assert indexes() == after
    with engine.connect() as connection:
        assert connection.execute(text("SELECT sum(amount_ms), count(*) FROM entry")).one() == (0, 2)
