# SPDX-License-Identifier: Apache-2.0
"""Read and set budgets, and their status."""

from __future__ import annotations

from flask import Response

from slicekeeper.wire.timekeeper import BudgetList
from timekeeper.api import paging, requests
from timekeeper.api.budget_answer import answer, changed
from timekeeper.api.budget_owner import NamespaceOwner, owner
from timekeeper.api.budget_rule import patched, rule_of
from timekeeper.api.problems import Problem
from timekeeper.api.schemas.budget import BudgetBody, BudgetPatch, StatusBody
from timekeeper.api.service import service
from timekeeper.api.views import budget
from timekeeper.core.caller import Caller
from timekeeper.ledger import reservation
from timekeeper.ledger.budget import set_budget, set_status, unset_budget
from timekeeper.ledger.rule import ANY_VERSION, Change


def listed() -> Response:
    """Return a page of budgets."""
    it = service()
    it.allow("list")
    limit, after = paging.limit(), paging.cursor(tuple[str, int])
    positions = it.books.all_positions(after or ("", 0), limit + 1)
    positions, more = paging.page(positions, limit, lambda p: (p.account.name, p.account.id))
    now = it.clock.now_ms()
    held = reservation.held(it.books, now)
    items = [
        budget.budget(
            p.account.name,
            p,
            it.policy.of(p.account.name),
            now,
            held[p.account.id],
            uid=p.account.uid,
            gone=it.controller.namespaces.is_gone(p.account.name, p.account.uid),
        )
        for p in positions
    ]
    return requests.answer(BudgetList(items=items, next_cursor=more))


def shown(**path: str) -> Response:
    """Return one budget."""
    whose = owner(service(), **path)
    whose.allow("get")
    return answer(whose)


def put(namespace: str) -> Response:
    """Give a namespace a budget of its own."""
    it = service()
    whose = NamespaceOwner(it, requests.namespace(namespace))
    caller = whose.allow("update")
    return _set(whose, rule_of(it, requests.body(BudgetBody)), caller)


def patch(namespace: str) -> Response:
    """Give a namespace a budget of its own that differs from its current one in the fields of the body."""
    it = service()
    whose = NamespaceOwner(it, requests.namespace(namespace))
    caller = whose.allow("update")
    given = requests.body(BudgetPatch)
    return answer(whose) if given == BudgetPatch() else _set(whose, patched(it, given), caller)


def unset(namespace: str) -> Response:
    """Give a namespace the policy's budget again."""
    it = service()
    whose = NamespaceOwner(it, requests.namespace(namespace))
    caller = whose.allow("delete")
    reason = requests.plain("reason", 1024) or "unset"
    place = whose.place()
    if whose.position() is not None:  # one without an account has the policy's
        wanted, now = requests.if_match(), it.clock.now_ms()
        unset_budget(it.books, place, reason=reason, actor=caller.name, if_match=wanted, now=now)
    return changed(whose)


def _set(whose: NamespaceOwner, change: Change, caller: Caller) -> Response:
    it, wanted = whose.it, requests.if_match()
    if wanted is not None and whose.position() is None:
        if wanted.isdisjoint({whose.current()[1], ANY_VERSION}):
            detail = f"budget of {whose.name}: it has changed since you read it; read it again"
            raise Problem(412, "version-mismatch", detail, "If-Match")
        wanted = None
    set_budget(it.books, whose.place(), change, actor=caller.name, if_match=wanted)
    return changed(whose)


def status(**path: str) -> Response:
    """Suspend a budget, close it, or reactivate it."""
    it = service()
    whose = owner(it, **path)
    caller = whose.allow("update")
    given = requests.body(StatusBody)
    set_status(it.books, whose.place(), given.status, reason=given.reason, actor=caller.name, now=it.clock.now_ms())
    return changed(whose)
