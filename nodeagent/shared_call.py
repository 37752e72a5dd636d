# SPDX-License-Identifier: Apache-2.0
"""One call in place of many that are wanted at the same time, if any of them would do.

No answer is older than its question: a call that is under way does not count for who comes now, but the next one does
for all who come before it begins.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Generic, TypeVar

T = TypeVar("T")


class SharedCall(Generic[T]):
    """A call that is made for all who wait for it, and never twice at the same time."""

    def __init__(self, call: Callable[[], T]) -> None:
        self._call = call
        self._lock = threading.Lock()
        self._turn = threading.Lock()
        """Held while the call is made."""
        self._next: Future[T] | None = None
        """What is going to come of the call that has not begun yet, if somebody wants one."""

    def __call__(self) -> T:
        """Return, or raise, what came of a call that began after this one was asked for."""
        with self._lock:
            mine, leads = self._next or Future(), self._next is None
            self._next = mine
        if leads:
            with self._turn:
                with self._lock:
                    self._next = None
                try:
                    mine.set_result(self._call())
                except BaseException as error:  # noqa: BLE001 - it is raised again, for each who waits
                    mine.set_exception(error)
        return mine.result()
