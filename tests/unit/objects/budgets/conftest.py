# SPDX-License-Identifier: Apache-2.0
"""Objects are kept on SQLite and on PostgreSQL, as the ledger is."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.budget_objects import ObjectWorld, object_world
from support.databases import _kept_url, database_url, databases, server

__all__ = ["_kept_url", "database_url", "databases", "server", "world"]


@pytest.fixture
def world(tmp_path: Path, database_url: str) -> Iterator[ObjectWorld]:
    with object_world(tmp_path, database_url) as made:
        yield made
