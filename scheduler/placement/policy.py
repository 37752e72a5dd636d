# SPDX-License-Identifier: Apache-2.0
"""How a place is chosen among those that fit: a policy prices every GPU, the cheapest one is taken.

A policy sees whole rows, with the CPU and memory beside the GPUs, so it can price what a pod does to the rest of its
node, too. It never decides what fits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np

from scheduler.placement.fleet_version import Bools, Floats, Ints
from slicekeeper.units import CORES_PER_GPU


@dataclass(frozen=True)
class Gpus:
    """What is free while a pod's slices are placed one after the other: nodes × GPUs, and per node beside them."""

    capacity: Ints
    core: Ints
    memory: Ints
    idle: Bools
    model: Ints
    """Index into the fleet's models."""
    cpu: Floats
    """Free cores of each node, infinite if that is not known."""
    ram: Floats
    """Free MiB of each node's own memory, infinite if that is not known."""

    def free(self) -> Ints:
        """Return what of each GPU is free, in percent: the smaller of compute and memory."""
        return np.minimum(self.core, self.memory * CORES_PER_GPU // np.maximum(self.capacity, 1))

    def taken_whole(self, piece: Piece) -> Bools:
        """Return which GPUs of each node a piece of whole GPUs takes: the first idle ones with enough memory."""
        able = self.idle & (self.capacity >= max(piece.memory_mib, 1))
        taken: Bools = able & (np.cumsum(able, axis=1) <= piece.count)
        return taken


@dataclass(frozen=True)
class Piece:
    """What is to be priced: `count` equal slices of a pod, and the cores and MiB that the pod takes beside its GPUs.

    `count` is more than 1 only for whole GPUs, which go on the first idle ones that suffice.
    """

    core: int
    memory_mib: int
    whole: bool
    count: int = 1
    cpu: float = 0.0
    ram: float = 0.0


class Policy(Protocol):
    """Prices places. Never changes once made, so any number of threads may ask it."""

    def prices(self, gpus: Gpus, piece: Piece, possible: Bools) -> Ints:
        """Return for each GPU the price of putting `piece` there, 0 … 2⁴⁰; less is better.

        Only prices of GPUs that are `possible` are looked at. A node's price is the sum over the pod's pieces.
        """


class BestFit:
    """The place that leaves the least behind; an idle GPU is opened only if no shared one will do.

    What is left of compute and of memory count alike, each as its part of the GPU. Of whole GPUs the smallest that
    suffices is taken. Among equals the node with the fewest idle GPUs wins, which keeps others whole for large pods.
    """

    _PART: Final = 10_000
    _OPENED: Final = 4 * _PART
    _MOST_IDLE: Final = 255

    def prices(self, gpus: Gpus, piece: Piece, possible: Bools) -> Ints:  # noqa: ARG002 - the policies' interface
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


class Packing:
    """Shared GPUs first, then idle ones of nodes in use, then unused nodes; of each the node with the least free."""

    _STEP: Final = 1 << 20

    def prices(self, gpus: Gpus, piece: Piece, possible: Bools) -> Ints:  # noqa: ARG002 - the policies' interface
        """Return how far a place is from being in use already."""
        free = np.where(gpus.capacity > 0, gpus.core, 0).sum(axis=1, keepdims=True)
        unused = (gpus.idle | (gpus.capacity == 0)).all(axis=1, keepdims=True)
        opened = np.where(gpus.idle & (piece.core > 0), np.where(unused, 2, 1), 0)
        price: Ints = opened * self._STEP + free * (CORES_PER_GPU + 1) + gpus.core
        return price


class Spread:
    """The node and the GPU with the most free: pods get in each other's way as little as can be."""

    def prices(self, gpus: Gpus, piece: Piece, possible: Bools) -> Ints:  # noqa: ARG002 - the policies' interface
        """Return what is taken already, of the node first."""
        there = gpus.capacity > 0
        used = np.where(there, CORES_PER_GPU - gpus.core, 0).sum(axis=1) * 1_000 // np.maximum(there.sum(axis=1), 1)
        price: Ints = used[:, None] * (CORES_PER_GPU + 1) + (CORES_PER_GPU - gpus.core)
        return price


class Random:
    """Any node that fits, and any GPU there that does: what the others are measured against."""

    def __init__(self, seed: int = 0) -> None:
        self._random = np.random.default_rng(seed)

    def prices(self, gpus: Gpus, piece: Piece, possible: Bools) -> Ints:  # noqa: ARG002 - the policies' interface
        """Return chance."""
        nodes, columns = gpus.core.shape
        of_node = self._random.integers(0, 1 << 20, (nodes, 1)) << 10
        return of_node + self._random.integers(0, 1 << 10, (nodes, columns))
