# SPDX-License-Identifier: Apache-2.0
"""The sidecar's loop: read the counters, queue a report per container, send waiting reports.

It reports that its pod is alive and how much it used. Its reports never affect a charge, so it must never block or
break its pod: every error is logged, and the loop continues.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from sidecar.epoch import EpochCounter
from sidecar.spool import Spool
from sidecar.usage_file import FileUsage
from slicekeeper.clock import Clock
from slicekeeper.config.settings import SidecarSettings
from slicekeeper.errors import ServiceError
from slicekeeper.net.timekeeper_client import TimekeeperClient
from slicekeeper.wire.timekeeper import UsageReport

log = logging.getLogger(__name__)

BATCH: Final = 200
"""Reports in one request."""


@dataclass
class Reporter:
    """Reports for one pod until it is stopped."""

    settings: SidecarSettings
    clock: Clock
    timekeeper: TimekeeperClient
    usage: FileUsage
    spool: Spool
    counters: Mapping[str, EpochCounter]
    """By container: the containers that it reports for."""

    def __post_init__(self) -> None:
        self._failures = 0
        self._peaks: dict[str, int] = {}
        """By container, the peak of memory."""

    def run(self, stop: threading.Event) -> None:
        """Report every `report_seconds` until `stop` is set or the timekeeper lets the sidecar end, then once more."""
        while True:
            self.observe()
            if self.flush():
                log.info("all other containers of the pod have ended")
                return
            if self.clock.wait(stop, self.pause()):
                break
        self.observe(final=True)
        self.flush()

    def pause(self) -> float:
        """Return how long to wait before the next report: up to 8 intervals while the timekeeper is down."""
        return self.settings.report_seconds * (1 << min(self._failures, 3))

    def observe(self, *, final: bool = False) -> None:
        """Queue one report for every container."""
        for container, counter in self.counters.items():
            reading = self.usage.read(container)
            epoch, seq, used_ms = counter.next(reading.used_ms, reading.life)
            if reading.memory_mib is not None:
                self._peaks[container] = max(reading.memory_mib, self._peaks.get(container, 0))
            log.log(
                logging.INFO if final else logging.DEBUG,
                "container %s: %s of GPU time used, %s of GPU memory now, %s at most",
                container,
                _shown(used_ms, "ms"),
                _shown(reading.memory_mib, "MiB"),
                _shown(self._peaks.get(container), "MiB"),
            )
            self.spool.put(
                UsageReport(
                    namespace=self.settings.namespace,
                    pod_name=self.settings.pod_name,
                    pod_uid=self.settings.pod_uid,
                    container=container,
                    epoch=epoch,
                    seq=seq,
                    used_ms=used_ms,
                    memory_mib=reading.memory_mib,
                    monotonic_ns=self.clock.monotonic_ns(),
                    source=reading.source,
                    final=final,
                )
            )

    def flush(self) -> bool:
        """Send waiting reports; return whether the timekeeper says that the sidecar may end."""
        terminate = False
        while self.spool:
            batch = self.spool.head(BATCH)
            try:
                answer = self.timekeeper.report(batch)
            except ServiceError as error:
                if 400 <= error.status < 500 and error.status not in (401, 403, 408, 429):
                    # It will never be accepted: keeping it would block all that follow.
                    log.error("%d reports refused and dropped: %s", len(batch), error)
                    self.spool.drop(len(batch))
                    continue
                self._failures += 1
                self.spool.keep()
                log.warning("timekeeper does not answer, %d reports wait: %s", len(self.spool), error)
                return False
            self.spool.drop(len(batch))
            self._failures = 0
            terminate = answer.terminate
            for outcome in answer.outcomes:
                if outcome.outcome == "refused":
                    log.warning("report refused: %s", outcome.reason)
        return terminate


def _shown(value: int | None, unit: str) -> str:
    return "unknown" if value is None else f"{value} {unit}"
