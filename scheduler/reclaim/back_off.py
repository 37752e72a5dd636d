# SPDX-License-Identifier: Apache-2.0
"""The growing wait of a pod or gang for which something was done: an eviction, a retry, a reservation of places."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class BackOff:
    """How often something was done for a pod or gang, and until when nothing more is done."""

    times: int = 0
    not_before_ns: int = 0

    def put_off(self, now_ns: int, pause_ns: int, longest: int) -> None:
        """Do nothing for twice as long each time, at most for `longest` pauses."""
        self.not_before_ns = now_ns + min(2**self.times, longest) * pause_ns
