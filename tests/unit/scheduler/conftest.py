# SPDX-License-Identifier: Apache-2.0
"""What several tests of the scheduler begin with."""

import pytest
from support.small_cluster import small_cluster


@pytest.fixture
def cluster():
    """Return a simulated cluster with two nodes."""
    with small_cluster() as made:
        made.node("n0")
        made.node("n1")
        yield made
