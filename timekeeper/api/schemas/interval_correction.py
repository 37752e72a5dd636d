# SPDX-License-Identifier: Apache-2.0
"""The body that corrects a pod's interval."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from timekeeper.api.schemas.base import Body, Instant, Reason


class IntervalBody(Body, frozen=True, kw_only=True):
    """The correct interval of a pod: another start, another end, or both."""

    pod_uid: Annotated[str, Meta(min_length=1, max_length=64)]
    reason: Reason
    start: Instant | None = None
    end: Instant | None = None
