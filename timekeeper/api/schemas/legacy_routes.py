# SPDX-License-Identifier: Apache-2.0
"""Bodies and answers of the service that Slicekeeper replaces."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from slicekeeper.config.policy import MAX_AMOUNT_MS
from timekeeper.api.schemas.base import Reason


class IncreaseBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An increase, with the amount and a reason."""

    minutes: Annotated[int, Meta(ge=1, le=MAX_AMOUNT_MS // 60_000)]
    reason: Reason


class SignOfLife(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A legacy sidecar's report: it says that the pod is alive, and charges nothing."""

    pod_name: Annotated[str, Meta(min_length=1, max_length=253)]
    usage_factor: Annotated[float, Meta(ge=0)] = 0.0


class LegacyBudget(msgspec.Struct, frozen=True):
    """A budget, in GPU-minutes."""

    budget_available: bool
    budget: float
    budget_remaining: float


class Terminate(msgspec.Struct, frozen=True):
    """The answer to a report: whether the sidecar may end."""

    terminate: bool
