# SPDX-License-Identifier: Apache-2.0
"""Metrics, computed from the books when they are asked for, so they can never differ from the ledger."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from timekeeper import reservations
from timekeeper.api.service import Service
from timekeeper.store import bookings, workloads


def registry(it: Service) -> CollectorRegistry:
    """Return a registry of this service's metrics."""
    made = CollectorRegistry()
    made.register(_Books(it))
    return made


class _Books(Collector):
    def __init__(self, it: Service) -> None:
        self._it = it

    def describe(self) -> list[Metric]:
        """Return nothing: the registry need not ask the database when it is made."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics as of now."""
        it, now = self._it, self._it.clock.now_ms()
        limit = GaugeMetricFamily("gpu_budget_limit_seconds", "GPU time per period and grants.", labels=["namespace"])
        left = GaugeMetricFamily("gpu_budget_remaining_seconds", "GPU time left.", labels=["namespace"])
        reserved = GaugeMetricFamily("gpu_budget_reserved_seconds", "GPU time set aside.", labels=["namespace"])
        exhausted = GaugeMetricFamily("gpu_budget_exhausted", "1 where nothing is left.", labels=["namespace"])
        charged = CounterMetricFamily(
            "gpu_budget_charged_seconds", "GPU time of ended stretches, by account.", labels=["namespace", "account"]
        )
        positions, held = it.books.positions(), reservations.held(it.books, now)
        with it.books.database.reading() as session:
            for position in positions:
                name, state = position.known.name, position.at(now)
                limit.add_metric([name], (state.period.amount + state.granted) / 1000)
                left.add_metric([name], state.balance / 1000)
                reserved.add_metric([name], held[position.known.id] / 1000)
                exhausted.add_metric([name], int(state.over_budget))
                balances = bookings.balances(session, position.known.id)
                for account in ("charged", "over-budget"):
                    charged.add_metric([name, account], balances[account] / 1000)
        yield from (limit, left, reserved, exhausted, charged)
        yield from self._reports(now)

    def _reports(self, now: int) -> Iterator[Metric]:
        it = self._it
        with it.books.database.reading() as session:
            still_open = workloads.open_ones(session, it.books.cluster)
            heard = workloads.last_heard(session, list(still_open))
            unobserved = workloads.unobserved_ms(session, it.books.cluster)
        lag = GaugeMetricFamily("timekeeper_report_lag_seconds", "Age of the oldest last report of a running pod.")
        lag.add_metric([], max((now - at for at in heard.values()), default=0) / 1000)
        silent = CounterMetricFamily(
            "timekeeper_unobserved_seconds", "Time of ended pods of which no sidecar spoke.", labels=["namespace"]
        )
        for name, total in unobserved.items():
            silent.add_metric([name], total / 1000)
        yield from (lag, silent)
