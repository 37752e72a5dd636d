# SPDX-License-Identifier: Apache-2.0
"""Reports that wait on disk while the timekeeper is down.

Counters are cumulative, so the newest report of a container holds all that the older ones held: when the spool is full,
the older half is dropped, and no usage is lost. If the disk cannot be written, the reports wait only in memory; the pod
is not affected.
"""

from __future__ import annotations

import logging
from collections import deque
from pathlib import Path

import msgspec

from slicekeeper import typed_json
from slicekeeper.wire.timekeeper import UsageReport

log = logging.getLogger(__name__)

_FILE = "reports.jsonl"
_LINE_BYTES = 512
"""Maximum size of a report, with names of 253 characters; usually it is far smaller."""


class Spool:
    """A bounded queue of reports, oldest first, with a copy on disk that a restarted sidecar reads."""

    def __init__(self, folder: Path, max_bytes: int) -> None:
        self._file = folder / _FILE
        self._max = max(max_bytes // _LINE_BYTES, 8)
        self._waiting: deque[UsageReport] = deque(self._load())
        self._on_disk = len(self._waiting)

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, report: UsageReport) -> None:
        """Queue one report. Never raises."""
        self._waiting.append(report)
        if len(self._waiting) > self._max:
            for _ in range(len(self._waiting) // 2):
                self._waiting.popleft()
            self._rewrite()

    def keep(self) -> None:
        """Write new reports to disk; called if the timekeeper did not accept the reports."""
        fresh = list(self._waiting)[self._on_disk :]
        if not fresh:
            return
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            with self._file.open("ab") as file:
                file.writelines(msgspec.json.encode(report) + b"\n" for report in fresh)
            self._on_disk = len(self._waiting)
        except OSError as error:
            log.warning("spool %s cannot be written, reports wait in memory: %s", self._file, error)

    def head(self, count: int) -> list[UsageReport]:
        """Return up to `count` of the oldest reports."""
        return [self._waiting[index] for index in range(min(count, len(self._waiting)))]

    def drop(self, count: int) -> None:
        """Remove the `count` oldest reports, which the timekeeper has answered."""
        for _ in range(min(count, len(self._waiting))):
            self._waiting.popleft()
        if self._on_disk:
            self._rewrite()

    def _rewrite(self) -> None:
        """Write all waiting reports to the file atomically."""
        if not self._on_disk and not self._file.exists():
            return
        fresh = self._file.with_suffix(".new")
        try:
            fresh.write_bytes(b"".join(msgspec.json.encode(report) + b"\n" for report in self._waiting))
            fresh.replace(self._file)
            self._on_disk = len(self._waiting)
        except OSError as error:
            log.warning("spool %s cannot be rewritten: %s", self._file, error)

    def _load(self) -> list[UsageReport]:
        """Return the reports of an earlier process; a line that a crash cut off is skipped."""
        try:
            lines = self._file.read_bytes().splitlines()
        except OSError:
            return []
        reports = []
        for line in lines:
            try:
                reports.append(typed_json.decode(line, UsageReport))
            except msgspec.MsgspecError:
                continue
        return reports[-self._max :]
