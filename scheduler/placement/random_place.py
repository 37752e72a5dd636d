# SPDX-License-Identifier: Apache-2.0
"""Random places: the baseline for all other policies."""

from __future__ import annotations

import numpy as np

from scheduler.placement.fleet_version import Bools, Ints
from scheduler.placement.policy import Gpus, PieceGroup


class Random:
    """Any node that fits, and any GPU there that fits: the baseline of comparisons."""

    def __init__(self, seed: int = 0) -> None:
        self._random = np.random.default_rng(seed)

    def prices(self, gpus: Gpus, group: PieceGroup, possible: Bools) -> Ints:  # noqa: ARG002 - the policies' interface
        """Return random prices."""
        nodes, columns = gpus.core.shape
        of_node = self._random.integers(0, 1 << 20, (nodes, 1)) << 10
        return of_node + self._random.integers(0, 1 << 10, (nodes, columns))
