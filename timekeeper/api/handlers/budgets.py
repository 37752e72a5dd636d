# SPDX-License-Identifier: Apache-2.0
"""Budgets and their status, ledger entries."""

from __future__ import annotations

import re

from flask import Response, request
from sqlalchemy.orm import Session

from slicekeeper.namespace_policy import LAST_ANCHOR
from slicekeeper.units import format_instant
from slicekeeper.wire.timekeeper import BudgetList
from timekeeper import reservations, views
from timekeeper.api import requests
from timekeeper.api.holders import Holder, holder
from timekeeper.api.problems import Problem
from timekeeper.api.schemas import BudgetBody, EntryList, LedgerEntry, StatusBody
from timekeeper.api.service import Service, service
from timekeeper.books import ANY_VERSION
from timekeeper.records import Rule
from timekeeper.store import bookings, namespaces
from timekeeper.store.bookings import Line
from timekeeper.timeline import CHILD


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


def shown(**path: str) -> Response:
    """Return one budget."""
    whose = holder(service(), **path)
    whose.allow("get")
    return answer(whose)


def answer(whose: Holder, status: int = 200) -> Response:
    """Return a budget as it stands."""
    budget, etag = whose.current()
    unchanged = requests.not_modified(etag) if request.method == "GET" and "If-None-Match" in request.headers else None
    return unchanged or requests.answer(budget, status, etag=etag)


def changed(whose: Holder, *, made: bool = False) -> Response:
    """Have the controller look at once, and return a budget as it stands after a change; `made` is 201."""
    whose.it.controller.nudge()
    return answer(whose, 201 if made else 200)


def rule_of(it: Service, given: BudgetBody) -> Rule:
    """Return the rule that a body asks for, from now on.

    Raises Problem where there is no such time zone or anchor.
    """
    zone = requests.time_zone(given.time_zone)
    anchor = None if given.anchor is None else requests.instant(given.anchor, "anchor")
    if anchor is not None and given.period == "none":
        raise Problem(422, "body-invalid", "anchor: a budget without periods has none; leave it out", "anchor")
    if anchor is not None and anchor > LAST_ANCHOR:
        raise Problem(422, "instant-invalid", "anchor: name one before the year 9000", "anchor")
    return Rule(
        it.clock.now_ms(), given.amount_ms, given.period, zone, given.credit_ms, given.rollover_ms, anchor=anchor
    )  # fmt: skip


def put(namespace: str) -> Response:
    """Give a namespace a budget of its own."""
    it = service()
    whose = holder(it, namespace)
    caller = whose.allow("update")
    given = requests.body(BudgetBody)
    rule, wanted = rule_of(it, given), requests.if_match()
    if wanted is not None and it.books.position(namespace) is None:
        if wanted.isdisjoint({whose.current()[1], ANY_VERSION}):
            told = f"budget of {namespace}: it was changed meanwhile; read it again"
            raise Problem(412, "version-mismatch", told, "If-Match")
        wanted = None
    place = whose.place()
    it.books.set_budget(place.uid, place.name, place.policy, rule, actor=caller.name, if_match=wanted)
    return changed(whose)


def status(**path: str) -> Response:
    """Suspend a budget, close it, or have it go on."""
    it = service()
    whose = holder(it, **path)
    caller = whose.allow("update")
    given = requests.body(StatusBody)
    place = whose.place()
    it.books.set_status(
        place.uid, place.name, place.policy, given.status,
        reason=given.reason, actor=caller.name, now=it.clock.now_ms(),
    )  # fmt: skip
    return changed(whose)


def entries(**path: str) -> Response:
    """Return a page of ledger entries."""
    it = service()
    whose = holder(it, **path)
    whose.allow("get", "statement")
    limit, after = requests.limit(), requests.cursor(int)
    with it.books.database.reading() as session:
        known = whose.require(session)
        lines = bookings.lines(session, known.id, after or 0, limit + 1)
        subjects = _subjects(session, lines)
        items = [
            LedgerEntry(
                id=line.id,
                transaction=line.transaction.id,
                kind=line.transaction.kind,
                account=line.account,
                amount_ms=line.amount_ms,
                subject=subjects.get(line.transaction.subject, line.transaction.subject),
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


def _subjects(session: Session, lines: list[Line]) -> dict[str, str]:
    """Return how people know the budgets below that a parent's charges are of."""
    found = {line.transaction.subject: re.fullmatch(f"{CHILD}([0-9]+)", line.transaction.subject) for line in lines}
    keys = {subject: int(match[1]) for subject, match in found.items() if match}
    named = namespaces.named(session, keys.values()) if keys else {}
    return {subject: f"{named[key].kind}:{named[key].name}" for subject, key in keys.items()}
