# SPDX-License-Identifier: Apache-2.0
"""The reclaimer's loop: find waiting pods, find room for them (`room_finder`), evict the victims, and keep the place.

While a waiting pod's place is kept, no other pods are evicted for it. The place is kept until the victims are gone, and
for the duration of a hold after that. If the pod has not been bound by then, it waits for something else (CPU, a
volume), and another eviction would only do harm: each time, the reclaimer ignores the pod for twice as long, see
`back_off`.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from scheduler.gang_members import GangMembers
from scheduler.gang_places import places_for
from scheduler.held_places import HoldKind
from scheduler.node_fit import fields_judged
from scheduler.placement.demand import Demand
from scheduler.placement.policy import Policy
from scheduler.pods import KnownPod
from scheduler.reclaim.back_off import BackOff
from scheduler.reclaim.eviction import Evictor
from scheduler.reclaim.retry_trigger import RetryTrigger
from scheduler.reclaim.room_finder import FreedPlace, RoomFinder
from scheduler.scheduler_state import SchedulerState
from scheduler.wait_turns import WaitTurn
from slicekeeper import names
from slicekeeper.clock import Clock
from slicekeeper.config.settings import Settings
from slicekeeper.kube.leader import LeaderElection

log = logging.getLogger(__name__)

LONGEST_PAUSE: Final = 64
"""A pod that does not take its place is left alone for at most this many holds."""

CHOICES: Final = 4
"""How often the next choice is tried at once if a disruption budget forbids the first."""

IDLE_SECONDS: Final = 5.0
"""How soon all is looked at again after a look that could do nothing, if nothing changes before."""


@dataclass
class _Served(BackOff):
    """What was done for a waiting pod, and the pods whose end it waits for."""

    awaited: frozenset[str] = frozenset()


class Reclaimer:
    """Serves waiting pods, while this process is the leader."""

    def __init__(
        self,
        settings: Settings,
        clock: Clock,
        state: SchedulerState,
        policy: Policy,
        leader: LeaderElection,
        evictor: Evictor,
        retry_trigger: RetryTrigger,
        *,
        hold_seconds: float,
    ) -> None:
        self._settings = settings
        self._name = settings.scheduler_name(settings.scheduler.shard)
        self._clock = clock
        self._state = state
        self._policy = policy
        self._leader = leader
        self._evictor = evictor
        self._retry_trigger = retry_trigger
        self._hold_ns = int(hold_seconds * 1_000_000_000)
        self._served: dict[str, _Served] = {}
        """By the UIDs of waiting pods for which room was made."""
        self._idle_ns = int(IDLE_SECONDS * settings.clock.speed * 1_000_000_000)
        self._idle_at: tuple[int, int] | None = None
        """The state's changes, and how many waited, at a look that could do nothing."""
        self._idle_until_ns = 0
        """When all is looked at again nevertheless: time alone may have changed something."""
        self._finder: RoomFinder | None = None

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
        """Serve every pod that waits and may be served, the highest priority first, then the oldest.

        Nothing is looked at if no pod waits, nor again if nothing has changed since a look that could do nothing.
        """
        pods = self._state.waiting()
        alive = {pod.uid for pod in pods}
        self._served = {uid: service for uid, service in self._served.items() if uid in alive}
        self._retry_trigger.keep(alive)
        waiting = [pod for pod in pods if self._is_waiting(pod)]
        if not waiting:
            return
        gangs = self._gangs(waiting)
        alone = [pod for pod in waiting if pod.gang is None or pod.gang.key not in gangs]
        if self._served or self._state.may_yield():
            self._make_room(alone, list(gangs.values()))
        else:
            self._invite(alone)

    def _gangs(self, waiting: list[KnownPod]) -> dict[str, GangMembers]:
        """Return the gangs of waiting pods that have not started: their pods are not served one by one."""
        keys = dict.fromkeys(pod.gang.key for pod in waiting if pod.gang is not None)
        members = {key: self._state.gang_members(key) for key in keys}
        return {key: found for key, found in members.items() if found is not None and found.needed}

    def _invite(self, waiting: list[KnownPod]) -> None:
        """Nudge the pods for which there is room when no pod could give way."""
        known: dict[tuple[Demand, str], bool] = {}
        for pod in waiting:
            shape = pod.demand, fields_judged(pod.waiting or {})
            if shape not in known:
                known[shape] = self._state.fits_now(pod)
            if known[shape]:
                self._retry_trigger.trigger(pod)

    def _make_room(self, waiting: list[KnownPod], gangs: list[GangMembers]) -> None:
        """Serve pods and gangs one after the other, in the order of priority; a gang has the place of its first pod."""
        turns = [WaitTurn((pod,)) for pod in waiting] + [WaitTurn(gang.waiting, gang) for gang in gangs if gang.waiting]
        everyone = [pod for turn in turns for pod in turn.pods]
        now, state = self._clock.monotonic_ns(), (self._state.changes(), len(everyone))
        if state == self._idle_at and now < self._idle_until_ns:
            return
        self._idle_at = None
        self._look_after()
        held = {place.pod.uid for place in self._state.places_of(pod.uid for pod in everyone)}
        # Serving one returns None if that changed who holds what; then the next one needs an updated finder.
        finder: RoomFinder | None = None
        acted = False
        for turn in sorted(turns, key=lambda turn: turn.order):
            if any(pod.uid in held or self._is_put_off(pod) for pod in turn.pods):
                continue
            if turn.gang is not None and not self._may_serve(turn.gang):
                continue
            finder = finder or self._current_finder()
            if turn.gang is not None:
                finder = self._serve_gang(turn.gang, finder)
            elif _may_take(turn.pods[0]):
                finder = self._serve(turn.pods[0], finder)
            elif finder.fits(turn.pods[0]):
                self._retry_trigger.trigger(turn.pods[0])
            acted = acted or finder is None
        if not acted and not self._served:
            self._idle_at, self._idle_until_ns = state, now + self._idle_ns

    def _look_after(self) -> None:
        """Keep reserved places until the pods that make room have left; then trigger retries of their pods."""
        for place in self._state.places_of(self._served):
            if place.kind is not HoldKind.RESERVED:
                continue
            service = self._served[place.pod.uid]
            if any(victim.kind is HoldKind.BOUND for victim in self._state.places_of(service.awaited)):
                self._state.reserve([(place.pod, place.hold)], self._clock.monotonic_ns() + self._hold_ns)
                self._put_off(service)
            else:
                self._retry_trigger.trigger(place.pod)

    def _put_off(self, service: _Served) -> None:
        """Leave a served pod alone until it had time to take its place."""
        service.put_off(self._clock.monotonic_ns(), self._hold_ns, LONGEST_PAUSE)

    def _is_put_off(self, pod: KnownPod) -> bool:
        service = self._served.get(pod.uid)
        return service is not None and service.not_before_ns > self._clock.monotonic_ns()

    def _is_waiting(self, pod: KnownPod) -> bool:
        after_ms = int(self._settings.scheduler.reclaim_after_seconds * 1000)
        return (
            pod.is_placeable
            and pod.managed
            and pod.scheduler == self._name
            and self._clock.now_ms() - pod.created_ms >= after_ms
        )

    def _serve(self, pod: KnownPod, finder: RoomFinder) -> RoomFinder | None:
        """Make room for one pod if possible; return None if that has changed who holds what."""
        for _ in range(CHOICES):
            if finder.fits(pod):
                self._retry_trigger.trigger(pod)
                return finder
            freed = finder.room_after_leaving(pod)
            if freed is None and not finder.may_have_room_after_leaving(pod):
                freed = finder.room_by_eviction(pod)
            if freed is None:
                return finder
            if self._reserve_and_evict([freed], finder.awaited([freed])):
                return None
            finder = self._current_finder()
        return finder

    def _may_serve(self, gang: GangMembers) -> bool:
        """Whether room may be made for a gang: all are there, have waited and are in budget."""
        return gang.is_complete and all(self._is_waiting(pod) and _may_take(pod) for pod in gang.waiting)

    def _serve_gang(self, gang: GangMembers, finder: RoomFinder) -> RoomFinder | None:
        """Make room for as many pods of a gang as it needs, or for none; return None if that changed who holds what."""
        for _ in range(CHOICES):
            places = finder.room_for_gang(gang.waiting, gang.needed) or []
            awaited = finder.awaited(places)
            if not awaited:
                return finder  # it would not help, or there is room: then the gang takes it by itself
            if not self._would_start(gang, awaited):
                return finder
            if self._reserve_and_evict(places, awaited):
                return None
            finder = self._current_finder()
        return finder

    def _reserve_and_evict(self, places: Sequence[FreedPlace], awaited: frozenset[str]) -> bool:
        """Reserve places and evict their victims; return False, and release the places, if that is forbidden now.

        True does not mean success: if a place cannot be reserved any more, nothing is evicted.
        """
        # Reserved first: otherwise a third pod might take the room before the one for which it is made.
        until_ns = self._clock.monotonic_ns() + self._hold_ns
        if not self._state.reserve([(place.pod, place.hold) for place in places], until_ns):
            return True
        services = [self._served.setdefault(place.pod.uid, _Served()) for place in places]
        for service in services:
            service.awaited = awaited
        victims = [victim for place in places for victim in place.victims]
        # If one of several may not be evicted, evicting the others would be in vain.
        may = len(victims) < 2 or self._evictor.may_evict(victims)
        if may and all(self._evictor.evict(place.victims, place.pod) for place in places):
            for service in services:
                service.times += 1
                self._put_off(service)
            return True
        for place in places:
            self._state.release(place.pod.uid)
        return False

    def _would_start(self, gang: GangMembers, leaving: frozenset[str]) -> bool:
        """Whether the gang's own search, which starts it, finds places once the pods `leaving` have left."""
        begin = partial(self._state.trial, leaving | {pod.uid for pod in gang.waiting})
        return len(places_for(begin, gang, {}, self._state.policy)[1]) >= gang.needed

    def _current_finder(self) -> RoomFinder:
        """Return the room finder, up to date; if the update fails, the next call makes a new one."""
        known, self._finder = self._finder, None
        finder = known or RoomFinder(self._policy)
        changed = self._state.changed_nodes(everything=known is None)
        finder.update(changed, self._evictor.leaving(), self._evictor.blocked())
        self._finder = finder
        return finder


def _may_take(pod: KnownPod) -> bool:
    """Whether others give way to a pod: only to one in budget. The rest are only tried again when there is room."""
    return pod.budget_state == names.IN_BUDGET and pod.gpu_class == names.STANDARD
