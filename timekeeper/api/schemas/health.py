# SPDX-License-Identifier: Apache-2.0
"""The answer to probes."""

from __future__ import annotations

from typing import Literal

import msgspec


class Health(msgspec.Struct, frozen=True):
    """Whether the server is healthy."""

    status: Literal["ok", "failing"]
    reason: str = ""
