# SPDX-License-Identifier: Apache-2.0
"""A few lines in place of a test runner: make needs no package for its own tests."""

from __future__ import annotations

import subprocess
import sys
import time
import traceback
from collections.abc import Callable
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


def patiently(body: Callable[[], Any], tries: int = 3) -> Callable[[], Any]:
    """For what is measured in real time: a busy machine may spoil one try, a defect spoils all."""

    def again() -> Any:
        for left in range(tries - 1, -1, -1):
            try:
                return body()
            except AssertionError:
                if not left:
                    raise
        return None

    return again


def main(pattern: str = "") -> tuple[int, int, int]:
    """Run every case; returns how many passed, failed and were skipped."""
    passed = failed = skipped = 0
    for name, body in CASES:
        if pattern not in name:
            continue
        start = time.monotonic()
        try:
            note = body()
            passed += 1
            verdict = "ok"
        except Skip as reason:
            skipped += 1
            verdict, note = "skipped", reason
        except Exception as error:  # noqa: BLE001 - whatever a case raises, the next one runs
            failed += 1
            verdict, note = "FAILED", error
            if not isinstance(error, (AssertionError, subprocess.CalledProcessError)):
                traceback.print_exc()
        took = time.monotonic() - start
        print(f"{verdict:8}{took:6.1f} s  {name}{f' ({note})' if note else ''}", flush=True)
    return passed, failed, skipped


def report(counts: tuple[int, int, int]) -> None:
    print("vcuda: {} passed, {} failed, {} skipped".format(*counts), flush=True)
    sys.exit(1 if counts[1] else 0)
