# SPDX-License-Identifier: Apache-2.0
"""Return memory to the system. Python and glibc keep what a burst took, and a container's limit counts it."""

from __future__ import annotations

import ctypes
import gc
import mmap
from pathlib import Path
from typing import Final

KEPT_BYTES: Final = 48 << 20
"""How much more than it needs a process may hold before it returns some."""

_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8
"""Options of mallopt(3)."""

_libc = ctypes.CDLL(None)


def keep_little() -> None:
    """Return large blocks to the system once they are free, and share one heap. Without glibc, do nothing."""
    if hasattr(_libc, "mallopt"):
        for option, value in ((_MMAP_THRESHOLD, 128 << 10), (_TRIM_THRESHOLD, 1 << 20), (_ARENA_MAX, 1)):
            _libc.mallopt(option, value)


def held_bytes() -> int:
    """Return how many bytes of private memory this process holds, 0 if the system does not say."""
    try:
        fields = Path("/proc/self/statm").read_text("ascii").split()
    except OSError:
        return 0
    return (int(fields[1]) - int(fields[2])) * mmap.PAGESIZE


def give_back() -> None:
    """Free objects in reference cycles, such as tracebacks, and return free memory to the system."""
    gc.collect()
    if hasattr(_libc, "malloc_trim"):
        _libc.malloc_trim(0)


class Surplus:
    """Returns memory if a process holds much more than it needs, that is, than it held after it last returned some.

    A collection stops all threads, for tenths of a second with some 100,000 objects. Memory that turns out to be needed
    causes only one.
    """

    def __init__(self) -> None:
        self._needed = held_bytes()

    def look(self) -> None:
        """Return surplus memory; call it about every second."""
        held = held_bytes()
        if held > self._needed + KEPT_BYTES:
            give_back()
            held = self._needed = held_bytes()
        self._needed = min(self._needed, held)
