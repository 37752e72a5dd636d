# SPDX-License-Identifier: Apache-2.0
"""Seal periods: after a grace period, or when an operator requests it, the bookings in them never change again.

Late records are booked as corrections in the period that is open then, with the instant at which they would have been
effective. A correction moves the same accounts by the same amounts as the booking (or the reversal) that it represents.
So for each account, a sealed period and its corrections together are what the period would be if everything had been
known in time; and the current balance is the same.

Without periods (`none`) the calendar months of the budget's time zone are sealed.
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy.orm import Session

from slicekeeper.units import Instant
from timekeeper.core.account import AccountId
from timekeeper.core.accounting_period import accounting_period
from timekeeper.core.refusal import PeriodNotOver
from timekeeper.ledger import settlement
from timekeeper.ledger.books import Books
from timekeeper.ledger.executed_request import KeyedRequest, repeated
from timekeeper.store import accounts, budget_rules, seals
from timekeeper.store.accounts import BudgetAccount

_TOGETHER = 50
"""Namespaces in one transaction: other writers wait for it."""


def seal_due(books: Books, grace_ms: int, now: Instant) -> None:
    """Seal the periods that ended `grace_ms` ago or earlier, of all namespaces that have ever existed."""
    with books.database.reading() as session:
        all_accounts = accounts.of_cluster(session, books.cluster)
        rules = budget_rules.all_rules(session, books.cluster)
    over = Instant(now - grace_ms)
    ends = {key: accounting_period([row.rule for row in mine], over)[0] for key, mine in rules.items()}
    wanted = [(account.id, ends[account.id]) for account in all_accounts if ends[account.id] > account.sealed_until]
    for start in range(0, len(wanted), _TOGETHER):
        _seal_together(books, wanted[start : start + _TOGETHER], now)


def _seal_together(books: Books, wanted: Sequence[tuple[AccountId, Instant]], now: Instant) -> None:
    def change(session: Session) -> None:
        for namespace, end in wanted:
            _seal(books, session, namespace, end, actor=seals.BY_ITSELF, now=now)

    books.database.write(change)


def seal(
    books: Books,
    account: BudgetAccount,
    until: Instant,
    *,
    reason: str,
    actor: str,
    now: Instant,
    asked: KeyedRequest | None = None,
) -> None:
    """Seal a budget's periods up to the end of one, by an operator's request; a repetition changes nothing.

    Raises Conflicting if no period that is over ends there.
    """

    def change(session: Session) -> None:
        if repeated(books, session, account.uid, asked):
            return
        rules = [row.rule for row in budget_rules.rules(session, account.id)]
        if until > now or accounting_period(rules, Instant(until - 1))[1] != until:
            raise PeriodNotOver("until: no completed period ends at that instant")
        if until > seals.until(session, account.id):
            _seal(books, session, account.id, until, actor=actor, now=now)
            detail = {"until": until, "reason": reason}
            books.audit(session, actor=actor, action="seal", about=account, detail=detail, now=now)

    books.database.write(change)


def _seal(books: Books, session: Session, budget: AccountId, until: Instant, *, actor: str, now: Instant) -> None:
    """Book what is due, then seal."""
    settlement.settle_in(books, session, budget, None, now)
    seals.put(session, budget, until, actor=actor, now=now)
