# SPDX-License-Identifier: Apache-2.0
"""Follow the setting that says how time over budget is treated."""

from __future__ import annotations

from sqlalchemy.orm import Session

from slicekeeper.clock import CLOCK_SKEW_MS
from slicekeeper.units import EPOCH, Instant
from timekeeper.core.budget_record import Debt
from timekeeper.ledger.books import Books
from timekeeper.ledger.settlement import settle_all
from timekeeper.store import accounts, debts, timelines


def follow_debt(books: Books, now: Instant) -> None:
    """Make time over budget owed or forgiven, as the setting says, from now on if the setting has changed.

    A ledger's first setting applies from the start of time. A setting that is further ahead than clocks may differ was
    written by a wrong clock, and never takes effect.
    """

    def change(session: Session) -> None:
        known = debts.of_cluster(session, books.cluster)
        right = [debt for debt in known if debt.since <= now + CLOCK_SKEW_MS]
        if known and known[-1].carry == books.carry and right == known:
            return
        since = max(now, Instant(right[-1].since + 1)) if right else EPOCH
        debts.drop(session, books.cluster, Instant(now + CLOCK_SKEW_MS))
        debts.add(session, books.cluster, Debt(since, books.carry))
        if right:
            mine = {account.id for account in accounts.of_cluster(session, books.cluster)}
            touched = mine.intersection(timelines.holders_since(session, since))
            settle_all(books, session, dict.fromkeys(touched, since), now)
            detail = {"debt": debts.word(books.carry), "effectiveAt": since}
            books.audit(session, actor="settings", action="debt", about=None, detail=detail, now=now)

    books.database.write(change)
