# SPDX-License-Identifier: Apache-2.0
"""`slicekeeper check` against an API server whose objects a test lists."""

from collections.abc import Iterator

import pytest
from support.checked_cluster import Server


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    yield made
    made.stop()
