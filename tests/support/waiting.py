# SPDX-License-Identifier: Apache-2.0
"""Patience with an end, for what other threads and processes bring about."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def wait_for(check: Callable[[], T | None], what: str, seconds: float = 180.0, pause: float = 0.02) -> T:
    """Return what `check` returns once that is true. Raises TimeoutError if `what` does not come about."""
    end = time.monotonic() + seconds
    while not (found := check()):
        if time.monotonic() > end:
            raise TimeoutError(f"not within {seconds:.0f} s: {what}; last seen: {found!r}")
        time.sleep(pause)
    return found
