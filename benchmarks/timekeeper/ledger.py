# SPDX-License-Identifier: Apache-2.0
"""What the ledger carries, on SQLite and PostgreSQL, beside the same rows written in plain SQL on the same disk.

    .venv/bin/python benchmarks/timekeeper/ledger.py [reports|growth|churn]… [--folder PATH]

Prints Markdown tables. Both databases sync every commit to the disk under `--folder` (default: the current one).
PostgreSQL is started here, on loopback, as the tests do it; its only setting beside the defaults is `shared_buffers`.
"""

from __future__ import annotations

import argparse
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import psycopg
from sqlalchemy import make_url, text

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent.parent / "tests")]

from load import BATCH, NAMESPACES, report, uid  # noqa: E402
from support import openings  # noqa: E402
from support.databases import Postgres  # noqa: E402
from support.ports import free_port  # noqa: E402

from slicekeeper.config.policy import BudgetPolicy, NamespacePolicy  # noqa: E402
from timekeeper.core.caller import OPERATOR  # noqa: E402
from timekeeper.ledger import workload  # noqa: E402
from timekeeper.ledger.books import Books  # noqa: E402
from timekeeper.ledger.usage_report import take  # noqa: E402
from timekeeper.ledger.verify import verify  # noqa: E402
from timekeeper.ledger.workload import Closing, Opening  # noqa: E402
from timekeeper.store.db import migrate  # noqa: E402
from timekeeper.store.db.database import Database  # noqa: E402
from timekeeper.store.db.engine import make_engine  # noqa: E402

NOW = int(time.time() * 1000)
HOUR = 3_600_000
PODS, THREADS, BATCHES, SECONDS, ROUNDS = 10_000, 16, 4, 4, 3
POLICY = NamespacePolicy(budget=BudgetPolicy(amount="1000h", period="month"))
SIZES = (10**3, 10**5, 10**7)


@dataclass
class Made:
    """A database of ours."""

    kind: str
    url: str
    size: Callable[[], int]
    """Its bytes on disk."""


@contextmanager
def made(kind: str, folder: Path) -> Iterator[Made]:
    """Make a migrated database."""
    with ExitStack() as stack:
        if kind == "SQLite":
            file = folder / "timekeeper.sqlite"
            found = Made(kind, f"sqlite:///{file}", lambda: sum(f.stat().st_size for f in folder.glob(f"{file.name}*")))
        else:
            server = Postgres(folder, durable=True)
            server.start()
            stack.callback(server.stop)
            url = server.url(server.make())
            found = Made(kind, url, lambda: int(plain(url, "SELECT pg_database_size(current_database())") or 0))
        engine = make_engine(found.url)
        migrate.upgrade(engine)
        engine.dispose()
        yield found


def plain(url: str, statement: str) -> Any:
    """Run one statement; return its first value."""
    engine = make_engine(url)
    with engine.connect() as connection:
        result = connection.execute(text(statement))
        value = result.scalar() if result.returns_rows else None
        connection.commit()
    engine.dispose()
    return value


def opening(pod: int, start: int, namespace: str = "") -> Opening:
    """Return a pod's opening."""
    made = openings.opening(uid(pod), start, Fraction(1, 2), namespace or f"ns{pod % NAMESPACES}", model="A100")
    return replace(made, pod_name=f"pod-{pod}")


def fill(it: Made, rows: int, live: int) -> None:
    """Write `rows` pods that ended long ago, with their watermarks, then `live` ones that run."""
    book = Books(Database(make_engine(it.url)), "default", carry=False)
    policies = {f"ns{n}": POLICY for n in range(NAMESPACES)}
    workload.apply(book, [opening(pod, NOW - HOUR) for pod in range(live)], [], policies, NOW - HOUR)
    book.database.close()
    if it.kind == "SQLite":
        numbers, key = (
            f"(WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {rows}) SELECT i FROM n)",
            f"printf('%08x-0000-4000-9000-%012x', i * {2**32 // rows - 1}, i)",
        )
    else:
        numbers = f"generate_series(1, {rows}) AS n(i)"
        key = f"lpad(to_hex(i::bigint * {2**32 // rows - 1}), 8, '0') || '-0000-4000-9000-' || lpad(to_hex(i), 12, '0')"
    old = NOW - 400 * 24 * HOUR
    plain(
        it.url,
        f"""INSERT INTO workload (pod_uid, namespace_id, pod_name, node, gpus, holders, gpu_class, shares,
          opened_at, started_at, ended_at, end_source, flags, heard_at) SELECT {key}, i % {NAMESPACES} + 1, 'pod-' || i,
          'n', 'GPU-1', '{{"main"\\:1}}', 'standard', '{{"A100"\\:"1/2"}}', {old} + i, {old} + i, {old} + i + 60000,
          'finished', '', NULL FROM {numbers}""",
    )
    plain(
        it.url,
        f"""INSERT INTO watermark (pod_uid, container, epoch, seq, used_ms, monotonic_ns, received_at)
          SELECT {key}, 'main', 1, 1, 0, 0, {old} + i FROM {numbers}""",
    )
    plain(it.url, "ANALYZE")


# Reports


@contextmanager
def serving(url: str, *more: str) -> Iterator[int]:
    """Run the server as a process of its own, with `more` arguments; give its port."""
    with tempfile.TemporaryFile() as log:
        port = free_port()
        command = [sys.executable, str(HERE / "server.py"), url, str(port), str(THREADS), *more]
        process = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            deadline = time.monotonic() + 60
            while True:
                try:
                    urllib.request.urlopen(f"http://127.0.0.1:{port}/api/v1/openapi.json", timeout=5)
                    break
                except OSError:
                    assert time.monotonic() < deadline, "the server does not answer"
                    time.sleep(0.1)
            yield port
        finally:
            process.terminate()
            process.wait()


@dataclass
class Load:
    """What one generator saw."""

    per_second: float
    p50: float
    p99: float


class Generators:
    """Load generators on one server; sequence numbers go on from one to the next."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._seq = 10

    def run(self, *loads: tuple[str, int]) -> list[Load]:
        """Run generators (kind, connections) side by side."""
        load = [sys.executable, str(HERE / "load.py"), str(self._port)]
        rest = [str(SECONDS), str(PODS), str(self._seq)]
        started = [
            subprocess.Popen([*load, kind, str(connections), *rest], stdout=subprocess.PIPE, text=True)
            for kind, connections in loads
        ]
        found = []
        for process in started:
            printed = process.communicate()[0].split()
            assert process.returncode == 0, printed
            self._seq = max(self._seq, int(printed[4]))
            found.append(Load(int(printed[0]) / float(printed[1]), float(printed[2]), float(printed[3])))
        return found


def plain_upserts(url: str, size: int) -> Callable[[], float]:
    """Return what writes watermarks of `size` pods in one commit after another, and tells how many a second."""
    columns = "(pod_uid, container, epoch, seq, used_ms, monotonic_ns, received_at)"
    moves = (
        "ON CONFLICT (pod_uid, container, epoch) DO UPDATE SET seq = excluded.seq, received_at = excluded.received_at"
    )
    if url.startswith("sqlite"):
        connection: Any = sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None, timeout=60)
        for pragma in ("journal_mode=WAL", "synchronous=FULL"):
            connection.execute(f"PRAGMA {pragma}")
        statement = f"INSERT INTO watermark {columns} VALUES (?, ?, ?, ?, ?, ?, ?) {moves}"
    else:
        connection = psycopg.connect(make_url(url).set(drivername="postgresql").render_as_string(), autocommit=True)
        statement = f"""INSERT INTO watermark {columns} SELECT * FROM unnest(%s::text[], %s::text[], %s::bigint[],
                        %s::bigint[], %s::bigint[], %s::bigint[], %s::bigint[]) {moves}"""
    cursor, turn = connection.cursor(), 0

    def work() -> float:
        nonlocal turn
        begun, done = time.perf_counter(), 0
        while time.perf_counter() - begun < SECONDS:
            turn += 1
            pods = [(turn * size + k) % PODS for k in range(size)]
            rows = sorted((uid(pod), "plain", 1, turn, 0, 0, NOW) for pod in pods)
            cursor.execute("BEGIN IMMEDIATE" if url.startswith("sqlite") else "BEGIN")
            if url.startswith("sqlite"):
                cursor.executemany(statement, rows)
            else:
                cursor.execute(statement, tuple(map(list, zip(*rows, strict=True))))
            cursor.execute("COMMIT")
            done += size
        return done / (time.perf_counter() - begun)

    return work


def measure_reports(it: Made) -> None:
    """Print what reports cost over HTTP."""
    fill(it, 100_000, PODS)
    rows: dict[str, list[float]] = {}
    plain_one, plain_many = plain_upserts(it.url, 1), plain_upserts(it.url, BATCH)
    with serving(it.url) as port:
        generators = Generators(port)
        generators.run(("decision", NAMESPACES))  # the first of a namespace settles all that it ever had
        for _ in range(ROUNDS):
            (bare,) = generators.run(("bare", THREADS))
            (single,) = generators.run(("single", THREADS))
            (batch,) = generators.run(("batch", BATCHES))
            loaded, decision = generators.run(("batch", BATCHES), ("decision", 1))
            for what, value in (
                ("bare view, requests/s", bare.per_second),
                ("single reports/s over HTTP", single.per_second),
                ("single ÷ bare", single.per_second / bare.per_second),
                ("single, p99 ms", single.p99),
                ("plain SQL, one row a commit, rows/s", plain_one()),
                (f"reports/s in batches of {BATCH} over HTTP", batch.per_second * BATCH),
                (f"plain SQL, {BATCH} rows a commit, rows/s", limit := plain_many()),
                ("batches ÷ plain SQL", batch.per_second * BATCH / limit),
                ("reports/s in batches, decisions asked beside them", loaded.per_second * BATCH),
                ("decision under that load, p50 ms", decision.p50),
                ("decision under that load, p99 ms", decision.p99),
            ):
                rows.setdefault(what, []).append(value)
    table(
        it.kind,
        ("", "median", "best"),
        [(what, statistics.median(values), (min if " ms" in what else max)(values)) for what, values in rows.items()],
    )


# Growth


def measure_growth(kind: str, folder: Path) -> None:
    """Print what a report costs with few rows in the tables and with many: databases of all sizes, in turn."""
    with ExitStack() as stack:
        databases = []
        for size in SIZES:
            home = folder / f"{kind}-{size}"
            home.mkdir()
            it = stack.enter_context(made(kind, home))
            fill(it, size, min(size, PODS))
            database = Database(make_engine(it.url))
            stack.callback(database.close)
            databases.append((size, database))
        took: dict[int, list[float]] = {size: [] for size in SIZES}
        live = min(SIZES)
        for turn in range(120):
            for size, database in databases:
                batch = [report((turn * BATCH + k) % live, turn + 2) for k in range(BATCH)]
                begun = time.perf_counter()
                outcomes = take(database, OPERATOR, batch, NOW)
                took[size].append((time.perf_counter() - begun) / BATCH * 1e6)
                assert outcomes[0].outcome == "accepted", outcomes[0]
        medians = {size: statistics.median(values[20:]) for size, values in took.items()}
    table(
        f"{kind}: a report, by rows in the tables",
        ("rows", "µs a report", "÷ fewest"),
        [(f"{size:,}", medians[size], medians[size] / medians[min(SIZES)]) for size in SIZES],
    )


# Pods


def measure_churn(it: Made) -> None:
    """Print what pods cost that open and close, and what of them stays on disk."""
    book = Books(Database(make_engine(it.url)), "default", carry=False)
    policies = {f"ns{n}": POLICY for n in range(NAMESPACES)}
    before, begun = it.size(), time.perf_counter()
    for start in range(0, PODS, BATCH):
        part = range(start, start + BATCH)
        workload.apply(book, [opening(pod, NOW + pod) for pod in part], [], policies, NOW + start + BATCH)
    opened = time.perf_counter()
    for start in range(0, PODS, BATCH):
        ends = [Closing(uid(pod), NOW + 30_000 + pod, "finished") for pod in range(start, start + BATCH)]
        workload.apply(book, [], ends, {}, NOW + 30_000 + start + BATCH)
    closed = time.perf_counter()
    for turn in range(1, 11):
        for start in range(0, PODS, BATCH):
            batch = [report(pod, turn) for pod in range(start, start + BATCH)]
            take(book.database, OPERATOR, batch, NOW + 60_000)
    differences = verify(book.database.engine, carry=False).differences
    book.database.close()
    assert differences == []
    plain_seconds = plain_lives(it)
    rows = [
        ("opened, pods/s", PODS / (opened - begun)),
        ("closed and charged, pods/s", PODS / (closed - opened)),
        ("seconds for all (a minute is allowed)", closed - begun),
        ("the same rows in plain SQL, seconds", plain_seconds),
        ("bytes on disk per pod (workload, charge with two entries, watermark)", (it.size() - before) / PODS / 2),
    ]
    table(f"{it.kind}: {PODS:,} pods that open and close, {BATCH} at a time", ("", "value"), rows)


def plain_lives(it: Made) -> float:
    """Write the rows of as many pods' lives by the driver alone; return the seconds."""
    engine = make_engine(it.url)
    mark = "?" if it.kind == "SQLite" else "%s"
    workload = f"""INSERT INTO workload (pod_uid, namespace_id, pod_name, node, gpus, holders, gpu_class, shares,
        opened_at, started_at, end_source, flags) VALUES ({", ".join([mark] * 12)})"""
    ended = f"UPDATE workload SET ended_at = {mark}, end_source = 'finished' WHERE pod_uid = {mark}"
    txn = f"""INSERT INTO txn (id, namespace_id, kind, idempotency_key, subject, started_at, effective_at, amount_ms,
        booked_at) VALUES ({", ".join([mark] * 9)})"""
    entry = f"INSERT INTO entry (txn_id, account_id, amount_ms) VALUES ({mark}, {mark}, {mark})"
    watermark = f"""INSERT INTO watermark (pod_uid, container, epoch, seq, used_ms, monotonic_ns, received_at)
        VALUES ({", ".join([mark] * 7)})"""
    first = int(plain(it.url, "SELECT max(id) FROM txn")) + 1
    begun = time.perf_counter()
    for start in range(0, PODS, BATCH):
        pods = [PODS + start + k for k in range(BATCH)]
        with engine.begin() as connection:
            connection.exec_driver_sql(workload, [
                (uid(p), p % NAMESPACES + 1, f"pod-{p}", "n", "GPU-1", '{"main":1}', "standard", '{"A100":"1/2"}',
                 NOW, NOW + p, "", "") for p in pods
            ])  # fmt: skip
        with engine.begin() as connection:
            keys = [first + start + k for k in range(BATCH)]
            connection.exec_driver_sql(ended, [(NOW + 30_000 + p, uid(p)) for p in pods])
            connection.exec_driver_sql(txn, [
                (key, p % NAMESPACES + 1, "charge", f"{p % NAMESPACES}:charge:{uid(p)}:{NOW}:{NOW}:15000:0", uid(p),
                 NOW, NOW + 30_000, 15_000, NOW) for key, p in zip(keys, pods, strict=True)
            ])  # fmt: skip
            connection.exec_driver_sql(entry, [(key, side, 15_000) for key in keys for side in (1, 2)])
            connection.exec_driver_sql(watermark, [(uid(p), "main", 1, 10, 0, 0, NOW) for p in pods])
    engine.dispose()
    return time.perf_counter() - begun


def table(title: str, head: tuple[str, ...], rows: list[tuple[Any, ...]]) -> None:
    """Print a table in Markdown."""
    print(f"\n{title}\n\n| {' | '.join(head)} |\n| --- |{' ---: |' * (len(head) - 1)}")
    for row in rows:
        cells = [
            f"{c:,.0f}" if isinstance(c, float) and c >= 100 else f"{c:.2f}" if isinstance(c, float) else c for c in row
        ]
        print(f"| {' | '.join(map(str, cells))} |", flush=True)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("what", nargs="*", default=["reports", "growth", "churn"])
    parser.add_argument("--folder", default=str(Path.cwd()))
    given = parser.parse_args()
    for what in given.what:
        for kind in ("SQLite", "PostgreSQL"):
            with tempfile.TemporaryDirectory(dir=given.folder, prefix="slicekeeper-bench-") as folder:
                Path(folder).chmod(0o755)
                if what == "growth":
                    measure_growth(kind, Path(folder))
                else:
                    with made(kind, Path(folder)) as it:
                        {"reports": measure_reports, "churn": measure_churn}[what](it)


if __name__ == "__main__":
    main()
