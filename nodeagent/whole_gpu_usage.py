# SPDX-License-Identifier: Apache-2.0
"""Count the usage of whole GPUs and MIG slices: each has one holder, to which the driver's samples belong.

NVML reports how busy the GPU was in consecutive stretches of time. They are added up in a file in the seat's folder, so
the next agent continues from there; the driver keeps the last samples until then. Older ones are lost, and not counted.
For a MIG slice, the driver reports the memory in use, but today no samples.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from nodeagent.container_usage import Count
from nodeagent.gpu_source import GpuSource
from nodeagent.seat_files import SeatFiles
from nodeagent.seat_store import Seat
from slicekeeper import typed_json

log = logging.getLogger(__name__)

FILE: Final = "counted.json"

LONGEST_US: Final = 2_000_000
"""NVML samples at least once a second: if two are further apart, those between them are lost."""

_NS_PER_US: Final = 1000


class _GpuUsage(msgspec.Struct):
    began_us: int
    until_us: int
    busy_ns: int = 0


class _SeatUsage(msgspec.Struct):
    life: str
    gpus: dict[str, _GpuUsage] = {}


class WholeGpus:
    """The node's seats that hold whole GPUs or MIG slices."""

    def __init__(self, source: GpuSource, files: SeatFiles, now_ns: Callable[[], int] = time.time_ns) -> None:
        self._source = source
        self._files = files
        self._now_ns = now_ns
        self._seats: dict[str, _SeatUsage] = {}

    def count(self, seats: Sequence[Seat]) -> list[Count]:
        """Return the counters of the seats whose GPUs the driver accounts for."""
        whole = {seat.name: seat for seat in seats if seat.is_sole}
        for gone in self._seats.keys() - whole.keys():
            del self._seats[gone]
        return [count for seat in whole.values() for count in self._count(seat)]

    def _count(self, seat: Seat) -> list[Count]:
        known = self._seats.get(seat.name) or self._load(seat)
        moved = [self._add(known, uuid) for uuid in seat.gpus]
        if any(moved):
            self._keep(seat, known)
        counts = []
        for uuid, moves in zip(seat.gpus, moved, strict=True):
            gpu = known.gpus.get(uuid) if moves is not None else None
            if gpu is None and (moves is not None or not seat.on_slice):
                continue
            wall_ns = (gpu.until_us - gpu.began_us) * _NS_PER_US if gpu is not None else 0
            counts.append(
                Count(
                    seat=seat.name,
                    gpu=uuid,
                    life=known.life,
                    by=known.life,
                    wall_ns=wall_ns,
                    busy_ns=gpu.busy_ns if gpu is not None else None,
                    granted_ns=wall_ns if gpu is not None else None,
                    memory=self._source.memory_used(uuid),
                )
            )
        return counts

    def _add(self, known: _SeatUsage, uuid: str) -> bool | None:
        """Add up new samples of a GPU; return whether there are any, None if the driver does not report them."""
        gpu = known.gpus.get(uuid)
        samples = self._source.samples(uuid, gpu.until_us if gpu is not None else 0)
        if not samples:
            return None if samples is None else gpu is not None and self._clock_ran_back(gpu, uuid)
        if gpu is None:
            # Earlier samples are of the time before this seat.
            known.gpus[uuid] = _GpuUsage(samples[-1][0], samples[-1][0])
            return True
        for until_us, percent in samples:
            if until_us - gpu.until_us <= LONGEST_US:
                gpu.busy_ns += percent * (until_us - gpu.until_us) * _NS_PER_US // 100
            gpu.until_us = until_us
        return True

    def _clock_ran_back(self, gpu: _GpuUsage, uuid: str) -> bool:
        """Continue from the last sample if all are older than expected: the machine's clock was set back.

        The driver still has samples from before that for a while, so usage in this time is left out.
        """
        every = self._source.samples(uuid, 0)
        if not every or every[-1][0] >= gpu.until_us:
            return False
        step = every[-1][0] - gpu.until_us
        gpu.began_us, gpu.until_us = gpu.began_us + step, gpu.until_us + step
        return True

    def _load(self, seat: Seat) -> _SeatUsage:
        try:
            known = typed_json.decode(self._files.read_file(seat, FILE), _SeatUsage)
        except (OSError, msgspec.MsgspecError):
            known = _SeatUsage(str(self._now_ns()))
        self._seats[seat.name] = known
        return known

    def _keep(self, seat: Seat, known: _SeatUsage) -> None:
        try:
            self._files.write_file(seat, FILE, msgspec.json.encode(known))
        except OSError as error:
            log.info("the usage of pod %s/%s could not be saved: %s", seat.namespace, seat.pod, error)
