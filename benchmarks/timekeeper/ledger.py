# SPDX-License-Identifier: Apache-2.0
"""What the ledger takes in on SQLite with synchronous=FULL, beside bare commits of one row on the same disk.

    .venv/bin/python benchmarks/timekeeper/ledger.py [folder]

Prints a Markdown table. The folder (default: the current one) says which disk.
"""

from __future__ import annotations

import sqlite3
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

from slicekeeper.namespace_policy import NamespacePolicy
from slicekeeper.wire.timekeeper import UsageReport
from timekeeper import reports
from timekeeper.books import Books, Closing, Opening
from timekeeper.identity import OPERATOR
from timekeeper.store import migrate
from timekeeper.store.database import Database
from timekeeper.store.engine import make_engine

T0 = 1_767_225_600_000
PODS, NAMESPACES, THREADS, SINGLE, BATCH = 10_000, 20, 16, 100, 500
POLICIES = {f"ns{n}": NamespacePolicy() for n in range(NAMESPACES)}


def opening(i: int) -> Opening:
    """Return the opening of pod i."""
    name = f"ns{i % NAMESPACES}"
    held = {"": Fraction(1, 2)}
    return Opening(f"u{i}", f"p{i}", name, f"uid-{name}", "n", ("g",), '{"main":1}', "standard", held, T0, ())


def report(i: int, seq: int) -> UsageReport:
    """Return a report of pod i."""
    return UsageReport(
        namespace=f"ns{i % NAMESPACES}", pod_name=f"p{i}", pod_uid=f"u{i}", container="main",
        epoch=T0 * 10**6, seq=seq, used_ms=seq, monotonic_ns=seq,
    )  # fmt: skip


def rate(count: int, work: Callable[[], object]) -> float:
    """Return how many a second."""
    begun = time.perf_counter()
    work()
    return count / (time.perf_counter() - begun)


def bare_commits(folder: str, count: int) -> None:
    """Insert rows of one integer, each in a commit of its own."""
    with sqlite3.connect(f"{folder}/bare.sqlite", isolation_level=None) as connection:
        for statement in ("PRAGMA journal_mode=WAL", "PRAGMA synchronous=FULL", "CREATE TABLE t (x INTEGER)"):
            connection.execute(statement)
        for value in range(count):
            connection.execute("INSERT INTO t VALUES (?)", (value,))


def singles(database: Database) -> None:
    """Send single reports from threads, as the server's threads do."""

    def work(thread: int) -> None:
        for step in range(SINGLE):
            reports.take(database, OPERATOR, [report(thread * SINGLE + step, 1)], T0 + 10_000)

    threads = [threading.Thread(target=work, args=(thread,)) for thread in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def main() -> None:
    """Measure and print."""
    where = sys.argv[1] if len(sys.argv) > 1 else str(Path.cwd())
    with tempfile.TemporaryDirectory(dir=where) as folder:
        engine = make_engine(f"sqlite:///{folder}/t.sqlite")
        migrate.upgrade(engine)
        database = Database(engine)
        books = Books(database, "default", carry=False)
        rows = [("bare commits of one row", rate(500, lambda: bare_commits(folder, 500)))]
        everything = [opening(i) for i in range(PODS)]
        rows.append(("pods opened, all at once", rate(PODS, lambda: books.apply(everything, [], POLICIES, T0))))
        rows.append((f"single reports, {THREADS} threads", rate(SINGLE * THREADS, lambda: singles(database))))
        batch = [report(i, 2) for i in range(BATCH)]
        rows.append(
            (f"reports in a batch of {BATCH}", rate(BATCH, lambda: reports.take(database, OPERATOR, batch, T0)))
        )
        ends = [Closing(f"u{i}", T0 + 30_000 + i, "finished") for i in range(PODS)]
        for start in range(0, PODS, BATCH):
            part = ends[start : start + BATCH]
            speed = rate(BATCH, lambda part=part: books.apply([], part, {}, T0 + 60_000))  # type: ignore[misc]
            if start in (0, PODS - BATCH):
                rows.append((f"pods closed, {BATCH} at once, after {start:,}", speed))
        database.close()
    print("| what | per second |\n| --- | ---: |")
    for what, speed in rows:
        print(f"| {what} | {speed:,.0f} |")


if __name__ == "__main__":
    main()
