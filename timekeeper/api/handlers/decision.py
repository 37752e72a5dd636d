# SPDX-License-Identifier: Apache-2.0
"""Return decisions: the state of all namespaces in one answer, which is a 304 for pollers while nothing changes.

A deleted namespace keeps its account, but has no decision: a new namespace of the same name gets a new account.
"""

from __future__ import annotations

from flask import Response

from slicekeeper.units import format_instant
from slicekeeper.wire.timekeeper import DecisionList
from timekeeper.api import requests
from timekeeper.api.budget_owner import NamespaceOwner
from timekeeper.api.service import Service, service
from timekeeper.api.views import decision as decision_views
from timekeeper.core.refusal import NamespaceUnknown
from timekeeper.ledger import reservation
from timekeeper.ledger.standing import Position


def listed() -> Response:
    """Return all namespaces' decisions."""
    it = service()
    it.allow("list")
    now = it.clock.now_ms()
    held = reservation.held(it.books, now)
    items = [
        decision_views.decision(p, it.policy.of(p.account.name), it.settings, now, held[p.account.id])
        for p in it.books.positions()
        if _is_there(it, p)
    ]
    etag = decision_views.decisions_tag(items)
    return requests.not_modified(etag) or requests.answer(
        DecisionList(items=items, as_of=format_instant(now)), etag=etag
    )


def shown(namespace: str) -> Response:
    """Return one namespace's decision."""
    it, name = service(), requests.namespace(namespace)
    it.allow("get", name)
    position = NamespaceOwner(it, name).position()
    if position is None or not _is_there(it, position):
        raise NamespaceUnknown(f"namespace {name} has no account yet: it is in budget")
    now = it.clock.now_ms()
    held = reservation.held(it.books, now, position.account.id)[position.account.id]
    decision = decision_views.decision(position, it.policy.of(name), it.settings, now, held)
    etag = decision_views.decisions_tag([decision])
    return requests.not_modified(etag) or requests.answer(decision, etag=etag)


def _is_there(it: Service, position: Position) -> bool:
    return not it.controller.namespaces.is_gone(position.account.name, position.account.uid)
