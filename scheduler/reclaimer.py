# SPDX-License-Identifier: Apache-2.0
"""The loop that makes pods give way: finds who waits, asks `scheduler.reclaim` whom to evict, evicts, keeps the place.

A waiting pod is served once: while its place is kept nobody else is evicted for it. The place is kept until the victims
are gone and for a hold's time after that. If the pod has not come by then, something else keeps it waiting (CPU, a
volume), and evicting again at once would only do harm: each time the pod is left alone for twice as long.
"""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass
from typing import Final

from scheduler.eviction import Evictor
from scheduler.nudge import Nudger
from scheduler.picture import Picture
from scheduler.pods import Pod
from scheduler.policy import Policy
from scheduler.state import Kind, Snapshot, State
from slicekeeper import names
from slicekeeper.clock import Clock
from slicekeeper.kube.leader import LeaderElection
from slicekeeper.request import as_list, as_map
from slicekeeper.settings import Settings

log = logging.getLogger(__name__)

LONGEST_PAUSE: Final = 64
"""A pod that does not take its place is left alone for at most this many holds."""

CHOICES: Final = 4
"""How often the next choice is tried at once where a disruption budget forbids the first."""


@dataclass
class _Service:
    """What was done for a waiting pod: how often, until when it is left alone, and whose leaving it waits for."""

    times: int = 0
    not_before_ns: int = 0
    victims: frozenset[str] = frozenset()


class Reclaimer:
    """Serves waiting pods, while this process is the leader."""

    def __init__(
        self,
        settings: Settings,
        clock: Clock,
        state: State,
        policy: Policy,
        leader: LeaderElection,
        evictor: Evictor,
        nudger: Nudger,
        *,
        hold_seconds: float,
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._state = state
        self._policy = policy
        self._leader = leader
        self._evictor = evictor
        self._nudger = nudger
        self._hold_ns = int(hold_seconds * 1_000_000_000)
        self._served: dict[str, _Service] = {}

    def run(self, stopped: threading.Event) -> None:
        """Look every `scheduler.reclaimSeconds`, until `stopped`."""
        pause = max(self._settings.scheduler.reclaim_seconds, 0.05 * self._settings.clock.speed)
        while not self._clock.wait(stopped, pause):
            if not self._leader.is_leader:
                continue
            try:
                self.look()
            except Exception:
                log.exception("the reclaimer failed; it goes on")

    def look(self) -> None:
        """Serve every pod that waits and may be served, the highest priority first, then the oldest."""
        snapshot = self._state.snapshot()
        alive = {pod.uid for pod in snapshot.pods if not pod.node}
        self._served = {uid: service for uid, service in self._served.items() if uid in alive}
        self._nudger.keep(alive)
        self._look_after(snapshot)
        waiting = [pod for pod in snapshot.pods if self._is_waiting(pod)]
        held = {p.pod.uid for p in snapshot.places}
        picture: Picture | None = None
        for pod in sorted(waiting, key=lambda pod: (-pod.priority, pod.created_ms, pod.key)):
            service = self._served.get(pod.uid)
            if pod.uid not in held and (service is None or service.not_before_ns <= self._clock.monotonic_ns()):
                picture = self._serve(pod, picture or self._look_around())

    def _look_after(self, snapshot: Snapshot) -> None:
        """Keep reserved places while the pods that make room are still there; then see that they are taken."""
        there = {p.pod.uid for p in snapshot.places if p.kind is Kind.BOUND}
        for place in snapshot.places:
            service = self._served.get(place.pod.uid)
            if place.kind is not Kind.RESERVED or service is None:
                continue
            if service.victims & there:
                self._state.reserve(place.pod, place.hold)
                self._put_off(service)
            else:
                self._nudger.nudge(place.pod)

    def _put_off(self, service: _Service) -> None:
        pause = min(2**service.times, LONGEST_PAUSE) * self._hold_ns
        service.not_before_ns = self._clock.monotonic_ns() + pause

    def _is_waiting(self, pod: Pod) -> bool:
        spec = as_map(as_map(pod.waiting).get("spec"))
        after_ms = int(self._settings.scheduler.reclaim_after_seconds * 1000)
        return (
            not (pod.node or pod.finished or pod.leaving or pod.refusal)
            and bool(pod.demand.slices)
            and pod.managed
            and pod.budget_state == names.IN_BUDGET
            and pod.gpu_class == names.STANDARD
            and spec.get("schedulerName") == self._settings.webhook.scheduler_name
            and not as_list(spec.get("schedulingGates"))
            and self._clock.now_ms() - pod.created_ms >= after_ms
        )

    def _serve(self, pod: Pod, picture: Picture) -> Picture | None:
        """Make room for one pod, if that can be done; return None where the picture has changed by it."""
        for _ in range(CHOICES):
            if picture.fits(pod):
                self._nudger.nudge(pod)
                return picture
            hold, victims = picture.room(pod), []
            if hold is None:
                chosen = None if picture.may_have_room(pod) else picture.choose(pod)
                if chosen is None:
                    return picture
                choice, hold = chosen
                victims = [picture.pods[uid] for uid in choice.victims]
            if not self._state.reserve(pod, hold):
                return None
            service = self._served.setdefault(pod.uid, _Service())
            service.victims = frozenset(victim.uid for victim in victims) | picture.leaving_for(hold)
            if self._evictor.evict(victims, pod):
                service.times += 1
                self._put_off(service)
                return None
            self._state.release(pod.uid)
            picture = self._look_around()
        return picture

    def _look_around(self) -> Picture:
        return Picture(
            self._state.snapshot(), self._policy, leaving=self._evictor.leaving(), blocked=self._evictor.blocked()
        )
