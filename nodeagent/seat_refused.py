# SPDX-License-Identifier: Apache-2.0
"""The error for a container that must not start."""

from __future__ import annotations

from slicekeeper.errors import SlicekeeperError


class SeatRefused(SlicekeeperError):
    """A container does not get its seat; the message is shown in the pod's events."""
