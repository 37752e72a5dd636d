# SPDX-License-Identifier: Apache-2.0
"""Grants, refunds, adjustments, transfers: GPU time moved by hand, once per Idempotency-Key."""

from __future__ import annotations

from flask import Response, request

from slicekeeper.units import format_instant
from timekeeper import movements
from timekeeper.api import requests
from timekeeper.api.handlers import budgets
from timekeeper.api.problems import Problem
from timekeeper.api.schemas import (
    AdjustmentBody,
    Grant,
    GrantBody,
    GrantList,
    Movement,
    MovementList,
    RefundBody,
    TransferBody,
)
from timekeeper.api.service import Service, service
from timekeeper.identity import Caller
from timekeeper.movements import Order, Place
from timekeeper.store import namespaces
from timekeeper.store.models import BudgetGrant

_CLOCKS_MS = 1_000


def grants(namespace: str) -> Response:
    """Return a page of grants."""
    rows, more = _page(namespace, "grant", "grants")
    items = [
        Grant(
            id=row.id,
            amount_ms=row.amount_ms,
            reason=row.reason,
            valid_from=format_instant(row.valid_from),
            valid_to=_instant(row.valid_to),
            actor=row.actor,
            booked_at=format_instant(row.booked_at),
            priority=row.priority,
        )
        for row in rows
    ]
    return requests.answer(GrantList(items=items, next_cursor=more))


def refunds(namespace: str) -> Response:
    """Return a page of refunds."""
    return _moved(namespace, "refund", "refunds")


def adjustments(namespace: str) -> Response:
    """Return a page of adjustments."""
    return _moved(namespace, "adjustment", "adjustments")


def transfers(namespace: str) -> Response:
    """Return a page of transfers, in and out."""
    return _moved(namespace, "transfer", "transfers")


def _moved(namespace: str, kind: str, right: str) -> Response:
    rows, more = _page(namespace, kind, right)
    items = [
        Movement(
            id=row.id,
            amount_ms=row.amount_ms,
            reason=row.reason,
            counterpart=row.counterpart,
            valid_to=_instant(row.valid_to),
            actor=row.actor,
            booked_at=format_instant(row.booked_at),
        )
        for row in rows
    ]
    return requests.answer(MovementList(items=items, next_cursor=more))


def _page(namespace: str, kind: str, right: str) -> tuple[list[BudgetGrant], str | None]:
    it, name = service(), requests.namespace(namespace)
    it.allow("get", name, right)
    limit, before = requests.limit(), requests.cursor(int)
    with it.books.database.reading() as session:
        known = namespaces.find_name(session, it.books.cluster, name)
        rows = namespaces.grants(session, known.id, kind, before, limit + 1) if known else []
    return rows[:limit], requests.next_cursor(rows[limit - 1].id) if len(rows) > limit else None


def _instant(value: int | None) -> str | None:
    return None if value is None else format_instant(value)


def grant(namespace: str) -> Response:
    """Book a grant; return the budget as it stands then."""
    it, name = service(), requests.namespace(namespace)
    caller = it.allow("create", name, "grants")
    given = requests.body(GrantBody)
    order = order_of(it, caller, given.amount_ms, given.reason)
    start, end = validity(given, order, repeated=_booked(it, name, order.key))
    made = movements.grant(it.books, place(it, name), order, valid_from=start, valid_to=end, priority=given.priority)
    return _done(it, name, made=made)


def validity(given: GrantBody, order: Order, *, repeated: bool) -> tuple[int, int | None]:
    """Return from when to when a grant is valid.

    Raises Problem where that is not possible; a repeated request may name a start that is past by now.
    """
    start = order.now if given.valid_from is None else requests.instant(given.valid_from, "validFrom")
    end = None if given.valid_to is None else requests.instant(given.valid_to, "validTo")
    if start < order.now - _CLOCKS_MS and not repeated:
        raise Problem(
            422, "instant-past", "validFrom lies in the past; leave it out for a grant from now on", "validFrom"
        )
    if end is not None and end <= start:
        raise Problem(422, "instant-order", "validTo must be later than validFrom", "validTo")
    return max(start, order.now), end


def refund(namespace: str) -> Response:
    """Give an ended pod's charge back, or part of it."""
    it, name = service(), requests.namespace(namespace)
    caller = it.allow("create", name, "refunds")
    given = requests.body(RefundBody)
    order = order_of(it, caller, given.amount_ms, given.reason)
    return _done(it, name, made=movements.refund(it.books, place(it, name), order, pod_uid=given.pod_uid))


def adjust(namespace: str) -> Response:
    """Put GPU time right by hand."""
    it, name = service(), requests.namespace(namespace)
    caller = it.allow("create", name, "adjustments")
    given = requests.body(AdjustmentBody)
    if given.amount_ms == 0:
        raise Problem(422, "body-invalid", "amountMs: 0 changes nothing; name what is to come or to go", "amountMs")
    order = order_of(it, caller, given.amount_ms, given.reason)
    return _done(it, name, made=movements.adjust(it.books, place(it, name), order))


def transfer(namespace: str) -> Response:
    """Move GPU time into another namespace's budget; the right is needed in both."""
    it, name = service(), requests.namespace(namespace)
    caller = it.allow("create", name, "transfers")
    given = requests.body(TransferBody)
    target = requests.namespace(given.to)
    it.allow("create", target, "transfers")
    if target == name:
        raise Problem(422, "body-invalid", "to: name another namespace", "to")
    order = order_of(it, caller, given.amount_ms, given.reason)
    end = None if given.valid_to is None else requests.instant(given.valid_to, "validTo")
    if end is not None and end <= order.now and not _booked(it, name, order.key):
        raise Problem(422, "instant-past", "validTo lies in the past", "validTo")
    made = movements.transfer(it.books, place(it, name), place(it, target), order, valid_to=end)
    return _done(it, name, made=made)


def place(it: Service, name: str) -> Place:
    """Return a namespace that the cluster has."""
    return Place(it.controller.namespace_uid(name), name, it.policy.of(name))


def order_of(it: Service, caller: Caller, amount: int, reason: str) -> Order:
    """Return what the request orders, under its Idempotency-Key.

    Raises Problem where it has none.
    """
    key = request.headers.get("Idempotency-Key", "").strip()
    if not 1 <= len(key) <= 255 or not key.isprintable():
        raise Problem(
            422,
            "idempotency-key-missing",
            "an Idempotency-Key header has 1 to 255 printable characters",
            "Idempotency-Key",
        )
    return Order(amount, reason, key, request.get_data(), caller.name, it.clock.now_ms())


def _booked(it: Service, name: str, key: str) -> bool:
    with it.books.database.reading() as session:
        known = namespaces.find_name(session, it.books.cluster, name)
        return known is not None and namespaces.grant_under(session, known.id, key) is not None


def _done(it: Service, name: str, *, made: bool) -> Response:
    it.controller.nudge()
    return budgets.answer(it, name, 201 if made else 200)
