# SPDX-License-Identifier: Apache-2.0
"""Read and set the rates of GPU models."""

from __future__ import annotations

from collections.abc import Sequence

from flask import Response

from slicekeeper.config.policy import parse_rate
from slicekeeper.units import format_instant
from timekeeper.api import answers, paging, parse
from timekeeper.api.handler_context import HandlerContext
from timekeeper.api.idempotency import keyed
from timekeeper.api.problems import Problem
from timekeeper.api.schemas.rate import GpuRate, GpuRateList, RateBody
from timekeeper.ledger.rate import set_rate
from timekeeper.store import rates
from timekeeper.store.db.models import Rate


def listed(context: HandlerContext) -> Response:
    """Return a page of rates, of one model if it is named."""
    context.allow("list", "", "rates")
    limit, after = paging.limit(), paging.cursor(int)
    with context.books.database.reading() as session:
        rows = rates.listed(session, parse.plain("model"), after or 0, limit + 1)
    rows, more = paging.page(rows, limit, lambda row: row.id)
    models = context.controller.nodes.models()
    return answers.json(GpuRateList(items=[_rate(row, models) for row in rows], next_cursor=more))


def _rate(row: Rate, models: Sequence[str]) -> GpuRate:
    """Return a rate, with a warning if none of the cluster's models is its own."""
    unmatched = f"no GPU of the cluster is of the model {row.model}; there are {', '.join(models)}"
    return GpuRate(
        id=row.id,
        model=row.model,
        rate=str(row.rate),
        effective_at=format_instant(row.effective_at),
        source=row.source,
        warning=unmatched if models and row.model not in models else "",
    )


def put(context: HandlerContext) -> Response:
    """Set a GPU model's rate from an instant on that is not past."""
    caller = context.allow("create", "", "rates")
    given = parse.body(RateBody)
    try:
        rate = parse_rate(given.rate)
    except (ValueError, ArithmeticError) as error:
        raise Problem(422, "rate-invalid", f"rate: {error}; for example 3/2", "rate") from error
    now = context.clock.now_ms()
    wanted = None if given.effective_at is None else parse.instant(given.effective_at, "effectiveAt")
    since, made = set_rate(
        context.books,
        given.model,
        rate,
        since=wanted,
        reason=given.reason,
        actor=caller.name,
        now=now,
        asked=keyed(context),
    )
    context.controller.nudge()
    with context.books.database.reading() as session:
        row = rates.at(session, given.model, since)
    if row is None:
        raise Problem(503, "database-unavailable", "the rate was set but cannot be read; try again")
    return answers.json(_rate(row, context.controller.nodes.models()), 201 if made else 200)
