# SPDX-License-Identifier: Apache-2.0
"""What decisions cost when pods come and go in trees of budgets: by the hour below one by the year, and others.

    .venv/bin/python benchmarks/timekeeper/trees.py

Ten trees of ten namespaces, a running pod in each. In each round a pod opens or closes in each tree, then all decisions
are asked for, as the webhook does every two seconds. CPU seconds are those of the server's process only.
"""

from __future__ import annotations

import statistics
import tempfile
import time
import urllib.request
from pathlib import Path

import msgspec
from ledger import Made, made, serving, table
from load import HEADERS

from slicekeeper.config.policy import NamespacePolicy
from slicekeeper.units import MS_PER_HOUR, Instant
from timekeeper.core.budget_record import Rule
from timekeeper.core.period import PeriodName
from timekeeper.ledger import hierarchy, workload
from timekeeper.ledger.account import AccountRef
from timekeeper.ledger.books import Books
from timekeeper.ledger.budget import set_budget
from timekeeper.ledger.workload import Closing, Opening
from timekeeper.store.db.database import Database
from timekeeper.store.db.engine import make_engine

TREES, BELOW, ROUNDS = 10, 10, 5
START = 1_790_000_000_000 // MS_PER_HOUR * MS_PER_HOUR
CASES: tuple[tuple[str, int, PeriodName, int, PeriodName, int], ...] = (
    ("hours that suffice, below a year", BELOW, "hour", 2, "year", 90_000),
    ("hours that run out, below a year", BELOW, "hour", 0, "year", 90_000),
    ("days that run out, below a year", BELOW, "day", 12, "year", 90_000),
    ("months that suffice, below a year", BELOW, "month", 1_000, "year", 90_000),
)


def pod(uid: str, namespace: str, start: int) -> Opening:
    """Return a pod that holds a GPU."""
    holders = '{"main":1}'
    return Opening(uid, uid, namespace, f"uid-{namespace}", "n", (), holders, "standard", {"A100": 1}, start, ())


def fill(it: Made, below: int, period: PeriodName, hours: int, above: PeriodName, most: int) -> Books:
    """Write the trees; `hours` 0: budgets of half an hour."""
    books = Books(Database(make_engine(it.url)), "default", carry=False)
    for tree in range(TREES):
        rule = Rule(Instant(START), most * MS_PER_HOUR, above, "UTC")
        hierarchy.put_parent_budget(books, f"t{tree}", "organisation", rule, actor="me", if_match=None)
        for n in range(below):
            name = f"t{tree}-{n}"
            ref = AccountRef(f"uid-{name}", name, NamespacePolicy())
            mine = Rule(Instant(START), hours * MS_PER_HOUR or MS_PER_HOUR // 2, period, "UTC")
            set_budget(books, ref, mine, actor="me", if_match=None)
            hierarchy.set_parent(books, ref, f"t{tree}", reason="r", actor="me", now=Instant(START))
        pods = [pod(f"t{tree}-{n}-p", f"t{tree}-{n}", START + n * 1_000) for n in range(below)]
        workload.apply(books, pods, [], {p.namespace: NamespacePolicy() for p in pods}, Instant(START + 200_000))
    return books


def measure(it: Made, *case: object) -> tuple[float, float]:
    """Return the CPU ms and the ms of an answer after a pod event in each tree, medians."""
    books = fill(it, *case)  # type: ignore[arg-type]
    now, cpu, wall = Instant(START + 240_000), [], []
    with serving(it.url, str(now)) as port:

        def ask(path: str) -> bytes:
            request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", headers=HEADERS)
            with urllib.request.urlopen(request, timeout=120) as answer:
                return bytes(answer.read())

        def used() -> float:
            return float(msgspec.json.decode(ask("/peak"))["cpu"])

        ask("/api/v1/decisions")
        for turn in range(ROUNDS):
            for tree in range(TREES):
                name, uid = f"t{tree}-0", f"t{tree}-more-{turn // 2}"
                opened = [pod(uid, name, now - 60_000)]
                closed = [Closing(uid, Instant(now - 30_000), "finished")] if turn % 2 else []
                workload.apply(books, opened, closed, {name: NamespacePolicy()}, now)
            before, begun = used(), time.perf_counter()
            ask("/api/v1/decisions")
            wall.append(1_000 * (time.perf_counter() - begun))
            cpu.append(1_000 * (used() - before))
    books.database.close()
    return statistics.median(cpu), statistics.median(wall)


def main() -> None:
    """Measure and print."""
    for title, *case in CASES:
        with tempfile.TemporaryDirectory(prefix="slicekeeper-bench-") as folder, made("SQLite", Path(folder)) as it:
            head = ("SQLite, ten trees: all decisions, after a pod event in each", "CPU ms", "ms")
            table("", head, [(title, *measure(it, *case))])


if __name__ == "__main__":
    main()
