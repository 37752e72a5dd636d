# SPDX-License-Identifier: Apache-2.0
"""Budgets and their status, ledger entries."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TypeVar

from flask import Response, request
from msgspec import UNSET, UnsetType
from sqlalchemy.orm import Session

from slicekeeper.namespace_policy import LAST_ANCHOR
from slicekeeper.units import format_instant
from slicekeeper.wire.timekeeper import BudgetList
from timekeeper.api import requests, views
from timekeeper.api.holders import Holder, NamespaceHolder, holder
from timekeeper.api.problems import Problem
from timekeeper.api.schemas import BudgetBody, BudgetPatch, EntryList, LedgerEntry, StatusBody
from timekeeper.api.service import Service, service
from timekeeper.core.caller import Caller
from timekeeper.core.record import Rule
from timekeeper.core.timeline import CHILD
from timekeeper.ledger import reservation
from timekeeper.ledger.books import ANY_VERSION, Change
from timekeeper.store import accounts, bookings
from timekeeper.store.bookings import Line

T = TypeVar("T")


def listed() -> Response:
    """Return a page of budgets."""
    it = service()
    it.allow("list")
    limit, after = requests.limit(), requests.cursor(tuple[str, int])
    positions = it.books.all_positions(after or ("", 0), limit + 1)
    now = it.clock.now_ms()
    held = reservation.held(it.books, now)
    items = [
        views.budget(
            p.known.name, p, it.policy.of(p.known.name), now, held[p.known.id], uid=p.known.uid,
            gone=it.controller.namespaces.is_gone(p.known.name, p.known.uid),
        )
        for p in positions[:limit]
    ]  # fmt: skip
    last = positions[limit - 1].known if len(positions) > limit else None
    more = None if last is None else requests.next_cursor((last.name, last.id))
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
    anchor = None if given.anchor is None else _anchor(given.anchor, given.period)
    return Rule(
        it.clock.now_ms(), given.amount_ms, given.period, zone, given.credit_ms, given.rollover_ms, anchor=anchor,
        used="anew" if given.new_period else "counts",
    )  # fmt: skip


def patched(it: Service, given: BudgetPatch) -> Change:
    """Return what makes the rule that a body asks for of the one in force, from now on.

    Raises Problem where there is no such time zone or anchor; what comes back raises it where they do not fit.
    """
    if given.time_zone is not UNSET:
        requests.time_zone(given.time_zone)
    if isinstance(given.anchor, str):
        _anchor(given.anchor, "none" if given.period == "none" else "month")
    now = it.clock.now_ms()

    def change(rule: Rule) -> Rule:
        period = _or(given.period, rule.period)
        anchor = rule.anchor if given.anchor is UNSET else None
        if isinstance(given.anchor, str):
            anchor = _anchor(given.anchor, period)
        return replace(
            rule,
            since=now,
            amount=_or(given.amount_ms, rule.amount),
            period=period,
            zone=_or(given.time_zone, rule.zone),
            credit=_or(given.credit_ms, rule.credit),
            rollover=_or(given.rollover_ms, rule.rollover),
            anchor=None if period == "none" else anchor,
            used="anew" if given.new_period else "counts",
        )

    return change


def _or(given: T | UnsetType, before: T) -> T:
    return before if isinstance(given, UnsetType) else given


def _anchor(text: str, period: str) -> int:
    """Return an anchor.

    Raises Problem where a budget can have none, or not that one.
    """
    anchor = requests.instant(text, "anchor")
    if period == "none":
        raise Problem(422, "body-invalid", "anchor: a budget without periods has none; leave it out", "anchor")
    if anchor > LAST_ANCHOR:
        raise Problem(422, "instant-invalid", "anchor: name one before the year 9000", "anchor")
    return anchor


def put(namespace: str) -> Response:
    """Give a namespace a budget of its own."""
    it = service()
    whose = NamespaceHolder(it, requests.namespace(namespace))
    caller = whose.allow("update")
    return _set(whose, rule_of(it, requests.body(BudgetBody)), caller)


def patch(namespace: str) -> Response:
    """Give a namespace a budget of its own that differs from its budget in what the body names."""
    it = service()
    whose = NamespaceHolder(it, requests.namespace(namespace))
    caller = whose.allow("update")
    given = requests.body(BudgetPatch)
    return answer(whose) if given == BudgetPatch() else _set(whose, patched(it, given), caller)


def _set(whose: NamespaceHolder, change: Change, caller: Caller) -> Response:
    it, wanted = whose.it, requests.if_match()
    if wanted is not None and whose.position() is None:
        if wanted.isdisjoint({whose.current()[1], ANY_VERSION}):
            told = f"budget of {whose.name}: it was changed meanwhile; read it again"
            raise Problem(412, "version-mismatch", told, "If-Match")
        wanted = None
    place = whose.place()
    it.books.set_budget(place.uid, place.name, place.policy, change, actor=caller.name, if_match=wanted)
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
    named = accounts.named(session, keys.values()) if keys else {}
    return {subject: f"{named[key].kind}:{named[key].name}" for subject, key in keys.items()}
