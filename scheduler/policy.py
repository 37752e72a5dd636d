# SPDX-License-Identifier: Apache-2.0
"""How a place is chosen among those that fit: a policy prices every GPU, the cheapest one is taken.

A policy sees whole rows, so it can price what a slice does to the rest of its node, too. It never decides what fits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np

from scheduler.demand import Slice
from scheduler.fleet import Bools, Ints
from slicekeeper.units import CORES_PER_GPU


@dataclass(frozen=True)
class Gpus:
    """What is free while a pod's slices are placed one after the other: arrays of nodes × GPUs."""

    capacity: Ints
    core: Ints
    memory: Ints
    idle: Bools


class Policy(Protocol):
    """Prices places."""

    def prices(self, gpus: Gpus, piece: Slice) -> Ints:
        """Return for each GPU the price of putting `piece` there, 0 … 2⁴⁰; less is better.

        Prices of GPUs where it does not fit are not looked at. A node's price is the sum over the pod's slices.
        """


class BestFit:
    """The place that leaves the least behind; an idle GPU is opened only where no shared one will do.

    What is left of compute and of memory count alike, each as its part of the GPU. Of whole GPUs the smallest that
    suffices is taken. Among equals the node with the fewest idle GPUs wins, which keeps others whole for large pods.
    """

    _PART: Final = 10_000
    _OPENED: Final = 4 * _PART
    _MOST_IDLE: Final = 255

    def prices(self, gpus: Gpus, piece: Slice) -> Ints:
        """Return what is left, in ten-thousandths of a GPU."""
        if piece.whole:
            left = np.minimum(gpus.capacity - piece.memory_mib, 1 << 30) >> 8
        else:
            left = (gpus.core - piece.core) * (self._PART // CORES_PER_GPU)
            left += (gpus.memory - piece.memory_mib) * self._PART // np.maximum(gpus.capacity, 1)
            left += np.where(gpus.idle, self._OPENED, 0)
        idle = np.minimum((gpus.idle & (gpus.capacity > 0)).sum(axis=1, keepdims=True), self._MOST_IDLE)
        price: Ints = left * (self._MOST_IDLE + 1) + idle
        return price


POLICIES: Final[dict[str, Policy]] = {"best-fit": BestFit()}
