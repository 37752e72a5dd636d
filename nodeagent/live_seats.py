# SPDX-License-Identifier: Apache-2.0
"""Answer /seats: what the node's seats get of their GPUs now, from the counters of the last seconds.

A request costs the arbiter and the driver nothing: it uses only the samples of `take`.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from nodeagent.container_usage import Count
from nodeagent.seat_store import Seat, SeatStore
from slicekeeper.units import CORES_PER_GPU
from slicekeeper.wire.live_seats import NodeSeats, SeatUse

SAMPLES: Final = 6
OLD_SECONDS: Final = 6.0
"""With one a second, shares are those of the last five seconds."""

_MIB: Final = 1 << 20

_Key = tuple[str, str]
"""A seat's name, and a GPU."""


class LiveSeats:
    """The last samples of all counters, and the usage of each seat on each of its GPUs that follows from them."""

    def __init__(self, store: SeatStore, now: Callable[[], float] = time.monotonic) -> None:
        self._store = store
        self._now = now
        self._lock = threading.Lock()
        self._samples: deque[tuple[float, Mapping[_Key, Count]]] = deque(maxlen=SAMPLES)

    def take(self, counts: Iterable[Count]) -> None:
        """Take a sample of what is counted now."""
        with self._lock:
            self._samples.append((self._now(), {(count.seat, count.gpu): count for count in counts}))

    def seats(self) -> NodeSeats:
        """Return which container holds which GPU."""
        samples = self._recent()
        return NodeSeats(seats=[_use(seat, gpu, samples) for seat in self._store.all() for gpu in seat.gpus])

    def whole(self) -> list[tuple[Seat, Count, float | None]]:
        """Return who holds each whole GPU or MIG slice that is counted, its newest counters, and its use in percent."""
        samples = self._recent()
        return [
            (seat, count, _use(seat, gpu, samples).used_percent)
            for seat in self._store.all()
            if seat.is_sole and samples
            for gpu in seat.gpus
            if (count := samples[-1].get((seat.name, gpu))) is not None
        ]

    def _recent(self) -> list[Mapping[_Key, Count]]:
        with self._lock:
            return [counts for at, counts in self._samples if self._now() - at < OLD_SECONDS]

    def __call__(self, _environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        """Answer a WSGI request."""
        body = msgspec.json.encode(self.seats())
        start_response("200 OK", [("Content-Type", "application/json"), ("Content-Length", str(len(body)))])
        return [body]


def _use(seat: Seat, gpu: str, samples: Sequence[Mapping[_Key, Count]]) -> SeatUse:
    key = (seat.name, gpu)
    counts = [count for sample in samples if (count := sample.get(key)) is not None]
    last = samples[-1].get(key) if samples else None
    # A restarted arbiter counts from zero again: only samples of the same program can be compared.
    first = next((count for count in counts if last is not None and count.by == last.by), None)
    memory = last.memory if last is not None else None
    return SeatUse(
        namespace=seat.namespace,
        pod=seat.pod,
        uid=seat.uid,
        container=seat.container,
        gpu=gpu,
        vclass="background" if seat.background else "in-budget",
        asked_percent=seat.core,
        limit_percent=seat.limit or CORES_PER_GPU,
        given_percent=_share(first, last, lambda count: count.granted_ns),
        used_percent=_share(first, last, lambda count: count.busy_ns),
        memory_mib=None if memory is None else memory // _MIB,
        memory_limit_mib=seat.memory_mib,
    )


def _share(first: Count | None, last: Count | None, of: Callable[[Count], int | None]) -> float | None:
    """Return by how much a counter grew in per cent of the time; unknown from one sample."""
    if first is None or last is None or last.wall_ns <= first.wall_ns:
        return None
    begin, end = of(first), of(last)
    if begin is None or end is None:
        return None
    return round(min(100 * (end - begin) / (last.wall_ns - first.wall_ns), 100.0), 1)
