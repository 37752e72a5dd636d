# SPDX-License-Identifier: Apache-2.0
"""Turn a source's readings into counters that the timekeeper can add up: epoch, sequence, cumulative value.

The timekeeper takes the newest value of each epoch and adds the epochs. So an epoch lives as long as its counter can
be followed without a gap in knowledge: across restarts of the sidecar, whose place is kept on disk, but not across a
counter that began again. If the place was lost, the new epoch counts from its first reading: what was used
unseen is left out, never counted twice.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from slicekeeper import typed

log = logging.getLogger(__name__)


class _Place(msgspec.Struct):
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
        self._place = self._load() or _Place(now_ns())
        if not self._write() and self._place.seq:
            # The position on disk would be out of date, and a later restart would use its numbers twice.
            self._begin(base=None)

    def next(self, reading: int | None, life: str = "") -> tuple[int, int, int | None]:
        """Return `(epoch, seq, cumulative)` for the next report; an unknown reading stays unknown.

        If a source names its counters' lives, the name alone shows whether one started again: however far it has come
        since, and however far a counter of the same name has stepped back. Such a step adds nothing.
        """
        if reading is not None:
            if life and life == self._place.life:
                reading = max(reading, self._place.last)
            if self._place.base is None:
                self._place.base = reading
            elif reading < self._place.last or life != self._place.life:
                log.warning("the usage counter began again: %s after %s", reading, self._place.last)
                self._begin(base=0)
            self._place.last, self._place.life = reading, life
        self._place.seq += 1
        self._write()
        used = None if reading is None or self._place.base is None else reading - self._place.base
        return self._place.epoch, self._place.seq, used

    def _begin(self, base: int | None) -> None:
        self._place = _Place(max(self._now_ns(), self._place.epoch + 1), base=base)

    def _load(self) -> _Place | None:
        try:
            return typed.decode(self._file.read_bytes(), _Place)
        except (OSError, msgspec.MsgspecError):
            return None

    def _write(self) -> bool:
        fresh = self._file.with_suffix(".new")
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            fresh.write_bytes(msgspec.json.encode(self._place))
            fresh.replace(self._file)
        except OSError as error:
            log.warning("%s cannot be written: %s", self._file, error)
            return False
        return True
