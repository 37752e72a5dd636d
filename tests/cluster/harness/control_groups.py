# SPDX-License-Identifier: Apache-2.0
"""The control group of one cluster, in every hierarchy of the machine: all of its pods are below it.

Version 2 has one hierarchy, version 1 one for each controller or a few.
"""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

from support import leftovers

ROOT = Path("/sys/fs/cgroup")
SHARES_PER_CPU = 1024


def name(folder: Path) -> str:
    """Return the name of the group of the cluster that lives in a folder."""
    return f"slicekeeper-{folder.name}"


def make(folder: Path) -> None:
    """Make a cluster's group, with the weight that kubelet gives all pods of a machine.

    Raises OSError where the machine does not allow it.
    """
    for hierarchy in _hierarchies():
        group = hierarchy / name(folder)
        if hierarchy == ROOT:
            controllers = (ROOT / "cgroup.controllers").read_text().split()
            (ROOT / "cgroup.subtree_control").write_text(" ".join(f"+{controller}" for controller in controllers))
        leftovers.note("group", str(group))
        group.mkdir(exist_ok=True)
        if (group / "cpu.shares").exists():
            (group / "cpu.shares").write_text(str(SHARES_PER_CPU * (os.cpu_count() or 1)))


def remove(folder: Path, *, tries: int = 50) -> bool:
    """Remove a dead cluster's group; return whether it is gone. The kernel may still be ending its processes."""
    for _ in range(tries):
        left = [hierarchy / name(folder) for hierarchy in _hierarchies() if (hierarchy / name(folder)).is_dir()]
        if not left:
            return True
        below = [path for top in left for path in (top, *top.rglob("*")) if path.is_dir()]
        for group in sorted(below, key=lambda path: len(path.parts), reverse=True):
            with contextlib.suppress(OSError):
                group.rmdir()
        time.sleep(0.1)
    return False


def _hierarchies() -> list[Path]:
    if (ROOT / "cgroup.controllers").exists():
        return [ROOT]
    return [path for path in ROOT.iterdir() if (path / "cgroup.procs").exists()] if ROOT.is_dir() else []
