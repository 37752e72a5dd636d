# SPDX-License-Identifier: Apache-2.0
"""Keep the node's one arbiter running. It runs in a pod beside the agent's, so that neither ends with the other.

While another arbiter serves the folder, as an older release's does during an upgrade, this one waits for its end and
then takes over at once: seats and their processes are kept in the folder.
"""

from __future__ import annotations

import fcntl
import logging
import os
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from nodeagent.run_folder import RunFolderRemoved, check_run_folder

log = logging.getLogger(__name__)

LOOK_SECONDS: Final = 0.02
FIRST_PAUSE_SECONDS: Final = 0.05
LONGEST_PAUSE_SECONDS: Final = 0.5
"""Longest pause after an arbiter that was killed: without an arbiter, slices get only their requests."""
LONGEST_PAUSE_UNUSABLE_SECONDS: Final = 5.0
"""Longest pause after an arbiter that ended with an error, usually because there is no driver yet."""
SETTLED_SECONDS: Final = 10.0
"""An arbiter that ran this long was healthy: its failures are counted from zero again."""
END_SECONDS: Final = 5.0


class ArbiterKeeper:
    """Starts the arbiter, and restarts it whenever it ends."""

    def __init__(
        self,
        program: Path,
        folder: Path,
        options: Sequence[str],
        environ: Callable[[], Mapping[str, str]] = lambda: os.environ,
    ) -> None:
        """`environ` returns the arbiter's environment for each start."""
        self._environ = environ
        self._command = [str(program), "serve", "--dir", str(folder), *options]
        self._folder = folder

    def run(self, stop: threading.Event) -> None:
        """Run until `stop`, then end the arbiter too. Raises RunFolderRemoved if its folder was removed."""
        pause = FIRST_PAUSE_SECONDS
        self._folder.mkdir(parents=True, exist_ok=True)
        while self._wait_for_the_place(stop):
            began = time.monotonic()
            process = subprocess.Popen(  # noqa: S603 - our own program
                self._command, stdin=subprocess.DEVNULL, env=self._environ()
            )
            log.info("arbiter %d serves %s", process.pid, self._folder)
            try:
                while process.poll() is None and not stop.wait(LOOK_SECONDS):
                    check_run_folder(self._folder)
            except RunFolderRemoved:
                _end(process)
                raise
            if stop.is_set():
                _end(process)
                return
            if time.monotonic() - began > SETTLED_SECONDS:
                pause = FIRST_PAUSE_SECONDS
            log.error("the arbiter ended by itself (exit %d); the next one starts in %.2f s", process.returncode, pause)
            stop.wait(pause)
            killed = process.returncode < 0
            pause = min(2 * pause, LONGEST_PAUSE_SECONDS if killed else LONGEST_PAUSE_UNUSABLE_SECONDS)

    def _wait_for_the_place(self, stop: threading.Event) -> bool:
        """Return whether we may serve the folder; False if the keeper was stopped in the meantime."""
        logged = False
        while not stop.is_set():
            if self._is_free():
                return True
            if not logged:
                log.info("another arbiter serves %s; this one takes over when it ends", self._folder)
                logged = True
            stop.wait(LOOK_SECONDS)
        return False

    def _is_free(self) -> bool:
        with (self._folder / "lock").open("ab") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
        return True


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(END_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
