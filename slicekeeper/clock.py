# SPDX-License-Identifier: Apache-2.0
"""The clock of all parts: it is passed to each, and none reads the system's time itself.

Local mode runs faster than real time: `origin` is the real instant from which time is scaled, and `speed` the number of
clock seconds per real second. All processes with the same two settings agree.
"""

import functools
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from slicekeeper.config.settings import ClockSettings
from slicekeeper.errors import SettingsError
from slicekeeper.units import Instant, parse_instant

CLOCK_SKEW_MS: Final = 300_000
"""How far the clocks of nodes, API server and our own parts may differ before a record is considered wrong."""

NODE_CLOCK_MS: Final = 10_000
"""A difference between a node's clock and the API server's up to which a slow write may explain it: it is ignored."""

SHORTEST_WAIT_SECONDS: Final = 0.05
"""Real seconds: at a high speed a loop that waits 2 s of scaled time would otherwise spin."""


def real_seconds() -> float:
    """Return real seconds since some instant, on Linux including the time for which the machine was suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()


def machine_ns() -> int:
    """Return the machine's monotonic clock, which is the same in all containers: a time namespace shifts theirs."""
    return time.monotonic_ns() - _ahead_ns()


@functools.cache
def _ahead_ns() -> int:
    try:
        lines = Path("/proc/self/timens_offsets").read_text().splitlines()
    except OSError:
        return 0
    offsets = {name: int(seconds) * 10**9 + int(rest) for name, seconds, rest in map(str.split, lines)}
    return offsets.get("monotonic", 0)


@dataclass(frozen=True)
class Clock:
    """The system's clock, scaled: at `speed` 1 it is the system's clock itself."""

    origin_ms: int = 0
    speed: float = 1.0

    def now_ms(self) -> Instant:
        """Return the instant, in milliseconds since the epoch."""
        real = Instant(time.time_ns() // 1_000_000)
        if self.speed == 1.0:
            return real
        return Instant(self.origin_ms + int((real - self.origin_ms) * self.speed))

    def monotonic_ns(self) -> int:
        """Return a reading that never runs backwards, in nanoseconds of this clock's time."""
        return int(time.monotonic_ns() * self.speed)

    def wait(self, event: threading.Event, seconds: float) -> bool:
        """Wait until `event` is set or `seconds` of this clock's time have passed; return whether it is set.

        In scaled time, wait at least `SHORTEST_WAIT_SECONDS` of real time.
        """
        if self.speed == 1.0:
            return event.wait(max(seconds, 0.0))
        return event.wait(max(seconds / self.speed, SHORTEST_WAIT_SECONDS))


def from_settings(settings: ClockSettings) -> Clock:
    """Return the clock that all parts with these settings share.

    Raises SettingsError if `clock.origin` is not an instant, or is missing although time is scaled.
    """
    if settings.speed == 1.0 and not settings.origin:
        return Clock()
    try:
        origin_ms = parse_instant(settings.origin)
    except ValueError as error:
        raise SettingsError(
            f"clock.origin is {settings.origin!r}: scaled time needs an RFC 3339 instant, "
            "for example 2026-01-01T00:00:00Z"
        ) from error
    return Clock(origin_ms, settings.speed)
