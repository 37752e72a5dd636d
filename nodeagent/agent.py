# SPDX-License-Identifier: Apache-2.0
"""Puts the agent together: the publisher, the seats, the plugin, the probes."""

from __future__ import annotations

import threading
from pathlib import Path

from prometheus_client import Gauge, make_wsgi_app

from nodeagent.cdi import SeatFiles
from nodeagent.gpus import GpuSource
from nodeagent.node_pods import NodePods
from nodeagent.plugin import PodResources, SeatPlugin
from nodeagent.publisher import Publisher
from nodeagent.seats import Seats
from nodeagent.store import SeatStore
from slicekeeper import probes
from slicekeeper.clock import Clock
from slicekeeper.kube.client import KubeClient, Object
from slicekeeper.kube.events import tell
from slicekeeper.settings import Settings

REPORTER = "slicekeeper-nodeagent"


class Agent:
    """The agent of one node."""

    def __init__(self, settings: Settings, clock: Clock, source: GpuSource) -> None:
        mine = settings.node_agent
        self._bind = mine.metrics_bind
        self._clock = clock
        self._client = KubeClient(settings.kubernetes)
        self._store = SeatStore(Path(mine.state_dir) / "seats")
        files = SeatFiles(Path(mine.cdi_dir), Path(mine.run_dir), settings.resources.seat, source)
        self._pods = NodePods(self._client, mine.node_name, self._gone)
        kubelet = PodResources(Path(mine.pod_resources_socket), settings.resources.seat)
        self._seats = Seats(self._store, files, self._pods, source, settings.resources, kubelet.owners, self._refused)
        ids = [f"seat-{number:04}" for number in range(mine.seats)]
        self._plugin = SeatPlugin(Path(mine.plugin_dir), settings.resources.seat, ids, self._seats)
        self._publisher = Publisher(self._client, mine.node_name, source, settings.resources, mine.reconcile_seconds)

    def run(self, stop: threading.Event) -> None:
        """Run until `stop`."""
        self._seats.restore()
        taken = Gauge("slicekeeper_node_seats_taken", "Seats that a container owns.")
        taken.set_function(lambda: float(sum(seat.taken for seat in self._store.all())))
        if self._bind:
            probes.serve(self._bind, ready=self._not_ready, more={"/metrics": make_wsgi_app()})
        self._publisher.start()
        self._pods.start()
        self._plugin.start()
        stop.wait()
        self._plugin.stop()
        self._pods.stop()
        self._publisher.stop()

    def _not_ready(self) -> str:
        parts = {
            "GPUs not published": self._publisher.published.is_set(),
            "pods of the node not listed": self._pods.synced,
            "seats not registered with kubelet": self._plugin.registered.is_set(),
        }
        return ", ".join(text for text, ready in parts.items() if not ready)

    def _gone(self, left: set[str]) -> None:
        self._seats.keep_only(left)

    def _refused(self, pod: Object, why: str) -> None:
        tell(
            self._client, self._clock, pod,
            kind="Warning", reason="SeatRefused", action="Start", note=why, reporter=REPORTER,
        )  # fmt: skip
