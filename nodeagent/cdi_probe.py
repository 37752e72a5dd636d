# SPDX-License-Identifier: Apache-2.0
"""Finds out whether a container runtime reads the node's CDI folder.

containerd before 2.0 reads no CDI specification unless its configuration says so: containers then start without what
their seat brings, and nothing that kubelet is told shows it. A runtime that reads CDI opens each new file at once, and
all files when it starts. Only a folder that was made after it had started it opens no sooner than a container asks for
a CDI device. So a specification that no container asks for lies in the folder until somebody opens it; that nobody
does is known once a container has been started.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any, Final

import msgspec

from nodeagent.first_read import FirstRead
from nodeagent.host_cdi import OLDEST_VERSION, own_files
from nodeagent.seat_store import replace_file

log = logging.getLogger(__name__)

_DEVICE: Final[dict[str, Any]] = {"name": "probe", "containerEdits": {"env": ["SLICEKEEPER_PROBE=1"]}}


class CdiProbe:
    """A specification that waits to be read."""

    def __init__(self, folder: Path, kind: str) -> None:
        self._file = folder / f"{own_files(kind)}probe.json"
        self._spec = msgspec.json.encode({"cdiVersion": OLDEST_VERSION, "kind": kind, "devices": [_DEVICE]})
        self._first = FirstRead()
        self._watched = False
        self.read: bool | None = None
        """Whether it has been read; None: not known."""

    def start(self) -> None:
        """Write it, and watch who opens it."""
        try:
            replace_file(self._file, self._spec, mode=0o644, before=self._watch)
        except OSError as error:
            log.warning("nobody will know whether a container runtime reads %s: %s", self._file.parent, error)

    def look(self, *, started: bool) -> None:
        """See whether it has been read; if a container has been `started`, it would have been by now."""
        if self._watched and self._first.wait(0):
            self.read = True
            self.stop()
        elif self._watched and started:
            self.read = False

    def stop(self) -> None:
        """Take it away."""
        self._watched = False
        self._first.close()
        self._file.unlink(missing_ok=True)

    def _watch(self, file: Path) -> None:
        self._watched = self._first.of(file)
