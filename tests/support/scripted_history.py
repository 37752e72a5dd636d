# SPDX-License-Identifier: Apache-2.0
"""A history of a ledger, step by step, that can be killed at a commit and resumed, and its expected result.

Every step is one transaction, which a client or the controller would send again if it was not acknowledged.
Run as a program, it forks a process for each line of its input, so that each can be killed as `kill -9` does:
`{"url", "step", "die": ["before" | "after", n] | null}` → `{"done", "signal"}`, the steps acknowledged in all. It dies
at the first commit after `n` acknowledged steps.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from fractions import Fraction
from pathlib import Path
from typing import Any

from sqlalchemy import Engine, text

from slicekeeper.config.policy import BudgetPolicy, NamespacePolicy
from slicekeeper.errors import Conflict
from slicekeeper.wire.timekeeper import UsageReport
from timekeeper.core.budget_record import Rule
from timekeeper.core.caller import OPERATOR
from timekeeper.ledger import movement, rate, seal, settlement, workload
from timekeeper.ledger.account import AccountRef
from timekeeper.ledger.books import Books
from timekeeper.ledger.budget import follow_policy, set_budget, set_status
from timekeeper.ledger.debt import follow_debt
from timekeeper.ledger.movement import Order
from timekeeper.ledger.refund import refund_pod
from timekeeper.ledger.usage_report import take
from timekeeper.ledger.verify import verify
from timekeeper.ledger.workload import Closing, Opening
from timekeeper.store.db import migrate
from timekeeper.store.db.database import Database
from timekeeper.store.db.engine import make_engine

T0 = 1_767_225_600_000
HOUR = 3_600_000
POLICY = NamespacePolicy(budget=BudgetPolicy(amount="20s", period="hour"))
CHANGED = NamespacePolicy(budget=BudgetPolicy(amount="25s", period="hour"))
TEAM, OTHER = AccountRef("uid-team", "team", POLICY), AccountRef("uid-other", "other", POLICY)

Step = Callable[[Books], object]


def opening(uid: str, at: int, share: Fraction, namespace: str = "team") -> Opening:
    return Opening(
        uid, uid, namespace, f"uid-{namespace}", "n", ("GPU-1",), '{"main":1}', "standard", {"A100": share}, at, ()
    )


def tell(now: int, *openings: Opening, ends: dict[str, int] | None = None) -> Step:
    """Return the step of a controller that sees pods begin and end."""
    closings = [Closing(uid, at, "finished") for uid, at in (ends or {}).items()]
    return lambda books: workload.apply(books, openings, closings, {"team": POLICY, "other": POLICY}, now)


def order(key: str, amount: int, now: int) -> Order:
    return Order(amount, "why", key, str(amount).encode(), "me", now)


def grant(key: str, amount: int, now: int, end: int | None = None) -> Step:
    return lambda books: movement.grant(books, TEAM, order(key, amount, now), valid_from=now, valid_to=end)


def report(pod: str, seq: int) -> UsageReport:
    return UsageReport(
        namespace="team",
        pod_name=pod,
        pod_uid=pod,
        container="main",
        epoch=1,
        seq=seq,
        used_ms=seq * 10,
        monotonic_ns=seq * 10**9,
    )


def debt(now: int, *, carry: bool) -> Step:
    """Return the step of a controller whose `timekeeper.debt` says so."""
    return lambda books: follow_debt(Books(books.database, "default", carry=carry), now)


def burst(books: Books) -> None:
    """Five clients at once, in one commit: another transaction blocks the writer until all have queued."""
    database, begun, all_wait = books.database, threading.Event(), threading.Event()

    def hold_up(_session: object) -> None:
        begun.set()
        all_wait.wait(60)
        raise Conflict("nothing is written", 409, "nothing")

    def holder() -> None:
        with suppress(Conflict):
            database.write(hold_up)

    with ThreadPoolExecutor(6) as clients:
        first = clients.submit(holder)
        begun.wait(60)
        rest, deadline = [], time.monotonic() + 60
        for number in range(5):  # one after the other: the ledger shows in which order they came
            rest.append(clients.submit(grant(f"burst-{number}", 100 + number, T0 + 50_000), books))
            while database._work.qsize() < len(rest) and time.monotonic() < deadline:
                time.sleep(0.001)
        all_wait.set()
        for one in (first, *rest):
            one.result(60)


STEPS: tuple[Step, ...] = (
    tell(T0 + 1_000, opening("a", T0, Fraction(1, 3)), opening("b", T0 + 500, Fraction(3, 2))),
    grant("expires-inside-b", 4_000, T0 + 2_000, T0 + 9_000),
    lambda books: rate.set_rate(
        books, "A100", Fraction(4, 3), since=T0 + 6_000, reason="r", actor="me", now=T0 + 3_000
    ),
    tell(T0 + 4_000, opening("c", T0 + 3_100, Fraction(1, 7), "other"), opening("a", T0, Fraction(1, 3))),
    lambda books: movement.transfer(books, TEAM, OTHER, order("t", 2_000, T0 + 5_000), valid_to=None),
    lambda books: take(books.database, OPERATOR, [report("a", 1), report("b", 3), report("b", 2)], T0 + 6_000),
    tell(T0 + 20_000, ends={"a": T0 + 7_777}),
    lambda books: settlement.settle(books, [p.account.id for p in books.standings()], T0 + 25_000),  # team has run out
    lambda books: movement.adjust(books, OTHER, order("adjust", -500, T0 + 26_000)),
    lambda books: movement.grant(
        books, OTHER, order("expires-unused", 5_000, T0 + 27_000), valid_from=T0 + 27_000, valid_to=T0 + 29_000
    ),
    lambda books: refund_pod(books, TEAM, order("refund", 1_000, T0 + 30_000), pod_uid="a"),
    lambda books: set_budget(
        books, OTHER, Rule(T0 + 31_000, 9_000, "day", "Europe/Berlin", 100, 50), actor="me", if_match=None
    ),
    lambda books: set_status(books, TEAM, "suspended", reason="r", actor="me", now=T0 + 32_000),
    debt(T0 + 33_000, carry=False),
    debt(T0 + 35_000, carry=True),
    lambda books: set_status(books, TEAM, "active", reason="r", actor="me", now=T0 + 40_000),
    lambda books: follow_policy(books, {"team": CHANGED, "other": CHANGED}, T0 + 45_000),
    burst,
    tell(T0 + HOUR + 9_000, opening("d", T0 + HOUR - 3_000, Fraction(1)), ends={"b": T0 + 60_000}),
    tell(T0 + HOUR + 30_000, ends={"c": T0 + HOUR + 20_000, "d": T0 + HOUR + 21_001}),
    lambda books: seal.seal_due(books, HOUR, T0 + 3 * HOUR),
    tell(T0 + 3 * HOUR, opening("late", T0 + 1_500, Fraction(1, 2)), ends={"late": T0 + 8_500}),
)


def run(books: Books, acknowledge: Callable[[], object], first: int = 0) -> None:
    """Do the steps from one on."""
    for step in STEPS[first:]:
        step(books)
        acknowledge()


_DIGEST = {
    "bookings": """SELECT n.name, t.kind, t.subject, t.started_at, t.effective_at, t.amount_ms, t.booked_at,
        (SELECT count(*) FROM txn u WHERE u.reverses = t.id), a.kind, e.amount_ms FROM txn t
        JOIN namespace n ON n.id = t.namespace_id LEFT JOIN entry e ON e.txn_id = t.id
        LEFT JOIN account a ON a.id = e.account_id""",
    "balances": "SELECT n.name, a.kind, a.balance_ms FROM account a JOIN namespace n ON n.id = a.namespace_id",
    "pods": "SELECT pod_uid, started_at, ended_at, end_source, flags FROM workload",
    "watermarks": "SELECT pod_uid, epoch, seq, used_ms FROM watermark",
    "rules": """SELECT n.name, r.effective_at, r.amount_ms, r.period, r.credit_ms, r.status, r.source FROM budget_rule r
        JOIN namespace n ON n.id = r.namespace_id""",
    "grants": """SELECT n.name, g.kind, g.amount_ms, g.valid_from, g.valid_to, g.actor FROM budget_grant g
        JOIN namespace n ON n.id = g.namespace_id""",
    "debts": "SELECT cluster, effective_at, debt FROM debt_rule",
    "prices": "SELECT model, numerator, denominator, effective_at FROM rate",
    "audit": "SELECT actor, action, namespace, at FROM audit",
}


def digest(engine: Engine) -> dict[str, list[list[Any]]]:
    """Return all that a ledger says, in one order; numbers of rows, which a transaction undone may skip, left out."""
    with engine.connect() as connection:
        found = {name: connection.execute(text(query)).all() for name, query in _DIGEST.items()}
    numbered = re.compile(r"^(grant|refund|adjustment|transfer):\d+$")
    rows = {
        name: [[numbered.sub(r"\1", cell) if isinstance(cell, str) else cell for cell in row] for row in rows]
        for name, rows in found.items()
    }
    return {name: sorted(kept, key=repr) for name, kept in rows.items()}


def checked(url: str) -> dict[str, list[list[Any]]]:
    """Return the digest of a ledger in which `verify` finds nothing."""
    engine = make_engine(url)
    try:
        assert verify(engine, carry=False).differences == []
        return digest(engine)
    finally:
        engine.dispose()


# Killed and taken up again


class Zygote:
    """The program below, as a process: it has everything imported, so that a fork costs milliseconds."""

    def __init__(self) -> None:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, map(str, sys.path)))}
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )

    def run(self, url: str, step: int | None, die: tuple[str, int] | None = None) -> tuple[int, int]:
        """Run the steps from one on (None: migrate); return how many were acknowledged, and what signal ended it."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps({"url": url, "step": step, "die": die}), file=self._process.stdin, flush=True)
        told = json.loads(self._process.stdout.readline())
        return told["done"], told["signal"]

    def close(self) -> None:
        """End it."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(timeout=60)
        assert self._process.stdout is not None
        self._process.stdout.close()


def _die_at(engine: Engine, when: str, due: Callable[[], bool], *, any_thread: bool) -> None:
    commit = engine.dialect.do_commit

    def counted(connection: Any) -> None:
        hit = due() and (any_thread or threading.current_thread().name.endswith("-writer"))
        if hit and when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        commit(connection)
        if hit:
            os.kill(os.getpid(), signal.SIGKILL)

    engine.dialect.do_commit = counted  # type: ignore[method-assign]


def _child(told: dict[str, Any], pipe: int) -> None:
    engine, done = make_engine(told["url"]), [0]
    if told["die"]:
        when, after = told["die"]
        _die_at(engine, when, lambda: done[0] == after, any_thread=told["step"] is None)
    if told["step"] is None:
        migrate.upgrade(engine)
        return
    books = Books(Database(engine), "default", carry=False)

    def acknowledge() -> None:
        os.write(pipe, b".")
        done[0] += 1

    run(books, acknowledge, told["step"])
    books.database.close()


def main() -> None:
    """Fork for every line."""
    for line in sys.stdin:
        told = json.loads(line)
        reading, writing = os.pipe()
        child = os.fork()
        if not child:
            code = 1
            try:
                _child(told, writing)
                code = 0
            finally:
                os._exit(code)
        os.close(writing)
        with os.fdopen(reading, "rb") as acknowledged:
            done = len(acknowledged.read())
        status = os.waitpid(child, 0)[1]
        ended = os.WTERMSIG(status) if os.WIFSIGNALED(status) else -os.WEXITSTATUS(status)
        print(json.dumps({"done": (told["step"] or 0) + done, "signal": ended}), flush=True)


if __name__ == "__main__":
    main()
