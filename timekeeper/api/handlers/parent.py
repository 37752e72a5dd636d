# SPDX-License-Identifier: Apache-2.0
"""Create and change teams and organisations, and put budgets under them.

What they have in common with namespaces (grants, statements…) is served by the same handlers as for these.
"""

from __future__ import annotations

from flask import Response
from msgspec import UnsetType

from slicekeeper.config.policy import NamespacePolicy
from slicekeeper.units import format_instant
from slicekeeper.wire.timekeeper import Child, ChildList, ParentList
from timekeeper.api import answers, budget_rule, paging, parse
from timekeeper.api.budget_owner import ParentOwner, owner_of
from timekeeper.api.handler_context import HandlerContext
from timekeeper.api.idempotency import keyed
from timekeeper.api.schemas.parent import ParentBudgetBody, ParentPatch, PlaceBody
from timekeeper.api.views import budget
from timekeeper.api.views.budget_state import state_name
from timekeeper.api.views.consistent_read import read_with_bookings
from timekeeper.ledger import hierarchy, reservation
from timekeeper.store import bookings

_RIGHT = "parents"


def listed(context: HandlerContext) -> Response:
    """Return a page of teams and organisations."""
    context.allow("list", "", _RIGHT)
    limit, after = paging.limit(), paging.cursor(str)
    standings, now = context.books.parents(after or "", limit + 1), context.clock.now_ms()
    standings, more = paging.page(standings, limit, lambda p: p.account.name)
    held = reservation.reserved_below(context.books, standings, now)
    items = [budget.parent(p, now, held[p.account.id]) for p in standings]
    return answers.json(ParentList(items=items, next_cursor=more))


def put(context: HandlerContext, parent: str) -> Response:
    """Create a team or an organisation, or set its budget."""
    owner = owner_of(context, parent=parent)
    caller = owner.allow("update")
    given = parse.body(ParentBudgetBody)
    rule, wanted = budget_rule.rule_of(context, given), parse.if_match()
    made = hierarchy.put_parent_budget(
        context.books,
        parent,
        given.kind,
        rule,
        actor=caller.name,
        if_match=wanted,
        reason=given.reason,
        asked=keyed(context),
    )
    return answers.changed(owner, made=made)


def patch(context: HandlerContext, parent: str) -> Response:
    """Change the fields in the body of a team's or an organisation's budget."""
    owner = ParentOwner(context, parse.parent(parent))
    caller = owner.allow("update")
    given = parse.body(ParentPatch)
    change, wanted = budget_rule.patched(context, given), parse.if_match()
    kind = None if isinstance(given.kind, UnsetType) else given.kind
    hierarchy.patch_parent_budget(
        context.books,
        parent,
        kind,
        change,
        actor=caller.name,
        if_match=wanted,
        reason=given.reason,
        asked=keyed(context),
    )
    return answers.changed(owner)


def put_under(context: HandlerContext, **path: str) -> Response:
    """Put a namespace or a team under another budget from now on, or under none."""
    owner = owner_of(context, **path)
    caller = context.allow("update", "", _RIGHT)
    given = parse.body(PlaceBody)
    above = None if given.parent is None else parse.parent(given.parent)
    hierarchy.set_parent(
        context.books,
        owner.account_ref(),
        above,
        reason=given.reason,
        actor=caller.name,
        now=context.clock.now_ms(),
        asked=keyed(context),
    )
    return answers.changed(owner)


def children(context: HandlerContext, parent: str) -> Response:
    """Return the budgets directly below a team or an organisation, and how much of its budget each has consumed."""
    owner = ParentOwner(context, parse.parent(parent))
    owner.allow("get")
    now = context.clock.now_ms()
    standing, booked = read_with_bookings(
        context.books.database,
        owner.standing,
        lambda session, one: bookings.charged_below(session, one.account.id, one.at(now).counts_since),
    )
    running = standing.running_below(now)
    below = [(child, child.at(now)) for child in context.books.children(standing)]
    items = [
        Child(
            name=child.account.name,
            kind=child.account.kind,
            state=state_name(child, state, NamespacePolicy()),
            balance_ms=state.balance,
            consumed_ms=booked[child.account.id] + running[child.account.id],
        )
        for child, state in below
    ]
    return answers.json(ChildList(items=items, as_of=format_instant(max(now, standing.at(now).at))))
