# SPDX-License-Identifier: Apache-2.0
"""The interface of placement policies: a policy prices every GPU that fits, and the cheapest is taken.

A policy sees whole rows, with the CPU and memory beside the GPUs, so it can price what a pod does to the rest of its
node, too. It never decides what fits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from scheduler.placement.fleet_version import Bools, Floats, Ints, View
from slicekeeper.units import CORES_PER_GPU


@dataclass(frozen=True)
class Gpus:
    """What is free while a pod's pieces are placed one after the other: nodes × GPUs, and per node beside them."""

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

    @classmethod
    def of(cls, view: View) -> Gpus:
        """Return what is free before any piece is placed."""
        return cls(view.capacity, view.core, view.memory, view.idle, view.code, view.cpu, view.ram)

    def free(self) -> Ints:
        """Return what of each GPU is free, in percent: the smaller of compute and memory."""
        return np.minimum(self.core, self.memory * CORES_PER_GPU // np.maximum(self.capacity, 1))

    def taken_whole(self, group: PieceGroup) -> Bools:
        """Return which GPUs of each node a group of whole GPUs takes: the first idle ones with enough memory."""
        able = self.idle & (self.capacity >= max(group.memory_mib, 1))
        taken: Bools = able & (np.cumsum(able, axis=1) <= group.count)
        return taken


@dataclass(frozen=True)
class PieceGroup:
    """What a policy prices: `count` equal pieces of a pod, and the cores and MiB that the pod takes beside its GPUs.

    `count` is more than 1 only for whole GPUs, which go on the first idle ones that suffice.
    """

    core: int
    memory_mib: int
    whole: bool
    count: int = 1
    cpu: float = 0.0
    ram: float = 0.0


class Policy(Protocol):
    """EvaluationCache places. Never changes once made, so any number of threads may ask it."""

    def prices(self, gpus: Gpus, group: PieceGroup, possible: Bools) -> Ints:
        """Return for each GPU the price of putting `group` there, 0 … 2⁴⁰; less is better.

        Only prices of GPUs that are `possible` are looked at. A node's price is the sum over the pod's groups.
        """
