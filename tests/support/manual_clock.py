# SPDX-License-Identifier: Apache-2.0
"""A clock that only its owner moves, in place of `slicekeeper.clock.Clock`."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

from slicekeeper.units import Instant


@dataclass
class ManualClock:
    """The instant that was set, and the sum of all advances."""

    ms: int = 0
    _steps_ns: int = field(default=0, repr=False)

    def now_ms(self) -> Instant:
        """Return the instant that was set."""
        return Instant(self.ms)

    def monotonic_ns(self) -> int:
        """Return the sum of all advances, whatever `ms` was set to."""
        return self._steps_ns

    def wait(self, event: threading.Event, seconds: float) -> bool:
        """Advance at once by `seconds`."""
        self.advance(int(seconds * 1000))
        return event.is_set()

    def advance(self, ms: int) -> None:
        """Move both readings forward by `ms` milliseconds."""
        self.ms += ms
        self._steps_ns += ms * 1_000_000
