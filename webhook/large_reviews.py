# SPDX-License-Identifier: Apache-2.0
"""Process large reviews one at a time in all workers of a pod, and only if there is memory for their content.

JSON grows when it is decoded: `[],` takes 3 bytes on the wire and 64 in memory. Without a limit, one body of 16 MiB
could take 400 MiB. Small reviews never wait here.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

from slicekeeper.net.serving import memory

T = TypeVar("T")

LARGE_BYTES: Final = 128 << 10
"""Size from which a review takes milliseconds: it is processed in a thread, and delays no other."""

MEMORY_BYTES: Final = 96 << 20
"""Maximum memory of one decoded review."""

_VALUE_BYTES: Final = 100
"""Maximum memory of a value in addition to its text: measured as 24 for numbers to 89 for short strings."""

_WIDE: Final = 4
"""Bytes that a character takes in memory if any of its string is outside the basic plane."""

_MARKS: Final = b",:[{"
_OTHERS: Final = bytes(set(range(256)) - set(_MARKS) - {ord('"')})


class TooComplex(Exception):
    """A body would take more memory than a review may."""

    status = 413
    code = "review-too-complex"


class ForkedLock:
    """A lock for all processes that are forked after its creation; it is released if its holder dies."""

    def __init__(self) -> None:
        self._file = os.memfd_create("large-reviews")

    def __enter__(self) -> None:
        fcntl.lockf(self._file, fcntl.LOCK_EX)

    def __exit__(self, *_: object) -> None:
        fcntl.lockf(self._file, fcntl.LOCK_UN)


class LargeReviews:
    """The large reviews of one worker."""

    def __init__(self, lock: ForkedLock) -> None:
        self._lock = lock
        # One thread: two would hold the same lock, which is a process's.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="large-reviews")

    async def judge(self, review: Callable[[bytes | bytearray], T], body: bytes | bytearray) -> T:
        """Return the result of `review` for a body, after waiting for its turn.

        Raises TooComplex if there is no memory for it.
        """
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._judge, review, body)

    def _judge(self, review: Callable[[bytes | bytearray], T], body: bytes | bytearray) -> T:
        with self._lock:
            if memory_of(body) > MEMORY_BYTES:
                raise TooComplex(f"the review would take more than {MEMORY_BYTES >> 20} MiB of memory to read")
            try:
                return review(body)
            finally:
                memory.give_back()  # the other workers need it now


def memory_of(body: bytes | bytearray) -> int:
    """Return an upper bound, in bytes, of the memory that a body's JSON takes once it is decoded."""
    text = len(body) * (1 if body.isascii() and b"\\u" not in body else _WIDE)
    taken = text + _count(body) * _VALUE_BYTES
    if taken <= MEMORY_BYTES:
        return taken
    # Marks within strings are no values. A regular expression would take seconds for a million strings.
    bare = body.replace(b"\\\\", b"").replace(b'\\"', b"").translate(None, _OTHERS)
    if text + bare.count(b'"') // 2 * _VALUE_BYTES > MEMORY_BYTES:
        return taken
    quoted = bare.split(b'"')
    return text + sum(map(len, quoted[::2])) * _VALUE_BYTES


def _count(body: bytes | bytearray) -> int:
    return sum(body.count(mark) for mark in _MARKS)
