# SPDX-License-Identifier: Apache-2.0
"""What the checks on a GPU print: a line for each, and their number at the end."""

from __future__ import annotations

_COUNTS = {"passed": 0, "failed": 0, "skipped": 0}


def verdict(kind: str, name: str, note: str = "") -> None:
    """Print that a check passed, failed or was skipped."""
    _COUNTS[kind] += 1
    print(f"{kind:8}{name}{f' ({note})' if note else ''}", flush=True)


def need(truth: object, what: str) -> None:
    """Raise AssertionError unless this is true."""
    if not truth:
        raise AssertionError(what)


def total(what: str, fake: bool) -> int:
    """Print how many checks of a suite passed, failed and were skipped; return its exit status."""
    place = "the fake GPU" if fake else "a GPU"
    print("{} on {}: {passed} passed, {failed} failed, {skipped} skipped".format(what, place, **_COUNTS))
    return 1 if _COUNTS["failed"] else 0
