# SPDX-License-Identifier: Apache-2.0
"""A daemon thread that repeats the same work, and survives its errors."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Final

from simulator.store import Store

log = logging.getLogger(__name__)

TICK_SECONDS: Final = 0.02
STOP_SECONDS: Final = 10.0


class Loop:
    """Runs `work` every tick; with a `store`, only if that has changed, or after `at_least` real seconds."""

    def __init__(
        self, name: str, work: Callable[[], object], store: Store | None = None, at_least: float = TICK_SECONDS
    ) -> None:
        self._name = name
        self._work = work
        self._store = store
        self._at_least = at_least
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    @property
    def stopping(self) -> bool:
        """Whether the loop should end: long work checks it between its steps."""
        return self._stop.is_set()

    def start(self) -> None:
        """Start."""
        self._thread.start()

    def stop(self) -> None:
        """Stop after the current work, and wait for it."""
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join(STOP_SECONDS)

    def _run(self) -> None:
        version = -1
        while not self._stop.wait(TICK_SECONDS):
            if self._store is not None:
                self._store.wait(version, self._at_least)
                version = self._store.version
            try:
                self._work()
            except Exception:
                log.exception("%s", self._name)
