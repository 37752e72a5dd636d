# SPDX-License-Identifier: Apache-2.0
"""Debian packages that tests need, installed if that is possible. vcuda's tests use it too, without our packages."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

LOCK = Path("/run/lock/slicekeeper-apt")
"""Held while apt-get runs, by the Makefile too: of two calls at once, one would fail."""


@contextmanager
def turn(lock: Path = LOCK) -> Iterator[None]:
    """Wait until no other suite or run holds the lock; the one of apt-get is for root."""
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def install(*packages: str) -> None:
    """Install packages, one worker of the suite after the other; do nothing without root or Debian, or if it fails."""
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        return
    wanted = ["-o", "DPkg::Lock::Timeout=120", "install", "-y", "-qq", "--no-install-recommends", *packages]
    with turn():
        if _is_installed(packages):
            return
        with suppress(OSError, subprocess.SubprocessError):
            for command in (["update", "-qq"], wanted):
                subprocess.run(["apt-get", *command], check=False, capture_output=True, timeout=300)


def _is_installed(packages: tuple[str, ...]) -> bool:
    asked = ["dpkg-query", "-W", "-f", "${db:Status-Status}\n", *packages]
    done = subprocess.run(asked, check=False, capture_output=True, text=True)
    return done.returncode == 0 and set(done.stdout.split()) == {"installed"}
