# SPDX-License-Identifier: Apache-2.0
"""Ledger entries."""

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
    """The pod's UID of a charge, else the allowance; of a parent's charge whose it is: `namespace:x`, `team:x`."""
    start: str
    effective_at: str
    booked_at: str
    reverses: int | None
    corrects_at: str | None
    """Of a correction: the instant in a sealed period at which it would have been effective."""


class EntryList(Wire, frozen=True, kw_only=True):
    """A page of ledger entries, in the order of booking."""

    items: list[LedgerEntry]
    next_cursor: str | None = None
