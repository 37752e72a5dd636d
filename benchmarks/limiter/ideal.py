# SPDX-License-Identifier: Apache-2.0
"""An ideal scheduler of launches that cannot be interrupted: what the arbiter's shares are compared with.

It knows beforehand how long each launch and each pause takes, sees both end at once, and hands the GPU over in no time.
Like the arbiter it serves who has waited longest for what it is owed, and shares what is left over in proportion to
the requests. It shares no code with the arbiter.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

WINDOW_US = 1e6
"""A seat is owed at most its request of so much time."""


@dataclass(frozen=True)
class Work:
    """A seat that requests `core` per cent: again and again `batch` kernels of `us`, then a pause of `host_us`."""

    core: int
    us: float
    batch: int = 1
    host_us: float = 0


@dataclass
class _Seat:
    work: Work
    owed: float = 0
    excess: float = 0
    used: float = 0
    done: int = 0
    back: float = 0
    """When its pause is over."""

    @property
    def late(self) -> float:
        """How long ago it should have had what it is owed."""
        return self.owed * 100 / self.work.core


def _next(seats: list[_Seat], now: float, patient: bool) -> _Seat | None:
    ready = [s for s in seats if s.back <= now]
    if not ready:
        return None
    best = max(ready, key=lambda s: (s.late > 0, s.late if s.late > 0 else -s.excess))
    awaited = any(now < s.back < now + best.work.us and s.late > max(best.late, 0) for s in seats if s is not best)
    return None if patient and awaited else best


def _run(seat: _Seat, now: float, free: bool) -> None:
    seat.used += seat.work.us
    if free and seat.owed <= 0:
        seat.excess += seat.work.us / seat.work.core
    else:
        seat.owed -= seat.work.us
    seat.done += 1
    if seat.done % seat.work.batch == 0:
        seat.back = now + seat.work.host_us


def ideal(tenants: Sequence[Work], seconds: float, patient: bool) -> list[float]:
    """Return each tenant's share of the GPU, in per cent.

    If `patient`, the GPU idles for a seat that is owed more than any other and is back before the launch of another
    would end; if not, it never idles while a seat has work.
    """
    seats = [_Seat(work) for work in tenants]
    now, end = 0.0, seconds * 1e6
    while now < end:
        best = _next(seats, now, patient)
        then = now + best.work.us if best else min(s.back for s in seats if s.back > now)
        for s in seats:
            s.owed = min(s.owed + (then - now) * s.work.core / 100, WINDOW_US * s.work.core / 100)
        if best:
            _run(best, then, all(s.owed <= 0 for s in seats if s is not best and s.back <= now))
        now = then
    return [100 * s.used / now for s in seats]
