# SPDX-License-Identifier: Apache-2.0
"""Keep one event up to date on each waiting pod, with information that kube-scheduler's events do not contain.

kube-scheduler's `FailedScheduling` already has the extender's reason for each node. This event has what requires a view
of the whole cluster: since when the pod waits, how many pods are ahead, what would help, and when a place is expected.
Every user who may see the pod may see it, so it names no pod of another namespace. For thousands of nodes it may take a
second to compute, so it is computed for one pod after the other, with pauses, and for none of them often.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from scheduler.explain_wait import Outlook, outlook
from scheduler.extender import placeable
from scheduler.pods import KnownPod
from scheduler.scheduler_state import SchedulerState
from slicekeeper import names
from slicekeeper.clock import Clock
from slicekeeper.kube import events
from slicekeeper.kube.client import KubeClient
from slicekeeper.units import MS_PER_SECOND, format_seconds

log = logging.getLogger(__name__)

FIRST_SECONDS: Final = 60
"""How long a pod waits before it gets an event."""

AGAIN_SECONDS: Final = 300
"""Interval until the event is written again if its text has changed."""

SAME_AGAIN_SECONDS: Final = 1_800
"""Interval until it is written again anyway: an API server keeps an event for an hour."""

PAUSE_RATIO: Final = 49
"""The pause after one pod, as a multiple of the time it took: at most a fiftieth of the time is spent on events."""

LEAST_SECONDS: Final = 1.0
"""Minimum pause between two pods."""


@dataclass
class _Notice:
    """A pod's event: its text, how often it was written, and when the pod was looked at and it was written last."""

    said: str = ""
    times: int = 0
    looked_at: float = 0.0
    written_at: float = 0.0


class WaitEvents:
    """The events of the pods that wait. One of several processes keeps them: the one that `is_leader`."""

    def __init__(
        self, client: KubeClient, clock: Clock, state: SchedulerState, is_leader: Callable[[], bool], *, reporter: str
    ) -> None:
        self._client = client
        self._clock = clock
        self._state = state
        self._is_leader = is_leader
        self._reporter = reporter
        self._notices: dict[str, _Notice] = {}

    def run(self, stopped: threading.Event) -> None:
        """Write the events that are due, until `stopped`."""
        pause = LEAST_SECONDS
        while not self._clock.wait(stopped, pause):
            began = self._seconds()
            try:
                if self._is_leader():
                    self.look()
            except Exception:
                log.exception("the event of a waiting pod was not written")
            pause = max(LEAST_SECONDS, PAUSE_RATIO * (self._seconds() - began))

    def look(self) -> None:
        """Write the event that has been due the longest, if one is."""
        now, before_ms = self._seconds(), self._clock.now_ms() - FIRST_SECONDS * MS_PER_SECOND
        waiting = {
            pod.uid: pod
            for pod in self._state.waiting()
            if not (pod.leaving or placeable(pod)) and pod.scheduler == self._reporter
        }
        self._notices = {uid: notice for uid, notice in self._notices.items() if uid in waiting}
        new = [pod for uid, pod in waiting.items() if uid not in self._notices and pod.created_ms <= before_ms]
        due = [uid for uid, notice in self._notices.items() if now - notice.looked_at >= AGAIN_SECONDS]
        if new:
            self._write(min(new, key=lambda pod: pod.created_ms))
        elif due:
            self._write(waiting[min(due, key=lambda uid: self._notices[uid].looked_at)])

    def _write(self, pod: KnownPod) -> None:
        notice, now = self._notices.setdefault(pod.uid, _Notice()), self._seconds()
        notice.looked_at = now
        said = self._said(pod)
        if said == notice.said and now - notice.written_at < SAME_AGAIN_SECONDS:
            return
        notice.said, notice.times, notice.written_at = said, notice.times + 1, now
        events.write_again(
            self._client,
            self._clock,
            dict(pod.waiting or {}),
            times=notice.times,
            kind="Normal",
            reason=names.WAITS_FOR_GPU,
            action="Scheduling",
            note=said,
            reporter=self._reporter,
        )

    def _seconds(self) -> float:
        return self._clock.monotonic_ns() / 1e9

    def _said(self, pod: KnownPod) -> str:
        members = self._state.gang_members(pod.gang.key) if pod.gang is not None else None
        head = f"Waits for {pod.demand.asks} since {format_seconds(pod.created_ms)}."
        if members is not None and members.needed:
            return (
                f"{head} {members.gang.size} pods of its gang {members.gang.name} get their places together: "
                f"{members.placed} have one, {len(members.waiting)} wait, {members.held_back} have a scheduling gate."
            )
        snapshot = self._state.snapshot()
        ends = {other.uid: other.ends_ms for other in snapshot.pods if other.ends_ms}
        found = outlook(snapshot, pod, self._state.policy, ends, self._clock.now_ms())
        return " ".join([head, *_notes(found, pod)])


def _notes(found: Outlook, pod: KnownPod) -> Iterator[str]:
    """Yield the parts of an outlook that everyone who may see the pod may know."""
    if found.ahead:
        yield f"Pods served before it: {len(found.ahead)}."
    if found.give_way and pod.budget_state == names.IN_BUDGET:
        yield f"Pods about to give way to it: {len(found.give_way)}."
    if found.expected is not None and found.expected.after:
        after = (
            found.expected.after if found.expected.after.startswith(f"{pod.namespace}/") else "another namespace's pod"
        )
        when = format_seconds(found.expected.at_ms)
        if found.expected.is_leaving:
            yield f"Expected soon on node {found.expected.node}, when {after} has ended, which is being deleted."
        else:
            yield f"Expected about {when} on node {found.expected.node}, when {after} reaches its deadline."
    if found.helps:
        yield f"What would help: {'; '.join(found.helps)}."
