# SPDX-License-Identifier: Apache-2.0
"""Child processes that never outlive this one, not even when it is killed.

Linux kills a child with its parent (PR_SET_PDEATHSIG), but means the parent's *thread*: all children are therefore
started from one thread that stays. The signal is set in a shim that then becomes the child, because code
between fork and exec is not safe beside other threads.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

_SHIM: Final = (
    "import ctypes,os,signal,sys\n"
    "ctypes.CDLL(None).prctl(1, signal.SIGKILL)\n"
    "os.getppid() == int(sys.argv[1]) or sys.exit(1)\n"
    "listener = int(sys.argv[2])\n"
    "if listener >= 0:\n"
    "    os.dup2(listener, 3)\n"
    "    listener == 3 or os.close(listener)\n"
    "    os.environ.update(LISTEN_FDS='1', LISTEN_PID=str(os.getpid()))\n"
    "os.execv(sys.argv[3], sys.argv[3:])\n"
)
"""Arguments: the parent's process id, the descriptor of a listening socket or -1, and the command."""

COMMAND: Final = (sys.executable, "-c", "from slicekeeper.cli.main import main; main()")
"""The one command, run by this interpreter whatever the PATH says."""


class Spawner:
    """Starts children, each in a session of its own, so that Ctrl-C reaches this process alone."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1, "spawner")

    def start(
        self,
        argv: Sequence[str],
        *,
        log: Path,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        listener: socket.socket | None = None,
    ) -> subprocess.Popen[bytes]:
        """Start one process; its output is added to `log`. It serves on `listener`, as systemd's services do."""
        return self._pool.submit(self._start, argv, log, env, cwd, listener.fileno() if listener else -1).result()

    def _start(
        self, argv: Sequence[str], log: Path, env: Mapping[str, str] | None, cwd: Path | None, listener: int
    ) -> subprocess.Popen[bytes]:
        with log.open("ab") as output:
            return subprocess.Popen(  # noqa: S603 - the one command, with arguments of ours
                [sys.executable, "-I", "-S", "-c", _SHIM, str(os.getpid()), str(listener), *argv],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=env,
                cwd=cwd,
                start_new_session=True,
                pass_fds=[listener] if listener >= 0 else [],
            )

    def close(self) -> None:
        """End the starting thread, and with it every child that is still there."""
        self._pool.shutdown()


def stop(processes: Sequence[subprocess.Popen[bytes]], seconds: float = 5.0) -> None:
    """Stop processes: SIGTERM to all; after `seconds` of real time SIGKILL to those that stay, and their children."""
    for process in processes:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
    deadline = time.monotonic() + seconds
    for process in processes:
        try:
            process.wait(max(deadline - time.monotonic(), 0.01))
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # each has a session of its own
            process.wait()
