# SPDX-License-Identifier: Apache-2.0
"""Run an operator's passes again and again, in a thread, as long as this process leads."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Final

from slicekeeper import threads
from slicekeeper.errors import ServiceError
from slicekeeper.net.probes import LoopHealth

logger = logging.getLogger(__name__)

INTERVAL_SECONDS: Final = 10.0
"""Interval between two passes if nothing changes: data that an operator reads without a watch may change."""
PAUSE_SECONDS: Final = 1.0
"""Minimum interval between two passes: many objects are applied at once."""


class OperatorLoop:
    """Runs passes in a thread, one after the other: an error of one does not affect the others.

    A pass brings everything into step, and raises ServiceError if that must be retried.
    """

    def __init__(self, leads: Callable[[], bool], *passes: Callable[[], None]) -> None:
        self.wake = threading.Event()
        """Set: run the passes now."""
        self.health = LoopHealth()
        self._leads = leads
        self._passes = passes
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin."""
        self._thread = threads.keep("passes", self._run, self._stop.is_set)

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
            self.health.wrong = self._run_passes() if self._leads() else ""
            self._stop.wait(PAUSE_SECONDS)
            self.wake.wait(INTERVAL_SECONDS - PAUSE_SECONDS)

    def _run_passes(self) -> str:
        """Run each pass once; return what failed, empty if nothing did."""
        failed = []
        for run in self._passes:
            try:
                run()
            except ServiceError as error:
                logger.warning("objects not kept: %s", error)
                failed.append(str(error))
        return "; ".join(failed)
