# SPDX-License-Identifier: Apache-2.0
"""The webhook's metrics. With several workers the values are in files that any of them can sum up.

prometheus-client decides at import whether it works with files: `$PROMETHEUS_MULTIPROC_DIR` must be set before.
"""

from __future__ import annotations

import os

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram, multiprocess

from slicekeeper.config.settings import ServingSettings
from slicekeeper.net import probes

DIRECTORY = "PROMETHEUS_MULTIPROC_DIR"

_reviews = Counter("slicekeeper_webhook_reviews", "Reviews answered.", ["endpoint", "outcome"])
_refusals = Counter("slicekeeper_webhook_refusals", "Refusals by the code of the first broken rule.", ["code"])
_bad_requests = Counter("slicekeeper_webhook_bad_requests", "Bodies that were no review.", ["code"])
_seconds = Histogram(
    "slicekeeper_webhook_review_seconds",
    "Time to decide a review, without TLS and HTTP.",
    ["endpoint"],
    buckets=(0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.01, 0.05, 0.25, 1.0),
)
decisions_age = Gauge(
    "slicekeeper_webhook_decisions_age_seconds",
    "Age of the budget decisions; -1 before the first.",
    multiprocess_mode="livemax",
)
decisions_stale = Gauge(
    "slicekeeper_webhook_decisions_stale", "1 while the decisions are stale.", multiprocess_mode="livemax"
)
policy_refused = Gauge(
    "slicekeeper_webhook_policy_file_refused",
    "1 while the policy file as it is now is refused and the policy before it is in force.",
    multiprocess_mode="livemax",
)


class EndpointMetrics:
    """One endpoint's counters, whose label sets are looked up only once."""

    def __init__(self, endpoint: str) -> None:
        self._outcomes = {o: _reviews.labels(endpoint, o) for o in ("allowed", "mutated", "refused")}
        self._seconds = _seconds.labels(endpoint)

    def count(self, outcome: str, seconds: float, code: str = "") -> None:
        """Count one review; `code` is the code of a refusal."""
        self._outcomes[outcome].inc()
        self._seconds.observe(seconds)
        if code:
            _refusals.labels(code).inc()


def count_bad_request(code: str) -> None:
    """Count a body that was not a review."""
    _bad_requests.labels(code).inc()


def registry() -> CollectorRegistry:
    """Return the exposition: all workers' values, or this process's if it is the only one."""
    if DIRECTORY not in os.environ:
        return REGISTRY
    merged = CollectorRegistry()
    multiprocess.MultiProcessCollector(merged)  # type: ignore[no-untyped-call]
    return merged


def serve(bind: str, limits: ServingSettings) -> None:
    """Serve /metrics in plain HTTP on `bind`, in the background; any worker can answer for all."""
    probes.serve_metrics(bind, limits, registry(), shared=True)
