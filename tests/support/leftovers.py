# SPDX-License-Identifier: Apache-2.0
"""What a run of the tests leaves if it is killed: the next run, of whichever suite, ends and removes it.

Each process of pytest notes what it starts and makes in a folder of its own, which it locks until it ends, however it
ends. What a folder without that lock lists is left over: nothing is found by its name, or by how it looks. A process is
known by its number and the instant of its start.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

PATIENCE = 10.0
"""Seconds that a process has to end by itself: PostgreSQL then leaves no shared memory."""

_BOOT = Path("/proc/sys/kernel/random/boot_id")
_MINE: list[_Run] = []


def runs() -> Path:
    """Return the folder of all runs of this user."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "slicekeeper" / "tests"


def begin() -> None:
    """Note from now on what this process starts, and end and remove what is left of runs that were killed."""
    if not _BOOT.exists():
        return  # only Linux has control groups, and tells when a process was started
    sweep(runs())
    _MINE.append(_Run(runs()))
    subprocess.Popen = _Popen  # type: ignore[misc] # every test starts its processes by it


def end() -> None:
    """Forget the notes: who made something has removed it."""
    while _MINE:
        _MINE.pop().forget()


def note(kind: str, what: object) -> None:
    """Note a `process`, `group` or `folder`, for a folder or a group before it is made; nothing outside of pytest."""
    for run in _MINE:
        run.note({kind: what})


@contextlib.contextmanager
def folder(prefix: str) -> Iterator[Path]:
    """Give a folder that is gone afterwards, with all that is mounted in it."""
    made = Path(tempfile.gettempdir()) / f"slicekeeper-{prefix}-{secrets.token_hex(6)}"
    note("folder", str(made))
    made.mkdir(0o700)
    try:
        yield made
    finally:
        _remove_folder(made)


class _Popen(subprocess.Popen[Any]):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        note("process", [self.pid, _began(self.pid)])


class _Run:
    def __init__(self, base: Path) -> None:
        self._folder, self._lock = make_locked(base)
        self._notes = os.open(self._folder / "notes", os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC)
        self.note({"boot": _BOOT.read_text()})

    def note(self, what: dict[str, object]) -> None:
        os.write(self._notes, json.dumps(what).encode() + b"\n")

    def forget(self) -> None:
        shutil.rmtree(self._folder)
        os.close(self._notes)
        self._lock.close()


def make_locked(base: Path) -> tuple[Path, IO[bytes]]:
    """Make a folder with a new name, which nobody sees without its lock; return both."""
    base.mkdir(parents=True, exist_ok=True)
    with all_locked(base):
        made = base / secrets.token_hex(3)
        made.mkdir()
        held = lock(made)
        assert held is not None
        return made, held


def lock(folder: Path) -> IO[bytes] | None:
    """Lock a folder until the file that is returned is closed; None while another process has locked it."""
    file = (folder / "lock").open("ab")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.close()
        return None
    return file


@contextlib.contextmanager
def all_locked(base: Path) -> Iterator[None]:
    with (base / "lock").open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def sweep(base: Path) -> None:
    """End and remove what runs have left that were killed."""
    if not base.is_dir():
        return
    with all_locked(base):
        for run in base.iterdir():
            held = lock(run) if run.is_dir() else None
            if held is not None:
                with held:
                    try:
                        _clear(run / "notes")
                        shutil.rmtree(run)
                    except (OSError, AssertionError, subprocess.CalledProcessError) as error:
                        print(f"not all that {run} lists is gone; the next run tries again: {error}", file=sys.stderr)


def _clear(notes: Path) -> None:
    found: dict[str, list[Any]] = {"process": [], "group": [], "folder": [], "boot": []}
    with contextlib.suppress(FileNotFoundError):
        for line in notes.read_text().splitlines():
            with contextlib.suppress(json.JSONDecodeError):  # the end of the run cut it off
                for kind, what in json.loads(line).items():
                    found[kind].append(what)
    if found["boot"] == [_BOOT.read_text()]:
        _end([pid for pid, began in found["process"] if _began(pid) == began])
    for group in map(Path, found["group"]):
        remove_group(group)
    for one in map(Path, found["folder"]):
        _remove_folder(one)


def _end(processes: list[int]) -> None:
    """End processes in good order if they can, then their descendants."""
    everything = {pid: _began(pid) for pid in (*processes, *_descendants(processes))}
    for number, pids in ((signal.SIGINT, processes), (signal.SIGKILL, list(everything))):
        for pid in _living(pids, everything):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        deadline = time.monotonic() + PATIENCE
        while _living(pids, everything) and time.monotonic() < deadline:
            time.sleep(0.05)


def _living(pids: list[int], began: dict[int, int]) -> list[int]:
    return [pid for pid in pids if began[pid] and _began(pid) == began[pid]]


def _descendants(processes: list[int]) -> Iterator[int]:
    for pid in processes:
        with contextlib.suppress(OSError):
            for task in Path(f"/proc/{pid}/task").iterdir():
                children = [int(child) for child in (task / "children").read_text().split()]
                yield from children
                yield from _descendants(children)


def _began(pid: int) -> int:
    """Return the instant at which a process was started; 0 if it has ended."""
    try:
        state, *fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0
    return 0 if state in "ZX" else int(fields[18])


def remove_group(group: Path) -> None:
    """End what runs in a control group and below it, wait until the kernel is done with that, and remove it."""
    deadline = time.monotonic() + 60.0
    while group.exists():
        left = []
        for one in sorted((group, *(path for path in group.rglob("*") if path.is_dir())), reverse=True):
            left += _processes(one)
            with contextlib.suppress(OSError):  # the kernel refuses to remove a group with processes in it
                one.rmdir()
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        assert time.monotonic() < deadline, f"{group} cannot be removed; in it are {left}"
        time.sleep(0.05 if left else 0)


def _processes(group: Path) -> list[int]:
    with contextlib.suppress(FileNotFoundError):
        pids = map(int, (group / "cgroup.procs").read_text().split())
        return [pid for pid in pids if pid > 0]  # 0 is how v2 shows one of another PID namespace
    return []


def _remove_folder(made: Path) -> None:
    mounts = [line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines()]
    for mount in reversed([mount for mount in mounts if made in (Path(mount), *Path(mount).parents)]):
        subprocess.run(["umount", "--lazy", mount], check=True)
    shutil.rmtree(made, ignore_errors=True)
