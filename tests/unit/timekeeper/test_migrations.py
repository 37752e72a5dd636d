# SPDX-License-Identifier: Apache-2.0
"""Migrations walked up and down on real databases, with data in it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import Engine, inspect, text
from sqlalchemy.orm import Session
from support.databases import Databases

from slicekeeper.errors import SettingsError
from slicekeeper.gpu.inventory import Gpu, MigSlice
from timekeeper.store import workloads
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


def test_gpus_of_before_mig_slices_were_known_stay_and_slices_go_with_the_way_back(engine: Engine) -> None:
    migrate.upgrade(engine, "0001")
    with engine.begin() as connection:
        connection.execute(text("INSERT INTO gpu VALUES ('GPU-1', 'A100', 40960)"))
    migrate.upgrade(engine)
    old, mig = Gpu("GPU-1", "A100", 40960), MigSlice("MIG-1", 4864, 1, 7)
    new = Gpu("MIG-1", "A100", 40960, mig=(mig,))
    with Session(engine) as session, session.begin():
        workloads.keep_gpus(session, [new])
        assert workloads.gpus(session) == {"GPU-1": old, "MIG-1": new}
    migrate.downgrade(engine, "0001")
    with engine.begin() as connection:
        assert list(connection.execute(text("SELECT * FROM gpu"))) == [("GPU-1", "A100", 40960)]


def test_checkpoints_that_have_refunds_go_and_a_refund_without_an_end_has_no_way_back(engine: Engine) -> None:
    migrate.upgrade(engine, "0002")
    insert = """INSERT INTO budget_grant (namespace_id, amount_ms, reason, valid_from, valid_to, idempotency_key,
        request_hash, actor, booked_at, kind) VALUES (1, 5, 'r', 20, {}, '{}', '', 'me', 20, 'refund')"""
    with engine.begin() as connection:
        connection.execute(text("INSERT INTO namespace (id, cluster, uid, name, opened_at, settled_at, version)"
                                " VALUES (1, 'c', 'u', 'n', 1, 1, 1)"))  # fmt: skip
        connection.execute(text(insert.format(90, "with an end")))
        connection.execute(text("INSERT INTO anchor VALUES (1, 10, '{}'), (1, 20, '{}'), (1, 30, '{}')"))
    migrate.upgrade(engine, "0003")
    with engine.connect() as connection:
        assert connection.execute(text("SELECT at FROM anchor")).scalars().all() == [10]
    migrate.downgrade(engine, "0002")
    migrate.upgrade(engine, "0003")
    with engine.begin() as connection:
        connection.execute(text(insert.format("NULL", "without an end")))
    with pytest.raises(RuntimeError, match="without an end"):
        migrate.downgrade(engine, "0002")


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
