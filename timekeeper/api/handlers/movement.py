# SPDX-License-Identifier: Apache-2.0
"""Move GPU time by hand, once per Idempotency-Key: grants, refunds, adjustments and transfers."""

from __future__ import annotations

from collections.abc import Sequence

from flask import Response, request

from slicekeeper.units import Instant, format_if_known, format_instant
from slicekeeper.wire.timekeeper import Grant, GrantList
from timekeeper.api import answers, parse
from timekeeper.api.budget_owner import BudgetOwner, ParentOwner, owner_of
from timekeeper.api.handler_context import HandlerContext
from timekeeper.api.idempotency import keyed, order_of
from timekeeper.api.problems import Problem
from timekeeper.api.schemas.movement import AdjustmentBody, GrantBody, Movement, MovementList, RefundBody, TransferBody
from timekeeper.core.accounting_period import period_end
from timekeeper.core.refusal import Unknown
from timekeeper.ledger import movement
from timekeeper.ledger.refund import refund_pod
from timekeeper.store import budget_rules, idempotent_rows
from timekeeper.store.db.models import BudgetGrant


def grants(context: HandlerContext, **path: str) -> Response:
    """Return a page of grants."""
    rows, more = _page(context, path, "grant", "grants")
    return answers.json(GrantList(items=list(map(_grant, rows)), next_cursor=more))


def _grant(row: BudgetGrant) -> Grant:
    return Grant(
        id=row.id,
        amount_ms=row.amount_ms,
        reason=row.reason,
        valid_from=format_instant(row.valid_from),
        valid_to=format_if_known(row.valid_to),
        actor=row.actor,
        booked_at=format_instant(row.booked_at),
        priority=row.priority,
        withdrawn_at=format_if_known(row.withdrawn_at),
    )


def refunds(context: HandlerContext, **path: str) -> Response:
    """Return a page of refunds."""
    return _moved(context, path, "refund", "refunds")


def adjustments(context: HandlerContext, **path: str) -> Response:
    """Return a page of adjustments."""
    return _moved(context, path, "adjustment", "adjustments")


def transfers(context: HandlerContext, **path: str) -> Response:
    """Return a page of transfers, in and out."""
    return _moved(context, path, "transfer", "transfers")


def _moved(context: HandlerContext, path: dict[str, str], kind: str, right: str) -> Response:
    """Return a page of movements of a kind."""
    rows, more = _page(context, path, kind, right)
    ends = {row.id: row.valid_to for row in rows} | _refunds_end(context, [row for row in rows if row.kind == "refund"])
    items = [
        Movement(
            id=row.id,
            amount_ms=row.amount_ms,
            reason=row.reason,
            counterpart=row.counterpart,
            valid_to=format_if_known(ends[row.id]),
            actor=row.actor,
            booked_at=format_instant(row.booked_at),
        )
        for row in rows
    ]
    return answers.json(MovementList(items=items, next_cursor=more))


def _refunds_end(context: HandlerContext, rows: Sequence[BudgetGrant]) -> dict[int, Instant | None]:
    """Return when one namespace's refunds expire: with the period in which they were booked."""
    if not rows:
        return {}
    with context.books.database.reading() as session:
        rules = [row.rule for row in budget_rules.rules(session, rows[0].namespace_id)]
    return {row.id: period_end(rules, row.valid_from) for row in rows}


def _page(context: HandlerContext, path: dict[str, str], kind: str, right: str) -> tuple[list[BudgetGrant], str | None]:
    owner = owner_of(context, **path)
    owner.allow("get", right)
    return owner.page(BudgetGrant, BudgetGrant.kind == kind)


def grant(context: HandlerContext, **path: str) -> Response:
    """Book a grant; return the budget afterwards."""
    owner = owner_of(context, **path)
    caller = owner.allow("create", "grants")
    given = parse.body(GrantBody)
    order = order_of(context, caller, given.amount_ms, given.reason)
    start = order.now if given.valid_from is None else parse.instant(given.valid_from, "validFrom")
    end = None if given.valid_to is None else parse.instant(given.valid_to, "validTo")
    made = movement.grant(
        context.books, owner.account_ref(), order, valid_from=start, valid_to=end, priority=given.priority
    )
    with context.books.database.reading() as session:
        row = idempotent_rows.under(session, BudgetGrant, owner.require(session).id, order.key)
    return answers.changed(owner, made=made, location=f"{request.path}/{row.id}" if row else "")


def withdraw(context: HandlerContext, grant: str, **path: str) -> Response:
    """Withdraw a grant that has not begun."""
    owner = owner_of(context, **path)
    caller = owner.allow("delete", "grants")
    key, now = parse.row_id(grant), context.clock.now_ms()
    reason = parse.plain("reason", 1024) or "withdrawn"
    row = movement.withdraw(
        context.books, owner.require, key, reason=reason, actor=caller.name, now=now, asked=keyed(context)
    )
    context.controller.nudge()
    return answers.json(_grant(row))


def refund(context: HandlerContext, namespace: str) -> Response:
    """Refund an ended pod's charge, or a part of it."""
    owner = owner_of(context, namespace)
    caller = owner.allow("create", "refunds")
    given = parse.body(RefundBody)
    order = order_of(context, caller, given.amount_ms, given.reason)
    return answers.changed(owner, made=refund_pod(context.books, owner.account_ref(), order, pod_uid=given.pod_uid))


def adjust(context: HandlerContext, **path: str) -> Response:
    """Adjust GPU time by hand."""
    owner = owner_of(context, **path)
    caller = owner.allow("create", "adjustments")
    given = parse.body(AdjustmentBody)
    if given.amount_ms == 0:
        raise Problem(
            422, "body-invalid", "amountMs: 0 changes nothing; use a positive or a negative amount", "amountMs"
        )
    order = order_of(context, caller, given.amount_ms, given.reason)
    return answers.changed(owner, made=movement.adjust(context.books, owner.account_ref(), order))


def transfer(context: HandlerContext, **path: str) -> Response:
    """Move GPU time into another budget; the right is needed in both."""
    owner = owner_of(context, **path)
    caller = owner.allow("create", "transfers")
    given = parse.body(TransferBody)
    target = _target(owner, given)
    target.allow("create", "transfers")
    if target == owner:
        raise Problem(422, "body-invalid", "to: it must be a different budget from the source", "to")
    order = order_of(context, caller, given.amount_ms, given.reason)
    end = None if given.valid_to is None else parse.instant(given.valid_to, "validTo")
    try:
        there = target.account_ref()
    except Unknown as error:
        raise type(error)(f"to: {error}", "to") from error
    return answers.changed(
        owner, made=movement.transfer(context.books, owner.account_ref(), there, order, valid_to=end)
    )


def _target(owner: BudgetOwner, given: TransferBody) -> BudgetOwner:
    """Return the target of a transfer: without `toKind`, of the same kind as the source.

    Raises Problem if it cannot be a name.
    """
    above = isinstance(owner, ParentOwner) if given.to_kind is None else given.to_kind == "parent"
    try:
        return owner_of(owner.context, parent=given.to) if above else owner_of(owner.context, given.to)
    except Problem as problem:
        raise Problem(problem.status, problem.code, f"to: {problem.detail}", "to") from problem
