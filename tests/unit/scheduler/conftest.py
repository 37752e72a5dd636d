# SPDX-License-Identifier: Apache-2.0
"""What several tests of the scheduler begin with."""

import pytest
from support.manual_clock import ManualClock
from support.scheduler_state import new_state
from support.small_cluster import small_cluster


@pytest.fixture
def cluster():
    """Return a simulated cluster with two nodes."""
    with small_cluster() as made:
        made.node("n0")
        made.node("n1")
        yield made


@pytest.fixture
def clock():
    """Return a clock that tests set."""
    return ManualClock()


@pytest.fixture
def state(clock):
    """Return the state of a scheduler with two nodes of one GPU each."""
    return new_state(clock)
