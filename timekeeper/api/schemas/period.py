# SPDX-License-Identifier: Apache-2.0
"""Answers about accounting periods, and the body that seals them."""

from __future__ import annotations

from typing import Literal

from slicekeeper.wire.timekeeper import Wire
from timekeeper.api.schemas.base import Body, Instant, Reason


class SealBody(Body, frozen=True, kw_only=True):
    """Up to which instant to seal: the end of a completed period."""

    until: Instant
    reason: Reason


class Period(Wire, frozen=True, kw_only=True):
    """An accounting period, and what is booked in it."""

    start: str
    end: str
    state: Literal["open", "grace", "sealed"]
    granted_ms: int
    """All that came to the budget, less what was taken out of it by hand."""
    charged_ms: int
    over_budget_ms: int
    expired_ms: int
    rolled_over_ms: int
    """The part of `grantedMs` that was left over from the previous period."""
    corrections: int
    """Bookings among these that correct sealed periods."""


class PeriodList(Wire, frozen=True, kw_only=True):
    """A page of periods, newest first."""

    items: list[Period]
    sealed_until: str | None
    """Nothing effective up to this instant is booked or reversed any more; None: nothing is sealed."""
    next_cursor: str | None = None
