# SPDX-License-Identifier: Apache-2.0
"""Gangs: pods that are placed together, or not at all.

When as many pods wait as the gang needs, `filter` looks for places for all of them in one copy of the fleet, and keeps
them all (RESERVED) or none; then kube-scheduler is made to try the others again. Each is offered only its own node. Its
bind waits at a barrier until as many binds have arrived as the gang needs: until then kube-scheduler may still find
that one pod lacks CPU or a volume, and no pod must have started. Places that are not taken in time are released, and
the gang is skipped for a while, each time for twice as long. So nothing is ever held for a part of a gang, and two
gangs never wait for each other's places.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import numpy as np

from scheduler.gang_members import GangMembers
from scheduler.gang_places import OfferedNodes, places_for
from scheduler.gang_queue import SEARCH_PAUSE_RATIO, GangQueue
from scheduler.job_progress import JobProgress
from scheduler.pending_bindings import NoPlace
from scheduler.pods import Hold, KnownPod
from scheduler.reclaim.back_off import BackOff
from scheduler.reclaim.retry_trigger import RetryTrigger
from scheduler.scheduler_state import SchedulerState
from slicekeeper.clock import Clock

log = logging.getLogger(__name__)

BARRIER_SECONDS: Final = 12.0
"""How long a bind waits for the others: kube-scheduler leaves a pod that it could not place alone for at most 10 s."""

WAITERS: Final = 96
"""How many binds wait at a time; another one counts as arrived, and is retried."""

LONGEST_PAUSE: Final = 8
"""A gang whose places are not used is skipped for at most this many hold times."""

FORGET_SECONDS: Final = 600.0
"""kube-scheduler tries every pod again within 5 minutes: if it stops asking for a gang, another process serves it."""

TRIES: Final = 3
"""How often places are searched for if nodes change before they can be reserved."""

LOOK_SECONDS: Final = (0.1, 1.0)
"""The shortest and the longest pause between two rounds of all gangs, in the clock's seconds."""


@dataclass
class _Plan:
    """Places reserved for a gang, by the pods' UIDs."""

    holds: dict[str, Hold]
    until_ns: int
    arrived: set[str] = field(default_factory=set)
    """Pods whose bind has arrived."""
    is_open: bool = False


@dataclass
class _KnownGang(BackOff):
    """The state of one gang, and how often its places were kept in vain."""

    offered: dict[str, OfferedNodes] = field(default_factory=dict)
    """The nodes that kube-scheduler last offered for each pod."""
    latest: OfferedNodes | None = None
    """Those of the last call: most pods of a gang are offered the same nodes, which are stored once."""
    plan: _Plan | None = None
    failed: tuple[int, frozenset[str]] | None = None
    """The fleet's version at which, and the pods for which, no places were found."""
    said: str = ""
    """Why it has no places."""
    most: tuple[float, int] | None = None
    """When the number of pods that idle GPUs would hold was computed, and the result."""
    asked_at: float = 0.0
    """When kube-scheduler last asked for one of its pods (monotonic seconds)."""

    def hold(self, pod: KnownPod) -> Hold | None:
        """Return what is reserved for a pod."""
        return self.plan.holds.get(pod.uid) if self.plan is not None else None


class Gangs:
    """The gangs for which kube-scheduler has called. Thread-safe."""

    def __init__(
        self,
        state: SchedulerState,
        clock: Clock,
        retry_trigger: RetryTrigger,
        jobs: JobProgress,
        *,
        hold_seconds: float,
        barrier_seconds: float = BARRIER_SECONDS,
    ) -> None:
        self._state = state
        self._clock = clock
        self._retry_trigger = retry_trigger
        self._jobs = jobs
        self._hold_ns = int(hold_seconds * 1_000_000_000)
        self._barrier = barrier_seconds
        self._known: dict[str, _KnownGang] = {}
        self._queue = GangQueue(clock)
        self._changed = threading.Condition()
        """Protects everything above, and notifies waiting binds that a plan has changed."""
        self._waiters = 0
        self._stopped = False
        self._news = threading.Event()

    # Calls of the extender.

    def has_started(self, pod: KnownPod) -> bool:
        """Whether enough pods of the gang have their place; then every other is placed separately."""
        members = self._members(pod)
        return members is None or not members.needed

    def place(self, pod: KnownPod, names: bytes) -> tuple[str, str]:
        """Return the node reserved for a pod, or nothing and the reason; `names` is the JSON list of nodes it may use.

        Raises BadRequest.
        """
        offered = self._state.offered_nodes(names)
        with self._changed:
            members = self._members(pod)
            if members is None:
                return "", "its gang is gone"
            known = self._known.setdefault(members.gang.key, _KnownGang())
            known.asked_at = time.monotonic()
            before = known.offered.get(pod.uid)
            stored = (kept for kept in (before, known.latest) if kept is not None and _is_same(kept, offered))
            offered = next(stored, offered)
            if offered is not before:
                known.failed = None
            known.offered[pod.uid] = known.latest = offered
            self._settle(known, members)
            plan, hold = known.plan, known.hold(pod)
            if plan is not None and hold is not None and not plan.is_open and not _is_offered(offered, hold):
                self._release(known)  # kube-scheduler rejects that node: all search again
            reason = self._find(known, members)
            hold = known.hold(pod)
            if hold is None:
                return "", reason or f"{_named(members)} has its places, and this pod comes when it has started"
            if not _is_offered(offered, hold):
                return "", f"{_named(members)} keeps a place elsewhere"
            return hold.node, ""

    def wait_for_gang(self, pod: KnownPod, node: str) -> None:
        """Wait until a pod may be bound: until enough binds of its gang have arrived. Raises NoPlace."""
        give_up = time.monotonic() + self._barrier
        with self._changed:
            members = self._members(pod)
            if members is None or not members.needed:
                return
            known = self._known.get(members.gang.key)
            if known is not None:
                self._settle(known, members)
            plan, hold = (known.plan, known.hold(pod)) if known is not None else (None, None)
            if known is None or plan is None or hold is None or hold.node != node:
                raise NoPlace(f"{_named(members)} keeps no place here for this pod; it is tried again")
            if pod.uid not in plan.arrived:
                plan.arrived.add(pod.uid)
                self._keep(plan)
            self._wait_for_others(pod, known, plan, members, give_up)

    # Background work.

    def run(self, stopped: threading.Event) -> None:
        """Process all gangs every second, when one has got its places and when a pause is over, until `stopped`."""
        least, most = LOOK_SECONDS
        pause = most
        while not stopped.is_set():
            self._clock.wait(self._news, pause)
            self._news.clear()
            began_ns = self._clock.monotonic_ns()
            try:
                self.look()
            except Exception:
                log.exception("gangs could not be looked at")
            took = (self._clock.monotonic_ns() - began_ns) / 1e9
            with self._changed:
                left = self._queue.seconds_left()
            pause = most if left is None else min(max(left, least, SEARCH_PAUSE_RATIO * took), most)

    def look(self) -> None:
        """Release unused places, search for places again, and trigger retries of the pods that have one."""
        with self._changed:
            keys = dict.fromkeys([*self._queue.in_order(), *self._known])
        self._count_removed(keys)
        # The lock is released after each: kube-scheduler waits during calls for one of their pods.
        called = [pod for key in keys for pod in self._look_at(key)]
        self._retry_trigger.keep({pod.uid for pod in called})
        for pod in called:
            self._retry_trigger.trigger(pod, at_once=True)

    def _count_removed(self, keys: Iterable[str]) -> None:
        """Count the succeeded pods that were removed of gangs that lack pods."""
        found = {key: self._state.gang_members(key) for key in keys}
        waiting = {key: one.waiting for key, one in found.items() if one is not None and not one.is_complete}
        succeeded = self._jobs.succeeded(pod for pods in waiting.values() for pod in pods)
        for key, pods in waiting.items() if succeeded else ():
            self._state.note_succeeded(
                key, {pod.controller: succeeded[pod.controller] for pod in pods if pod.controller in succeeded}
            )

    def _look_at(self, key: str) -> list[KnownPod]:
        """Process one gang; return those of its pods that have a place and must be retried."""
        with self._changed:
            known = self._known.get(key)
            if known is None:
                return []
            members = self._state.gang_members(key)
            old = time.monotonic() - known.asked_at > FORGET_SECONDS
            if members is None or not members.waiting or not members.needed or old:
                self._release(known)
                del self._known[key]
                self._queue.leave(key)
                # Pods that were refused before it counted as started are tried one by one now.
                return list(members.waiting) if members is not None and not members.needed else []
            known.offered = {pod.uid: known.offered[pod.uid] for pod in members.waiting if pod.uid in known.offered}
            self._settle(known, members)
            self._find(known, members)
            plan = known.plan
            if plan is None:
                return []
            return [pod for pod in members.waiting if pod.uid in plan.holds and pod.uid not in plan.arrived]

    def stop(self) -> None:
        """Release all waiting binds."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
        self._news.set()

    # Below, the lock is held.

    def _wait_for_others(
        self, pod: KnownPod, known: _KnownGang, plan: _Plan, members: GangMembers, give_up: float
    ) -> None:
        """Wait at the barrier, without the lock, until it opens or the gang has started. Raises NoPlace."""
        while True:
            # After each wait all of it may be different: pods come and go, and the plan may be another one.
            members = self._members(pod) or members
            if plan is not known.plan and members.needed:
                raise NoPlace(f"{_named(members)} has lost its places; it is tried again")
            came = len(plan.arrived & {member.uid for member in members.waiting})
            if not plan.is_open and came >= members.needed:
                plan.is_open = True
                self._keep(plan)
                self._changed.notify_all()
            if plan.is_open or not members.needed:
                return
            left = give_up - time.monotonic()
            if left <= 0 or self._stopped or self._waiters >= WAITERS:
                raise NoPlace(f"{_named(members)}: {came} of {members.needed} pods have come; it is tried again")
            self._waiters += 1
            try:
                self._changed.wait(left)
            finally:
                self._waiters -= 1

    def _members(self, pod: KnownPod) -> GangMembers | None:
        return self._state.gang_members(pod.gang.key, pod) if pod.gang is not None else None

    def _keep(self, plan: _Plan) -> None:
        plan.until_ns = self._clock.monotonic_ns() + self._hold_ns
        self._state.keep_reserved(plan.holds, plan.until_ns)

    def _release(self, known: _KnownGang) -> None:
        if known.plan is not None:
            for uid in known.plan.holds:
                self._state.release(uid)
            known.plan = None
            self._changed.notify_all()

    def _settle(self, known: _KnownGang, members: GangMembers) -> None:
        """Drop a plan whose time is over, that has lost a pod, or that was made for earlier pods."""
        plan, now = known.plan, self._clock.monotonic_ns()
        if plan is None:
            return
        if now >= plan.until_ns:
            known.put_off(plan.until_ns, self._hold_ns, LONGEST_PAUSE)
            known.times += 1
            known.said = (
                f"{_named(members)}: its places were kept and only {len(plan.arrived)} of {len(plan.holds)} pods took "
                "them; it is tried again later"
            )
            log.info("%s", known.said)
            self._release(known)
            return
        with_place = sum(pod.uid in plan.holds for pod in members.waiting)
        if with_place < members.needed or not self._state.are_kept(plan.holds):
            self._release(known)

    def _find(self, known: _KnownGang, members: GangMembers) -> str:
        """Search for places for all waiting pods if they have none and it is their turn; return why they get none."""
        key = members.gang.key
        if known.plan is not None:
            return ""
        if not members.is_complete:
            self._queue.leave(key)
            return _incomplete(members)
        if len(members.schedulers) > 1:
            self._queue.leave(key)
            named = ", ".join(members.schedulers)
            return f"{_named(members)}: its pods name several schedulers ({named}) and must name one"
        began_ns = self._clock.monotonic_ns()
        uids = frozenset(pod.uid for pod in members.waiting)
        if began_ns < known.not_before_ns or known.failed == (self._state.version(), uids):
            self._queue.leave(key)
            return known.said
        if not self._queue.take_turn(key):
            return known.said or f"{_named(members)} waits for its turn: places for other gangs are looked for first"
        reason = self._search(known, members, uids)
        if reason:
            self._queue.pause(began_ns)
        return reason

    def _search(self, known: _KnownGang, members: GangMembers, uids: frozenset[str]) -> str:
        """Search for places for all waiting pods, and reserve them; return why there are none."""
        for _ in range(TRIES):
            version, seats = places_for(partial(self._state.trial, uids), members, known.offered, self._state.policy)
            if len(seats) < members.needed:
                if self._state.drop_old_expectations():
                    continue
                known.failed = version, uids
                known.said = self._why_not(known, members, len(seats))
                return known.said
            until_ns = self._clock.monotonic_ns() + self._hold_ns
            if self._state.reserve(seats, until_ns, version=version):
                known.plan = _Plan({pod.uid: hold for pod, hold in seats}, until_ns)
                for uid in uids - known.plan.holds.keys():  # kept by the reclaimer: the search did not count it
                    self._state.release(uid)
                self._news.set()
                log.info("%s has its places: %d pods", _named(members), len(seats))
                return ""
        return f"{_named(members)}: nodes change while places are looked for; it is tried again"

    def _why_not(self, known: _KnownGang, members: GangMembers, found: int) -> str:
        """Return why only `found` places were found; the count for idle GPUs is expensive, and kept for a while."""
        now = time.monotonic()
        if known.most is None or now - known.most[0] > self._hold_ns / 1e9:
            known.most = now, self._state.most_if_idle(members)
        most = known.most[1]
        if most < members.needed:
            return (
                f"{_named(members)} can never fit: idle GPUs of all nodes open to it would hold {most} of the "
                f"{members.needed} pods that it needs"
            )
        return f"{_named(members)} waits for room for all: {members.needed - found} of {members.needed} pods have none"


def _is_same(one: OfferedNodes, other: OfferedNodes) -> bool:
    return one.roster is other.roster and np.array_equal(one.rows, other.rows)


def _is_offered(offered: OfferedNodes, hold: Hold) -> bool:
    row = offered.roster.row(hold.node)
    return row >= 0 and bool(offered.rows[row])


def _named(members: GangMembers) -> str:
    return f"gang {members.gang.name}"


def _incomplete(members: GangMembers) -> str:
    held_back = f", {members.held_back} held back by scheduling gates" if members.held_back else ""
    placed = f", {members.placed} have a place" if members.placed else ""
    return (
        f"{_named(members)} waits for its pods: {len(members.waiting)} of {members.needed} are there{placed}{held_back}"
    )
