# SPDX-License-Identifier: Apache-2.0
"""A few lines in place of a test runner: make needs no package for its own tests."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

CASES: list[tuple[str, Callable[[], Any]]] = []


class Skip(Exception):
    """The machine cannot carry this case; the message says why."""


def case(name: str, body: Callable[[], Any] | None = None) -> Any:
    """Add a case; also a decorator."""
    if body is not None:
        CASES.append((name, body))
        return body
    return lambda f: case(name, f)


def check(truth: object, what: str) -> None:
    if not truth:
        raise AssertionError(what)


ALONE: set[Callable[[], Any]] = set()
"""Cases that are measured in real time."""


def patiently(body: Callable[[], Any], tries: int = 3) -> Callable[[], Any]:
    """For what is measured in real time: no other case runs beside it.

    A busy machine may spoil one try, and so may a stop within the lock that all users of the fake GPU share; a defect
    spoils all.
    """

    def again() -> Any:
        for left in range(tries - 1, -1, -1):
            try:
                return body()
            except (AssertionError, TimeoutError):
                if not left:
                    raise
        return None

    ALONE.add(again)
    return again


def run(number: int) -> str:
    """Run a case, print what came of it, and return the verdict."""
    name, body = CASES[number]
    start = time.monotonic()
    try:
        note = body()
        verdict = "ok"
    except Skip as reason:
        verdict, note = "skipped", reason
    except Exception as error:  # noqa: BLE001 - whatever a case raises, the next one runs
        verdict, note = "FAILED", error
        if not isinstance(error, (AssertionError, subprocess.CalledProcessError)):
            traceback.print_exc()
    took = time.monotonic() - start
    print(f"{verdict:8}{took:6.1f} s  {name}{f' ({note})' if note else ''}", flush=True)
    return verdict


def main(pattern: str = "") -> tuple[int, int, int]:
    """Run every case, as many side by side as there are processors; returns how many passed, failed, were skipped."""
    chosen = [number for number, (name, _) in enumerate(CASES) if pattern in name]
    alone = [number for number in chosen if CASES[number][1] in ALONE]
    with ProcessPoolExecutor(os.cpu_count(), mp_context=get_context("fork")) as pool:
        verdicts = list(pool.map(run, [number for number in chosen if number not in alone]))
    counts = Counter([*verdicts, *map(run, alone)])
    return counts["ok"], counts["FAILED"], counts["skipped"]


def report(counts: tuple[int, int, int]) -> None:
    print("vcuda: {} passed, {} failed, {} skipped".format(*counts), flush=True)
    sys.exit(1 if counts[1] else 0)
