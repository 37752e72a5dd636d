# SPDX-License-Identifier: Apache-2.0
"""Answers about ledger entries."""

from __future__ import annotations

from slicekeeper.wire.timekeeper import Wire


class LedgerEntry(Wire, frozen=True, kw_only=True):
    """One side of a transaction. Charges cover [`start`, `effectiveAt`)."""

    id: int
    transaction: int
    kind: str
    account: str
    amount_ms: int
    subject: str
    """For a charge, the pod's UID, or in a parent the budget below it: `namespace:x`, `team:x`; else the allowance."""
    start: str
    effective_at: str
    booked_at: str
    reverses: int | None
    corrects_at: str | None
    """For a correction: the instant in a sealed period at which it would have been effective."""


class EntryList(Wire, frozen=True, kw_only=True):
    """A page of ledger entries, in the order of booking."""

    items: list[LedgerEntry]
    next_cursor: str | None = None
