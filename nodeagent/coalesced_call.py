# SPDX-License-Identifier: Apache-2.0
"""Coalesce calls: make one for many callers that ask at the same time and can share its answer.

No answer is older than its question: a caller never gets the answer of a call that had already begun. The next call
serves all callers that come before it begins.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Generic, TypeVar

T = TypeVar("T")


class CoalescedCall(Generic[T]):
    """A call shared by all callers that wait for it, and never made twice at the same time."""

    def __init__(self, call: Callable[[], T]) -> None:
        self._call = call
        self._lock = threading.Lock()
        self._turn = threading.Lock()
        """Held while the call is made."""
        self._next: Future[T] | None = None
        """The answer of the call that has not begun yet; None if there are no callers."""

    def __call__(self) -> T:
        """Return the result, or raise the error, of a call that began after this was called."""
        with self._lock:
            mine, leads = self._next or Future(), self._next is None
            self._next = mine
        if leads:
            with self._turn:
                with self._lock:
                    self._next = None
                try:
                    mine.set_result(self._call())
                except BaseException as error:  # noqa: BLE001 - it is raised again, for each caller
                    mine.set_exception(error)
        return mine.result()
