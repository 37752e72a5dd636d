# SPDX-License-Identifier: Apache-2.0
"""The REST interface: stories, and what it refuses. Real databases, a real API server for identities."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.timekeeper_service import World, new_world


@pytest.fixture
def world(tmp_path: Path, database_url: str) -> Iterator[World]:
    with new_world(tmp_path, database_url) as made:
        yield made
