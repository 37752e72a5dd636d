# SPDX-License-Identifier: Apache-2.0
"""A control group with a limit of memory or CPU time, cgroup v1 or v2, for a process that is under test."""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import pytest
from support import leftovers

ROOT = Path("/sys/fs/cgroup")


class Limit(NamedTuple):
    """What the files of a group say, by version."""

    controller: str
    v2: Mapping[str, str]
    v1: Mapping[str, str]


def memory_limit(size: int) -> Limit:
    """Return a limit of memory in bytes, without swap: memory that is swapped out would count as saved."""
    v1 = {"memory.limit_in_bytes": f"{size}", "memory.memsw.limit_in_bytes": f"{size}"}
    return Limit("memory", {"memory.max": f"{size}", "memory.swap.max": "0"}, v1)


def cpu_limit(percent: int) -> Limit:
    """Return a limit of so many percent of one CPU, as kubelet writes it."""
    quota, period = 1000 * percent, 100_000
    return Limit(
        "cpu", {"cpu.max": f"{quota} {period}"}, {"cpu.cfs_period_us": f"{period}", "cpu.cfs_quota_us": f"{quota}"}
    )


class ControlGroup:
    """One group with a limit, below the root of cgroup v2, or of v1's hierarchy of its controller."""

    def __init__(self, limit: Limit, root: Path = ROOT) -> None:
        controller, v2 = limit.controller, (root / "cgroup.controllers").exists()
        self.folder = (root if v2 else root / controller) / f"slicekeeper-test-{uuid.uuid4().hex[:8]}"
        self._peak = "memory.peak" if v2 else "memory.max_usage_in_bytes"
        self._events = "memory.events" if v2 else "memory.oom_control"
        try:
            if v2 and controller not in (root / "cgroup.subtree_control").read_text().split():
                (root / "cgroup.subtree_control").write_text(f"+{controller}")  # or no group below would have a limit
            leftovers.note("group", str(self.folder))
            self.folder.mkdir()
            for name, value in (limit.v2 if v2 else limit.v1).items():
                counts_swap = "sw" in name  # which not every kernel does
                with contextlib.suppress(OSError) if counts_swap else contextlib.nullcontext():
                    (self.folder / name).write_text(value)
        except OSError as error:
            self.remove()
            pytest.skip(f"no control group with a {controller} limit can be made here (as root it can): {error}")

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
        """End what still runs in it, and remove it."""
        leftovers.remove_group(self.folder)


@contextlib.contextmanager
def control_group(limit: Limit) -> Iterator[ControlGroup]:
    """Give a group; skip the test if none can be made."""
    if os.geteuid() != 0:
        pytest.skip("a control group needs root")
    group = ControlGroup(limit)
    try:
        yield group
    finally:
        group.remove()
