# SPDX-License-Identifier: Apache-2.0
"""Evict the pods of namespaces with `enforcement: hard`, once their budget is spent and the grace period is over.

Evictions use `pods/eviction`, so disruption budgets apply: if one does not allow an eviction now, it is retried.
The books are consulted before each round, so a grant within the grace period keeps the pods.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping
from typing import Final

from slicekeeper.clock import Clock
from slicekeeper.config.policy import NamespacePolicy
from slicekeeper.errors import Conflict, Forbidden, NotFound, ServiceError
from slicekeeper.kube.client import KubeClient, Object
from slicekeeper.kube.eviction import TOO_MANY_REQUESTS, evict
from slicekeeper.kube.pod import has_ended, is_leaving
from slicekeeper.units import EPOCH, Instant, format_duration, format_instant
from timekeeper.cluster import pod_patch
from timekeeper.cluster.opening import namespace_of
from timekeeper.cluster.pod_patch import Each
from timekeeper.ledger.books import Books

log = logging.getLogger(__name__)

AGAIN_SECONDS: Final = 5.0
"""Real seconds after which an eviction that failed is tried again."""


class Evictions:
    """Evicts pods, and remembers recent attempts. Used by the controller's one thread."""

    def __init__(self, client: KubeClient, clock: Clock, books: Books) -> None:
        self._client = client
        self._clock = clock
        self._books = books
        self._tried: dict[str, float] = {}
        """When the eviction of a pod was requested within the last `AGAIN_SECONDS`, by UID (monotonic seconds)."""
        self._protected: set[str] = set()
        """UIDs of the pods for which an event says that a disruption budget protects them."""
        self._hard_since: dict[str, Instant] = {}
        """When hard enforcement of a namespace was first seen; 0 if it was so at the start of this process."""

    def follow_policy(
        self,
        namespaces: Collection[str],
        policy_of: Callable[[str], NamespacePolicy],
        before: Callable[[str], NamespacePolicy],
        now: Instant,
    ) -> None:
        """Note since when namespaces are enforced hard: no grace period begins earlier."""
        self._hard_since = {
            name: self._hard_since.get(name, EPOCH if before(name).evicts else now)
            for name in namespaces
            if policy_of(name).evicts
        }

    def due(self, namespace: str, policy: NamespacePolicy, since: Instant) -> Instant:
        """Return when the pods of a namespace that ran out at an instant are evicted."""
        return Instant(max(since, self._hard_since.get(namespace, EPOCH)) + policy.budget.grace_ms)

    def look(
        self, spent: Mapping[str, NamespacePolicy], pods: Callable[[], list[Object]], each: Each
    ) -> Instant | None:
        """Evict the pods that are due in namespaces that have spent their budget; return when the next ones are.

        `pods` returns all pods, `each` acts on some of them concurrently.
        """
        reasons, next_due = self._due_now(spent)
        if not reasons:
            self._protected.clear()
            return next_due
        tried_before = time.monotonic() - AGAIN_SECONDS
        self._tried = {uid: at for uid, at in self._tried.items() if at >= tried_before}
        going = [
            pod
            for pod in pods()
            if namespace_of(pod) in reasons
            and not has_ended(pod)
            and not is_leaving(pod)
            and pod["metadata"]["uid"] not in self._tried
        ]
        each(going, lambda pod: self._evict(pod, reasons[namespace_of(pod)]))
        return next_due

    def _due_now(self, spent: Mapping[str, NamespacePolicy]) -> tuple[dict[str, str], Instant | None]:
        """Return the namespaces whose pods are evicted now, each with the reason, and when the next one is due."""
        reasons: dict[str, str] = {}
        later: list[Instant] = []
        now = self._clock.now_ms()
        for name, policy in spent.items():
            state = self._books.require(name).at(now)
            due = self.due(name, policy, state.since)
            if state.over_budget and due <= now:
                reasons[name] = (
                    f"the GPU budget of namespace {name} has been used up since {format_instant(state.since)}, and the "
                    f"grace period of {format_duration(policy.budget.grace_ms)} is over"
                )
            elif state.over_budget:
                later.append(due)
        return reasons, min(later, default=None)

    def _evict(self, pod: Object, why: str) -> None:
        uid = pod["metadata"]["uid"]
        self._tried[uid] = time.monotonic()
        try:
            evict(self._client, pod)
        except NotFound:
            return
        except Conflict:
            return  # it has changed since it was seen; the next look sees how
        except ServiceError as error:
            if error.status == TOO_MANY_REQUESTS and uid not in self._protected:
                self._protected.add(uid)
                self._say(pod, "EvictionPutOff", f"To be evicted: {why}; a disruption budget does not allow it yet")
            elif isinstance(error, Forbidden):
                log.error(
                    "a hard budget is used up, but evicting is forbidden: set components.hardBudgets=true (%s)", error
                )
            return
        self._say(pod, "BudgetEviction", f"Evicted: {why}")

    def _say(self, pod: Object, reason: str, note: str) -> None:
        pod_patch.say(self._client, self._clock, pod, kind="Warning", reason=reason, action="Evict", note=note)
