# SPDX-License-Identifier: Apache-2.0
"""Count the usage of pods every second, and write it for each pod's sidecar into the folder of its seat.

There are no requests, so no pod can ask for another pod's usage: kubelet says which pod a seat belongs to. While the
agent is down, the file becomes stale; while the arbiter is down, it has no counters. The sidecar then reports unknown.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Final

import msgspec

from nodeagent.arbiter_client import Arbiter, ArbiterAway
from nodeagent.container_usage import Count, of_arbiter
from nodeagent.live_seats import LiveSeats
from nodeagent.seat_files import SeatFiles
from nodeagent.seat_store import Seat, SeatStore
from nodeagent.whole_gpu_usage import WholeGpus
from slicekeeper import names
from slicekeeper.clock import machine_ns
from slicekeeper.wire.usage_file import FILE, Counter, PodUsage

log = logging.getLogger(__name__)

WRITE_SECONDS: Final = 1.0

_NS_PER_MS: Final = 1_000_000
_MIB: Final = 1 << 20


class UsageFiles:
    """The counters of all pods of the node, each pod's in its own file."""

    def __init__(self, arbiter: Arbiter, whole: WholeGpus, store: SeatStore, files: SeatFiles, live: LiveSeats) -> None:
        self._arbiter = arbiter
        self._whole = whole
        self._store = store
        self._files = files
        self._live = live

    def write(self) -> None:
        """Write every pod's usage up to now."""
        at_ns = machine_ns()
        seats = [seat for seat in self._store.all() if seat.taken]
        counts = [*self._fractions(seats), *self._whole.count(seats)]
        self._live.take(counts)
        counted: dict[str, list[Count]] = {}
        for count in counts:
            counted.setdefault(count.seat, []).append(count)
        pods: dict[str, dict[str, Counter]] = {}
        for seat in seats:
            mine = counted.get(seat.name, [])
            busy = [count.busy_ns for count in mine if count.busy_ns is not None]
            if busy and len(busy) == len(seat.gpus):
                pods.setdefault(seat.uid, {})[seat.container] = _counter(mine, sum(busy))
        for seat in seats:
            if seat.container == names.SIDECAR:
                usage = PodUsage(source="node", at_ns=at_ns, containers=pods.get(seat.uid, {}))
                try:
                    self._files.write_file(seat, FILE, msgspec.json.encode(usage))
                except OSError as error:
                    log.info(
                        "usage of pod %s/%s could not be written for its sidecar: %s", seat.namespace, seat.pod, error
                    )

    def _fractions(self, seats: Iterable[Seat]) -> list[Count]:
        """Return the arbiter's counters; none while it does not answer, and none of containers without the limiter."""
        try:
            counts = of_arbiter(self._arbiter.read())
        except ArbiterAway:
            return []
        limited = {seat.name for seat in seats if seat.limited}
        return [count for count in counts if count.seat in limited]


def _counter(counts: list[Count], busy_ns: int) -> Counter:
    """Return one container's counter over all of its GPUs."""
    memory = [count.memory for count in counts if count.memory is not None]
    return Counter(
        used_ms=busy_ns // _NS_PER_MS,
        life=counts[0].life,  # the same for all: a fraction is on one GPU, and whole GPUs are counted in one file
        memory_mib=sum(memory) // _MIB if len(memory) == len(counts) else None,
    )
