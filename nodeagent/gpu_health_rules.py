# SPDX-License-Identifier: Apache-2.0
"""The rules of GPU health: which of the driver's reports forbid new slices. Unreported values count as healthy."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

APPLICATION_XIDS: Final = frozenset({13, 31, 43, 45, 68, 109, 137})
"""Xids that a program causes by its own errors; the GPU is not affected.

Graphics engine exception, page fault, reset channel, preemptive clean-up, video engine exception, context switch
time-out, fabric fault of a program's own NVLink access.
"""


@dataclass(frozen=True)
class DriverReport:
    """The driver's report; None for values that it does not report."""

    lost: bool = False
    mig: bool | None = None
    mig_next: bool | None = None
    """Whether it is in MIG mode after its next reset."""
    rows: tuple[int, int] | None = None
    """Whether a remapping of rows waits for a reset, and whether one has failed."""
    uncorrected: int | None = None
    """Memory errors since the last reset that could not be corrected."""


def judge(report: DriverReport) -> str:
    """Return why the GPU must get no new slice; empty if it may."""
    if report.lost:
        return "the driver has lost it, or asks for a reset"
    if report.mig:
        return judge_slices(report) or "it is in MIG mode: only its slices are allocated"
    if report.mig_next:
        return "its next reset puts it into MIG mode"
    if report.rows is not None:
        # Errors in remapped rows are no longer a problem, so they do not count here.
        pending, failed = report.rows
        if failed:
            return "a row of its memory could not be remapped"
        return "rows of its memory wait for its next reset to be remapped" if pending else ""
    if report.uncorrected:
        return f"its memory had {report.uncorrected} errors that could not be corrected"
    return ""


def judge_slices(report: DriverReport) -> str:
    """Return why the slices of a GPU in MIG mode must get no container; empty if they may."""
    if not report.mig_next and not report.lost:
        return "its next reset ends MIG mode"
    return judge(replace(report, mig=False, mig_next=False))


def judge_xid(xid: int) -> str:
    """Return why a GPU with this Xid must get no new slice, empty if it may."""
    return "" if xid in APPLICATION_XIDS else f"the driver reported Xid {xid}"
