# SPDX-License-Identifier: Apache-2.0
"""The interface to a machine's GPUs, and to what a container needs to use one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from nodeagent.host_cdi import Edits, Index
from slicekeeper.gpu.inventory import Gpu


class GpuList(Protocol):
    """GPUs of the machine: all, or those that are offered."""

    def gpus(self) -> list[Gpu]:
        """Return the last known GPUs, in a stable order."""


class GpuSource(GpuList, Protocol):
    """The GPUs of the machine, and what the driver reports about them."""

    def indexes(self) -> Mapping[str, Index]:
        """Return by UUID the driver's number of each GPU and MIG slice that it describes."""

    def driver(self) -> tuple[str, str]:
        """Return the driver's version, or empty and why it does not answer."""

    def troubles(self) -> Mapping[str, str]:
        """Return by UUID why a GPU, or a MIG slice, must get no new container; healthy ones are omitted."""

    def look(self, seconds: float) -> None:
        """Wait for news of the GPUs, up to a limit, and check them again. Never raises because of the driver."""

    def samples(self, uuid: str, after_us: int) -> list[tuple[int, int]] | None:
        """Return samples of a GPU's utilisation, oldest first; None if the driver reports none.

        Each is an instant in µs on the driver's own clock, and the percentage since the previous sample.
        """

    def memory_used(self, uuid: str) -> int | None:
        """Return how many bytes of its memory are in use; None if the driver does not report it."""

    def edits(self, uuids: Sequence[str]) -> Edits:
        """Return the CDI container edits that make these GPUs usable; raises SeatRefused with what is missing."""
