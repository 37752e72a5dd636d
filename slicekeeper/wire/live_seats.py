# SPDX-License-Identifier: Apache-2.0
"""The answer of a node's agent at /seats: which container holds which share of its GPUs, and how much it uses."""

from __future__ import annotations

from typing import Final, Literal

from slicekeeper.wire.timekeeper import Wire

PATH: Final = "/seats"


class SeatUse(Wire, frozen=True, kw_only=True):
    """One container's share of one GPU. Percentages are of that GPU's time; None: currently unknown."""

    namespace: str
    pod: str
    uid: str
    container: str
    gpu: str
    """Its UUID."""
    vclass: Literal["in-budget", "background"]
    asked_percent: int
    limit_percent: int
    """Its ceiling."""
    given_percent: float | None = None
    """Part of the recent time in which its gate was open."""
    used_percent: float | None = None
    """Part of the recent time in which it had work on the GPU."""
    memory_mib: int | None = None
    """In use."""
    memory_limit_mib: int
    """0: all of the GPU's memory."""


class NodeSeats(Wire, frozen=True, kw_only=True):
    """All seats of a node, with one entry for each GPU that a seat holds."""

    seats: list[SeatUse]
