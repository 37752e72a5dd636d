# SPDX-License-Identifier: Apache-2.0
"""The timekeeper's tests run on SQLite and on PostgreSQL."""

from collections.abc import Iterator

import pytest
from support.databases import _kept_url, database_url, databases, server

from timekeeper.ledger.books import Books
from timekeeper.ledger.verify import verify
from timekeeper.store import timelines
from timekeeper.store.db import writer
from timekeeper.store.db.database import Database
from timekeeper.store.db.engine import make_engine

__all__ = ["_kept_url", "books", "database_url", "databases", "long_tries", "server", "short_stretches"]


@pytest.fixture(autouse=True, scope="session")
def short_stretches() -> Iterator[None]:
    """Have every ledger verified in stretches of a few pods, as a large one is."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(timelines, "_STRETCH", 3)
        yield


@pytest.fixture(autouse=True, scope="session")
def long_tries() -> Iterator[None]:
    """Give a database that is started again the time which a busy machine takes for it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(writer, "_LONGEST_TRY", 120.0)
        yield


@pytest.fixture
def books(database_url: str) -> Iterator[Books]:
    """Give books whose ledger must be verified at the end."""
    database = Database(make_engine(database_url))
    yield Books(database, "default", carry=False)
    assert verify(database.engine, carry=False).differences == []
    database.close()
