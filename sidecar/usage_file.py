# SPDX-License-Identifier: Apache-2.0
"""The source of usage: the file in which the node keeps the pod's counters.

Nothing is guessed. Usage that cannot be read is None, which the timekeeper stores as `unknown`; zero would be wrong.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from slicekeeper import typed_json
from slicekeeper.clock import machine_ns
from slicekeeper.wire.usage_file import Counter, PodUsage

UNKNOWN: Final = "unknown"

STALE_NS: Final = 5_000_000_000
"""Counters that were read longer ago are out of date: their reader reads every second."""


class UsageReading(msgspec.Struct, frozen=True):
    """Cumulative GPU-milliseconds of one container, their source, the counter's name, and memory; None if unknown."""

    used_ms: int | None
    source: str
    life: str = ""
    memory_mib: int | None = None


class FileUsage:
    """The node's file. While it is missing, damaged or old, usage is unknown."""

    def __init__(self, file: Path, now_ns: Callable[[], int] = machine_ns) -> None:
        self._file = file
        self._now_ns = now_ns

    def read(self, container: str) -> UsageReading:
        """Return the container's counter from the file. Never raises."""
        try:
            usage = typed_json.decode(self._file.read_bytes(), PodUsage)
        except (OSError, msgspec.MsgspecError):
            return UsageReading(None, UNKNOWN)
        counter = usage.containers.get(container, Counter())
        if counter.used_ms is None or not self._fresh(usage):
            return UsageReading(None, UNKNOWN)
        return UsageReading(counter.used_ms, usage.source, counter.life, counter.memory_mib)

    def _fresh(self, usage: PodUsage) -> bool:
        return usage.at_ns is None or 0 <= self._now_ns() - usage.at_ns <= STALE_NS
