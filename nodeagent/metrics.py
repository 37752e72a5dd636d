# SPDX-License-Identifier: Apache-2.0
"""What containers use of their GPUs, for Prometheus: fractions by the arbiter's telemetry, whole GPUs by NVML.

Labels, and fields that DCGM's exporter also has, have the same names as there. Shares come from counters: the rate of
`slicekeeper_gpu_busy_seconds_total` is the part of the GPU's time that a container had.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from nodeagent.arbiter_client import Arbiter, ArbiterAway, ArbiterSeat
from nodeagent.gpu_source import GpuList, GpuSource
from nodeagent.live_seats import LiveSeats
from nodeagent.process_audit import Audit
from nodeagent.seat_store import Seat, SeatStore

LABELS: Final = ("gpu", "UUID", "modelName", "Hostname", "namespace", "pod", "container")

_NS: Final = 1e9
_MIB: Final = 1 << 20

_COUNTERS: Final[dict[str, tuple[str, Callable[[ArbiterSeat], float]]]] = {
    "slicekeeper_gpu_busy_seconds": ("Time with work of the container on the GPU.", lambda s: s.busy_ns / _NS),
    "slicekeeper_gpu_charged_seconds": ("Time that the arbiter counts as its.", lambda s: s.charged_ns / _NS),
    "slicekeeper_gpu_waited_seconds": ("Time its threads waited for their turn.", lambda s: s.waited_ns / _NS),
    "slicekeeper_gpu_launches": ("Kernels and graphs launched.", lambda s: s.launches),
}
_GAUGES: Final[dict[str, tuple[str, Callable[[ArbiterSeat], float]]]] = {
    "DCGM_FI_DEV_FB_USED": ("Memory of the GPU in use, MiB.", lambda s: (s.memory + s.memory_overhead) / _MIB),
    "slicekeeper_gpu_memory_limit_bytes": ("Memory that it may use.", lambda s: s.memory_limit),
    "slicekeeper_gpu_request_ratio": ("Part of the GPU's time that it asked for.", lambda s: s.core / 100),
    "slicekeeper_gpu_limit_ratio": ("Part that it may have at most.", lambda s: s.limit / 100),
    "slicekeeper_gpu_background": ("1 while it gets leftovers only.", lambda s: float(s.vclass == "background")),
}


_USED: Final = "DCGM_FI_DEV_GPU_UTIL"

_Series = tuple[str, Seat, dict[str, float]]
"""A GPU, a holder, and their values by family name."""


class SeatMetrics(Collector):
    """The number of the node's seats that are allocated."""

    def __init__(self, store: SeatStore) -> None:
        self._store = store

    def collect(self) -> Iterator[Metric]:
        """Yield the one family."""
        taken = sum(seat.taken for seat in self._store.all())
        yield GaugeMetricFamily("slicekeeper_node_seats_taken", "Seats that a container owns.", value=taken)


class ShareMetrics(Collector):
    """Asks the arbiter at each scrape; NVML's figures are at most a second old."""

    def __init__(self, arbiter: Arbiter, store: SeatStore, source: GpuSource, live: LiveSeats, node: str) -> None:
        self._arbiter = arbiter
        self._store = store
        self._source = source
        self._live = live
        self._node = node

    def collect(self) -> Iterator[Metric]:
        """Yield every family; while no arbiter answers, fractions are left out."""
        indexes = self._source.indexes()
        models = {
            uuid: (indexes.get(uuid, ""), gpu.model)
            for gpu in self._source.gpus()
            for uuid in (gpu.uuid, *(mig.uuid for mig in gpu.mig))
        }

        def labels(uuid: str, owner: Seat) -> list[str]:
            index, model = models.get(uuid, ("", ""))
            return [str(index), uuid, model, self._node, owner.namespace, owner.pod, owner.container]

        rows = [(labels(uuid, owner), known) for uuid, owner, known in (*self._fractions(), *self._whole())]
        used = {_USED: "Part of the time with work of the container on the whole GPU, per cent."}
        for kind, families in (
            (CounterMetricFamily, {name: text for name, (text, _) in _COUNTERS.items()}),
            (GaugeMetricFamily, {name: text for name, (text, _) in _GAUGES.items()} | used),
        ):
            for name, text in families.items():
                family = kind(name, text, labels=LABELS)
                for row, known in rows:
                    if name in known:
                        family.add_metric(row, known[name])
                yield family

    def _fractions(self) -> Iterator[_Series]:
        try:
            telemetry = self._arbiter.read()
        except ArbiterAway:
            return
        uuids = {gpu.gpu: gpu.uuid for gpu in telemetry.gpus}
        owners = {seat.name: seat for seat in self._store.all()}
        for seat in telemetry.seats:
            if (owner := owners.get(seat.seat)) is not None and owner.limited:
                known = {name: read(seat) for name, (_, read) in (_COUNTERS | _GAUGES).items()}
                yield uuids.get(seat.gpu, ""), owner, known

    def _whole(self) -> Iterator[_Series]:
        for owner, count, percent in self._live.whole():
            known = {"slicekeeper_gpu_busy_seconds": count.busy_ns / _NS} if count.busy_ns is not None else {}
            if count.memory is not None:
                known["DCGM_FI_DEV_FB_USED"] = count.memory / _MIB
            if percent is not None:
                known[_USED] = percent
            yield count.gpu, owner, known


class StrayMetrics(Collector):
    """The audit's findings; pod and container are empty for processes that belong to none."""

    def __init__(self, audit: Audit, source: GpuList, node: str) -> None:
        self._audit = audit
        self._source = source
        self._node = node

    def collect(self) -> Iterator[Metric]:
        """Yield both families."""
        models = {gpu.uuid: gpu.model for gpu in self._source.gpus()}
        processes: Counter[tuple[str, ...]] = Counter()
        memory: Counter[tuple[str, ...]] = Counter()
        for stray in self._audit.strays:
            if stray.within_slice:
                continue
            metadata = (stray.pod or {}).get("metadata", {})
            uuid = stray.gpu.uuid
            pod = (metadata.get("namespace", ""), metadata.get("name", ""), stray.container)
            labels = (str(stray.gpu.gpu), uuid, models.get(uuid, ""), self._node, *pod)
            processes[labels] += stray.processes
            memory[labels] += stray.memory
        for name, text, sums in (
            ("slicekeeper_gpu_stray_processes", "Processes that use a GPU outside of their slice.", processes),
            ("slicekeeper_gpu_stray_memory_bytes", "Memory of the GPU that they hold.", memory),
        ):
            family = GaugeMetricFamily(name, text, labels=LABELS)
            for row, value in sums.items():
                family.add_metric(row, value)
            yield family
