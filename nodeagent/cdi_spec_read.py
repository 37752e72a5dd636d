# SPDX-License-Identifier: Apache-2.0
"""Wait until the container runtime reads a CDI specification that was just written, with the kernel's inotify.

Container runtimes read their CDI folder in the background and hold a lock while they do. Once a runtime has opened a
new specification, a container that it is asked to create waits until it has been read, and so finds its device.

Linux lets a user have 128 inotify instances on the whole machine, and kubelet and the runtime need some of root's. So
all files are watched by one, however many containers start.
"""

from __future__ import annotations

import ctypes
import logging
import os
import select
import struct
import threading
from pathlib import Path
from typing import Final

log = logging.getLogger(__name__)

_IN_OPEN: Final = 0x20
_IN_Q_OVERFLOW: Final = 0x4000
_IN_IGNORED: Final = 0x8000
_IN_ONESHOT: Final = 0x80000000
_EVENT: Final = struct.Struct("iIII")
"""The event of a watch on a file: no name follows."""
_EVENTS: Final = 4096
_LIBC: Final = ctypes.CDLL(None, use_errno=True)

_LOOK_MS: Final = 1000
"""How soon the thread notices that nothing is watched any more, if another has taken in the event that says so."""


class Inotify:
    """One inotify instance, with a thread that reads it; both are there only while a file is watched."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._fd = -1
        self._reads: dict[int, FirstRead] = {}
        """By the number of the watch. Numbers begin again with each instance."""

    def add(self, file: Path, read: FirstRead) -> int:
        """Watch a file until it is opened or gone, and then notify `read`; return the watch's number.

        Raises OSError if the kernel provides no watch.
        """
        with self._lock:
            if self._fd < 0:
                self._fd = _made(_LIBC.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK))
                threading.Thread(target=self._follow, name="first-reads", daemon=True).start()
            watch = _made(_LIBC.inotify_add_watch(self._fd, os.fsencode(file), _IN_OPEN | _IN_ONESHOT))
            self._reads[watch] = read
        return watch

    def drop(self, watch: int, read: FirstRead) -> None:
        """End a watch, if it is still that of `read`."""
        with self._lock:
            if self._reads.get(watch) is read:
                del self._reads[watch]
                _LIBC.inotify_rm_watch(self._fd, watch)

    def look(self) -> None:
        """Process all events until now."""
        with self._lock:
            self._process()

    def _process(self) -> None:
        while self._fd >= 0:
            try:
                events = os.read(self._fd, _EVENT.size * _EVENTS)
            except BlockingIOError:
                return
            for watch, mask, _cookie, _length in _EVENT.iter_unpack(events):
                if mask & _IN_Q_OVERFLOW:  # whose events are lost is not known
                    over = list(self._reads.values())
                    self._reads.clear()
                else:
                    over = [self._reads.pop(watch)] if watch in self._reads else []
                for read in over:
                    read.end(opened=not mask & _IN_IGNORED)

    def _follow(self) -> None:
        poll = select.poll()
        poll.register(self._fd, select.POLLIN)
        while True:
            poll.poll(_LOOK_MS)
            with self._lock:
                self._process()
                if not self._reads:
                    os.close(self._fd)
                    self._fd = -1
                    return


class FirstRead:
    """The first opening of one file. If the kernel provides no watch, there is no wait."""

    def __init__(self, inotify: Inotify) -> None:
        self._inotify = inotify
        self._watch = 0
        self._opened = False
        self._over = threading.Event()
        self._over.set()

    @property
    def watching(self) -> bool:
        """Whether the file is there, watched, and not opened yet, as far as `wait` has seen."""
        return not self._over.is_set()

    def close(self) -> None:
        """Stop watching."""
        self._inotify.drop(self._watch, self)
        self._over.set()

    def of(self, file: Path) -> bool:
        """Watch a file from now on, even if it is renamed; return False if the kernel provides no watch."""
        self._over.clear()
        try:
            self._watch = self._inotify.add(file, self)
        except OSError as error:
            self._over.set()
            log.warning("%s cannot be watched: %s", file, error.strerror)
            return False
        return True

    def wait(self, seconds: float) -> bool:
        """Return whether it has been opened, as soon as it has, or as soon as it is gone."""
        if self.watching:
            self._inotify.look()
            self._over.wait(seconds)
        return self._opened

    def end(self, *, opened: bool) -> None:
        """Record that the watch has ended, because the file was opened or is gone."""
        self._opened = opened
        self._over.set()


def _made(number: int) -> int:
    """Return the result of a system call. Raises OSError if it failed."""
    if number < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return number
