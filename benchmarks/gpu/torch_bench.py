# SPDX-License-Identifier: Apache-2.0
"""What the benchmarks with PyTorch have in common: why one is skipped, its time limit, and the programs that it starts.

A program says that it is warm by its first line, starts to work at each line of its input, and answers with a line of
JSON.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import signal
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "vcuda" / "test" / "run"))

from harness import BUILD, Node

LIMIT = 230
"""Seconds after which a benchmark ends, whatever it still had to measure."""
STAND_IN = Path(__file__).with_name("stand_in.py")


class Worker:
    """A program that works when told to."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def _line(self) -> str:
        assert self._process.stdout
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"a program ended: {self._process.communicate(timeout=30)[1][-2000:]}")
        return line

    def ready(self) -> str:
        """Wait until it is warm; return what it says then."""
        return self._line()

    def go(self, *words: object) -> None:
        """Tell it to work: for how long, and what else it takes."""
        assert self._process.stdin
        self._process.stdin.write(" ".join(map(str, words)) + "\n")
        self._process.stdin.flush()

    def result(self) -> dict[str, Any]:
        """Return what it measured."""
        got: dict[str, Any] = json.loads(self._line())
        return got

    def end(self) -> None:
        """Kill it and wait, so that its memory is free."""
        self._process.kill()
        self._process.communicate()


def measure(workers: Iterable[Worker], *words: object) -> list[dict[str, Any]]:
    """Have programs work at the same time."""
    workers = list(workers)
    for worker in workers:
        worker.go(*words)
    return [worker.result() for worker in workers]


def described_gpu() -> str:
    """Return the GPU's name, driver and memory, or nothing if there is none."""
    query = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]
    try:
        return subprocess.run(query, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def parser(doc: str | None, seconds: float) -> argparse.ArgumentParser:
    """Return a parser of the options that each of them has."""
    made = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--seconds", type=float, default=seconds)
    made.add_argument("--dry-run", action="store_true", help="on the fake GPU, with programs that only sleep")
    return made


def prepared(dry_run: bool) -> bool:
    """Say on which GPU it runs and start its time limit, or say why it is skipped."""
    gpu = "the fake GPU: the figures mean nothing" if dry_run else described_gpu()
    if not gpu:
        print("skipped: there is no NVIDIA GPU on this machine")
    elif not dry_run and importlib.util.find_spec("torch") is None:
        print("skipped: PyTorch is not installed")
    elif not (BUILD / "arbiter").exists():
        print("skipped: the limiter is not built; run: make -C vcuda")
    else:
        print(f"{gpu}\n", flush=True)
        signal.signal(signal.SIGALRM, _out_of_time)
        signal.alarm(LIMIT)
        return True
    return False


def _out_of_time(*_: object) -> None:
    raise SystemExit(f"stopped after {LIMIT} s; what is above was measured")


def node(dry_run: bool) -> Node:
    """Return an arbiter for the GPU."""
    return Node(virtual=False, real=not dry_run)


def peer_env(library: str, cache: str, ceiling: int) -> dict[str, str]:
    """Return the environment of a program with HAMi-core's library, which has a ceiling if it is below 100 %."""
    env = {
        "LD_PRELOAD": library,
        "CUDA_REDIRECT": library,
        "CUDA_DEVICE_MEMORY_LIMIT": "30g",
        "CUDA_DEVICE_MEMORY_SHARED_CACHE": cache,
        "LIBCUDA_LOG_LEVEL": "0",
    }
    if ceiling < 100:
        env |= {"CUDA_DEVICE_SM_LIMIT": str(ceiling), "GPU_CORE_UTILIZATION_POLICY": "force"}
    return env
