# SPDX-License-Identifier: Apache-2.0
"""What a node tells a pod's sidecar about the use of its GPUs: one file of cumulative counters, replaced as a whole."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from slicekeeper.wire.timekeeper import Wire

FILE: Final = "usage.json"


class Counter(Wire, frozen=True, kw_only=True):
    """One container's counter."""

    used_ms: Annotated[int, msgspec.Meta(ge=0)] | None = None
    """GPU-milliseconds since the counter began; None: not known now."""
    life: str = ""
    """Names the counter: one that starts again from zero has another name."""
    memory_mib: Annotated[int, msgspec.Meta(ge=0)] | None = None
    """Memory in use now, on all of its GPUs together; None: not known."""


class PodUsage(Wire, frozen=True, kw_only=True):
    """The counters of one pod's containers."""

    source: str
    at_ns: int | None = None
    """When they were read, on the machine's monotonic clock; None: they do not grow old."""
    containers: dict[str, Counter]
