# SPDX-License-Identifier: Apache-2.0
"""From a counter's reports to what was used in each hour: pure.

A watermark remembers where its counter stood when the hour began, so that a report costs no more than before; a row is
written once an hour. What a report adds counts in the hour in which the counter was read. Time between two reports is
observed unless it is longer than `SILENCE_MS`: then nobody knows, and it stays unobserved.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from slicekeeper.units import MS_PER_HOUR
from timekeeper.counters import Watermark

SILENCE_MS: Final = 120_000
"""Twelve of the sidecar's usual intervals. What it could not send it spools, so this is a sidecar that was away."""


@dataclass(frozen=True)
class HourUsed:
    """What one epoch of one container used in an hour that is over; `used_ms` None: unknown."""

    epoch: int
    hour: int
    used_ms: int | None
    observed_ms: int


def in_this_hour(mark: Watermark) -> HourUsed:
    """Return what the hour of the newest report has come to."""
    used = None if mark.used_ms is None else mark.used_ms - mark.hour_base
    return HourUsed(mark.epoch, mark.hour, used, mark.observed_ms)


def advance(before: Watermark | None, mark: Watermark, at: int) -> tuple[Watermark, HourUsed | None]:
    """Return a new watermark that knows its hour, and the hour that is over by it.

    `before` is the watermark of the same epoch that it follows; `at` is when the counter was read.
    """
    hour = at // MS_PER_HOUR * MS_PER_HOUR
    epoch, seq, used, monotonic = mark[:4]
    if before is None:
        passed = at - epoch // 1_000_000  # an epoch is named by the instant at which it began
        return Watermark(epoch, seq, used, monotonic, hour, 0, passed if 0 <= passed <= SILENCE_MS else 0), None
    passed = (monotonic - before.monotonic_ns) // 1_000_000
    observed = passed if passed <= SILENCE_MS else 0
    if hour <= before.hour:
        observed += before.observed_ms
        return Watermark(epoch, seq, used, monotonic, before.hour, before.hour_base, observed), None
    here = min(observed, at - hour)
    over = in_this_hour(before)
    over = replace(over, observed_ms=over.observed_ms + observed - here)
    return Watermark(epoch, seq, used, monotonic, hour, before.used_ms or 0, here), over
