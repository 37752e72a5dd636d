# SPDX-License-Identifier: Apache-2.0
"""Read a budget's accounting periods, and seal them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from flask import Response
from sqlalchemy.orm import Session

from slicekeeper.units import GpuMilliseconds, Instant, format_instant
from timekeeper.api import answers, paging, parse
from timekeeper.api.budget_owner import BudgetOwner, owner_of
from timekeeper.api.handler_context import HandlerContext
from timekeeper.api.idempotency import keyed
from timekeeper.api.schemas.period import Period, PeriodList, SealBody
from timekeeper.core.accounting_period import accounting_period
from timekeeper.core.budget_record import Rule
from timekeeper.core.budget_state import period_allowance, rule_at
from timekeeper.ledger.seal import seal as seal_up
from timekeeper.store import budget_rules, statements
from timekeeper.store.accounts import BudgetAccount
from timekeeper.store.statements import Total

_GIVES: Final = ("allowance", "adjustment", "refund", "transfer-in")
_TAKES: Final = ("withdrawal", "transfer-out")


def periods(context: HandlerContext, **path: str) -> Response:
    """Return a page of periods."""
    owner = owner_of(context, **path)
    owner.allow("get", "statement")
    return _periods(owner, paging.limit(), paging.cursor(Instant))


def seal(context: HandlerContext, **path: str) -> Response:
    """Seal periods that are over."""
    owner = owner_of(context, **path)
    caller = owner.allow("update")
    given = parse.body(SealBody)
    until = parse.instant(given.until, "until")
    with context.books.database.reading() as session:
        account = owner.require(session)
    seal_up(
        context.books,
        account,
        until,
        reason=given.reason,
        actor=caller.name,
        now=context.clock.now_ms(),
        asked=keyed(context),
    )
    return _periods(owner, 1, until)


def _periods(owner: BudgetOwner, limit: int, before: Instant | None) -> Response:
    now = owner.context.clock.now_ms()
    with owner.context.books.database.reading() as session:
        account = owner.require(session)
        rules = [row.rule for row in budget_rules.rules(session, account.id)]
        found = _newest(
            rules,
            now if before is None else min(Instant(before - 1), now),
            statements.first_instant(session, account.id),
        )
        spans = [span for span, _ in zip(found, range(limit + 1), strict=False)]
        spans, more = paging.page(spans, limit, lambda span: span[0])
        items = _booked(session, account, rules, spans, now)
    sealed = format_instant(account.sealed_until) if account.sealed_until else None
    return answers.json(PeriodList(items=items, sealed_until=sealed, next_cursor=more))


def _newest(rules: Sequence[Rule], at: Instant, first: Instant) -> Iterator[tuple[Instant, Instant]]:
    """Yield periods from the one around an instant back to that of the first record."""
    while at >= first:
        start, end = accounting_period(rules, at)
        yield start, end
        at = Instant(start - 1)


def _booked(
    session: Session,
    account: BudgetAccount,
    rules: Sequence[Rule],
    spans: Sequence[tuple[Instant, Instant]],
    now: Instant,
) -> list[Period]:
    """Return periods with the sums of what is booked in them, read by two statements however many they are."""
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
    yield from (period_allowance(rule, rule.since)[1].key for rule in rules if start <= rule.since < end)


def _rolled_over(rules: Sequence[Rule], begun: Sequence[tuple[Instant, GpuMilliseconds]]) -> int:
    """Return the rollover of a period, relative to the budget's amount when the first pod drew on it."""
    return max(sum(amount - rule_at(rules, at).amount for at, amount in begun), 0)


def _sum(totals: Sequence[Total], kinds: Sequence[str]) -> int:
    return sum(total.amount for total in totals if total.kind in kinds)
