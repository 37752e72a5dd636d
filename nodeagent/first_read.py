# SPDX-License-Identifier: Apache-2.0
"""Waits until a file that was just written is opened by another program, by the kernel's inotify.

Container runtimes read their CDI folder in the background and hold a lock while they do. From when a runtime has opened
a new specification, a container that it is asked to create waits for the end of that reading, and so finds its device.
"""

from __future__ import annotations

import ctypes
import logging
import os
import select
import struct
from pathlib import Path
from types import TracebackType
from typing import Final, Self

log = logging.getLogger(__name__)

_IN_OPEN: Final = 0x20
_IN_Q_OVERFLOW: Final = 0x4000
_IN_IGNORED: Final = 0x8000
_EVENT: Final = struct.Struct("iIII")
"""Of a watch on a file: no name follows."""
_LIBC: Final = ctypes.CDLL(None, use_errno=True)


class FirstRead:
    """The first opening of one file. If the kernel gives no watch, there is no wait."""

    def __init__(self) -> None:
        self._fd = _LIBC.inotify_init1(os.O_CLOEXEC)
        self._opened = False
        self.watching = False
        """Whether the file is there and watched."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Watch nothing any more."""
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = -1
        self.watching = False

    def of(self, file: Path) -> bool:
        """Watch a file from now on, under whatever name it gets; return False if the kernel gives no watch."""
        if self._fd < 0 or _LIBC.inotify_add_watch(self._fd, os.fsencode(file), _IN_OPEN) < 0:
            log.warning("%s cannot be watched: %s", file, os.strerror(ctypes.get_errno()))
            return False
        self.watching = True
        return True

    def wait(self, seconds: float) -> bool:
        """Return whether it has been opened, as soon as it has, or as soon as it is gone."""
        if self.watching and not self._opened:
            poll = select.poll()
            poll.register(self._fd, select.POLLIN)
            if poll.poll(seconds * 1000):
                for _watch, mask, _cookie, _length in _EVENT.iter_unpack(os.read(self._fd, _EVENT.size * 64)):
                    self._opened = self._opened or bool(mask & (_IN_OPEN | _IN_Q_OVERFLOW))
                    self.watching = self.watching and not mask & _IN_IGNORED
        return self._opened
