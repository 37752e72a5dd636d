# SPDX-License-Identifier: Apache-2.0
"""Webhook, timekeeper and scheduler as child processes, which are restarted when they die."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from simulator.processes import COMMAND, Spawner, stop
from slicekeeper.errors import ServiceError, SlicekeeperError
from slicekeeper.net.json_client import JsonClient

log = logging.getLogger(__name__)

READY_SECONDS: Final = 120.0
"""Maximum time that a part takes to start on a busy machine; a part that ends is not waited for."""
STOP_SECONDS: Final = 15.0
"""Longer than a server waits for its workers before it kills them: it leaves none behind."""
RESTART_SECONDS: Final = 0.3
"""Pause before a part is started again."""


@dataclass
class Part:
    """One part: its command's first word, where it listens, and the CA that signs its certificate.

    `listener` listens there already, so that nothing else takes the port before the part serves on it.
    """

    name: str
    url: str
    listener: socket.socket
    ca_file: str = ""
    process: subprocess.Popen[bytes] | None = field(default=None, repr=False)
    restarts: int = 0


class Parts:
    """All parts of one local mode. `tell` gets lines for people; `go_on` raises an error if the start is to end."""

    def __init__(
        self,
        parts: list[Part],
        config: Path,
        environ: Mapping[str, str],
        logs: Path,
        spawner: Spawner,
        tell: Callable[[str], None],
        go_on: Callable[[], None],
    ) -> None:
        self.parts = parts
        self._config = config
        self._environ = environ
        self._logs = logs
        self._spawner = spawner
        self._tell = tell
        self._go_on = go_on
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="parts", daemon=True)

    def start(self) -> None:
        """Start all parts and wait until each is ready.

        Raises SlicekeeperError naming the part that does not become ready, and its log.
        """
        for part in self.parts:
            with part.listener:  # the part's alone from now on: while it is dead, connections are refused
                self._start(part, part.listener)
        for part in self.parts:
            self._wait_ready(part)
        self._thread.start()

    def pids(self) -> dict[str, int]:
        """Return the process ids by part."""
        return {part.name: part.process.pid for part in self.parts if part.process is not None}

    def stop(self) -> None:
        """Stop all parts by their process ids."""
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join(5)
        stop([part.process for part in self.parts if part.process is not None], STOP_SECONDS)

    def _start(self, part: Part, listener: socket.socket | None = None) -> None:
        argv = [*COMMAND, "--config", str(self._config), part.name, "serve"]
        part.process = self._spawner.start(argv, log=self._log(part), env=self._environ, listener=listener)

    def _log(self, part: Part) -> Path:
        return self._logs / f"{part.name}.log"

    def _wait_ready(self, part: Part) -> None:
        client = JsonClient(part.url, ca_file=part.ca_file, timeout=2.0)
        began = time.monotonic()
        reported_at = began
        try:
            while time.monotonic() - began < READY_SECONDS:
                self._go_on()
                if part.process is None or part.process.poll() is not None:
                    break
                try:
                    client.request("GET", "/readyz")
                except ServiceError:
                    if time.monotonic() - reported_at > 2.0:
                        reported_at = time.monotonic()
                        self._tell(f"{part.name}: starting, {reported_at - began:.0f} s …")
                    self._stop.wait(0.05)
                else:
                    self._tell(f"{part.name} ready at {part.url}")
                    return
        finally:
            client.close()
        raise SlicekeeperError(
            f"{part.name} did not become ready; its log {self._log(part)} ends with: {self._tail(part)}"
        )

    def _tail(self, part: Part) -> str:
        lines = self._log(part).read_text("utf-8", "replace").strip().splitlines()
        return " | ".join(lines[-3:]) or "(nothing)"

    def _watch(self) -> None:
        while not self._stop.wait(0.1):
            for part in self.parts:
                if part.process is None or part.process.poll() is None:
                    continue
                # Workers of a master that was killed hold its port; a container's would be gone with it.
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(part.process.pid, signal.SIGKILL)
                self._tell(f"{part.name} ended with {part.process.returncode}: it is started again")
                if self._stop.wait(RESTART_SECONDS):
                    return
                part.restarts += 1
                self._start(part)
