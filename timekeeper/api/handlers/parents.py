# SPDX-License-Identifier: Apache-2.0
"""Teams and organisations: their budgets, and who stands under whom. The rights on them are the cluster's."""

from __future__ import annotations

from flask import Response, request

from slicekeeper.errors import NotFound
from slicekeeper.namespace_policy import NamespacePolicy
from slicekeeper.units import format_instant
from slicekeeper.wire.timekeeper import ParentList
from timekeeper import hierarchy, movements, views
from timekeeper.api import requests
from timekeeper.api.handlers import budgets
from timekeeper.api.handlers.movements import order_of, place, validity
from timekeeper.api.schemas import Child, ChildList, GrantBody, ParentBudgetBody, PlaceBody, StatusBody
from timekeeper.api.service import Service, service
from timekeeper.books import Position, version_of
from timekeeper.hierarchy import PARENT_UNKNOWN
from timekeeper.movements import Place
from timekeeper.records import Rule
from timekeeper.store import bookings, namespaces

_RIGHT = "parents"


def listed() -> Response:
    """Return a page of teams and organisations."""
    it = service()
    it.allow("list", "", _RIGHT)
    limit, after = requests.limit(), requests.cursor(str)
    positions, now = it.books.parents(after or "", limit + 1), it.clock.now_ms()
    items = [views.parent(position, now) for position in positions[:limit]]
    more = requests.next_cursor(items[-1].name) if len(positions) > limit else None
    return requests.answer(ParentList(items=items, next_cursor=more))


def shown(parent: str) -> Response:
    """Return one team or organisation."""
    it, name = service(), requests.parent(parent)
    it.allow("get", "", _RIGHT)
    return _answer(it, name)


def _answer(it: Service, name: str, status: int = 200) -> Response:
    position = _require(it, name)
    etag = version_of(position.rule)
    unchanged = requests.not_modified(etag) if request.method == "GET" and "If-None-Match" in request.headers else None
    return unchanged or requests.answer(views.parent(position, it.clock.now_ms()), status, etag=etag)


def _require(it: Service, name: str) -> Position:
    position = it.books.parent(name)
    if position is None:
        raise NotFound(f"parent: {name!r} is no team and no organisation; make it first", 404, PARENT_UNKNOWN)
    return position


def put(parent: str) -> Response:
    """Make a team or an organisation, or give it another budget."""
    it, name = service(), requests.parent(parent)
    caller = it.allow("update", "", _RIGHT)
    given = requests.body(ParentBudgetBody)
    zone = requests.time_zone(given.time_zone)
    rule = Rule(it.clock.now_ms(), given.amount_ms, given.period, zone, given.credit_ms, given.rollover_ms)
    made = hierarchy.put_parent(
        it.books, name, given.kind, rule, actor=caller.name, if_match=requests.etag_of("If-Match")
    )  # fmt: skip
    it.controller.nudge()
    return _answer(it, name, 201 if made else 200)


def status(parent: str) -> Response:
    """Suspend a budget, close it, or have it go on."""
    it, name = service(), requests.parent(parent)
    caller = it.allow("update", "", _RIGHT)
    given = requests.body(StatusBody)
    now = it.clock.now_ms()
    hierarchy.set_parent_status(it.books, name, given.status, reason=given.reason, actor=caller.name, now=now)
    it.controller.nudge()
    return _answer(it, name)


def put_parent(parent: str) -> Response:
    """Put a team under another one or an organisation from now on, or under none."""
    it, name = service(), requests.parent(parent)
    caller = it.allow("update", "", _RIGHT)
    given = requests.body(PlaceBody)
    above = None if given.parent is None else requests.parent(given.parent)
    now = it.clock.now_ms()
    hierarchy.put_parent_under(it.books, name, above, reason=given.reason, actor=caller.name, now=now)
    it.controller.nudge()
    return _answer(it, name)


def put_namespace(namespace: str) -> Response:
    """Put a namespace under a team or an organisation from now on, or under none."""
    it, name = service(), requests.namespace(namespace)
    caller = it.allow("update", "", _RIGHT)
    given = requests.body(PlaceBody)
    above = None if given.parent is None else requests.parent(given.parent)
    now = it.clock.now_ms()
    hierarchy.put_namespace_under(
        it.books, place(it, name), above, reason=given.reason, actor=caller.name, now=now
    )  # fmt: skip
    it.controller.nudge()
    return budgets.answer(it, name)


def grant(parent: str) -> Response:
    """Book a grant for all that stand under a team or an organisation; return its budget as it stands then."""
    it, name = service(), requests.parent(parent)
    caller = it.allow("create", "", _RIGHT)
    given = requests.body(GrantBody)
    known = _require(it, name).known
    order = order_of(it, caller, given.amount_ms, given.reason)
    with it.books.database.reading() as session:
        repeated = namespaces.grant_under(session, known.id, order.key) is not None
    start, end = validity(given, order, repeated=repeated)
    target = Place(known.uid, known.name, NamespacePolicy())
    made = movements.grant(it.books, target, order, valid_from=start, valid_to=end, priority=given.priority)
    it.controller.nudge()
    return _answer(it, name, 201 if made else 200)


def children(parent: str) -> Response:
    """Return what stands directly under a team or an organisation, and what each has consumed of its budget."""
    it, name = service(), requests.parent(parent)
    it.allow("get", "", _RIGHT)
    position, now = _require(it, name), it.clock.now_ms()
    state, below = position.at(now), it.books.children(position)
    with it.books.database.reading() as session:
        booked = bookings.charged_below(session, position.known.id, position.counts_since(now))
    running = position.running_below(now)
    items = [
        Child(
            name=child.known.name,
            kind=child.known.kind,
            state=views.state_name(child, child.at(now), NamespacePolicy()),
            balance_ms=child.at(now).balance,
            consumed_ms=booked[child.known.id] + running[child.known.id],
        )
        for child in below
    ]
    return requests.answer(ChildList(items=items, as_of=format_instant(max(now, state.at))))
