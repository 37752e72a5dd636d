# SPDX-License-Identifier: Apache-2.0
"""Record which thresholds of budgets were announced, each once per period."""

from __future__ import annotations

from collections.abc import Collection

from sqlalchemy.orm import Session

from slicekeeper.units import GpuMilliseconds, Instant
from timekeeper.ledger.books import Books
from timekeeper.store import announced_thresholds
from timekeeper.store.accounts import BudgetAccount


def record_announcement(
    books: Books,
    account: BudgetAccount,
    period: Instant,
    percents: Collection[int],
    now: Instant,
    *,
    used: GpuMilliseconds,
    limit: GpuMilliseconds,
) -> None:
    """Record which thresholds of a budget were announced in a period, and write them to the audit log, once.

    `used` and `limit` are GPU-milliseconds.
    """

    def change(session: Session) -> None:
        news = sorted(set(percents) - announced_thresholds.announced(session, account.id, period))
        announced_thresholds.add(session, account.id, period, news, now)
        for percent in news:
            detail = {"percent": percent, "usedMs": used, "limitMs": limit, "periodStartMs": period}
            books.audit(session, actor="timekeeper", action="threshold", about=account, detail=detail, now=now)

    books.database.write(change)
