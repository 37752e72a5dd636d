# SPDX-License-Identifier: Apache-2.0
"""Correct pods' intervals by hand, once per Idempotency-Key, and list the corrections."""

from __future__ import annotations

from flask import Response

from slicekeeper.units import NO_TIME, format_if_known, format_instant
from slicekeeper.wire.timekeeper import IntervalCorrection, IntervalCorrectionList
from timekeeper.api import answers, parse
from timekeeper.api.budget_owner import owner_of
from timekeeper.api.handler_context import HandlerContext
from timekeeper.api.idempotency import order_of
from timekeeper.api.problems import Problem
from timekeeper.api.schemas.interval_correction import IntervalBody
from timekeeper.ledger import interval_correction
from timekeeper.ledger.interval_correction import RequestedInterval
from timekeeper.store.db.models import IntervalCorrectionRow


def listed(context: HandlerContext, namespace: str) -> Response:
    """Return a page of corrected intervals."""
    owner = owner_of(context, namespace)
    owner.allow("get", "intervals")
    rows, more = owner.page(IntervalCorrectionRow)
    items = [
        IntervalCorrection(
            id=row.id,
            pod_uid=row.pod_uid,
            start=format_instant(row.started_at),
            end=format_if_known(row.ended_at),
            start_before=format_instant(row.started_before),
            end_before=format_if_known(row.ended_before),
            reason=row.reason,
            actor=row.actor,
            booked_at=format_instant(row.booked_at),
        )
        for row in rows
    ]
    return answers.json(IntervalCorrectionList(items=items, next_cursor=more))


def correct(context: HandlerContext, namespace: str) -> Response:
    """Correct a pod's interval; return the budget afterwards."""
    owner = owner_of(context, namespace)
    caller = owner.allow("create", "intervals")
    given = parse.body(IntervalBody)
    if given.start is None and given.end is None:
        raise Problem(
            422, "body-invalid", "start: name a start, an end, or both; for example 2026-11-30T12:00:00Z", "start"
        )
    order = order_of(context, caller, NO_TIME, given.reason)
    start, end = (
        None if value is None else parse.instant(value, field)
        for field, value in (("start", given.start), ("end", given.end))
    )
    wanted = RequestedInterval(given.pod_uid, start, end, order)
    return answers.changed(owner, made=interval_correction.correct(context.books, owner.require, wanted))
