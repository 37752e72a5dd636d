# SPDX-License-Identifier: Apache-2.0
"""Turn a source's readings into counters that the timekeeper can add up: epoch, sequence, cumulative value.

The timekeeper takes the newest value of each epoch and adds the epochs. So an epoch lives as long as its counter can
be followed without a gap: across restarts of the sidecar, whose state is kept on disk, but not if the source's counter
began again. If the state was lost, the new epoch counts from its first reading: usage before that is left out,
never counted twice.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from slicekeeper import typed_json

log = logging.getLogger(__name__)


class _CounterState(msgspec.Struct):
    epoch: int
    seq: int = 0
    base: int | None = None
    """The reading at which the epoch counts zero; None before the first."""
    last: int = 0
    life: str = ""
    """The name of the source's counter that it follows."""


class EpochCounter:
    """The counter of one container. `now_ns` gives epochs their numbers: each is greater than the one before."""

    def __init__(self, folder: Path, container: str, now_ns: Callable[[], int] = time.time_ns) -> None:
        self._file = folder / f"{container}.epoch.json"
        self._now_ns = now_ns
        self._state = self._load() or _CounterState(now_ns())
        if not self._write() and self._state.seq:
            # The position on disk would be out of date, and a later restart would use its numbers twice.
            self._begin(base=None)

    def next(self, reading: int | None, life: str = "") -> tuple[int, int, int | None]:
        """Return `(epoch, seq, cumulative)` for the next report; an unknown reading stays unknown.

        If a source gives its counter a name for each life, only another name means that it started again. A step back
        under the same name adds nothing.
        """
        if reading is not None:
            if life and life == self._state.life:
                reading = max(reading, self._state.last)
            if self._state.base is None:
                self._state.base = reading
            elif reading < self._state.last or life != self._state.life:
                log.warning("the usage counter began again: %s after %s", reading, self._state.last)
                self._begin(base=0)
            self._state.last, self._state.life = reading, life
        self._state.seq += 1
        self._write()
        used = None if reading is None or self._state.base is None else reading - self._state.base
        return self._state.epoch, self._state.seq, used

    def _begin(self, base: int | None) -> None:
        self._state = _CounterState(max(self._now_ns(), self._state.epoch + 1), base=base)

    def _load(self) -> _CounterState | None:
        try:
            return typed_json.decode(self._file.read_bytes(), _CounterState)
        except (OSError, msgspec.MsgspecError):
            return None

    def _write(self) -> bool:
        fresh = self._file.with_suffix(".new")
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            fresh.write_bytes(msgspec.json.encode(self._state))
            fresh.replace(self._file)
        except OSError as error:
            log.warning("%s cannot be written: %s", self._file, error)
            return False
        return True
