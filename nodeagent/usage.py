# SPDX-License-Identifier: Apache-2.0
"""Tells each pod's sidecar what its own pod has used: a file in the folder that its seat puts into it, read-only.

Nobody asks, so nobody can ask for another pod's: kubelet says whose a seat is. While the agent is away the file grows
old, while the arbiter is the counters are left out; the sidecar reports either as unknown.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping
from typing import Final

import msgspec

from nodeagent.arbiter import Arbiter, ArbiterAway
from nodeagent.cdi import SeatFiles
from nodeagent.live import Live
from nodeagent.store import SeatStore
from slicekeeper import names, threads
from slicekeeper.wire.usage import FILE, Counter, Usage

log = logging.getLogger(__name__)

WRITE_SECONDS: Final = 1.0

_NS_PER_MS: Final = 1_000_000


class UsageFiles:
    """The counters of all pods of the node, each pod's in its own file."""

    def __init__(self, arbiter: Arbiter, store: SeatStore, files: SeatFiles, live: Live) -> None:
        self._arbiter = arbiter
        self._store = store
        self._files = files
        self._live = live
        self._stop = threading.Event()

    def start(self) -> None:
        """Start writing, in a daemon thread."""
        threads.keep("usage", self._run, self._stop.is_set)

    def stop(self) -> None:
        """Stop writing: what is there grows old."""
        self._stop.set()

    def write(self) -> None:
        """Write what every pod has used until now."""
        at_ns = time.monotonic_ns()
        counted = self._counted()
        pods: dict[str, dict[str, Counter]] = {}
        seats = [seat for seat in self._store.all() if seat.taken]
        for seat in seats:
            if seat.name in counted:
                pods.setdefault(seat.uid, {})[seat.container] = counted[seat.name]
        for seat in seats:
            if seat.container == names.SIDECAR:
                usage = Usage(source="node", at_ns=at_ns, containers=pods.get(seat.uid, {}))
                try:
                    self._files.tell(seat, FILE, msgspec.json.encode(usage))
                except OSError as error:
                    log.info("pod %s/%s is not told what it used: %s", seat.namespace, seat.pod, error)

    def _counted(self) -> Mapping[str, Counter]:
        """Return the arbiter's counters by the seat's name, none while it does not answer."""
        try:
            told = self._arbiter.read()
        except ArbiterAway:
            self._live.take(None)
            return {}
        self._live.take(told)
        return {
            seat.seat: Counter(used_ms=seat.busy_ns // _NS_PER_MS, life=str(told.now_ns - seat.wall_ns))
            for seat in told.seats
        }

    def _run(self) -> None:
        while not self._stop.wait(WRITE_SECONDS):
            self.write()
