# SPDX-License-Identifier: Apache-2.0
"""Answers about rates of GPU models, and the body that sets one."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from slicekeeper.wire.timekeeper import Wire
from timekeeper.api.schemas.base import Body, Instant, Reason


class RateBody(Body, frozen=True, kw_only=True):
    """A GPU model's rate; without `effectiveAt` from now on."""

    model: Annotated[str, Meta(min_length=1, max_length=253, pattern=r"\S")]
    rate: Annotated[str, Meta(min_length=1, max_length=32, description="An integer or a ratio such as 3/2.")]
    reason: Reason
    effective_at: Instant | None = None


class GpuRate(Wire, frozen=True, kw_only=True):
    """A GPU model's rate from an instant on."""

    id: int
    model: str
    rate: str
    effective_at: str
    source: str
    warning: str = ""
    """If no GPU of the cluster is of the model: which models there are."""


class GpuRateList(Wire, frozen=True, kw_only=True):
    """A page of rates, in the order in which they were set."""

    items: list[GpuRate]
    next_cursor: str | None = None
