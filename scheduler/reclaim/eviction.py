# SPDX-License-Identifier: Apache-2.0
"""Evict pods for others, through `pods/eviction`, so that disruption budgets apply, and write events on both.

Each victim is read right before its eviction: only a pod that is over budget (or volunteered) at that very version is
evicted, because the Eviction carries its UID and resource version. A grant in between keeps the pod.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Literal

from scheduler.pods import KnownPod, read_pod
from scheduler.reclaim.disruption_budgets import not_allowed_together
from slicekeeper import names
from slicekeeper.clock import Clock
from slicekeeper.config.settings import Resources
from slicekeeper.errors import Conflict, NotFound, ServiceError
from slicekeeper.kube import events
from slicekeeper.kube.client import PODS, KubeClient, Object
from slicekeeper.kube.eviction import TOO_MANY_REQUESTS, evict

log = logging.getLogger(__name__)

EvictionOutcome = Literal["evicted", "gone", "spared", "protected", "failed"]


class Evictor:
    """Evicts pods, and remembers which are terminating and which a disruption budget protects for now."""

    def __init__(
        self,
        client: KubeClient,
        clock: Clock,
        resources: Resources,
        *,
        reporter: str,
        hold_seconds: float,
        count: Callable[[str], None],
    ) -> None:
        self._client = client
        self._clock = clock
        self._resources = resources
        self._reporter = reporter
        self._hold_ns = int(hold_seconds * 1_000_000_000)
        self._count = count
        self._leaving: dict[str, int] = {}
        self._blocked: dict[str, int] = {}

    def leaving(self) -> set[str]:
        """Return the recently evicted pods, which the watch may not have shown as terminating yet."""
        return _current(self._leaving, self._clock.monotonic_ns())

    def blocked(self) -> set[str]:
        """Return the pods that recently could not be evicted, and are not tried again for a while."""
        return _current(self._blocked, self._clock.monotonic_ns())

    def evict(self, victims: Sequence[KnownPod], waiting: KnownPod) -> bool:
        """Evict `victims` so that `waiting` finds a place; return False at the first refused eviction."""
        if not victims:
            return True
        asking = self._read(waiting)
        if asking is None:
            return False
        for victim in victims:
            outcome = self._evict(victim)
            self._count(outcome)
            until = self._clock.monotonic_ns() + self._hold_ns
            if outcome not in ("evicted", "gone"):
                log.info("pod %s does not give way to %s: %s", victim.key, waiting.key, outcome)
                self._blocked[victim.uid] = until
                return False
            self._leaving[victim.uid] = until
            if outcome == "evicted":
                log.info("pod %s gives way to %s", victim.key, waiting.key)
                self._tell(
                    _reference(victim),
                    "Warning",
                    "GaveWay",
                    f"Evicted from node {victim.node}: {_why(victim)}, and pod {waiting.key}, which is in budget, "
                    f"found no place",
                )
        self._tell(
            asking,
            "Normal",
            "PlaceReclaimed",
            f"Place on node {victims[0].node} is kept for this pod; gave way: {', '.join(v.key for v in victims)}",
        )
        return True

    def may_evict(self, victims: Sequence[KnownPod]) -> bool:
        """Whether all of `victims` could be evicted now, by dry runs and by how many their disruption budgets allow.

        Those that could not are skipped for a while.
        """
        for victim in victims:
            outcome = self._evict(victim, dry_run=True)
            if outcome not in ("evicted", "gone"):
                log.info("no pod gives way: pod %s is %s", victim.key, outcome)
                self._blocked[victim.uid] = self._clock.monotonic_ns() + self._hold_ns
                return False
        try:
            protected = not_allowed_together(self._client, victims)
        except ServiceError as error:
            log.info("no pod gives way: disruption budgets were not read: %s", error)
            return False
        for victim in protected:
            log.info("no pod gives way: pod %s is protected if the others go", victim.key)
            self._blocked[victim.uid] = self._clock.monotonic_ns() + self._hold_ns
        return not protected

    def _read(self, waiting: KnownPod) -> Object | None:
        """Return the waiting pod if it is still waiting and in budget."""
        try:
            obj = self._client.get(PODS, waiting.name, waiting.namespace)
        except ServiceError as error:
            log.info("no pod is evicted for pod %s: %s", waiting.key, error)
            return None
        now = read_pod(obj, self._resources)
        waits = now is not None and now.uid == waiting.uid and not (now.node or now.finished or now.leaving)
        return obj if waits and now is not None and now.budget_state == names.IN_BUDGET else None

    def _evict(self, victim: KnownPod, *, dry_run: bool = False) -> EvictionOutcome:
        try:
            obj = self._client.get(PODS, victim.name, victim.namespace)
            now = read_pod(obj, self._resources)
            if now is None or now.uid != victim.uid or now.finished:
                return "gone"
            if now.budget_state != names.OVER_BUDGET and now.gpu_class != names.BACKGROUND:
                return "spared"
            evict(self._client, obj, dry_run=dry_run)
        except NotFound:
            return "gone"
        except Conflict:
            return "spared"  # it has changed since it was read; the next pass sees how
        except ServiceError as error:
            log.info("pod %s was not evicted: %s", victim.key, error)
            return "protected" if error.status == TOO_MANY_REQUESTS else "failed"
        return "evicted"

    def _tell(self, pod: Object, kind: str, reason: str, note: str) -> None:
        events.write(
            self._client,
            self._clock,
            pod,
            kind=kind,
            reason=reason,
            action="Reclaim",
            note=note,
            reporter=self._reporter,
        )


def _reference(pod: KnownPod) -> Object:
    return {"metadata": {"name": pod.name, "namespace": pod.namespace, "uid": pod.uid}}


def _why(pod: KnownPod) -> str:
    return "it runs as background" if pod.gpu_class == names.BACKGROUND else "its namespace's GPU budget is spent"


def _current(until: dict[str, int], now: int) -> set[str]:
    for uid in [uid for uid, end in until.items() if end <= now]:
        del until[uid]
    return set(until)
