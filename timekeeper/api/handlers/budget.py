# SPDX-License-Identifier: Apache-2.0
"""Read and set budgets, and their status."""

from __future__ import annotations

from flask import Response

from slicekeeper.wire.timekeeper import BudgetList
from timekeeper.api import paging, requests
from timekeeper.api.budget_answer import answer, changed
from timekeeper.api.budget_owner import NamespaceOwner, owner_of
from timekeeper.api.budget_rule import patched, rule_of
from timekeeper.api.schemas.budget import BudgetBody, BudgetPatch, StatusBody
from timekeeper.api.service import Service
from timekeeper.api.views import budget
from timekeeper.core.caller import Caller
from timekeeper.ledger import reservation
from timekeeper.ledger.budget import set_budget, set_status, unset_budget
from timekeeper.ledger.budget_rule import Change


def listed(service: Service) -> Response:
    """Return a page of budgets."""
    service.allow("list")
    limit, after = paging.limit(), paging.cursor(tuple[str, int])
    standings = service.books.all_standings(after or ("", 0), limit + 1)
    standings, more = paging.page(standings, limit, lambda p: (p.account.name, p.account.id))
    now = service.clock.now_ms()
    held = reservation.reserved(service.books, now)
    items = [
        budget.budget(
            p.account.name,
            p,
            service.policy.of(p.account.name),
            now,
            held[p.account.id],
            uid=p.account.uid,
            gone=service.controller.namespaces.is_gone(p.account.name, p.account.uid),
        )
        for p in standings
    ]
    return requests.answer(BudgetList(items=items, next_cursor=more))


def shown(service: Service, **path: str) -> Response:
    """Return one budget."""
    owner = owner_of(service, **path)
    owner.allow("get")
    return answer(owner)


def put(service: Service, namespace: str) -> Response:
    """Give a namespace a budget of its own."""
    owner = NamespaceOwner(service, requests.namespace(namespace))
    caller = owner.allow("update")
    return _set(owner, rule_of(service, requests.body(BudgetBody)), caller)


def patch(service: Service, namespace: str) -> Response:
    """Give a namespace a budget of its own that differs from its current one in the fields of the body."""
    owner = NamespaceOwner(service, requests.namespace(namespace))
    caller = owner.allow("update")
    given = requests.body(BudgetPatch)
    return answer(owner) if given == BudgetPatch() else _set(owner, patched(service, given), caller)


def unset(service: Service, namespace: str) -> Response:
    """Give a namespace the policy's budget again."""
    owner = NamespaceOwner(service, requests.namespace(namespace))
    caller = owner.allow("delete")
    reason = requests.plain("reason", 1024) or "unset"
    ref = owner.account_ref()
    if owner.standing() is not None:  # one without an account has the policy's
        wanted, now = requests.if_match(), service.clock.now_ms()
        unset_budget(service.books, ref, reason=reason, actor=caller.name, if_match=wanted, now=now)
    return changed(owner)


def _set(owner: NamespaceOwner, change: Change, caller: Caller) -> Response:
    set_budget(owner.service.books, owner.account_ref(), change, actor=caller.name, if_match=requests.if_match())
    return changed(owner)


def status(service: Service, **path: str) -> Response:
    """Suspend a budget, close it, or reactivate it."""
    owner = owner_of(service, **path)
    caller = owner.allow("update")
    given = requests.body(StatusBody)
    set_status(
        service.books,
        owner.account_ref(),
        given.status,
        reason=given.reason,
        actor=caller.name,
        now=service.clock.now_ms(),
    )
    return changed(owner)
