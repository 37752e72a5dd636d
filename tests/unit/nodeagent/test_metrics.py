# SPDX-License-Identifier: Apache-2.0
"""The metrics of containers for Prometheus: of fractions by the arbiter, of whole GPUs by the driver."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from msgspec.structs import replace
from support.sharing import GIB, Sharing

from nodeagent.arbiter_client import Arbiter
from nodeagent.container_usage import Count
from nodeagent.live_seats import LiveSeats
from nodeagent.metrics import SeatMetrics, ShareMetrics
from nodeagent.seat_store import Seat, SeatStore
from slicekeeper import names


def test_metrics_name_the_container(sharing: Sharing) -> None:
    sharing.seat(1, **{names.GPU_CLASS: names.BACKGROUND})
    metrics = ShareMetrics(
        Arbiter(sharing.running.folder), sharing.store, sharing.gpus, LiveSeats(sharing.store), "node-1"
    )
    found = {sample.name: sample for metric in metrics.collect() for sample in metric.samples}
    assert found["DCGM_FI_DEV_FB_USED"].labels == {
        "gpu": "1",
        "UUID": sharing.gpu,
        "modelName": "A100-SXM4-40GB",
        "Hostname": "node-1",
        "namespace": "team",
        "pod": "p1",
        "container": "train",
    }
    assert found["slicekeeper_gpu_busy_seconds_total"].value == 0
    assert found["slicekeeper_gpu_memory_limit_bytes"].value == 2 * GIB
    assert (found["slicekeeper_gpu_request_ratio"].value, found["slicekeeper_gpu_background"].value) == (0.4, 1)
    assert [sample.value for metric in SeatMetrics(sharing.store).collect() for sample in metric.samples] == [1]
    sharing.store.put(replace(sharing.store.get("seat-0001"), limited=False))
    assert all(not metric.samples for metric in metrics.collect()), "without the limiter nothing is counted"
    sharing.running.stop()
    assert all(not metric.samples for metric in metrics.collect()), "a scrape does not fail"
    sharing.running.start()


def test_metrics_have_whole_gpus_by_the_drivers_word_without_an_arbiter(made: Any, tmp_path: Path) -> None:
    gpus, store = made(2), SeatStore(tmp_path / "state")
    now = [100.0]
    live = LiveSeats(store, now=lambda: now[0])
    for name in ("whole", "silent"):
        store.put(
            Seat(id=name, nonce="1", namespace="team", pod=name, uid=name, container="c", gpus=("GPU-1",), core=100)
        )
    metrics = ShareMetrics(Arbiter(tmp_path), store, gpus, live, "node-1")
    for seconds in (1, 2):
        live.take(
            [
                Count(
                    seat="whole-1",
                    gpu="GPU-1",
                    life="1",
                    by="1",
                    wall_ns=seconds * 10**9,
                    busy_ns=seconds * 4 * 10**8,
                    granted_ns=seconds * 10**9,
                    memory=3 << 30,
                )
            ]
        )
    found = {sample.name: (sample.value, sample.labels) for metric in metrics.collect() for sample in metric.samples}
    labels = {
        "gpu": "1",
        "UUID": "GPU-1",
        "modelName": "A100-SXM4-80GB",
        "Hostname": "node-1",
        "namespace": "team",
        "pod": "whole",
        "container": "c",
    }
    assert found == {
        "slicekeeper_gpu_busy_seconds_total": (0.8, labels),
        "DCGM_FI_DEV_FB_USED": (3072, labels),
        "DCGM_FI_DEV_GPU_UTIL": (40, labels),
    }
    now[0] += 60
    assert all(not metric.samples for metric in metrics.collect()), "what is old is left out"
