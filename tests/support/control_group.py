# SPDX-License-Identifier: Apache-2.0
"""A control group with a memory limit, cgroup v1 or v2, for a process that is under test."""

from __future__ import annotations

import contextlib
import os
import signal
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path("/sys/fs/cgroup")
PATIENCE = 60.0


class ControlGroup:
    """One group below the root of cgroup v2, or of v1's memory controller."""

    def __init__(self, memory_bytes: int, root: Path = ROOT) -> None:
        v2 = (root / "cgroup.controllers").exists()
        self.folder = (root if v2 else root / "memory") / f"slicekeeper-test-{uuid.uuid4().hex[:8]}"
        self._peak = "memory.peak" if v2 else "memory.max_usage_in_bytes"
        self._events = "memory.events" if v2 else "memory.oom_control"
        try:
            if v2 and "memory" not in (root / "cgroup.subtree_control").read_text().split():
                (root / "cgroup.subtree_control").write_text("+memory")  # or no group below would have a limit
            self.folder.mkdir()
            (self.folder / ("memory.max" if v2 else "memory.limit_in_bytes")).write_text(str(memory_bytes))
            with contextlib.suppress(OSError):  # memory that is swapped out would count as saved
                if v2:
                    (self.folder / "memory.swap.max").write_text("0")
                else:
                    (self.folder / "memory.memsw.limit_in_bytes").write_text(str(memory_bytes))
        except OSError as error:
            self.remove()
            pytest.skip(f"no control group with a memory limit can be made here (as root it can): {error}")

    def add(self, pid: int) -> None:
        (self.folder / "cgroup.procs").write_text(str(pid))

    @property
    def peak_bytes(self) -> int:
        """Most memory that was ever in use; 0 if the kernel does not tell."""
        with contextlib.suppress(OSError):
            return int((self.folder / self._peak).read_text())
        return 0

    @property
    def kills(self) -> int:
        """How many processes the kernel has killed for memory."""
        lines = dict(line.split() for line in (self.folder / self._events).read_text().splitlines())
        return int(lines.get("oom_kill", 0))

    def remove(self) -> None:
        """End what still runs in it, wait until the kernel is done with that, and remove it."""
        end = time.monotonic() + PATIENCE
        while self.folder.exists():
            left = self._processes()
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            if not left:  # only then: the kernel refuses a group with processes in it
                with contextlib.suppress(OSError):
                    self.folder.rmdir()
                    return
            assert time.monotonic() < end, f"{self.folder} cannot be removed; in it are {left}"
            time.sleep(0.05)

    def _processes(self) -> list[int]:
        with contextlib.suppress(FileNotFoundError):
            pids = map(int, (self.folder / "cgroup.procs").read_text().split())
            return [pid for pid in pids if pid > 0]  # 0 is how v2 shows one of another PID namespace
        return []


@contextlib.contextmanager
def control_group(memory_bytes: int) -> Iterator[ControlGroup]:
    """Give a group; skip the test if none can be made."""
    if os.geteuid() != 0:
        pytest.skip("a control group needs root")
    group = ControlGroup(memory_bytes)
    try:
        yield group
    finally:
        group.remove()
