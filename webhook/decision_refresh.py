# SPDX-License-Identifier: Apache-2.0
"""The timekeeper's decision for each namespace, refreshed by a thread of its own.

A review reads a snapshot and never waits.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Final, Protocol

from slicekeeper import threads
from slicekeeper.clock import Clock
from slicekeeper.config.policy import NamespacePolicy
from slicekeeper.config.settings import WebhookSettings
from slicekeeper.errors import ServiceError
from slicekeeper.wire.timekeeper import ClusterGpus, Decision, DecisionList
from webhook.budget_standing import NEVER, CachedDecisions, Standing, standing
from webhook.shared_decisions import SharedDecisions

log = logging.getLogger(__name__)

_NS: Final = 1_000_000_000
_LEAST_REAL_SECONDS: Final = 5.0
"""Minimum at any speed of local mode's clock: answers arrive over a real network."""

_LEAST_REAL_PAUSE: Final = 0.05


class Timekeeper(Protocol):
    """The part of the timekeeper's client that is needed here."""

    def decisions(self, etag: str = "") -> tuple[DecisionList | None, str]:
        """Return all decisions, or None if they are unchanged since `etag`; and their ETag."""


class Decisions:
    """The decision cache of one worker."""

    def __init__(
        self,
        timekeeper: Timekeeper,
        clock: Clock,
        settings: WebhookSettings,
        *,
        speed: float = 1.0,
        shared: SharedDecisions | None = None,
        on_refresh: Callable[[], None] = lambda: None,
    ) -> None:
        self._timekeeper = timekeeper
        self._clock = clock
        self._shared = shared or SharedDecisions()
        self._stale_ns = int(max(settings.stale_seconds, _LEAST_REAL_SECONDS * speed) * _NS)
        self._grace_ns = int(max(settings.flip_grace_seconds, _LEAST_REAL_SECONDS * speed) * _NS)
        self._pause = max(settings.refresh_seconds, _LEAST_REAL_PAUSE * speed)
        self._on_refresh = on_refresh
        kept = self._shared.load()
        self._snapshot = CachedDecisions() if kept is None else CachedDecisions(fetched_ns=kept[0], decisions=kept[1])
        self._etag = ""
        self._stop = threading.Event()
        self.tried = threading.Event()
        """Set after the first request to the timekeeper, whether it succeeded or not."""
        self.failures = 0
        """Number of failed fetches in a row."""

    def start(self) -> None:
        """Start refreshing, in a daemon thread."""
        threads.keep("decisions", self._run, self._stop.is_set)

    def stop(self) -> None:
        """Stop refreshing."""
        self._stop.set()

    @property
    def age_seconds(self) -> float | None:
        """Age of the decisions; None if there are none yet."""
        fetched = self._snapshot.fetched_ns
        return None if fetched == NEVER else (self._clock.monotonic_ns() - fetched) / _NS

    @property
    def stale(self) -> bool:
        """Whether the decisions are too old to be used."""
        return self._clock.monotonic_ns() - self._snapshot.fetched_ns > self._stale_ns

    @property
    def gpus(self) -> ClusterGpus:
        """The GPUs of the cluster, as the timekeeper last named them."""
        return self._snapshot.gpus

    def standing(self, namespace: str, policy: NamespacePolicy) -> Standing:
        """Return a namespace's budget state now. A namespace without a decision is in budget."""
        return standing(
            self._snapshot,
            namespace,
            policy,
            self._clock.monotonic_ns(),
            stale_ns=self._stale_ns,
            grace_ns=self._grace_ns,
            changed_ns=self._shared.changed_ns,
        )

    def refresh(self) -> None:
        """Fetch the decisions once.

        Raises ServiceError if the timekeeper does not answer.
        """
        asked = self._clock.monotonic_ns()
        fetched, self._etag = self._timekeeper.decisions(self._etag)
        before = self._snapshot
        back = asked - before.fetched_ns > self._stale_ns
        decisions = before.decisions
        flipped = {ns: at for ns, at in before.flipped_ns.items() if at >= asked - self._grace_ns}
        changed = back
        if fetched is not None:
            decisions = {decision.namespace: decision for decision in fetched.items}
            for namespace in before.decisions.keys() | decisions.keys():
                if _state(before.decisions.get(namespace)) != _state(decisions.get(namespace)):
                    flipped[namespace] = asked
                    changed = True
        if changed:
            self._shared.publish(self._clock.monotonic_ns(), asked, decisions)
        returned = asked if back else before.returned_ns
        gpus = before.gpus if fetched is None else fetched.gpus
        self._snapshot = CachedDecisions(asked, returned, decisions, flipped, gpus)

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self.refresh()
            except Exception as error:  # the thread survives and logs every error
                self.failures += 1
                if not isinstance(error, ServiceError):
                    log.exception("decisions not fetched")
                elif self.failures == 1:
                    log.warning("decisions not fetched, the last ones stay until they are stale: %s", error)
            else:
                if self.failures:
                    log.info("decisions fetched again after %d failures", self.failures)
                self.failures = 0
            self.tried.set()
            self._on_refresh()
            self._clock.wait(self._stop, self._pause)


def _state(decision: Decision | None) -> tuple[bool, bool]:
    return (False, False) if decision is None else (decision.over_budget, decision.enforcement == "hard")
