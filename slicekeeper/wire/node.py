# SPDX-License-Identifier: Apache-2.0
"""What a node's agent answers at /seats: which container holds what part of its GPUs, and uses how much of it."""

from __future__ import annotations

from typing import Final, Literal

from slicekeeper.wire.timekeeper import Wire

PATH: Final = "/seats"


class SeatUse(Wire, frozen=True, kw_only=True):
    """One container's hold of one GPU. Percentages are of that GPU's time; None: not known now."""

    namespace: str
    pod: str
    uid: str
    container: str
    gpu: str
    """Its UUID."""
    vclass: Literal["in-budget", "background"]
    asked_percent: int
    limit_percent: int
    """The most that it may have."""
    given_percent: float | None = None
    """How long its gate was open lately."""
    used_percent: float | None = None
    """How long it had work on the GPU lately."""
    memory_mib: int | None = None
    """In use."""
    memory_limit_mib: int
    """0: all of it."""


class NodeSeats(Wire, frozen=True, kw_only=True):
    """All seats of a node, once for each GPU that they hold."""

    seats: list[SeatUse]
