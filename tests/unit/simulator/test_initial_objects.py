# SPDX-License-Identifier: Apache-2.0
"""The nodes that a cluster begins with."""

import pytest

from simulator.initial_objects import node
from slicekeeper.config.settings import Resources
from slicekeeper.errors import SettingsError


def test_an_unknown_model_is_refused_with_the_known_ones() -> None:
    with pytest.raises(SettingsError, match="one of T4, L4"):
        node("n", 1, "A1000", Resources())
