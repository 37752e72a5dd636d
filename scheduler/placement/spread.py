# SPDX-License-Identifier: Apache-2.0
"""Spread: the emptiest node and GPU go first."""

from __future__ import annotations

import numpy as np

from scheduler.placement.fleet_version import Bools, Ints
from scheduler.placement.policy import Gpus, PieceGroup
from slicekeeper.units import CORES_PER_GPU


class Spread:
    """The node and the GPU with the most free, so that pods disturb each other as little as possible."""

    def prices(self, gpus: Gpus, group: PieceGroup, possible: Bools) -> Ints:  # noqa: ARG002 - the policies' interface
        """Return what is taken already, of the node first."""
        there = gpus.capacity > 0
        used = np.where(there, CORES_PER_GPU - gpus.core, 0).sum(axis=1) * 1_000 // np.maximum(there.sum(axis=1), 1)
        price: Ints = used[:, None] * (CORES_PER_GPU + 1) + (CORES_PER_GPU - gpus.core)
        return price
