# SPDX-License-Identifier: Apache-2.0
"""How a node reports the use of its GPUs to a pod's sidecar: one file of cumulative counters, replaced atomically."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from slicekeeper.wire.timekeeper import Wire

FILE: Final = "usage.json"


class Counter(Wire, frozen=True, kw_only=True):
    """One container's counter."""

    used_ms: Annotated[int, msgspec.Meta(ge=0)] | None = None
    """GPU-milliseconds since the counter began; None: currently unknown."""
    life: str = ""
    """Identifies the counter: one that starts again from zero has a different value."""
    memory_mib: Annotated[int, msgspec.Meta(ge=0)] | None = None
    """MiB of memory in use now, on all of its GPUs together; None: unknown."""


class PodUsage(Wire, frozen=True, kw_only=True):
    """The counters of one pod's containers."""

    source: str
    at_ns: int | None = None
    """When they were read, in nanoseconds of the machine's monotonic clock; None: they do not become stale."""
    containers: dict[str, Counter]
