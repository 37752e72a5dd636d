# SPDX-License-Identifier: Apache-2.0
"""A control group with a memory limit, cgroup v1 or v2, for a process that is under test."""

from __future__ import annotations

import contextlib
import os
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path("/sys/fs/cgroup")


class ControlGroup:
    """One group; it is removed once its processes are gone."""

    def __init__(self, memory_bytes: int) -> None:
        v2 = (ROOT / "cgroup.controllers").exists()
        self.folder = (ROOT if v2 else ROOT / "memory") / f"slicekeeper-test-{uuid.uuid4().hex[:8]}"
        self._peak = "memory.peak" if v2 else "memory.max_usage_in_bytes"
        self._events = "memory.events" if v2 else "memory.oom_control"
        try:
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
        for _ in range(100):
            try:
                self.folder.rmdir()
            except FileNotFoundError:
                return
            except OSError:
                time.sleep(0.1)
            else:
                return


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
