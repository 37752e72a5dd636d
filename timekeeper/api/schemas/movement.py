# SPDX-License-Identifier: Apache-2.0
"""Bodies that move GPU time by hand, and answers about what was moved."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from slicekeeper.config.policy import MAX_AMOUNT_MS
from slicekeeper.units import GpuMilliseconds
from slicekeeper.wire.timekeeper import Wire
from timekeeper.api.schemas.base import Amount, Body, Instant, Reason


class GrantBody(Body, frozen=True, kw_only=True):
    """GPU time in addition to the budget: by default from now on, until it is used up."""

    amount_ms: Amount
    reason: Reason
    valid_from: Instant | None = None
    valid_to: Instant | None = None
    priority: Annotated[int, Meta(ge=-100, le=100, description="Low is used first; the budget itself has 0.")] = 0


class RefundBody(Body, frozen=True, kw_only=True):
    """The part of an ended pod's charge to give back."""

    pod_uid: Annotated[str, Meta(min_length=1, max_length=64)]
    amount_ms: Amount
    reason: Reason


class AdjustmentBody(Body, frozen=True, kw_only=True):
    """GPU time that is added by hand; a negative amount deducts it."""

    amount_ms: Annotated[
        GpuMilliseconds, Meta(ge=-MAX_AMOUNT_MS, le=MAX_AMOUNT_MS, description="GPU-milliseconds, not 0.")
    ]
    reason: Reason


class TransferBody(Body, frozen=True, kw_only=True):
    """GPU time for another budget; by default until it is used up there."""

    to: Annotated[str, Meta(min_length=1, max_length=63, description="The name of the budget that receives it.")]
    to_kind: Literal["namespace", "parent"] | None = None
    """What `to` names; by default the same kind as the source."""
    amount_ms: Amount
    reason: Reason
    valid_to: Instant | None = None


class Movement(Wire, frozen=True, kw_only=True):
    """A refund, an adjustment or one side of a transfer, as it was booked. A negative amount was taken out."""

    id: int
    amount_ms: int
    reason: str
    counterpart: str
    """The pod's UID of a refund, the other side of a transfer: a namespace's name, or `team x`, `organisation x`."""
    valid_to: str | None
    actor: str
    booked_at: str


class MovementList(Wire, frozen=True, kw_only=True):
    """A page of movements, newest first."""

    items: list[Movement]
    next_cursor: str | None = None
