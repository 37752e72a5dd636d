# SPDX-License-Identifier: Apache-2.0
"""What the node's seats get of their GPUs just now, at /seats: from the arbiter's counters of the last seconds.

Who asks costs the arbiter nothing: what `take` brought is all that is looked at.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Final

import msgspec

from nodeagent.arbiter import ArbiterSeat, Telemetry
from nodeagent.store import Seat, SeatStore
from slicekeeper.units import CORES_PER_GPU
from slicekeeper.wire.node import NodeSeats, SeatUse

SAMPLES: Final = 6
"""With one a second, shares are those of the last five seconds."""
OLD_SECONDS: Final = 5.0

_MIB: Final = 1 << 20


class Live:
    """The last samples of the arbiter's telemetry, and what they say of each seat."""

    def __init__(self, store: SeatStore, now: Callable[[], float] = time.monotonic) -> None:
        self._store = store
        self._now = now
        self._lock = threading.Lock()
        self._samples: deque[Telemetry] = deque(maxlen=SAMPLES)
        self._at = 0.0

    def take(self, told: Telemetry | None) -> None:
        """Take a sample; None: the arbiter does not answer."""
        with self._lock:
            if told is None or (self._samples and self._samples[-1].pid != told.pid):
                self._samples.clear()  # not all counters outlive their arbiter
            if told is not None:
                self._samples.append(told)
                self._at = self._now()

    def seats(self) -> NodeSeats:
        """Return all seats that hold a GPU."""
        with self._lock:
            samples = list(self._samples) if self._now() - self._at < OLD_SECONDS else []
        first = {seat.seat: seat for seat in samples[0].seats} if samples else {}
        last = {seat.seat: seat for seat in samples[-1].seats} if samples else {}
        held = [seat for seat in self._store.all() if seat.gpus]
        return NodeSeats(seats=[_use(seat, first.get(seat.name), last.get(seat.name)) for seat in held])

    def __call__(self, _environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        """Answer a request, as WSGI has it."""
        body = msgspec.json.encode(self.seats())
        start_response("200 OK", [("Content-Type", "application/json"), ("Content-Length", str(len(body)))])
        return [body]


def _use(seat: Seat, first: ArbiterSeat | None, last: ArbiterSeat | None) -> SeatUse:
    return SeatUse(
        namespace=seat.namespace,
        pod=seat.pod,
        uid=seat.uid,
        container=seat.container,
        gpus=seat.gpus,
        vclass="background" if seat.background else "in-budget",
        asked_percent=seat.core,
        limit_percent=seat.limit or CORES_PER_GPU,
        given_percent=_share(first, last, lambda s: s.granted_ns),
        used_percent=_share(first, last, lambda s: s.busy_ns),
        memory_mib=None if last is None else (last.memory + last.memory_overhead) // _MIB,
        memory_limit_mib=seat.memory_mib,
    )


def _share(first: ArbiterSeat | None, last: ArbiterSeat | None, of: Callable[[ArbiterSeat], int]) -> float | None:
    """Return by how much a counter grew in per cent of the time; unknown from one sample, or if it began anew."""
    if first is None or last is None or last.wall_ns <= first.wall_ns or of(last) < of(first):
        return None
    return round(min(100 * (of(last) - of(first)) / (last.wall_ns - first.wall_ns), 100.0), 1)
