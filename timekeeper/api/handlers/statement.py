# SPDX-License-Identifier: Apache-2.0
"""Return a budget's statement: what is booked in an interval, as JSON or CSV."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from flask import Response
from sqlalchemy.orm import Session

from slicekeeper.units import Instant, format_instant
from slicekeeper.wire.timekeeper import Statement, StatementChild, StatementPod, StatementTotal
from timekeeper.api import answers, paging, parse
from timekeeper.api.budget_owner import owner_of
from timekeeper.api.handler_context import HandlerContext
from timekeeper.api.views.statement_csv import csv_lines
from timekeeper.core import posting
from timekeeper.core.account import AccountId
from timekeeper.core.accounting_period import accounting_period
from timekeeper.core.timeline import CHILD
from timekeeper.store import accounts, budget_rules, statements
from timekeeper.store.accounts import BudgetAccount
from timekeeper.store.statements import Charged


def statement(context: HandlerContext, **path: str) -> Response:
    """Return the bookings of an interval; by default, of the current period."""
    owner = owner_of(context, **path)
    owner.allow("get", "statement")
    limit, after = paging.limit(), paging.cursor(str) or ""
    wanted = parse.choice("format", ("json", "csv"))
    with context.books.database.reading() as session:
        account = owner.require(session)
        rules = [row.rule for row in budget_rules.rules(session, account.id)]
        span = parse.interval(accounting_period(rules, context.clock.now_ms()))
        if wanted == "csv":
            return _csv(context, account, span)
        opening, totals = (None, []) if after else _summed(session, account, span)
        rows = list(statements.charged(session, account.id, *span, after=after, limit=limit + 1))
        rows, more = paging.page(rows, limit, lambda row: row.pod_uid)
        children = _children(session, account, rows)
    return answers.json(
        Statement(
            namespace=account.name if account.kind == "namespace" else None,
            parent=None if account.kind == "namespace" else account.name,
            start=format_instant(span[0]),
            end=format_instant(span[1]),
            opening_ms=opening,
            closing_ms=None if opening is None else opening + sum(total.balance_ms for total in totals),
            totals=totals,
            workloads=[] if children else list(map(_pod, rows)),
            children=children,
            next_cursor=more,
        )
    )


def _pod(row: Charged) -> StatementPod:
    return StatementPod(
        pod_uid=row.pod_uid,
        pod_name=row.pod_name,
        charged_ms=row.charged,
        over_budget_ms=row.over_budget,
        corrections_ms=row.corrections,
        interval_corrected=row.corrected,
    )


def _children(session: Session, account: BudgetAccount, rows: Sequence[Charged]) -> list[StatementChild]:
    """Return the charges of budgets directly below, which have the place of pods in a parent's ledger: as sums."""
    if account.kind == "namespace":
        return []
    keys = [AccountId(int(row.pod_uid.removeprefix(CHILD))) for row in rows]
    named = accounts.by_id(session, keys)
    return [
        StatementChild(
            name=named[key].name,
            kind=named[key].kind,
            charged_ms=row.charged,
            over_budget_ms=row.over_budget,
            corrections_ms=row.corrections,
        )
        for key, row in zip(keys, rows, strict=True)
    ]


def _summed(
    session: Session, account: BudgetAccount, span: tuple[Instant, Instant]
) -> tuple[int, list[StatementTotal]]:
    """Return the opening balance of an interval, and the sums of what is booked in it by kind."""
    (totals,) = statements.totals(session, account.id, [span])
    sums = [
        StatementTotal(
            kind=total.name,
            correction=total.correction,
            count=total.count,
            amount_ms=total.amount,
            balance_ms=posting.effect(total.kind, total.amount),
        )
        for total in totals
    ]
    return statements.opening(session, account.id, span[0]), sums


def _csv(context: HandlerContext, account: BudgetAccount, span: tuple[Instant, Instant]) -> Response:
    """Return a whole statement line by line; however many pods it has, they are never all in memory."""

    def lines() -> Iterator[str]:
        with context.books.database.reading() as session:
            opening, totals = _summed(session, account, span)
            rows = statements.charged(session, account.id, *span)
            below = None if account.kind == "namespace" else _children(session, account, list(rows))
            yield from csv_lines(account.name, span, opening, totals, rows if below is None else below)

    answer = Response(lines(), content_type="text/csv; charset=utf-8")
    answer.headers["Content-Disposition"] = f'attachment; filename="statement-{account.name}.csv"'
    return answer
