# SPDX-License-Identifier: Apache-2.0
"""Best fit: the place that leaves the least behind."""

from __future__ import annotations

from typing import Final

import numpy as np

from scheduler.placement.fleet_version import Bools, Ints
from scheduler.placement.policy import Gpus, PieceGroup
from slicekeeper.units import CORES_PER_GPU


class BestFit:
    """The place that leaves the least behind; an idle GPU is opened only if no shared one will do.

    What is left of compute and of memory count alike, each as its part of the GPU. Of whole GPUs the smallest that
    suffices is taken. Among equals the node with the fewest idle GPUs wins, which keeps others whole for large pods.
    """

    _PART: Final = 10_000
    _OPENED: Final = 4 * _PART
    _MOST_IDLE: Final = 255

    def prices(self, gpus: Gpus, group: PieceGroup, possible: Bools) -> Ints:  # noqa: ARG002 - the policies' interface
        """Return what is left, in ten-thousandths of a GPU."""
        if group.whole:
            left = np.minimum(gpus.capacity - group.memory_mib, 1 << 30) >> 8
        else:
            left = (gpus.core - group.core) * (self._PART // CORES_PER_GPU)
            left += (gpus.memory - group.memory_mib) * self._PART // np.maximum(gpus.capacity, 1)
            left += np.where(gpus.idle, self._OPENED, 0)
        idle = np.minimum((gpus.idle & (gpus.capacity > 0)).sum(axis=1, keepdims=True), self._MOST_IDLE)
        price: Ints = left * (self._MOST_IDLE + 1) + idle
        return price
