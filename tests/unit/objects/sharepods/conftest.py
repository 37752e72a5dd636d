# SPDX-License-Identifier: Apache-2.0
"""A cluster with SharePods in it."""

from collections.abc import Iterator

import pytest
from support.sharepods import SharePodWorld, sharepod_world


@pytest.fixture
def world() -> Iterator[SharePodWorld]:
    with sharepod_world() as made:
        yield made
