# SPDX-License-Identifier: Apache-2.0
"""Read a budget's ledger entries."""

from __future__ import annotations

import re
from typing import cast

from flask import Response
from sqlalchemy.orm import Session

from slicekeeper.units import format_if_known, format_instant
from timekeeper.api import answers, paging
from timekeeper.api.budget_owner import owner_of
from timekeeper.api.handler_context import HandlerContext
from timekeeper.api.schemas.entry import EntryList, LedgerEntry
from timekeeper.core.account import AccountId
from timekeeper.core.posting import PostingKind, entry_name
from timekeeper.core.timeline import CHILD
from timekeeper.store import accounts, bookings
from timekeeper.store.bookings import StatementEntry


def listed(context: HandlerContext, **path: str) -> Response:
    """Return a page of ledger entries."""
    owner = owner_of(context, **path)
    owner.allow("get", "statement")
    limit, after = paging.limit(), paging.cursor(int)
    with context.books.database.reading() as session:
        account = owner.require(session)
        lines = bookings.lines(session, account.id, after or 0, limit + 1)
        lines, more = paging.page(lines, limit, lambda line: line.id)
        subjects = _subjects(session, lines)
        items = [
            LedgerEntry(
                id=line.id,
                transaction=line.transaction.id,
                kind=entry_name(cast(PostingKind, line.transaction.kind), line.transaction.subject),
                account=line.account,
                amount_ms=line.amount_ms,
                subject=subjects.get(line.transaction.subject, line.transaction.subject),
                start=format_instant(line.transaction.started_at),
                effective_at=format_instant(line.transaction.effective_at),
                booked_at=format_instant(line.transaction.booked_at),
                reverses=line.transaction.reverses,
                corrects_at=format_if_known(line.transaction.corrects_at),
            )
            for line in lines
        ]
    return answers.json(EntryList(items=items, next_cursor=more))


def _subjects(session: Session, lines: list[StatementEntry]) -> dict[str, str]:
    """Return the display names of the budgets below a parent, by the subjects of its charges."""
    found = {line.transaction.subject: re.fullmatch(f"{CHILD}([0-9]+)", line.transaction.subject) for line in lines}
    keys = {subject: AccountId(int(match[1])) for subject, match in found.items() if match}
    named = accounts.by_id(session, keys.values()) if keys else {}
    return {subject: f"{named[key].kind}:{named[key].name}" for subject, key in keys.items()}
