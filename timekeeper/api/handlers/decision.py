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
from timekeeper.api.service import Service
from timekeeper.api.views import decision as decision_views
from timekeeper.core.refusal import NamespaceUnknown
from timekeeper.ledger import reservation
from timekeeper.ledger.standing import BudgetStanding


def listed(service: Service) -> Response:
    """Return all namespaces' decisions."""
    service.allow("list")
    now = service.clock.now_ms()
    held = reservation.reserved(service.books, now)
    items = [
        decision_views.decision(p, service.policy.of(p.account.name), service.settings, now, held[p.account.id])
        for p in service.books.standings()
        if _is_there(service, p)
    ]
    etag = decision_views.decisions_tag(items)
    return requests.not_modified(etag) or requests.answer(
        DecisionList(items=items, as_of=format_instant(now)), etag=etag
    )


def shown(service: Service, namespace: str) -> Response:
    """Return one namespace's decision."""
    name = requests.namespace(namespace)
    service.allow("get", name)
    standing = NamespaceOwner(service, name).standing()
    if standing is None or not _is_there(service, standing):
        raise NamespaceUnknown(f"namespace {name} has no account yet: it is in budget")
    now = service.clock.now_ms()
    held = reservation.reserved(service.books, now, standing.account.id)[standing.account.id]
    decision = decision_views.decision(standing, service.policy.of(name), service.settings, now, held)
    etag = decision_views.decisions_tag([decision])
    return requests.not_modified(etag) or requests.answer(decision, etag=etag)


def _is_there(service: Service, standing: BudgetStanding) -> bool:
    return not service.controller.namespaces.is_gone(standing.account.name, standing.account.uid)
