# SPDX-License-Identifier: Apache-2.0
"""The reasons why a node does not fit a pod: numbers for arrays, and words for users."""

from __future__ import annotations

from enum import IntEnum

from scheduler.placement.affinity import company_of
from scheduler.placement.demand import Demand
from slicekeeper.names import MIG


class Why(IntEnum):
    """Why a node does not fit. From `UUID` on, the end of other pods would not change it."""

    FITS = 0
    FULL = 1
    COMPANY = 2
    CPU_MEMORY_TAKEN = 3
    UUID = 4
    MODEL = 5
    HEALTH = 6
    TOO_SMALL = 7
    NO_GPUS = 8
    DAMAGED = 9
    NO_SLICE = 10
    CPU_MEMORY_TOO_SMALL = 11

    @property
    def unresolvable(self) -> bool:
        """Whether evicting pods from the node could not help."""
        return self >= Why.UUID


def explain(why: int, demand: Demand) -> str:
    """Return a reason in words that a user understands; alike for all nodes, because kube-scheduler counts equals."""
    full = f"not enough is free for {demand.asks} (what is held for other pods counts as taken)"
    if demand.mode == MIG:
        full = f"the MIG slices that could hold {demand.asks} are taken"
    return {
        Why.FULL: full,
        Why.COMPANY: f"GPUs are free, but affinity or sharing rules exclude them ({company_of(demand)})",
        Why.CPU_MEMORY_TAKEN: (
            f"GPUs are free, but not enough CPU or main memory (asked for: cpu {demand.cpu_milli / 1000:g}, "
            f"memory {demand.ram_mib}Mi)"
        ),
        Why.CPU_MEMORY_TOO_SMALL: (
            f"the node has less CPU or main memory than is asked for (cpu {demand.cpu_milli / 1000:g}, "
            f"memory {demand.ram_mib}Mi)"
        ),
        Why.UUID: f"GPU {demand.gpu_uuid} is not on this node",
        Why.MODEL: f"no GPU of model {' or '.join(demand.models)}",
        Why.HEALTH: "no healthy GPU outside of MIG mode" if demand.mode != MIG else "its MIG slices are not healthy",
        Why.TOO_SMALL: f"its GPUs could not hold {demand.asks} even if they were idle",
        Why.NO_GPUS: "the node has no GPUs that Slicekeeper manages",
        Why.NO_SLICE: f"the node has no MIG slice for {demand.asks}, or not enough of them",
        Why.DAMAGED: "the node's list of GPUs cannot be read (annotation slicekeeper.io/gpus)",
    }.get(Why(why), "fits")
