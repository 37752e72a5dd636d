#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Show where the memory of a killed training program is while its data loader's workers live on.

    killed_parents.py [--seconds N] [--dry-run]

A program of memory_programs.py holds memory, has four workers that inherit its file descriptors, and is ended by
SIGKILL: once while the workers wait for work (PyTorch's then end by themselves within some 5 s), once while each is at
work for 12 s, and that without a limiter, too. Until all have gone and the memory is back, at most N seconds,
each row says what the seat is charged, what a second program in the same seat can allocate (and frees again), and what
NVML shows. The arbiter's audit comes last: it names the seat as long as no living process explains its memory.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "vcuda" / "test" / "run"))

from harness import BUILD, Node, Seat
from torch_bench import Worker, measure, node, parser, prepared

PROGRAMS = Path(__file__).with_name("memory_programs.py")
AT_WORK = 12
"""Seconds for which a worker is at work."""
LOOKS = (0.0, 0.1, 0.3, 1.0, 2.0, 4.0)
"""When to look, in seconds after the kill; after the last one every two."""


class Process(ctypes.Structure):
    """nvmlProcessInfo_t of the calls that end in _v3."""

    _fields_ = (
        ("pid", ctypes.c_uint),
        ("memory", ctypes.c_ulonglong),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    )


class Nvml:
    """What NVML shows of the first GPU."""

    def __init__(self, fake: bool) -> None:
        self._nvml = ctypes.CDLL(str(BUILD / "fake" / "libnvidia-ml.so.1") if fake else "libnvidia-ml.so.1")
        self._gpu = ctypes.c_void_p()
        self._must(self._nvml.nvmlInit_v2())
        self._must(self._nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(self._gpu)))

    def _must(self, code: int) -> None:
        if code:
            raise RuntimeError(f"NVML answers {code}")

    def used(self) -> int:
        """Return how many MiB are in use."""
        total_free_used = (ctypes.c_ulonglong * 3)()
        self._must(self._nvml.nvmlDeviceGetMemoryInfo(self._gpu, total_free_used))
        return total_free_used[2] >> 20

    def processes(self) -> set[int]:
        """Return the process IDs that it lists."""
        count, found = ctypes.c_uint(64), (Process * 64)()
        self._must(self._nvml.nvmlDeviceGetComputeRunningProcesses_v3(self._gpu, ctypes.byref(count), found))
        return {process.pid for process in found[: count.value]}


@dataclass
class Case:
    """Workers that wait or are at work, with a limiter or without."""

    name: str
    limited: bool
    at_work: float


CASES = [
    Case("workers wait, limited", True, 0),
    Case("workers at work, limited", True, AT_WORK),
    Case("workers at work, bare", False, AT_WORK),
]


def alive(pid: int) -> bool:
    """Say whether a process lives: not one that waits to be reaped."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    return False


def charge_of(seat: dict[str, Any]) -> str:
    """Return what a seat is charged in MiB, and how much of that processes left behind that have ended."""
    return f"{seat['memory'] + seat['memory_overhead'] >> 20} ({seat['memory_left'] >> 20} left)"


def observe(
    gpu: Node,
    nvml: Nvml,
    case: Case,
    second: Worker,
    before: int,
    parent: subprocess.Popen[str],
    workers: list[int],
    seconds: float,
) -> None:
    """Kill a program and print a row for each look."""
    pids = {parent.pid, *workers}
    print(
        f"{case.name}: {nvml.used()} MiB in use, {before} before the program\n\n"
        "| after the kill, s | workers alive | seat is charged, MiB | second program gets, MiB | in use (NVML), MiB "
        "| killed program and workers that NVML lists |\n|---|---|---|---|---|---|",
        flush=True,
    )
    parent.kill()
    start, look = time.monotonic(), 0
    parent.wait()
    while True:
        due = LOOKS[look] if look < len(LOOKS) else LOOKS[-1] + 2 * (look - len(LOOKS) + 1)
        look += 1
        time.sleep(max(0.0, start + due - time.monotonic()))
        after = time.monotonic() - start
        left = [pid for pid in workers if alive(pid)]
        charged = charge_of(gpu.seats()["train"]) if case.limited else ""
        used, listed = nvml.used(), sorted(nvml.processes() & pids)
        gets = measure([second], "")[0]["mib"] if case.limited else ""
        print(f"| {after:.2f} | {len(left)} | {charged} | {gets} | {used} | {listed or 'none'} |", flush=True)
        if after > seconds or (not left and used <= before + 64):
            print()
            return


def run(gpu: Node, nvml: Nvml, case: Case, held: int, seconds: float, dry_run: bool) -> None:
    """Start the programs of one case, kill one, and end the others."""
    cap = f"{2 * held}MiB"
    command = [sys.executable, str(PROGRAMS)]
    seat = Seat(50, memory=cap, name="train", program=[*command, "allocate", str(4 * held)])
    start = gpu.run if case.limited else gpu.bare
    second = Worker(start(seat))
    second.ready()
    before = nvml.used()
    seat.program = [*command, "hold" if dry_run else "train", str(held), str(case.at_work)]
    parent = start(seat)
    workers: list[int] = json.loads(Worker(parent).ready())["workers"]
    try:
        observe(gpu, nvml, case, second, before, parent, workers, seconds)
    finally:
        parent.kill()
        for pid in workers:  # they hold the pipes of their parent
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        second.end()


def main() -> int:
    options = parser(__doc__, 25).parse_args()
    if not prepared(options.dry_run):
        return 0
    with node(options.dry_run) as gpu:
        os.environ["SLICEKEEPER_FAKE_WORLD"] = gpu.env["SLICEKEEPER_FAKE_WORLD"]
        nvml = Nvml(options.dry_run)
        for case in CASES:
            run(gpu, nvml, case, 1024 if options.dry_run else 16384, options.seconds, options.dry_run)
            if case.limited:
                print("audit:", json.dumps(gpu.ask(op="read")["audit"]) + "\n", flush=True)
                gpu.ask(op="drop", seat="train")
    return 0


if __name__ == "__main__":
    sys.exit(main())
