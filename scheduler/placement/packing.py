# SPDX-License-Identifier: Apache-2.0
"""Packing: GPUs that are in use already go first, so that whole nodes stay empty."""

from __future__ import annotations

from typing import Final

import numpy as np

from scheduler.placement.fleet_version import Bools, Ints
from scheduler.placement.policy import Gpus, PieceGroup
from slicekeeper.units import CORES_PER_GPU


class Packing:
    """Shared GPUs first, then idle ones of nodes in use, then unused nodes; of each the node with the least free."""

    _STEP: Final = 1 << 20

    def prices(self, gpus: Gpus, group: PieceGroup, possible: Bools) -> Ints:  # noqa: ARG002 - the policies' interface
        """Return how far a place is from being in use already."""
        free = np.where(gpus.capacity > 0, gpus.core, 0).sum(axis=1, keepdims=True)
        unused = (gpus.idle | (gpus.capacity == 0)).all(axis=1, keepdims=True)
        opened = np.where(gpus.idle & (group.core > 0), np.where(unused, 2, 1), 0)
        price: Ints = opened * self._STEP + free * (CORES_PER_GPU + 1) + gpus.core
        return price
