# SPDX-License-Identifier: Apache-2.0
"""One container's usage of one GPU: the arbiter counts fractions, NVML whole GPUs and MIG slices."""

from __future__ import annotations

import msgspec

from nodeagent.arbiter_client import Telemetry


class Count(msgspec.Struct, frozen=True):
    """Cumulative counters of one seat on one GPU."""

    seat: str
    gpu: str
    """Its UUID."""
    life: str
    """Names the counter of busy time: one that starts again from zero has another."""
    by: str
    """Names the program that counts: with another one all counters start again."""
    wall_ns: int
    busy_ns: int | None
    """None if unknown, as for most MIG slices."""
    granted_ns: int | None
    memory: int | None
    """Bytes in use now; None: unknown."""


def of_arbiter(telemetry: Telemetry) -> list[Count]:
    """Return the arbiter's counters."""
    uuids = {gpu.gpu: gpu.uuid for gpu in telemetry.gpus}
    return [
        Count(
            seat=seat.seat,
            gpu=uuids[seat.gpu],
            life=str(telemetry.now_ns - seat.wall_ns),
            by=str(telemetry.pid),
            wall_ns=seat.wall_ns,
            busy_ns=seat.busy_ns,
            granted_ns=seat.granted_ns,
            memory=seat.memory + seat.memory_overhead,
        )
        for seat in telemetry.seats
        if seat.gpu in uuids
    ]
