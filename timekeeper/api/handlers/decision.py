# SPDX-License-Identifier: Apache-2.0
"""Return decisions: the state of all namespaces in one answer, which is a 304 for pollers while nothing changes.

A deleted namespace keeps its account, but has no decision: a new namespace of the same name gets a new account.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Final

from flask import Response

from slicekeeper.units import Instant, format_instant
from slicekeeper.wire.timekeeper import DecisionList
from timekeeper.api import answers, parse
from timekeeper.api.budget_owner import NamespaceOwner
from timekeeper.api.handler_context import HandlerContext
from timekeeper.api.views import decision as decision_views
from timekeeper.core.refusal import NamespaceUnknown
from timekeeper.ledger import reservation
from timekeeper.ledger.standing import BudgetStanding

_FORECAST_SECONDS: Final = 0.02
"""CPU time that an answer with all decisions may spend on forecasts; the next one has those that are missing."""


def listed(context: HandlerContext) -> Response:
    """Return all namespaces' decisions."""
    context.allow("list")
    now = context.clock.now_ms()
    held = reservation.reserved(context.books, now)
    there = [p for p in context.books.standings() if _is_there(context, p)]
    items = [
        decision_views.decision(p, context.policy.of(p.account.name), context.settings, now, held[p.account.id], at)
        for p, at in zip(there, _run_outs(there, now), strict=True)
    ]
    gpus = context.controller.nodes.gpus()
    etag = decision_views.decisions_tag(items, gpus)
    found = DecisionList(items=items, as_of=format_instant(now), gpus=gpus)
    return answers.not_modified(etag) or answers.json(found, etag=etag)


def _run_outs(standings: Sequence[BudgetStanding], now: Instant) -> Iterator[Instant | None]:
    """Yield when budgets will run out, or None if it would take too long to find that out now."""
    spent = 0.0
    for standing in standings:
        begun = time.thread_time()
        yield standing.run_out(now, known=spent > _FORECAST_SECONDS)
        spent += time.thread_time() - begun


def shown(context: HandlerContext, namespace: str) -> Response:
    """Return one namespace's decision."""
    name = parse.namespace(namespace)
    context.allow("get", name)
    standing = NamespaceOwner(context, name).standing()
    if standing is None or not _is_there(context, standing):
        raise NamespaceUnknown(f"namespace {name} has no account yet: it is in budget")
    now = context.clock.now_ms()
    held = reservation.reserved(context.books, now, standing.account.id)[standing.account.id]
    run_out = standing.run_out(now)
    decision = decision_views.decision(standing, context.policy.of(name), context.settings, now, held, run_out)
    etag = decision_views.decisions_tag([decision])
    return answers.not_modified(etag) or answers.json(decision, etag=etag)


def _is_there(context: HandlerContext, standing: BudgetStanding) -> bool:
    return not context.controller.namespaces.is_gone(standing.account.name, standing.account.uid)
