# SPDX-License-Identifier: Apache-2.0
"""What a namespace costs that had a million pods in one month: whatever reads its ledger, and one pod more.

    .venv/bin/python benchmarks/timekeeper/statement.py [--intervals N] [--folder PATH] [KIND]…

The first pod and the last thousand go through the product's own books. The others are written by SQL, with the charges
and the anchor that follow from them, and `verify` must find no difference in the whole. Requests go to a server of its
own process, commands are processes; a peak is the most memory that such a process had resident meanwhile.
"""

from __future__ import annotations

import argparse
import base64
import http.client
import multiprocessing
import os
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.parse
from collections import deque
from pathlib import Path
from typing import Any

import msgspec
from ledger import Made, made, opening, plain, serving, table
from load import HEADERS, uid
from sqlalchemy import text
from sqlalchemy.orm import Session

from slicekeeper.config.policy import BudgetPolicy, NamespacePolicy
from slicekeeper.units import format_instant
from timekeeper.core.period import bounds
from timekeeper.ledger import workload
from timekeeper.ledger.books import Books
from timekeeper.ledger.settlement import CHECKPOINTS_KEPT
from timekeeper.ledger.workload import Closing
from timekeeper.store import timelines
from timekeeper.store.accounts import bump_version, mark_settled
from timekeeper.store.db.database import Database
from timekeeper.store.db.engine import make_engine
from timekeeper.store.db.models import Base

MINUTE, DAY = 60_000, 86_400_000
START, END = bounds(1_790_000_000_000, "month", "UTC") or (0, 0)
LAST = END - 120 * MINUTE
"""Where the bulk ends; the pods of the books begin then."""
NOW = END - 30 * MINUTE
NAMESPACE, OTHER = "ns0", "ns1"
RUNNING, STEP, LONGEST = 500, 100, 30 * MINUTE
POLICY = dict.fromkeys((NAMESPACE, OTHER), NamespacePolicy(budget=BudgetPolicy(amount="9000000h", period="month")))


def interval(start: int, end: int) -> str:
    """Return an interval of a query."""
    return urllib.parse.urlencode({"from": format_instant(start), "to": format_instant(end)})


MONTH = interval(START, END)

# The month


def fill(it: Made, pods: int) -> None:
    """Write the month; half of the pods of its last two hours still run."""
    book = Books(Database(make_engine(it.url)), "default", carry=False)
    workload.apply(
        book, [opening(0, START, NAMESPACE)], [Closing(uid(0), START + 1_000, "finished")], POLICY, START + 2_000
    )
    state = book.require(NAMESPACE).at(LAST)
    total = bulk(it, pods)
    state.period.left -= total
    state.used += total

    def settle(session: Session) -> None:
        timelines.keep_checkpoints(session, 1, [state], CHECKPOINTS_KEPT)
        bump_version(session, 1)
        mark_settled(session, 1, LAST)

    book.database.write(settle)
    for name, first in ((NAMESPACE, 10**8), (OTHER, 10**8 + 10**6)):
        late = range(first, first + 2 * RUNNING)
        for at in range(0, len(late), STEP):
            workload.apply(
                book, [opening(p, LAST + 1 + p - first, name) for p in late[at : at + STEP]], [], POLICY, LAST + 2_000
            )
        for at in range(0, RUNNING, STEP):
            ends = [Closing(uid(p), LAST + 5 * MINUTE + p - first, "finished") for p in late[at : at + STEP]]
            workload.apply(book, [], ends, POLICY, NOW - MINUTE)
    book.database.close()
    plain(it.url, "ANALYZE")


def bulk(it: Made, pods: int) -> int:
    """Write pods that ran 20 to 30 minutes each, spread over the month, and their charges; return the sum of these."""
    if it.kind == "SQLite":
        numbers = f"(WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {pods}) SELECT i FROM n)"
        key = "printf('%08x-0000-4000-8000-%012x', i * 2654435761 % 4294967296, i)"
    else:
        numbers = f"(SELECT i::bigint AS i FROM generate_series(1, {pods}) AS g(i))"
        key = "lpad(to_hex(i * 2654435761 % 4294967296), 8, '0') || '-0000-4000-8000-' || lpad(to_hex(i), 12, '0')"
    gap = (LAST - START - 10_000 - LONGEST) // pods
    begun, lasted = f"({START + 10_000} + i * {gap})", f"({LONGEST} - i * 7919 % 600000)"
    ended, charge = f"({begun} + {lasted})", f"(({lasted} + 1) / 2)"
    accounts = {
        kind: plain(it.url, f"SELECT id FROM account WHERE namespace_id = 1 AND kind = '{kind}'")
        for kind in ("budget", "charged")
    }
    txn = int(plain(it.url, "SELECT max(id) FROM txn"))
    engine = make_engine(it.url)
    indexes = [one for name in ("workload", "txn", "entry") for one in Base.metadata.tables[name].indexes]
    with engine.connect() as connection:
        if it.kind == "SQLite":
            connection.exec_driver_sql("PRAGMA cache_size=-200000")
        for index in indexes:
            index.drop(connection)
        for statement in (
            f"""INSERT INTO workload (pod_uid, namespace_id, pod_name, node, gpus, holders, gpu_class, shares,
                opened_at, started_at, ended_at, end_source, flags, models, gpus_ppm)
                SELECT {key}, 1, 'pod-' || i, 'n', 'GPU-1',
                '{{"main"\\:1}}', 'standard', '{{"A100"\\:"1/2"}}', {begun} + 500, {begun}, {ended}, 'finished', '',
                'A100', 500000 FROM {numbers} AS m ORDER BY 1""",
            f"""INSERT INTO watermark (pod_uid, container, epoch, seq, used_ms, monotonic_ns, received_at, hour,
                hour_base, observed_ms) SELECT {key}, 'main', 1, 100, {lasted} / 2, {lasted} * 1000000, {ended},
                {ended} / 3600000 * 3600000, 0, {lasted} FROM {numbers} AS m ORDER BY 1""",
            f"""INSERT INTO txn (id, namespace_id, kind, idempotency_key, subject, started_at, effective_at, amount_ms,
                booked_at) SELECT {txn} + i, 1, 'charge', '1:charge:' || {key} || ':' || {begun} || ':' || {ended} ||
                ':' || {charge} || '\\:0', {key}, {begun}, {ended}, {charge}, {ended} + 700 FROM {numbers} AS m""",
            f"""INSERT INTO entry (txn_id, account_id, amount_ms) SELECT {txn} + i, {accounts["budget"]}, -{charge}
                FROM {numbers} AS m UNION ALL SELECT {txn} + i, {accounts["charged"]}, {charge} FROM {numbers} AS m
                ORDER BY 1, 2""",
        ):
            connection.execute(text(statement))
            connection.commit()
        for index in indexes:
            index.create(connection)
        for kind, sign in (("budget", "-"), ("charged", "+")):
            change = f"UPDATE account SET balance_ms = balance_ms {sign} (SELECT sum({charge}) FROM {numbers} AS m)"
            connection.execute(text(f"{change} WHERE id = {accounts[kind]}"))
        if it.kind == "PostgreSQL":
            connection.execute(text("SELECT setval(pg_get_serial_sequence('txn', 'id'), max(id)) FROM txn"))
        found = connection.execute(text(f"SELECT sum({charge}) FROM {numbers} AS m")).scalar_one()
        connection.commit()
    engine.dispose()
    return int(found)


# What is measured


class Rows:
    """Measured rows: what, seconds, the process's CPU seconds and peak in MiB, the same in plain SQL, and the ratio."""

    def __init__(self, url: str) -> None:
        self._engine = make_engine(url)
        self.rows: list[tuple[Any, ...]] = []

    def add(self, what: str, seconds: float, cpu: float, peak: int, statement: str = "") -> None:
        """Note what was measured, and run the plain statement beside it."""
        limit: float | None = None
        if statement:
            begun = time.perf_counter()
            with self._engine.connect() as connection:
                streamed = connection.execution_options(yield_per=1000).execute(text(statement))
                deque(streamed, maxlen=0)
            limit = time.perf_counter() - begun
        shown = ("", "") if limit is None else (f"{limit:.3f}", f"{seconds / limit:.1f}")
        self.rows.append((what, f"{seconds:.3f}", f"{cpu:.3f}", f"{peak / 2**20:.0f}", *shown))
        print(self.rows[-1], file=sys.stderr, flush=True)


def ask(it: Made, rows: Rows, pods: int) -> None:
    """Ask a server that has just begun."""
    span = f"namespace_id = 1 AND effective_at > {START} AND effective_at <= {END}"
    by_pod = f"SELECT subject, sum(amount_ms), count(*) FROM txn WHERE {span} AND kind = 'charge' AND subject > '{{}}'"
    entries = "SELECT * FROM entry WHERE account_id = 2 AND id > {} ORDER BY id LIMIT 500"
    workloads = "SELECT * FROM workload WHERE namespace_id = 1 AND started_at < {} ORDER BY started_at DESC LIMIT 500"
    held = """SELECT count(*), sum(w.ended_at - w.started_at), sum(m.used_ms), sum(m.observed_ms) FROM workload w
               JOIN watermark m ON m.pod_uid = w.pod_uid WHERE w.namespace_id = 1 AND w.ended_at > {}
               AND w.started_at < {}"""
    budget, places = f"/api/v1/budgets/{NAMESPACE}", f"/api/v1/workloads?limit=500&namespace={NAMESPACE}"
    usage, day = f"/api/v1/usage?limit=500&namespace={NAMESPACE}", START + 15 * DAY
    at = {"first": "", "middle": "80000000", "last": "fff00000"}
    with serving(it.url, str(NOW)) as port:
        client = Client(port)

        def measure(what: str, path: str, statement: str = "", *, times: int = 3) -> None:
            rows.add(what, *client.fastest(path, times), statement)

        measure("first budget after a restart", budget, times=1)
        measure("budget", budget)
        measure("decision", f"/api/v1/decisions/{NAMESPACE}")
        sums = f"SELECT kind, count(*), sum(amount_ms) FROM txn WHERE {span} GROUP BY kind"
        measure("statement of the month, first page", f"{budget}/statement?limit=500&{MONTH}", sums)
        for place in ("middle", "last"):
            path = f"{budget}/statement?limit=500&{MONTH}{cursor(at[place])}"
            plainly = f"{by_pod.format(at[place])} GROUP BY subject ORDER BY subject LIMIT 500"
            measure(f"statement, {place} page", path, plainly)
        path = f"{budget}/statement?format=csv&{MONTH}"
        measure(
            "statement of the month as CSV", path, f"{by_pod.format('')} GROUP BY subject ORDER BY subject", times=1
        )
        measure("periods", f"{budget}/periods", sums)
        for place, after in (("first", 0), ("middle", pods), ("last", 2 * pods - 1000)):
            path = f"{budget}/entries?limit=500{cursor(after)}"
            measure(f"entries, {place} page", path, entries.format(after))
        for place, before in (("first", END), ("middle", (START + LAST) // 2), ("last", START + 30 * MINUTE)):
            measure(f"workloads, {place} page", places + cursor([before, ""]), workloads.format(before))
        for group in ("namespace", "model"):
            path = f"{usage}&bucket=month&groupBy={group}&{MONTH}"
            measure(f"usage of the month by {group}", path, held.format(START, END), times=1)
        for place, after_uid in at.items():
            path = f"{usage}&bucket=month&groupBy=workload&{MONTH}{cursor([0, after_uid])}"
            measure(f"usage of the month by workload, {place} page", path, times=1)
        path = f"{usage}&bucket=day&{MONTH}"
        measure("usage of the month by day", path, held.format(START, END), times=1)
        path = f"{usage}&bucket=hour&{interval(day, day + DAY)}"
        measure("usage of a past day by hour", path, held.format(day, day + DAY), times=1)
        path = f"{usage}&bucket=hour&{interval(LAST - DAY, LAST)}"
        measure("usage of the last day by hour", path, held.format(LAST - DAY, LAST), times=1)
        measure("usage of the period", f"/api/v1/usage/{NAMESPACE}", held.format(START, END), times=1)
        measure("metrics", "/metrics", times=1)


class Client:
    """Asks one server."""

    def __init__(self, port: int) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600)

    def fastest(self, path: str, times: int) -> tuple[float, float, int]:
        """Return the fastest answer's seconds, the server's CPU seconds for one, and its peak in bytes."""
        before = msgspec.json.decode(self._get("/peak"))
        took = []
        for _ in range(times):
            begun = time.perf_counter()
            self._get(path)
            took.append(time.perf_counter() - begun)
        after = msgspec.json.decode(self._get("/peak"))
        return min(took), (after["cpu"] - before["cpu"]) / times, after["peak"]

    def _get(self, path: str) -> bytes:
        self._connection.request("GET", path, headers=HEADERS)
        answer = self._connection.getresponse()
        body = answer.read()
        assert answer.status == 200, body[:500]
        return body


def cursor(place: object) -> str:
    """Return the cursor of a page, as the server writes it; empty for the first page."""
    return "&cursor=" + urllib.parse.quote(base64.urlsafe_b64encode(msgspec.json.encode(place))) if place else ""


def run(rows: Rows, url: str, what: str, *words: str, statement: str = "") -> None:
    """Run a command."""
    program = [str(Path(sys.executable).parent / "slicekeeper"), "timekeeper", *words]
    begun = time.perf_counter()
    with tempfile.TemporaryFile() as out:
        environment = {**os.environ, "SLICEKEEPER_TIMEKEEPER_DATABASE": url}
        process = subprocess.Popen(program, stdout=out, stderr=out, env=environment)
        _, status, used = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - begun
        out.seek(0)
        assert status == 0, out.read(2000)
    rows.add(f"`timekeeper {what}`", seconds, used.ru_utime + used.ru_stime, used.ru_maxrss * 1024, statement)


def book_more(it: Made) -> list[tuple[Any, ...]]:
    """Return what a pod costs that opens and closes, in the namespace of the month and in one without its past."""
    books = Books(Database(make_engine(it.url)), "default", carry=False)
    took: dict[str, list[float]] = {NAMESPACE: [], OTHER: []}
    for pod in range(2 * 10**8, 2 * 10**8 + 40):
        for number, name in enumerate(took):
            begun, one = time.perf_counter(), pod + 1000 * number
            workload.apply(books, [opening(one, NOW + pod % 1000, name)], [], POLICY, NOW + pod % 1000)
            workload.apply(
                books, [], [Closing(uid(one), NOW + pod % 1000 + 1, "finished")], POLICY, NOW + pod % 1000 + 1
            )
            took[name].append(time.perf_counter() - begun)
    books.database.close()
    mine, other = (statistics.median(found) * 1000 for found in took.values())
    return [
        ("a pod opened and closed, ms", mine),
        ("the same in a namespace without a past, ms", other),
        ("ratio", mine / other),
    ]


def measure(kind: str, folder: Path, pods: int) -> None:
    """Measure one kind of database."""
    folder.chmod(0o755)
    with made(kind, folder) as it:
        begun = time.perf_counter()
        filling = multiprocessing.get_context("fork").Process(target=fill, args=(it, pods))  # its memory is not ours
        filling.start()
        filling.join()
        assert filling.exitcode == 0
        filled = time.perf_counter() - begun
        rows, dumped = Rows(it.url), str(folder / "dump")
        ask(it, rows, pods)
        read = "SELECT * FROM {} ORDER BY 1"
        run(rows, it.url, "verify", "verify", statement=read.format("txn"))
        run(rows, it.url, "explain", "explain", NAMESPACE, "--at", format_instant(NOW), statement=read.format("txn"))
        run(rows, it.url, "dump", "dump", dumped, statement=read.format("entry"))
        (folder / "restored").mkdir(mode=0o755)
        with made(kind, folder / "restored") as other:
            run(rows, other.url, "restore", "restore", dumped)
        head = ("", "s", "CPU s", "peak MiB", "plain SQL, s", "÷ plain SQL")
        table(f"{kind}: a namespace with {pods:,} pods in a month (written in {filled:.0f} s)", head, rows.rows)
        table(f"{kind}: one pod more", ("", "median"), book_more(it))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("kinds", nargs="*", default=["SQLite", "PostgreSQL"])
    parser.add_argument("--intervals", type=int, default=1_000_000)
    parser.add_argument("--folder", default=str(Path.cwd()))
    given = parser.parse_args()
    for kind in given.kinds:
        with tempfile.TemporaryDirectory(dir=given.folder, prefix="slicekeeper-bench-") as folder:
            measure(kind, Path(folder), given.intervals)


if __name__ == "__main__":
    main()
