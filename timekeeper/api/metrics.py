# SPDX-License-Identifier: Apache-2.0
"""Metrics, computed from the books when they are requested, so they can never differ from the ledger."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from slicekeeper.units import MS_PER_HOUR, Instant
from timekeeper.api.handler_context import HandlerContext
from timekeeper.ledger import reservation
from timekeeper.ledger.standing import BudgetStanding
from timekeeper.store import bookings, workloads

_LOOKED_BACK_MS = 24 * MS_PER_HOUR
"""Without a limit, each scrape would read all pods that ever ended."""


def registry(context: HandlerContext) -> CollectorRegistry:
    """Return a registry of these metrics."""
    made = CollectorRegistry()
    made.register(_LedgerMetrics(context))
    return made


class _LedgerMetrics(Collector):
    def __init__(self, context: HandlerContext) -> None:
        self._context = context

    def describe(self) -> list[Metric]:
        """Return nothing: the registry need not query the database when it is created."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics as of now."""
        context, now = self._context, self._context.clock.now_ms()
        namespaces, parents = context.books.standings(), context.books.parents()
        reserved = reservation.reserved(context.books, now)
        below = reservation.reserved_below(context.books, parents, now)
        yield from self._budgets(
            "gpu_budget", ["namespace"], {p: ([p.account.name], reserved[p.account.id]) for p in namespaces}, now
        )
        yield from self._budgets(
            "gpu_budget_parent",
            ["parent", "kind"],
            {p: ([p.account.name, p.account.kind], below[p.account.id]) for p in parents},
            now,
        )
        yield from self._reports(now)

    def _budgets(
        self, prefix: str, labels: list[str], standings: Mapping[BudgetStanding, tuple[list[str], int]], now: Instant
    ) -> Iterator[Metric]:
        """Yield the metrics of some budgets; each with its labels' values and what is reserved in it."""
        limit = GaugeMetricFamily(f"{prefix}_limit_seconds", "GPU time to spend in the period.", labels=labels)
        left = GaugeMetricFamily(f"{prefix}_remaining_seconds", "GPU time left.", labels=labels)
        reserved = GaugeMetricFamily(f"{prefix}_reserved_seconds", "GPU time set aside.", labels=labels)
        uncovered = GaugeMetricFamily(
            f"{prefix}_uncovered_seconds", "GPU time set aside that the balance does not cover.", labels=labels
        )
        exhausted = GaugeMetricFamily(f"{prefix}_exhausted", "1 if nothing is left.", labels=labels)
        charged = CounterMetricFamily(
            f"{prefix}_charged_seconds", "GPU time of ended stretches, by account.", labels=[*labels, "account"]
        )
        with self._context.books.database.reading() as session:
            for standing, (names, held) in standings.items():
                state = standing.at(now)
                limit.add_metric(names, state.to_spend / 1000)
                left.add_metric(names, state.balance / 1000)
                reserved.add_metric(names, held / 1000)
                rule = standing.rule.rule
                cover = state.balance + rule.credit if rule.open else 0
                uncovered.add_metric(names, max(held - max(cover, 0), 0) / 1000)
                exhausted.add_metric(names, int(state.over_budget))
                balances = bookings.balances(session, standing.account.id)
                for account in ("charged", "over-budget"):
                    charged.add_metric([*names, account], balances[account] / 1000)
        yield from (limit, left, reserved, uncovered, exhausted, charged)

    def _reports(self, now: Instant) -> Iterator[Metric]:
        context = self._context
        with context.books.database.reading() as session:
            still_open = workloads.open_intervals(session, context.books.cluster)
            heard = workloads.last_heard(session, list(still_open))
            unobserved = workloads.unobserved_ms(session, context.books.cluster, Instant(now - _LOOKED_BACK_MS))
        lag = GaugeMetricFamily("timekeeper_report_lag_seconds", "Age of the oldest last report of a running pod.")
        lag.add_metric([], max((now - at for at in heard.values()), default=0) / 1000)
        silent = GaugeMetricFamily(
            "timekeeper_unobserved_seconds",
            "Running time of pods that ended within 24 hours and whose sidecar never reported.",
            labels=["namespace"],
        )
        for name, total in unobserved.items():
            silent.add_metric([name], total / 1000)
        yield from (lag, silent)
