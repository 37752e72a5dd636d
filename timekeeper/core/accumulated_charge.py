# SPDX-License-Identifier: Apache-2.0
"""Compute what a pod is charged up to an instant: exactly, and rounded once, so that no cut of its interval matters."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from slicekeeper.units import NO_TIME, GpuMilliseconds, Instant


@dataclass(frozen=True, slots=True)
class Claim:
    """A pod's claim: its interval, and GPU-milliseconds per millisecond as `num / den`. `end` None: it is open.

    `rate_changes` are the instants after `start` at which the rate changes, each with the new `num` and `den`.
    """

    key: str
    start: Instant
    end: Instant | None
    num: int
    den: int
    rate_changes: tuple[tuple[Instant, int, int], ...] = ()

    def goes_on(self, at: Instant) -> bool:
        """Return whether it has not ended at an instant."""
        return self.end is None or self.end > at

    def gross(self, at: Instant) -> GpuMilliseconds:
        """Return the cumulative charge at an instant, rounded half up."""
        last = at if self.end is None or at < self.end else self.end
        if last <= self.start:
            return NO_TIME
        if not self.rate_changes:
            # Called millions of times: calling GpuMilliseconds, too, would take a quarter of the time.
            return (2 * self.num * (last - self.start) + self.den) // (2 * self.den)  # type: ignore[return-value]
        exact = self.exact(last)
        return GpuMilliseconds((2 * exact.numerator + exact.denominator) // (2 * exact.denominator))

    def exact(self, at: Instant) -> Fraction:
        """Return the cumulative charge at an instant, unrounded."""
        last = at if self.end is None or at < self.end else self.end
        total, since, rate = Fraction(0), self.start, Fraction(self.num, self.den)
        for change, num, den in self.rate_changes:
            if change >= last:
                break
            total += rate * (change - since)
            since, rate = change, Fraction(num, den)
        return total + rate * max(last - since, 0)

    def rate(self, at: Instant) -> tuple[int, int]:
        """Return the rate in force from an instant on, as numerator and denominator."""
        found = self.num, self.den
        for change, num, den in self.rate_changes:
            if change <= at:
                found = num, den
        return found
