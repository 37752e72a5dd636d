# SPDX-License-Identifier: Apache-2.0
"""Control groups for tests, on this machine's kernel; and those of cgroup v2, where it has another, on plain files."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.control_group import ROOT, ControlGroup, control_group, cpu_limit, memory_limit
from support.waiting import wait_for

MEMORY_BYTES = 64 << 20
GREEDY = "x = []\nwhile True: x.append(bytearray(1 << 20))"


def test_a_group_counts_kills_and_goes_with_all_that_runs_in_it() -> None:
    with control_group(memory_limit(MEMORY_BYTES)) as group:
        command = [sys.executable, "-c", f"import sys; sys.stdin.read(1)\n{GREEDY}"]
        with subprocess.Popen(command, stdin=subprocess.PIPE) as greedy:
            group.add(greedy.pid)
            greedy.communicate(b"x")
        assert greedy.returncode == -9
        assert group.kills == 1
        assert group.peak_bytes <= MEMORY_BYTES
        sleeper = subprocess.Popen(["sleep", "1000"])
        group.add(sleeper.pid)
    assert not group.folder.exists()
    assert sleeper.wait(60) == -9


def test_a_hierarchy_without_the_memory_controller_is_left_as_it_was() -> None:
    root = ROOT / "unified"
    if not (root / "cgroup.controllers").exists() or "memory" in (root / "cgroup.controllers").read_text().split():
        pytest.skip("no cgroup v2 without the memory controller is mounted here")
    before = {path.name for path in root.iterdir()}
    with pytest.raises(pytest.skip.Exception, match="no control group with a memory limit"):
        ControlGroup(memory_limit(MEMORY_BYTES), root)
    assert {path.name for path in root.iterdir()} == before


def test_the_files_of_version_2(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cgroup.controllers").write_text("cpu io memory pids\n")
    (tmp_path / "cgroup.subtree_control").write_text("cpu pids\n")
    group = ControlGroup(memory_limit(MEMORY_BYTES), tmp_path)
    assert (tmp_path / "cgroup.subtree_control").read_text() == "+memory"
    group.add(4711)
    found = {path.name: path.read_text() for path in group.folder.iterdir()}
    assert found == {"memory.max": str(MEMORY_BYTES), "memory.swap.max": "0", "cgroup.procs": "4711"}
    assert group.peak_bytes == 0  # Linux before 5.19 does not tell
    (group.folder / "memory.peak").write_text("1048576\n")
    (group.folder / "memory.events").write_text("low 0\nhigh 0\nmax 9\noom 2\noom_kill 1\noom_group_kill 0\n")
    assert (group.peak_bytes, group.kills) == (1 << 20, 1)
    (group.folder / "cgroup.procs").write_text("")
    monkeypatch.setattr(Path, "rmdir", shutil.rmtree)  # as the kernel does: its files go with the group
    group.remove()
    assert not group.folder.exists()


def test_a_limit_of_cpu_time_holds() -> None:
    with control_group(cpu_limit(5)) as group, subprocess.Popen(["sh", "-c", "while :; do :; done"]) as busy:
        group.add(busy.pid)
        wait_for(lambda: _throttled(group), "periods in which it had to wait")
        busy.kill()


def _throttled(group: ControlGroup) -> int:
    lines = dict(line.split() for line in (group.folder / "cpu.stat").read_text().splitlines())
    return int(lines["nr_throttled"])
