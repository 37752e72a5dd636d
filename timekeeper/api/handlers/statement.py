# SPDX-License-Identifier: Apache-2.0
"""Periods, their seals, and statements of bookings."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from typing import Final

from flask import Response
from sqlalchemy.orm import Session

from slicekeeper.units import Instant, format_instant
from slicekeeper.wire.timekeeper import Statement, StatementChild, StatementPod, StatementTotal
from timekeeper.api import requests
from timekeeper.api.holder import Holder, holder
from timekeeper.api.schemas.period import Period, PeriodList, SealBody
from timekeeper.api.service import Service, service
from timekeeper.core import posting
from timekeeper.core.accounting_period import period_around
from timekeeper.core.budget import period_bucket, rule_at
from timekeeper.core.record import AccountId, Rule
from timekeeper.core.timeline import CHILD
from timekeeper.ledger.seal import seal as seal_up
from timekeeper.store import accounts, budget_rules, statements
from timekeeper.store.accounts import BudgetAccount
from timekeeper.store.statements import Charged, Total

_GIVES: Final = ("allowance", "adjustment", "refund", "transfer-in")
_TAKES: Final = ("withdrawal", "transfer-out")
_COLUMNS: Final = ("line", "subject", "name", "correction", "count", "amountMs", "overBudgetMs", "balanceMs")


def periods(**path: str) -> Response:
    """Return a page of periods."""
    whose = holder(service(), **path)
    whose.allow("get", "statement")
    return _periods(whose, requests.limit(), requests.cursor(Instant))


def seal(**path: str) -> Response:
    """Seal periods that are over."""
    it = service()
    whose = holder(it, **path)
    caller = whose.allow("update")
    given = requests.body(SealBody)
    until = requests.instant(given.until, "until")
    with it.books.database.reading() as session:
        account = whose.require(session)
    seal_up(it.books, account, until, reason=given.reason, actor=caller.name, now=it.clock.now_ms())
    return _periods(whose, 1, until)


def _periods(whose: Holder, limit: int, before: Instant | None) -> Response:
    now = whose.it.clock.now_ms()
    with whose.it.books.database.reading() as session:
        account = whose.require(session)
        rules = [row.rule for row in budget_rules.rules(session, account.id)]
        found = _newest(
            rules,
            now if before is None else min(Instant(before - 1), now),
            statements.first_instant(session, account.id),
        )
        spans = [span for span, _ in zip(found, range(limit + 1), strict=False)]
        items = _booked(session, account, rules, spans[:limit], now)
    more = requests.next_cursor(spans[limit - 1][0]) if len(spans) > limit else None
    sealed = format_instant(account.sealed_until) if account.sealed_until else None
    return requests.answer(PeriodList(items=items, sealed_until=sealed, next_cursor=more))


def _newest(rules: Sequence[Rule], at: Instant, first: Instant) -> Iterator[tuple[Instant, Instant]]:
    """Yield periods from the one around an instant back to that of the first record."""
    while at >= first:
        start, end = period_around(rules, at)
        yield start, end
        at = Instant(start - 1)


def _booked(
    session: Session,
    account: BudgetAccount,
    rules: Sequence[Rule],
    spans: Sequence[tuple[Instant, Instant]],
    now: Instant,
) -> list[Period]:
    all_totals = statements.totals(session, account.id, spans)
    named = {key for start, end in spans for key in _names(rules, start, end)}
    begun = statements.begun(session, account.id, named)
    return [
        Period(
            start=format_instant(start),
            end=format_instant(end),
            state="sealed" if end <= account.sealed_until else "grace" if end <= now else "open",
            granted_ms=_sum(totals, _GIVES) - _sum(totals, _TAKES),
            charged_ms=_sum(totals, ("charge",)),
            over_budget_ms=_sum(totals, ("over-budget",)),
            expired_ms=_sum(totals, ("expiry",)),
            rolled_over_ms=_rolled_over(rules, [one for one in begun if start <= one[0] < end]),
            corrections=sum(total.count for total in totals if total.correction),
        )
        for (start, end), totals in zip(spans, all_totals, strict=True)
    ]


def _names(rules: Sequence[Rule], start: Instant, end: Instant) -> Iterator[str]:
    """Yield the names that a period's allowance can have: one not drawn on yet follows the calendar of a new rule."""
    yield f"period:{start}"
    yield from (period_bucket(rule, rule.since)[1].key for rule in rules if start <= rule.since < end)


def _rolled_over(rules: Sequence[Rule], begun: Sequence[tuple[Instant, int]]) -> int:
    """Return the rollover of a period, relative to the budget's amount when the first pod drew on it."""
    return max(sum(amount - rule_at(rules, at).amount for at, amount in begun), 0)


def _sum(totals: Sequence[Total], kinds: Sequence[str]) -> int:
    return sum(total.amount for total in totals if total.kind in kinds)


def statement(**path: str) -> Response:
    """Return the bookings of an interval; by default, of the current period."""
    it = service()
    whose = holder(it, **path)
    whose.allow("get", "statement")
    limit, after = requests.limit(), requests.cursor(str) or ""
    wanted = requests.choice("format", ("json", "csv"))
    with it.books.database.reading() as session:
        account = whose.require(session)
        rules = [row.rule for row in budget_rules.rules(session, account.id)]
        span = requests.interval(period_around(rules, it.clock.now_ms()))
        if wanted == "csv":
            return _csv(it, account, span)
        opening, totals = (None, []) if after else _summed(session, account, span)
        rows = list(statements.charged(session, account.id, *span, after=after, limit=limit + 1))
        children = _children(session, account, rows[:limit])
    return requests.answer(
        Statement(
            namespace=account.name if account.kind == "namespace" else None,
            parent=None if account.kind == "namespace" else account.name,
            start=format_instant(span[0]),
            end=format_instant(span[1]),
            opening_ms=opening,
            closing_ms=None if opening is None else opening + sum(total.balance_ms for total in totals),
            totals=totals,
            workloads=[
                StatementPod(
                    pod_uid=row.pod_uid,
                    pod_name=row.pod_name,
                    charged_ms=row.charged,
                    over_budget_ms=row.over_budget,
                    corrections_ms=row.corrections,
                    interval_corrected=row.corrected,
                )
                for row in rows[:limit]
                if not children
            ],
            children=children,
            next_cursor=requests.next_cursor(rows[limit - 1].pod_uid) if len(rows) > limit else None,
        )
    )


def _children(session: Session, account: BudgetAccount, rows: Sequence[Charged]) -> list[StatementChild]:
    """Return the charges of budgets directly below: a parent's ledger has their sums, and no pods."""
    if account.kind == "namespace":
        return []
    keys = [AccountId(int(row.pod_uid.removeprefix(CHILD))) for row in rows]
    named = accounts.named(session, keys)
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
    (totals,) = statements.totals(session, account.id, [span])
    sums = [
        StatementTotal(
            kind=total.kind,
            correction=total.correction,
            count=total.count,
            amount_ms=total.amount,
            balance_ms=posting.effect(total.kind, "budget", total.amount),
        )
        for total in totals
    ]
    return statements.opening(session, account.id, span[0]), sums


def _csv(it: Service, account: BudgetAccount, span: tuple[Instant, Instant]) -> Response:
    """Return a whole statement line by line; however many pods it has, they are never all in memory."""

    def lines() -> Iterator[tuple[object, ...]]:
        with it.books.database.reading() as session:
            opening, totals = _summed(session, account, span)
            closing = opening + sum(total.balance_ms for total in totals)
            yield _COLUMNS
            yield ("opening", format_instant(span[0]), account.name, "", "", "", "", opening)
            for kind in totals:
                cells = (kind.kind, "", str(kind.correction).lower(), kind.count, kind.amount_ms, "", kind.balance_ms)
                yield ("total", *cells)
            yield ("closing", format_instant(span[1]), account.name, "", "", "", "", closing)
            rows = statements.charged(session, account.id, *span)
            if account.kind != "namespace":
                for one in _children(session, account, list(rows)):
                    yield (one.kind, one.name, "", "", "", one.charged_ms, one.over_budget_ms, "")
                return
            for pod in rows:
                yield ("workload", pod.pod_uid, pod.pod_name, "", "", pod.charged, pod.over_budget, "")

    def text() -> Iterator[str]:
        for line in lines():
            buffer = io.StringIO()
            csv.writer(buffer).writerow(line)
            yield buffer.getvalue()

    answer = Response(text(), content_type="text/csv; charset=utf-8")
    answer.headers["Content-Disposition"] = f'attachment; filename="statement-{account.name}.csv"'
    return answer
