# SPDX-License-Identifier: Apache-2.0
"""Read and set budgets, and their status."""

from __future__ import annotations

from flask import Response

from slicekeeper.wire.timekeeper import BudgetList
from timekeeper.api import answers, paging, parse
from timekeeper.api.budget_owner import NamespaceOwner, owner_of
from timekeeper.api.budget_rule import patched, rule_of
from timekeeper.api.handler_context import HandlerContext
from timekeeper.api.idempotency import keyed
from timekeeper.api.schemas.budget import BudgetBody, BudgetPatch, StatusBody
from timekeeper.api.views import budget
from timekeeper.core.caller import Caller
from timekeeper.ledger import reservation
from timekeeper.ledger.budget import set_budget, set_status, unset_budget
from timekeeper.ledger.budget_rule import Change
from timekeeper.ledger.executed_request import keep_only


def listed(context: HandlerContext) -> Response:
    """Return a page of budgets."""
    context.allow("list")
    limit, after = paging.limit(), paging.cursor(tuple[str, int])
    standings = context.books.all_standings(after or ("", 0), limit + 1)
    standings, more = paging.page(standings, limit, lambda p: (p.account.name, p.account.id))
    now = context.clock.now_ms()
    held = reservation.reserved(context.books, now)
    items = [
        budget.budget(
            p.account.name,
            p,
            context.policy.of(p.account.name),
            now,
            held[p.account.id],
            uid=p.account.uid,
            gone=context.controller.namespaces.is_gone(p.account.name, p.account.uid),
        )
        for p in standings
    ]
    return answers.json(BudgetList(items=items, next_cursor=more))


def shown(context: HandlerContext, **path: str) -> Response:
    """Return one budget."""
    owner = owner_of(context, **path)
    owner.allow("get")
    return answers.budget(owner)


def put(context: HandlerContext, namespace: str) -> Response:
    """Give a namespace a budget of its own."""
    owner = NamespaceOwner(context, parse.namespace(namespace))
    caller = owner.allow("update")
    given = parse.body(BudgetBody)
    return _set(owner, rule_of(context, given), caller, given.reason)


def patch(context: HandlerContext, namespace: str) -> Response:
    """Give a namespace a budget of its own that differs from its current one in the fields of the body."""
    owner = NamespaceOwner(context, parse.namespace(namespace))
    caller = owner.allow("update")
    given = parse.body(BudgetPatch)
    if given == BudgetPatch(reason=given.reason):
        keep_only(context.books, owner.account_ref().uid, keyed(context))
        return answers.budget(owner)
    return _set(owner, patched(context, given), caller, given.reason)


def unset(context: HandlerContext, namespace: str) -> Response:
    """Give a namespace the policy's budget again."""
    owner = NamespaceOwner(context, parse.namespace(namespace))
    caller = owner.allow("delete")
    reason = parse.plain("reason", 1024) or "unset"
    unset_budget(
        context.books,
        owner.account_ref(),
        reason=reason,
        actor=caller.name,
        if_match=parse.if_match(),
        now=context.clock.now_ms(),
        asked=keyed(context),
    )
    return answers.changed(owner)


def _set(owner: NamespaceOwner, change: Change, caller: Caller, reason: str) -> Response:
    set_budget(
        owner.context.books,
        owner.account_ref(),
        change,
        actor=caller.name,
        if_match=parse.if_match(),
        reason=reason,
        asked=keyed(owner.context),
    )
    return answers.changed(owner)


def status(context: HandlerContext, **path: str) -> Response:
    """Suspend a budget, close it, or reactivate it."""
    owner = owner_of(context, **path)
    caller = owner.allow("update")
    given = parse.body(StatusBody)
    set_status(
        context.books,
        owner.account_ref(),
        given.status,
        reason=given.reason,
        actor=caller.name,
        now=context.clock.now_ms(),
        asked=keyed(context),
    )
    return answers.changed(owner)
