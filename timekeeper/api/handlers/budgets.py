# SPDX-License-Identifier: Apache-2.0
"""Budgets and their status, ledger entries."""

from __future__ import annotations

from flask import Response, request

from slicekeeper.units import format_instant
from slicekeeper.wire.timekeeper import Budget, BudgetList
from timekeeper import reservations, views
from timekeeper.api import requests
from timekeeper.api.problems import Problem
from timekeeper.api.schemas import BudgetBody, EntryList, LedgerEntry, StatusBody
from timekeeper.api.service import Service, service
from timekeeper.books import Position, version_of
from timekeeper.records import Rule
from timekeeper.store import bookings, namespaces


def listed() -> Response:
    """Return a page of budgets."""
    it = service()
    it.allow("list")
    limit, after = requests.limit(), requests.cursor(str)
    positions = it.books.positions(after or "", limit + 1)
    now = it.clock.now_ms()
    held = reservations.held(it.books, now)
    items = [
        views.budget(p.known.name, p, it.policy.of(p.known.name), now, held[p.known.id]) for p in positions[:limit]
    ]
    more = requests.next_cursor(items[-1].namespace) if len(positions) > limit else None
    return requests.answer(BudgetList(items=items, next_cursor=more))


def shown(namespace: str) -> Response:
    """Return one budget."""
    it, name = service(), requests.namespace(namespace)
    it.allow("get", name)
    return answer(it, name)


def answer(it: Service, name: str, status: int = 200) -> Response:
    """Return a budget as it stands."""
    budget, position = current(it, name)
    etag = version_of(position.rule) if position else _unseen(budget)
    unchanged = requests.not_modified(etag) if request.method == "GET" and "If-None-Match" in request.headers else None
    return unchanged or requests.answer(budget, status, etag=etag)


def current(it: Service, name: str) -> tuple[Budget, Position | None]:
    """Return a budget as it stands, and its namespace's position where it has an account."""
    position, now = it.books.position(name), it.clock.now_ms()
    held = reservations.held(it.books, now, position.known.id)[position.known.id] if position else 0
    return views.budget(name, position, it.policy.of(name), now, held), position


def _unseen(budget: Budget) -> str:
    return f'"policy-{budget.amount_ms}-{budget.period}-{budget.time_zone}"'


def put(namespace: str) -> Response:
    """Give a namespace a budget of its own."""
    it, name = service(), requests.namespace(namespace)
    caller = it.allow("update", name)
    given = requests.body(BudgetBody)
    zone = requests.time_zone(given.time_zone)
    wanted = requests.etag_of("If-Match")
    budget, position = current(it, name)
    if position is None and wanted is not None:
        if wanted != _unseen(budget):
            raise Problem(412, "version-mismatch", f"budget of {name}: it was changed meanwhile; read it again")
        wanted = None
    it.books.set_budget(
        it.controller.namespace_uid(name),
        name,
        it.policy.of(name),
        Rule(it.clock.now_ms(), given.amount_ms, given.period, zone, given.credit_ms, given.rollover_ms),
        actor=caller.name,
        if_match=wanted,
    )
    it.controller.nudge()
    return answer(it, name)


def status(namespace: str) -> Response:
    """Suspend a budget, close it, or have it go on."""
    it, name = service(), requests.namespace(namespace)
    caller = it.allow("update", name)
    given = requests.body(StatusBody)
    it.books.set_status(
        it.controller.namespace_uid(name), name, it.policy.of(name), given.status,
        reason=given.reason, actor=caller.name, now=it.clock.now_ms(),
    )  # fmt: skip
    it.controller.nudge()
    return answer(it, name)


def entries(namespace: str) -> Response:
    """Return a page of ledger entries."""
    it, name = service(), requests.namespace(namespace)
    it.allow("get", name, "statement")
    limit, after = requests.limit(), requests.cursor(int)
    with it.books.database.reading() as session:
        known = namespaces.require_name(session, it.books.cluster, name)
        lines = bookings.lines(session, known.id, after or 0, limit + 1)
        items = [
            LedgerEntry(
                id=line.id,
                transaction=line.transaction.id,
                kind=line.transaction.kind,
                account=line.account,
                amount_ms=line.amount_ms,
                subject=line.transaction.subject,
                start=format_instant(line.transaction.started_at),
                effective_at=format_instant(line.transaction.effective_at),
                booked_at=format_instant(line.transaction.booked_at),
                reverses=line.transaction.reverses,
                corrects_at=None
                if line.transaction.corrects_at is None
                else format_instant(line.transaction.corrects_at),
            )
            for line in lines[:limit]
        ]
    more = requests.next_cursor(items[-1].id) if len(lines) > limit else None
    return requests.answer(EntryList(items=items, next_cursor=more))
