# SPDX-License-Identifier: Apache-2.0
"""The base of all request bodies, and the types of fields that several have."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from slicekeeper.config.policy import MAX_AMOUNT_MS
from slicekeeper.units import GpuMilliseconds

Amount = Annotated[GpuMilliseconds, Meta(ge=1, le=MAX_AMOUNT_MS, description="GPU-milliseconds.")]
Reason = Annotated[str, Meta(min_length=1, max_length=1024, pattern=r"\S", description="Why; kept for auditors.")]
Instant = Annotated[str, Meta(max_length=40, description="RFC 3339 with a zone.")]


class Body(msgspec.Struct, frozen=True, rename="camel", kw_only=True, forbid_unknown_fields=True):
    """Base of bodies."""
