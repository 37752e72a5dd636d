# SPDX-License-Identifier: Apache-2.0
"""The last decisions that any worker fetched, for a worker that replaces one that died.

Without them, the end of a worker while the timekeeper is down would make the webhook forget which budgets are spent.
"""

from __future__ import annotations

import contextlib
import logging
import os
from pathlib import Path

import msgspec

from slicekeeper import typed_json
from slicekeeper.wire.timekeeper import Decision

log = logging.getLogger(__name__)


class _StoredDecisions(msgspec.Struct):
    fetched_ns: int
    items: list[Decision]


class LastDecisions:
    """A file that is replaced atomically. If the folder's name is empty, nothing is kept."""

    def __init__(self, folder: str = "") -> None:
        self._file = Path(folder) / "decisions.json" if folder else None

    def save(self, fetched_ns: int, decisions: dict[str, Decision]) -> None:
        """Keep decisions, with the instant at which they were requested, by the machine's monotonic clock."""
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
        """Return the decisions that were kept last, and when they were requested; None if there are none."""
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
