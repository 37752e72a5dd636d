# SPDX-License-Identifier: Apache-2.0
"""What the workers of one pod tell each other about decisions: when a budget's state last changed, and the last ones.

Each worker fetches the decisions for itself. So one may mutate a pod after a change that another, which validates it,
does not know yet: a worker accepts the class of either state if there was a newer change than its own last fetch. A
worker that replaces one that died begins with the last decisions: without them, the end of a worker while the
timekeeper is down would make the webhook forget which budgets are spent.
"""

from __future__ import annotations

import contextlib
import logging
import mmap
import os
import struct
from pathlib import Path
from typing import Final

import msgspec

from slicekeeper import typed_json
from slicekeeper.wire.timekeeper import Decision

log = logging.getLogger(__name__)

_INSTANT: Final = struct.Struct("q")


class _StoredDecisions(msgspec.Struct):
    fetched_ns: int
    items: list[Decision]


class SharedDecisions:
    """An instant in memory, shared because it is created before the workers are forked, and a file.

    All instants are of the machine's monotonic clock. If the folder's name is empty, no decisions are kept.
    """

    def __init__(self, folder: str = "") -> None:
        self._changed = mmap.mmap(-1, _INSTANT.size)
        self._file = Path(folder) / "decisions.json" if folder else None

    @property
    def changed_ns(self) -> int:
        """When any worker last saw a change; 0 if there was none."""
        return int(_INSTANT.unpack_from(self._changed)[0])

    def publish(self, now_ns: int, fetched_ns: int, decisions: dict[str, Decision]) -> None:
        """Publish a change, before acting on it, and the decisions that were requested at `fetched_ns`."""
        _INSTANT.pack_into(self._changed, 0, now_ns)
        if self._file is None:
            return
        part = self._file.with_name(f"decisions.{os.getpid()}")
        try:
            part.write_bytes(msgspec.json.encode(_StoredDecisions(fetched_ns, list(decisions.values()))))
            part.replace(self._file)
        except OSError as error:
            log.warning("decisions not kept for other workers: %s", error)
            with contextlib.suppress(OSError):
                part.unlink(missing_ok=True)

    def load(self) -> tuple[int, dict[str, Decision]] | None:
        """Return the instant at which the last decisions were requested, and these; None if there are none."""
        if self._file is None:
            return None
        try:
            kept = typed_json.decode(self._file.read_bytes(), _StoredDecisions)
        except FileNotFoundError:
            return None
        except (OSError, msgspec.DecodeError) as error:
            log.warning("kept decisions not read: %s", error)
            return None
        return kept.fetched_ns, {decision.namespace: decision for decision in kept.items}
