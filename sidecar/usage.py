# SPDX-License-Identifier: Apache-2.0
"""Where usage comes from: one small interface, one source per place where it can be seen.

A source never guesses. What it cannot see is None, which the timekeeper keeps as `unknown`; zero would be a lie.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Protocol

import msgspec

UNKNOWN = "unknown"


class Reading(msgspec.Struct, frozen=True):
    """Cumulative GPU-milliseconds of one container since it started, None where unknown, and who says so."""

    used_ms: int | None
    source: str


class UsageSource(Protocol):
    """Where the sidecar reads counters."""

    def read(self, container: str) -> Reading:
        """Return the container's counter now. Never raises."""


class UnknownUsage:
    """The source of a pod for which nobody counts."""

    def read(self, container: str) -> Reading:  # noqa: ARG002 - the interface's
        """Return unknown."""
        return Reading(None, UNKNOWN)


class _Counter(msgspec.Struct, frozen=True, rename="camel"):
    used_ms: Annotated[int, msgspec.Meta(ge=0)] | None = None


class _Counters(msgspec.Struct, frozen=True):
    source: str
    containers: dict[str, _Counter] = {}


class FileUsage:
    """Counters that the node keeps in a file: `{"source": "…", "containers": {"<name>": {"usedMs": 123}}}`.

    The file is replaced whole by its writer. While it is missing or damaged, usage is unknown.
    """

    def __init__(self, file: Path) -> None:
        self._file = file

    def read(self, container: str) -> Reading:
        """Return the container's counter as the file has it now."""
        try:
            counters = msgspec.json.decode(self._file.read_bytes(), type=_Counters)
        except (OSError, msgspec.MsgspecError):
            return Reading(None, UNKNOWN)
        counter = counters.containers.get(container, _Counter())
        return Reading(counter.used_ms, counters.source if counter.used_ms is not None else UNKNOWN)


def source_for(usage_file: str) -> UsageSource:
    """Return the source that the settings name."""
    return FileUsage(Path(usage_file)) if usage_file else UnknownUsage()
