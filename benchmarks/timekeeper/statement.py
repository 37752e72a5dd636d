# SPDX-License-Identifier: Apache-2.0
"""What a namespace costs that had a million pods in one month: whatever reads its ledger, and one pod more.

    .venv/bin/python benchmarks/timekeeper/statement.py [--intervals N] [--folder PATH] [KIND]…

The first pod and the last thousand go through the product's own books. The others are written by SQL, with the charges
and the anchor that follow from them, and `verify` must find no difference in the whole. Requests go to a server of its
own process, commands are processes; a peak is the most memory that such a process had resident meanwhile.
"""

from __future__ import annotations

import argparse
import http.client
import multiprocessing
import os
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.parse
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
from ledger import Made, made, opening, plain, serving, table
from load import HEADERS, uid
from sqlalchemy import text
from sqlalchemy.orm import Session

from slicekeeper.namespace_policy import BudgetPolicy, NamespacePolicy
from slicekeeper.units import format_instant
from timekeeper.books import ANCHORS_KEPT, Books, Closing
from timekeeper.periods import bounds
from timekeeper.store import namespaces
from timekeeper.store.database import Database
from timekeeper.store.engine import make_engine
from timekeeper.store.models import Base

MINUTE = 60_000
START, END = bounds(1_790_000_000_000, "month", "UTC") or (0, 0)
LAST = END - 120 * MINUTE
"""Where the bulk ends; the pods of the books begin then."""
NOW = END - 30 * MINUTE
NAMESPACE, RUNNING, STEP, LONGEST = "ns0", 500, 100, 30 * MINUTE
POLICY = {NAMESPACE: NamespacePolicy(budget=BudgetPolicy(amount="9000000h", period="month"))}
MONTH = urllib.parse.urlencode({"from": format_instant(START), "to": format_instant(END)})


# The month


def fill(it: Made, pods: int) -> None:
    """Write the month; half of the pods of its last two hours still run."""
    book = Books(Database(make_engine(it.url)), "default", carry=False)
    book.apply([opening(0, START, NAMESPACE)], [Closing(uid(0), START + 1_000, "finished")], POLICY, START + 2_000)
    state = book.require(NAMESPACE).at(LAST)
    total = bulk(it, pods)
    state.period.left -= total
    state.used += total

    def settle(session: Session) -> None:
        namespaces.keep_anchors(session, 1, [state], ANCHORS_KEPT)
        namespaces.touch(session, 1)
        namespaces.settled(session, 1, LAST)

    book.database.write(settle)
    late = range(10**8, 10**8 + 2 * RUNNING)
    for at in range(0, len(late), STEP):
        book.apply([opening(p, LAST + p - late[0], NAMESPACE) for p in late[at : at + STEP]], [], POLICY, LAST + 2_000)
    for at in range(0, RUNNING, STEP):
        ends = [Closing(uid(p), LAST + 5 * MINUTE + p - late[0], "finished") for p in late[at : at + STEP]]
        book.apply([], ends, POLICY, NOW - MINUTE)
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
    gap = (LAST - START - 10_000 - LONGEST) // max(pods, 1)
    begun, lasted = f"({START + 10_000} + i * {gap})", f"({LONGEST} - i * 7919 % 600000)"
    ended, charge = f"({begun} + {lasted})", f"(({lasted} + 1) / 2)"
    accounts = {kind: plain(it.url, f"SELECT id FROM account WHERE namespace_id = 1 AND kind = '{kind}'")
                for kind in ("budget", "charged")}  # fmt: skip
    txn = int(plain(it.url, "SELECT max(id) FROM txn"))
    engine = make_engine(it.url)
    indexes = [one for name in ("workload", "txn", "entry") for one in Base.metadata.tables[name].indexes]
    with engine.connect() as connection:
        if it.kind == "SQLite":
            connection.exec_driver_sql("PRAGMA cache_size=-200000")
        for index in indexes:
            index.drop(connection)
        for statement in (
            f"""INSERT INTO workload (pod_uid, namespace_id, pod_name, node, gpus, holders, gpu_class, shares, opened_at,
                started_at, ended_at, end_source, flags, models, gpus_ppm) SELECT {key}, 1, 'pod-' || i, 'n', 'GPU-1',
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
        ):  # fmt: skip
            connection.execute(text(statement))
            connection.commit()
        for index in indexes:
            index.create(connection)
        for kind, sign in (("budget", "-"), ("charged", "+")):
            change = f"UPDATE account SET balance_ms = balance_ms {sign} (SELECT coalesce(sum({charge}), 0) FROM {numbers} AS m)"
            connection.execute(text(f"{change} WHERE id = {accounts[kind]}"))
        if it.kind == "PostgreSQL":
            connection.execute(text("SELECT setval(pg_get_serial_sequence('txn', 'id'), max(id)) FROM txn"))
        found = connection.execute(text(f"SELECT coalesce(sum({charge}), 0) FROM {numbers} AS m")).scalar_one()
        connection.commit()
    engine.dispose()
    return int(found)


# Requests


class Client:
    """Asks one server, and tells what that took."""

    def __init__(self, port: int) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
        self.rows: list[tuple[str, float, float, float]] = []

    def get(self, path: str) -> Any:
        """Return an answer."""
        self._connection.request("GET", path, headers=HEADERS)
        answer = self._connection.getresponse()
        body = answer.read()
        assert answer.status == 200, body[:500]
        return msgspec.json.decode(body) if answer.headers["Content-Type"] == "application/json" else body

    def measure(self, what: str, path: str, limit: str | None = None, times: int = 3) -> Any:
        """Note the fastest answer's seconds, the server's peak in MiB, and what it is of plain SQL's seconds."""
        self.get("/peak")
        took = []
        for _ in range(times):
            begun = time.perf_counter()
            answer = self.get(path)
            took.append(time.perf_counter() - begun)
            if took[-1] > 2:
                break
        peak = self.get("/peak")["peak"] / 2**20
        print(f"  {what}: {min(took):.4f} s {peak:.0f} MiB", file=sys.stderr, flush=True)
        self.rows.append((what, min(took), peak, 0.0))
        return answer


def cursor(place: object) -> str:
    """Return a page's cursor, as the server makes it."""
    import base64

    return "&cursor=" + urllib.parse.quote(base64.urlsafe_b64encode(msgspec.json.encode(place)).decode())


def ask(it: Made, pods: int) -> None:
    with serving(it.url, str(NOW)) as port:
        client = Client(port)
        begun = time.perf_counter()
        client.measure("restart: first budget", f"/api/v1/budgets/{NAMESPACE}", times=1)
        client.measure("budget", f"/api/v1/budgets/{NAMESPACE}")
        client.measure("decision", f"/api/v1/decisions/{NAMESPACE}")
        client.measure("decisions", f"/api/v1/decisions")
        ns = f"/api/v1/budgets/{NAMESPACE}"
        client.measure("statement, first page", f"{ns}/statement?limit=500&{MONTH}")
        client.measure("statement, middle", f"{ns}/statement?limit=500&{MONTH}{cursor('80000000')}")
        client.measure("statement, last", f"{ns}/statement?limit=500&{MONTH}{cursor('fff00000')}")
        client.measure("statement, csv", f"{ns}/statement?format=csv&{MONTH}", times=1)
        client.measure("periods", f"{ns}/periods")
        client.measure("entries, first page", f"{ns}/entries?limit=500")
        client.measure("entries, middle", f"{ns}/entries?limit=500{cursor(pods)}")
        client.measure("entries, last", f"{ns}/entries?limit=500{cursor(2 * pods)}")
        wl = f"/api/v1/workloads?limit=500&namespace={NAMESPACE}"
        client.measure("workloads, first page", wl)
        client.measure("workloads, middle", wl + cursor([(START + LAST) // 2, ""]))
        client.measure("workloads, last", wl + cursor([START + 10_000_000, ""]))
        for group in ("namespace", "model", "workload"):
            us = f"/api/v1/usage?namespace={NAMESPACE}&groupBy={group}&limit=500&{MONTH}"
            client.measure(f"usage month by {group}", us + "&bucket=month", times=1)
        client.measure(f"usage month by workload, middle", us + "&bucket=month" + cursor([0, "80000000"]), times=1)
        day = urllib.parse.urlencode(
            {"from": format_instant(START + 15 * 86_400_000), "to": format_instant(START + 16 * 86_400_000)}
        )
        client.measure("usage of a day by hour", f"/api/v1/usage?namespace={NAMESPACE}&bucket=hour&{day}", times=1)
        client.measure("usage month by day", f"/api/v1/usage?namespace={NAMESPACE}&bucket=day&{MONTH}", times=1)
        client.measure("metrics", "/metrics", times=1)
        client.measure("usage of the namespace", f"/api/v1/usage/{NAMESPACE}", times=1)


def command(it: Made, *words: str) -> None:
    begun = time.perf_counter()
    with tempfile.TemporaryFile() as out:
        process = subprocess.Popen(
            [str(Path(sys.executable).parent / "slicekeeper"), "timekeeper", *words],
            stdout=out,
            stderr=sys.stderr,
            env={**os.environ, "SLICEKEEPER_TIMEKEEPER_DATABASE": it.url},
        )
        _, status, usage = os.wait4(process.pid, 0)
        out.seek(0)
        print(
            "  ",
            words,
            status,
            f"{time.perf_counter() - begun:.2f} s, cpu {usage.ru_utime + usage.ru_stime:.1f}, {usage.ru_maxrss / 1024:.0f} MiB",
            out.read(200),
            file=sys.stderr,
            flush=True,
        )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("kinds", nargs="*", default=["SQLite", "PostgreSQL"])
    parser.add_argument("--intervals", type=int, default=1_000_000)
    parser.add_argument("--folder", default=str(Path.cwd()))
    given = parser.parse_args()
    for kind in given.kinds:
        with tempfile.TemporaryDirectory(dir=given.folder, prefix="slicekeeper-bench-") as folder:
            Path(folder).chmod(0o755)
            with made(kind, Path(folder)) as it:
                begun = time.perf_counter()
                filling = multiprocessing.get_context("fork").Process(target=fill, args=(it, given.intervals))
                filling.start()
                filling.join()
                assert filling.exitcode == 0
                print(kind, "fill", time.perf_counter() - begun, file=sys.stderr)
                ask(it, given.intervals)
                command(it, "verify")
                command(it, "explain", NAMESPACE, "--at", format_instant(NOW))
                command(it, "dump", folder + "/dump")


if __name__ == "__main__":
    main()
