# SPDX-License-Identifier: Apache-2.0
"""Choose the gang that is searched for next, and when: one search at a time, for a limited part of the time.

A search takes some tenths of a second for a large gang, and every change of the cluster is a reason for another one, so
all gangs share one pause: a tenant gets no more searches by creating many gangs. The namespace that was served the
longest ago comes first, and of its gangs the one that has waited the longest.
"""

from __future__ import annotations

from typing import Final

from slicekeeper.clock import Clock

SEARCH_PAUSE_RATIO: Final = 9
"""The pause after a search that found no places, as a multiple of the time it took: such searches take at most a
tenth of the time."""


class GangQueue:
    """The queue of gangs that wait for a search, by their keys. Protected by its owner's lock."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._waiting: dict[str, None] = {}
        self._served: dict[str, int] = {}
        """The number of the last turn of each namespace in the queue. One that joins counts as just served, so it gains
        nothing by leaving."""
        self._turn = 0
        self._paused_until_ns = 0

    def take_turn(self, key: str) -> bool:
        """Return whether a gang may be searched for now. If so, it leaves the queue; otherwise it joins it."""
        self._waiting.setdefault(key)
        self._served.setdefault(_namespace(key), self._turn)
        if self._clock.monotonic_ns() < self._paused_until_ns or key != min(self._waiting, key=self._last_served):
            return False
        self._turn += 1
        self._served[_namespace(key)] = self._turn
        self.leave(key)
        return True

    def leave(self, key: str) -> None:
        """Remove a gang from the queue, because it is gone or no search could find anything."""
        if key not in self._waiting:
            return
        del self._waiting[key]
        waiting = {_namespace(other) for other in self._waiting}
        self._served = {namespace: turn for namespace, turn in self._served.items() if namespace in waiting}

    def pause(self, since_ns: int) -> None:
        """Begin a pause: a search that began at `since_ns` has found no places."""
        now_ns = self._clock.monotonic_ns()
        self._paused_until_ns = now_ns + SEARCH_PAUSE_RATIO * (now_ns - since_ns)

    def in_order(self) -> list[str]:
        """Return the gangs in the order in which they are searched for if every search succeeds."""
        return sorted(self._waiting, key=self._last_served)

    def seconds_left(self) -> float | None:
        """Return how long the pause still lasts, in seconds; None if no gang waits for its end."""
        return max(self._paused_until_ns - self._clock.monotonic_ns(), 0) / 1e9 if self._waiting else None

    def _last_served(self, key: str) -> int:
        return self._served[_namespace(key)]


def _namespace(key: str) -> str:
    return key.partition("/")[0]
