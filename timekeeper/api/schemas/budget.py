# SPDX-License-Identifier: Apache-2.0
"""Bodies that set a namespace's budget, or whether it may be spent."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import UNSET, Meta, UnsetType

from slicekeeper.config.policy import MAX_AMOUNT_MS
from slicekeeper.units import NO_TIME, GpuMilliseconds
from timekeeper.api.schemas.base import Body, Instant, Reason
from timekeeper.core.period import PeriodName
from timekeeper.ledger.budget_rule import SET

PerPeriod = Annotated[GpuMilliseconds, Meta(ge=0, le=MAX_AMOUNT_MS, description="GPU-milliseconds per period.")]
TimeZone = Annotated[str, Meta(min_length=1, max_length=64, description="IANA name.")]
Credit = Annotated[GpuMilliseconds, Meta(ge=0, le=MAX_AMOUNT_MS, description="How far the balance may go below zero.")]
Rollover = Annotated[
    GpuMilliseconds,
    Meta(ge=0, le=MAX_AMOUNT_MS, description="How much unused time at most carries over to the next period."),
]


class RuleBody(Body, frozen=True, kw_only=True):
    """How much a budget has, and when."""

    amount_ms: PerPeriod
    period: PeriodName
    time_zone: TimeZone = "UTC"
    credit_ms: Credit = NO_TIME
    rollover_ms: Rollover = NO_TIME
    anchor: Instant | None = None
    """An instant at which a period begins, on the zone's wall clock; without it they begin as the calendar does."""
    new_period: bool = False
    """A period begins now: what the running one has used does not count against the new amount."""


class BudgetBody(RuleBody, frozen=True, kw_only=True):
    """A namespace's own budget."""

    reason: Reason = SET


class BudgetPatch(Body, frozen=True, kw_only=True):
    """The parts of a budget to change; all others stay as they are."""

    amount_ms: PerPeriod | UnsetType = UNSET
    period: PeriodName | UnsetType = UNSET
    time_zone: TimeZone | UnsetType = UNSET
    credit_ms: Credit | UnsetType = UNSET
    rollover_ms: Rollover | UnsetType = UNSET
    anchor: Instant | UnsetType | None = UNSET
    """An instant at which a period begins, on the zone's wall clock; null: they begin as the calendar does."""
    new_period: bool = False
    """A period begins now: what the running one has used does not count against the new amount."""
    reason: Reason = SET


class StatusBody(Body, frozen=True, kw_only=True):
    """Whether a budget may be spent; `closed` is for good."""

    status: Literal["active", "suspended", "closed"]
    reason: Reason
