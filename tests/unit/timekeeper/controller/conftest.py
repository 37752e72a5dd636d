# SPDX-License-Identifier: Apache-2.0
"""The controller, look by look, against the simulator's API server over HTTP and a real database."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.controller_stage import Stage, staged


@pytest.fixture
def stage(tmp_path: Path, database_url: str) -> Iterator[Stage]:
    with staged(tmp_path, database_url) as made:
        yield made
