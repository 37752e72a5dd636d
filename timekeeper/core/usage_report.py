# SPDX-License-Identifier: Apache-2.0
"""Evaluate the usage counters that sidecars report: which report counts, and the usage of each hour. Pure.

Counters are cumulative within an epoch (one run of a sidecar), so lost, repeated and reordered reports change nothing.
Usage is the sum over epochs. Reports never open, close or change a charge: a refused one costs nothing.

A watermark contains the value of its counter at the start of the hour, so a row of usage is written only once an hour.
What a report adds counts in the hour in which the counter was read. Time between two reports is observed unless it is
longer than `SILENCE_MS`: then nothing is known of it, and it stays unobserved.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final, Literal, NamedTuple

from slicekeeper.units import EPOCH, MS_PER_HOUR, Instant
from slicekeeper.wire.timekeeper import UsageReport

Outcome = Literal["accepted", "duplicate", "refused"]

WRONG_POD: Final = "wrong-pod"
UNKNOWN_POD: Final = "unknown-pod"
POD_ARCHIVED: Final = "pod-archived"
UNKNOWN_CONTAINER: Final = "unknown-container"
RAN_BACKWARDS: Final = "counter-ran-backwards"
TOO_FAST: Final = "counter-above-possible"
BAD_COUNTER: Final = "counter-invalid"
BAD_EPOCH: Final = "epoch-implausible"
TOO_MANY_EPOCHS: Final = "too-many-epochs"

MAX_EPOCHS: Final = 256
"""Enough for a sidecar that restarts each minute for four hours; more is a fault, and each would cost a row."""

SLACK_MS: Final = 60_000
"""Tolerance: nodes' clocks differ, and counters are read a moment before they are sent."""

_LARGEST: Final = 2**62

SILENCE_MS: Final = 120_000
"""Twelve of the sidecar's usual intervals. A sidecar spools what it could not send, so it was gone for longer."""


class Watermark(NamedTuple):
    """The latest position that one epoch of a container has reported. `used_ms` is None if unknown."""

    epoch: int
    seq: int
    used_ms: int | None
    monotonic_ns: int
    """When it was last read; while its value is unknown, when it was last reported."""
    hour: Instant = EPOCH
    """The hour in which the counter was last read, by its first instant."""
    hour_base: int = 0
    """Usage at the start of that hour."""
    observed_ms: int = 0
    """How much of that hour is covered by reports."""
    peak_memory_mib: int | None = None
    """Peak of the reported GPU memory; None if no report had it."""


class Bounds(NamedTuple):
    """The most that a container can have used: the GPUs that it holds, since when, as of now."""

    gpus: int
    start: Instant
    now: Instant

    @property
    def most_ms(self) -> int:
        """The most that all epochs together may have counted."""
        return _most(max(self.now - self.start, 0), self.gpus)


def _most(elapsed_ms: int, gpus: int) -> int:
    return (elapsed_ms + elapsed_ms // 50 + SLACK_MS) * gpus


def judge(report: UsageReport, marks: Mapping[int, Watermark], bounds: Bounds) -> tuple[Outcome, str, Watermark | None]:
    """Return a report's outcome, the reason if it is refused, and the watermark to keep if that changed.

    `marks` are the container's watermarks by epoch.
    """
    if not (
        0 < report.seq < _LARGEST
        and 0 <= report.monotonic_ns < _LARGEST
        and (report.used_ms is None or 0 <= report.used_ms < _LARGEST)
        and (report.memory_mib is None or 0 <= report.memory_mib < _LARGEST)
    ):
        return "refused", BAD_COUNTER, None
    if not 0 < report.epoch < _LARGEST:  # by the node's clock, which may show any time
        return "refused", BAD_EPOCH, None
    mark = marks.get(report.epoch)
    if mark is None:
        if len(marks) >= MAX_EPOCHS:
            return "refused", TOO_MANY_EPOCHS, None
        mark = Watermark(report.epoch, 0, None, report.monotonic_ns)
    elif report.seq <= mark.seq:
        return _late(report, mark)
    refusal = _impossible(report, mark, marks, bounds)
    if refusal:
        return "refused", refusal, None
    peak = mark.peak_memory_mib
    if report.memory_mib is not None and (peak is None or report.memory_mib > peak):
        peak = report.memory_mib
    if report.used_ms is None and mark.used_ms is not None:
        # The counter may have continued: its next value covers all the time since it was last read.
        return "accepted", "", mark._replace(seq=report.seq, peak_memory_mib=peak)
    mark = Watermark(report.epoch, report.seq, report.used_ms, report.monotonic_ns, peak_memory_mib=peak)
    return "accepted", "", mark


def _late(report: UsageReport, mark: Watermark) -> tuple[Outcome, str, None]:
    """Evaluate a report at or behind the watermark: it may only repeat what is known, or less."""
    if report.used_ms is not None and mark.used_ms is not None and report.used_ms > mark.used_ms:
        return "refused", RAN_BACKWARDS, None
    return "duplicate", "", None


def _impossible(report: UsageReport, mark: Watermark, marks: Mapping[int, Watermark], bounds: Bounds) -> str:
    if report.monotonic_ns < mark.monotonic_ns:
        return RAN_BACKWARDS
    if report.used_ms is None:
        return ""
    before = mark.used_ms or 0
    if report.used_ms < before:
        return RAN_BACKWARDS
    others = sum(m.used_ms or 0 for m in marks.values() if m.epoch != report.epoch)
    if others + report.used_ms > bounds.most_ms:
        return TOO_FAST
    elapsed_ms = (report.monotonic_ns - mark.monotonic_ns) // 1_000_000
    if mark.seq and mark.used_ms is not None and report.used_ms - before > _most(elapsed_ms, bounds.gpus):
        return TOO_FAST
    return ""


def used(marks: Mapping[int, Watermark]) -> int | None:
    """Return a container's usage; None if no epoch has ever known it."""
    return total(mark.used_ms for mark in marks.values())


def total(values: Iterable[int | None]) -> int | None:
    """Return the sum of the known values; None if there are none."""
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def peak_memory(marks: Mapping[int, Watermark]) -> int | None:
    """Return the peak GPU memory of a container in MiB; None if no epoch has ever known it."""
    return max((mark.peak_memory_mib for mark in marks.values() if mark.peak_memory_mib is not None), default=None)


@dataclass(frozen=True)
class HourUsed:
    """The usage of one epoch of a container in a past hour; `used_ms` is None if unknown."""

    epoch: int
    hour: Instant
    used_ms: int | None
    observed_ms: int


def in_this_hour(mark: Watermark) -> HourUsed:
    """Return the usage so far in the hour of the newest report."""
    used = None if mark.used_ms is None else mark.used_ms - mark.hour_base
    return HourUsed(mark.epoch, mark.hour, used, mark.observed_ms)


def advance(before: Watermark | None, mark: Watermark, at: Instant) -> tuple[Watermark, HourUsed | None]:
    """Return the new watermark with its hour filled in, and the hour that it completes, if it does.

    `before` is the watermark of the same epoch that it follows; `at` is when the counter was read.
    """
    hour = Instant(at // MS_PER_HOUR * MS_PER_HOUR)
    epoch, seq, used, monotonic, *_, peak = mark
    if before is None:
        passed = at - epoch // 1_000_000  # an epoch is named by the instant at which it began, by the node's clock
        observed = passed if 0 <= passed <= SILENCE_MS else 0
        return Watermark(epoch, seq, used, monotonic, hour, 0, observed, peak), None
    passed = (monotonic - before.monotonic_ns) // 1_000_000
    observed = passed if passed <= SILENCE_MS else 0
    if hour <= before.hour:
        observed += before.observed_ms
        return Watermark(epoch, seq, used, monotonic, before.hour, before.hour_base, observed, peak), None
    here = min(observed, at - hour)
    over = in_this_hour(before)
    over = replace(over, observed_ms=over.observed_ms + observed - here)
    return Watermark(epoch, seq, used, monotonic, hour, before.used_ms or 0, here, peak), over
