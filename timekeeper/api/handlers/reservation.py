# SPDX-License-Identifier: Apache-2.0
"""Read reservations of GPU time, and open and release those by hand. The controller does that for pods."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, cast

from flask import Response

from slicekeeper.units import format_if_known, format_instant
from slicekeeper.wire.timekeeper import Reservation, ReservationList
from timekeeper.api import answers, parse
from timekeeper.api.budget_owner import owner_of
from timekeeper.api.handler_context import HandlerContext
from timekeeper.api.idempotency import keyed, order_of
from timekeeper.api.schemas.reservation import ReservationBody
from timekeeper.core.refusal import ReservationUnknown
from timekeeper.ledger.reservation import open_by_hand, outcome_of, release
from timekeeper.store import reservations as store
from timekeeper.store.db.models import ReservationRow


def listed(context: HandlerContext, namespace: str) -> Response:
    """Return a page of reservations."""
    owner = owner_of(context, namespace)
    owner.allow("get", "reservations")
    rows, more = owner.page(ReservationRow)
    return answers.json(ReservationList(items=_views(context, rows), next_cursor=more))


def opened(context: HandlerContext, namespace: str) -> Response:
    """Set GPU time aside."""
    owner = owner_of(context, namespace)
    caller = owner.allow("create", "reservations")
    given = parse.body(ReservationBody)
    order = order_of(context, caller, given.amount_ms, given.reason)
    end = parse.instant(given.expires_at, "expiresAt")
    row, made = open_by_hand(context.books, owner.account_ref(), order, expires_at=end)
    return answers.json(_views(context, [row])[0], 201 if made else 200)


def shown(context: HandlerContext, namespace: str, reservation: str) -> Response:
    """Return one reservation."""
    owner = owner_of(context, namespace)
    owner.allow("get", "reservations")
    with context.books.database.reading() as session:
        account = owner.find(session)
        row = store.by_id(session, account.id, parse.row_id(reservation)) if account else None
    if row is None:
        raise ReservationUnknown(f"namespace {namespace} has no reservation {reservation}")
    return answers.json(_views(context, [row])[0])


def released(context: HandlerContext, namespace: str, reservation: str) -> Response:
    """Release a reservation that was opened by hand."""
    owner = owner_of(context, namespace)
    caller = owner.allow("delete", "reservations")
    key, now = parse.row_id(reservation), context.clock.now_ms()
    reason = parse.plain("reason", 1024) or "released"
    row = release(
        context.books, owner.find, namespace, key, reason=reason, actor=caller.name, now=now, asked=keyed(context)
    )
    context.controller.nudge()
    return answers.json(_views(context, [row])[0])


def _views(context: HandlerContext, rows: Sequence[ReservationRow]) -> list[Reservation]:
    now = context.clock.now_ms()
    with context.books.database.reading() as session:
        left = store.left(session, rows, now)
    return [
        Reservation(
            id=row.id,
            state=cast(Literal["open", "settled", "released", "expired"], outcome_of(row, now)),
            amount_ms=row.amount_ms,
            held_ms=left[row.id],
            pod_uid=row.pod_uid,
            pod_name=row.pod_name,
            reason=row.reason,
            actor=row.actor,
            opened_at=format_instant(row.opened_at),
            expires_at=format_if_known(row.expires_at),
            ended_at=format_if_known(row.ended_at),
        )
        for row in rows
    ]
