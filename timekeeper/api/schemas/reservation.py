# SPDX-License-Identifier: Apache-2.0
"""The body that reserves GPU time."""

from __future__ import annotations

from timekeeper.api.schemas.base import Amount, Body, Instant, Reason


class ReservationBody(Body, frozen=True, kw_only=True):
    """GPU time to be set aside until an instant."""

    amount_ms: Amount
    reason: Reason
    expires_at: Instant
