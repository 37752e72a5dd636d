# SPDX-License-Identifier: Apache-2.0
"""The scheduler's metrics, in a registry of their own."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from scheduler.held_places import HoldKind
from scheduler.scheduler_state import SchedulerState

_BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)


class Metrics:
    """Counters and histograms that the scheduler updates, and gauges read from its state at each scrape."""

    def __init__(self, state: SchedulerState) -> None:
        self.registry = CollectorRegistry()
        self.seconds = Histogram(
            "slicekeeper_scheduler_request_seconds",
            "Time taken for one call of kube-scheduler.",
            ["verb"],
            buckets=_BUCKETS,
            registry=self.registry,
        )
        self.calls = Counter(
            "slicekeeper_scheduler_requests",
            "Calls of kube-scheduler, by whether the answer carried an error.",
            ["verb", "outcome"],
            registry=self.registry,
        )
        self.watch_errors = Counter(
            "slicekeeper_scheduler_watch_errors",
            "Times that a watch broke and was taken up again.",
            ["resource"],
            registry=self.registry,
        )
        self.evictions = Counter(
            "slicekeeper_scheduler_evictions",
            "Pods evicted, or not, to give way to a waiting in-budget pod.",
            ["outcome"],
            registry=self.registry,
        )
        self.agent_answers = Counter(
            "slicekeeper_scheduler_agent_answers",
            "Times that a node's agent was asked before a bind, by what it answered.",
            ["answer"],
            registry=self.registry,
        )
        self.registry.register(_OfState(state))


class _OfState(Collector):
    def __init__(self, state: SchedulerState) -> None:
        self._state = state

    def collect(self) -> Iterable[Metric]:
        nodes, gpus, core, memory = self._state.totals()
        for name, text, value in (
            ("slicekeeper_scheduler_nodes", "Nodes with GPUs.", nodes),
            ("slicekeeper_scheduler_gpus", "GPUs of all nodes.", gpus),
            ("slicekeeper_scheduler_free_core_percent", "Compute that is free, in percent of one GPU.", core),
            ("slicekeeper_scheduler_free_memory_mib", "Memory that is free.", memory),
        ):
            yield GaugeMetricFamily(name, text, value=value)
        places = GaugeMetricFamily("slicekeeper_scheduler_places", "Places held, by how.", labels=["kind"])
        counts = self._state.counts()
        for kind in HoldKind:
            places.add_metric([kind.value], counts[kind])
        yield places
