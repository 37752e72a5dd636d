# SPDX-License-Identifier: Apache-2.0
"""A crash before and after every commit of a history: the ledger ends as that of an undisturbed run."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest
from support import scripted_history as history
from support.databases import Databases
from support.scripted_history import STEPS, Zygote

from timekeeper.ledger.books import Books
from timekeeper.store.db import migrate
from timekeeper.store.db.database import Database
from timekeeper.store.db.engine import make_engine


@pytest.fixture(scope="module")
def zygote() -> Iterator[Zygote]:
    made = Zygote()
    yield made
    made.close()


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[list[object]]]:
    """The result of the history if nothing goes wrong: on SQLite, for both."""
    url = f"sqlite:///{tmp_path_factory.mktemp('undisturbed')}/t.sqlite"
    engine = make_engine(url)
    migrate.upgrade(engine)
    books = Books(Database(engine), "default", carry=False)
    history.run(books, lambda: None)
    books.database.close()
    return history.checked(url)


def test_the_history_meets_what_it_should(undisturbed: dict[str, list[list[object]]]) -> None:
    kinds = {row[1] for row in undisturbed["bookings"]}
    assert {"charge", "over-budget", "debt", "allowance", "expiry", "refund", "transfer-in", "reversal"} <= kinds
    assert {row[1] for row in undisturbed["audit"]} >= {"grant", "transfer", "adjustment", "refund", "budget", "status"}


def test_killed_before_and_after_every_commit(
    zygote: Zygote, database_url: str, undisturbed: dict[str, list[list[object]]]
) -> None:
    assert zygote.run(database_url, 0, ("before", 0)) == (0, signal.SIGKILL)
    for step in range(len(STEPS)):
        # Committed, but nobody was told: what is sent again is found to be there.
        assert zygote.run(database_url, step, ("after", 0)) == (step, signal.SIGKILL)
        history.checked(database_url)
        if step + 1 < len(STEPS):
            assert zygote.run(database_url, step, ("before", 1)) == (step + 1, signal.SIGKILL)
    assert zygote.run(database_url, len(STEPS) - 1) == (len(STEPS), 0)
    assert history.checked(database_url) == undisturbed


def test_killed_before_and_after_the_migrations_commit(zygote: Zygote, databases: Databases) -> None:
    with databases.empty() as url:
        assert zygote.run(url, None, ("before", 0)) == (0, signal.SIGKILL)
        engine = make_engine(url)
        with engine.connect() as connection:
            assert migrate.current(connection) == ""
        assert zygote.run(url, None, ("after", 0)) == (0, signal.SIGKILL)
        assert migrate.is_current(engine)
        engine.dispose()
        assert zygote.run(url, None) == (0, 0)
