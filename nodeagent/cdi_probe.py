# SPDX-License-Identifier: Apache-2.0
"""Find out whether a container runtime reads the node's CDI folder.

containerd before 2.0 reads no CDI specification unless its configuration says so. Containers then start without their
seat's devices and files, and kubelet does not notice. A runtime that reads CDI opens each new file at once, and all
files when it starts; only a folder that was created later is not opened before a container requests a CDI device. So a
specification that no container requests is kept in the folder until a process opens it.

If none does, `slicekeeper check` reports it after a container must have been started. It is proven when a container has
been created whose specification was written after this one: a runtime with CDI finds an unknown device only by reading
the whole folder, and creates no container without it.
"""

from __future__ import annotations

import logging
import threading
import time
from pathlib import Path
from typing import Any, Final

import msgspec

from nodeagent.atomic_write import replace_file
from nodeagent.cdi_spec_read import FirstRead, Inotify
from nodeagent.host_cdi import OLDEST_VERSION, own_files

log = logging.getLogger(__name__)

READ_SECONDS: Final = 5.0
"""Longest wait for the container runtime to read a new specification."""
UNWATCHED_SECONDS: Final = 5.0
"""A runtime that has not opened the probe by then does not watch the folder: it is newer than the runtime."""
UNWATCHED_READ_SECONDS: Final = 0.5
"""Longest wait in that case. Such a runtime first reads the folder when a container requests a device, and then watches
it. A container created during that reading may be too late for it."""

_DEVICE: Final[dict[str, Any]] = {"name": "probe", "containerEdits": {"env": ["SLICEKEEPER_PROBE=1"]}}


class CdiProbe:
    """A specification that waits to be read."""

    def __init__(self, folder: Path, kind: str, inotify: Inotify) -> None:
        self._file = folder / f"{own_files(kind)}probe.json"
        self._spec = msgspec.json.encode({"cdiVersion": OLDEST_VERSION, "kind": kind, "devices": [_DEVICE]})
        self._inotify = inotify
        self._lock = threading.Lock()
        self._first: FirstRead | None = None
        """The watch on it while it is in the folder."""
        self._since = 0.0
        """When it was written."""
        self._started = False
        self._unread: set[str] = set()
        """The specifications, written later, that had not been read when their containers were about to be created."""
        self._ignored = False
        self.read: bool | None = None
        """Whether it has been read; None: not known."""

    def start(self) -> None:
        """Write it, and watch whether it is opened."""
        with self._lock:
            self._started = True
            self._write()

    def look(self, *, started: bool) -> None:
        """Check whether it has been read; a runtime that reads CDI has done so if a container has been `started`."""
        with self._lock:
            if self._waits() and started and self.read is None:
                self.read = False

    def not_read_yet(self, name: str, written: float) -> None:
        """Note that the specification `name`, `written` at that monotonic time, is unread before its container's start.

        If the probe has been read before, another is put into the folder for specifications after this one: the runtime
        may read no longer.
        """
        with self._lock:
            if not self._waits():
                if self._started:
                    self._write()
            elif self._since < written and not self._ignored:
                self._unread.add(name)

    def longest_wait(self) -> float:
        """Return for how many seconds to wait until the runtime reads a new specification."""
        with self._lock:
            unwatched = self._waits() and time.monotonic() - self._since > UNWATCHED_SECONDS
        return min(READ_SECONDS, UNWATCHED_READ_SECONDS) if unwatched else READ_SECONDS

    def created(self, name: str) -> None:
        """Note that the runtime has created the container that needs the specification `name`."""
        with self._lock:
            if self._waits() and name in self._unread:
                self._ignored, self.read = True, False

    def ignored(self) -> bool:
        """Whether it is proven that the runtime creates containers without the CDI devices that they ask for."""
        with self._lock:
            self._waits()  # it may have been read since, which disproves it
            return self._ignored

    def stop(self) -> None:
        """Remove it."""
        with self._lock:
            self._started = False
            self._take_away()

    def _waits(self) -> bool:
        """Whether the specification is in the folder and has not been read so far."""
        if self._first is None:
            return False
        if self._first.wait(0):
            self.read = True
        elif self._first.watching:
            return True
        self._ignored = False  # it has been read or removed
        self._take_away()
        return False

    def _write(self) -> None:
        self._first = first = FirstRead(self._inotify)
        try:
            replace_file(self._file, self._spec, mode=0o644, before=first.of)
        except OSError as error:
            log.warning("cannot find out whether a container runtime reads %s: %s", self._file.parent, error)
            self._take_away()
        self._since = time.monotonic()

    def _take_away(self) -> None:
        self._unread.clear()
        if self._first is not None:
            self._first.close()
            self._first = None
        self._file.unlink(missing_ok=True)
