# SPDX-License-Identifier: Apache-2.0
"""Budgets, and whether they may be spent: bodies."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import UNSET, Meta, UnsetType

from slicekeeper.namespace_policy import MAX_AMOUNT_MS
from timekeeper.api.schemas.base import Body, Instant, Reason


class BudgetBody(Body, frozen=True, kw_only=True):
    """A namespace's own budget."""

    amount_ms: Annotated[int, Meta(ge=0, le=MAX_AMOUNT_MS, description="GPU-milliseconds per period.")]
    period: Literal["none", "hour", "day", "week", "month", "year"]
    time_zone: Annotated[str, Meta(min_length=1, max_length=64, description="IANA name.")] = "UTC"
    credit_ms: Annotated[int, Meta(ge=0, le=MAX_AMOUNT_MS, description="How far the balance may go below zero.")] = 0
    rollover_ms: Annotated[
        int, Meta(ge=0, le=MAX_AMOUNT_MS, description="The most that a period leaves to the next one.")
    ] = 0
    anchor: Instant | None = None
    """An instant at which a period begins, on the zone's wall clock; without it they begin as the calendar does."""
    new_period: bool = False
    """A period begins now: what the running one has used does not count against the new amount."""


class BudgetPatch(Body, frozen=True, kw_only=True):
    """What of a budget is to be another; what is not named stays as it is."""

    amount_ms: Annotated[int, Meta(ge=0, le=MAX_AMOUNT_MS, description="GPU-milliseconds per period.")] | UnsetType = (
        UNSET
    )
    period: Literal["none", "hour", "day", "week", "month", "year"] | UnsetType = UNSET
    time_zone: Annotated[str, Meta(min_length=1, max_length=64, description="IANA name.")] | UnsetType = UNSET
    credit_ms: (
        Annotated[int, Meta(ge=0, le=MAX_AMOUNT_MS, description="How far the balance may go below zero.")] | UnsetType
    ) = UNSET
    rollover_ms: (
        Annotated[int, Meta(ge=0, le=MAX_AMOUNT_MS, description="The most that a period leaves to the next one.")]
        | UnsetType
    ) = UNSET
    anchor: Instant | UnsetType | None = UNSET
    """An instant at which a period begins, on the zone's wall clock; null: they begin as the calendar does."""
    new_period: bool = False
    """A period begins now: what the running one has used does not count against the new amount."""


class StatusBody(Body, frozen=True, kw_only=True):
    """Whether a budget may be spent; `closed` is for good."""

    status: Literal["active", "suspended", "closed"]
    reason: Reason
