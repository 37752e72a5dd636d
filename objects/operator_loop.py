# SPDX-License-Identifier: Apache-2.0
"""Run an operator's passes again and again, in a thread, as long as this process leads."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Final, Protocol

from slicekeeper import threads
from slicekeeper.errors import ServiceError
from slicekeeper.net.probes import LoopHealth

logger = logging.getLogger(__name__)

LOOK_SECONDS: Final = 10.0
"""Interval between two passes if nothing changes: data that an operator reads without a watch may change."""
PAUSE_SECONDS: Final = 1.0
"""Minimum interval between two passes: many objects are applied at once."""


class Pass(Protocol):
    """One pass."""

    def keep(self) -> None:
        """Bring everything into step. Raises ServiceError if that must be retried."""


class InTurn:
    """Runs several passes, one after the other: an error of one does not affect the others."""

    def __init__(self, *passes: Pass) -> None:
        self._passes = passes

    def keep(self) -> None:
        """Run each once. Raises the ServiceError of one that failed."""
        failed = []
        for one in self._passes:
            try:
                one.keep()
            except ServiceError as error:
                failed.append(str(error))
        if failed:
            raise ServiceError("; ".join(failed))


class OperatorLoop:
    """Runs passes in a thread, as long as this process leads."""

    def __init__(self, keeper: Pass, leads: Callable[[], bool]) -> None:
        self.wake = threading.Event()
        """Set: run a pass now."""
        self._keeper = keeper
        self._leads = leads
        self._stop = threading.Event()
        self.health = LoopHealth()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin."""
        self._thread = threads.keep("looks", self._run, self._stop.is_set)

    def stop(self) -> None:
        """End, after the current pass."""
        self._stop.set()
        self.wake.set()
        if self._thread is not None:
            self._thread.join(timeout=30)

    def _run(self) -> None:
        while not self._stop.is_set():
            self.wake.clear()
            self.health.go_round()
            self.health.wrong = self._look() if self._leads() else ""
            self._stop.wait(PAUSE_SECONDS)
            self.wake.wait(LOOK_SECONDS - PAUSE_SECONDS)

    def _look(self) -> str:
        try:
            self._keeper.keep()
        except ServiceError as error:
            logger.warning("objects not kept: %s", error)
            return str(error)
        return ""
