# SPDX-License-Identifier: Apache-2.0
"""What a run leaves that is killed, and what the next one makes of it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from support import leftovers
from support.control_group import ROOT
from support.databases import KINDS

TESTS = Path(__file__).parents[2]

RUN = """
import json, os, signal, subprocess, sys
from contextlib import ExitStack
from pathlib import Path
from support import leftovers
from support.control_group import control_group, cpu_limit
from support.databases import postgres
from support.small_disk import small_disk

leftovers.begin()
stack, made = ExitStack(), {}
sleeper = subprocess.Popen(["sh", "-c", "sleep 1000 & wait"], start_new_session=True)
made["processes"] = [sleeper.pid]
if sys.argv[1] == "root":
    group = stack.enter_context(control_group(cpu_limit(50)))
    group.add(sleeper.pid)
    made["folders"] = [str(group.folder), str(stack.enter_context(small_disk(1)))]
else:
    made["folders"] = [str(stack.enter_context(leftovers.folder("made")))]
if "postgresql" in sys.argv:
    server = stack.enter_context(postgres())
    made["processes"].append(server._process.pid)
    made["folders"].append(str(server._folder))
print(json.dumps(made), flush=True)
signal.pause()
"""


def environment(home: Path) -> dict[str, str]:
    return {**os.environ, "XDG_CACHE_HOME": str(home), "PYTHONPATH": str(TESTS)}


@contextmanager
def run(home: Path, *what: str) -> Iterator[tuple[subprocess.Popen[Any], dict[str, list[Any]]]]:
    """Start a run that makes what a test may make, and waits; yield it and what it has made."""
    words = [sys.executable, "-c", RUN, "root" if os.geteuid() == 0 else "user", *what]
    with subprocess.Popen(words, env=environment(home), stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process, json.loads(process.stdout.readline())
        finally:
            process.kill()


def lives(pid: int) -> bool:
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def test_the_next_run_ends_and_removes_what_a_killed_one_has_left(tmp_path: Path) -> None:
    databases = ["postgresql"] if "postgresql" in KINDS else []
    with run(tmp_path) as (alive, kept):
        with run(tmp_path, *databases) as (process, made):
            process.kill()
        assert all(map(lives, made["processes"])), "the kernel ends none of them"
        test = TESTS / "unit/support/test_counterexamples.py"
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--collect-only", test]
        done = subprocess.run(
            command, env=environment(tmp_path), cwd=TESTS.parent, check=False, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert not [pid for pid in made["processes"] if lives(pid)]
        assert not [folder for folder in made["folders"] if Path(folder).exists()]
        mounts = Path("/proc/self/mounts").read_text()
        assert not [folder for folder in made["folders"] if folder in mounts]
        assert alive.poll() is None
        assert all(map(lives, kept["processes"])), "that run goes on"
        assert all(Path(folder).exists() for folder in kept["folders"])
    leftovers.sweep(tmp_path / "slicekeeper/tests")
    assert not any(map(lives, kept["processes"]))
    assert [path.name for path in (tmp_path / "slicekeeper/tests").iterdir()] == ["lock"]


def test_another_process_with_the_number_of_one_that_has_ended_is_left_alone(tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "1000"]) as other:
        try:
            (tmp_path / "dead").mkdir()
            boot = Path("/proc/sys/kernel/random/boot_id").read_text()
            lines = ({"boot": boot}, {"process": [other.pid, 1]})
            (tmp_path / "dead/notes").write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"fol')
            leftovers.sweep(tmp_path)
            assert not (tmp_path / "dead").exists()
            assert other.poll() is None
        finally:
            other.kill()


def test_a_group_with_groups_below_it_goes(tmp_path: Path) -> None:
    root = ROOT if (ROOT / "cgroup.controllers").exists() else ROOT / "cpu"
    if os.geteuid() != 0 or not root.is_dir():
        pytest.skip("a control group needs root")
    group = root / f"slicekeeper-test-{os.getpid()}"
    (group / "pods/one").mkdir(parents=True)
    with subprocess.Popen(["sleep", "1000"]) as sleeper:
        (group / "pods/one/cgroup.procs").write_text(str(sleeper.pid))
        leftovers.remove_group(group)
        assert sleeper.wait(60) == -signal.SIGKILL
    assert not group.exists()


def test_a_run_that_ends_leaves_no_notes(tmp_path: Path) -> None:
    code = "from support import leftovers; leftovers.begin(); leftovers.end()"
    subprocess.run([sys.executable, "-c", code], env=environment(tmp_path), check=True)
    assert [path.name for path in (tmp_path / "slicekeeper/tests").iterdir()] == ["lock"]


def test_a_cluster_whose_run_was_killed_is_removed_by_the_next_run(tmp_path: Path) -> None:
    runs = tmp_path / "slicekeeper/run"
    code = (
        "import sys, signal; from cluster.harness import cluster; from support.leftovers import make_locked\n"
        "folder, lock = make_locked(cluster.runs())\n"
        "(folder / 'logs').mkdir(); print(folder.name, flush=True); signal.pause()"
    )
    started = [
        subprocess.Popen([sys.executable, "-c", code], env=environment(tmp_path), stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    names = [process.stdout.readline().strip() for process in started if process.stdout is not None]
    try:
        started[0].kill()
        started[0].wait()
        sweep = "from cluster.harness import cluster; cluster.sweep()"
        subprocess.run([sys.executable, "-c", sweep], env=environment(tmp_path), check=True)
        assert {path.name for path in runs.iterdir()} == {"lock", names[1]}
    finally:
        for process in started:
            process.kill()
            process.communicate()
