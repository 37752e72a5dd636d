# SPDX-License-Identifier: Apache-2.0
"""Book when pods begin to hold GPUs and when they release them, according to their records.

A pod whose record cannot be read, or is refused by the ledger, is read again soon, and does not affect other pods.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection
from typing import NamedTuple

from slicekeeper.clock import CLOCK_SKEW_MS, NODE_CLOCK_MS
from slicekeeper.config.policy import NamespacePolicy
from slicekeeper.config.policy_file import PolicyFile
from slicekeeper.config.settings import Settings
from slicekeeper.errors import Unavailable
from slicekeeper.kube.break_glass_record import SEEN_AT
from slicekeeper.kube.client import Object
from slicekeeper.kube.pod import (
    KUBELET_MS,
    deletion_due_at,
    deletion_requested_at,
    full_name,
    has_ended,
    has_finalizer,
    is_bound,
)
from slicekeeper.units import EPOCH, Instant
from timekeeper.cluster.lost_label import StrayPods
from timekeeper.cluster.node_clock import NodeClocks
from timekeeper.cluster.opening import Openings, namespace_of
from timekeeper.cluster.watches import Pods
from timekeeper.core import interval
from timekeeper.core.interval import LAST_CONFIRMED
from timekeeper.ledger import workload
from timekeeper.ledger.books import Books
from timekeeper.ledger.workload import Closing, Opening
from timekeeper.store import workloads
from timekeeper.store.db.failures import is_away
from timekeeper.store.db.models import WorkloadRow
from timekeeper.store.workloads import holders_of

log = logging.getLogger(__name__)

KUBELET_SECONDS = 10.0
"""Real seconds that kubelet gets in any case, in addition to `KUBELET_MS` of our time, to report how a pod ended."""

READ_AGAIN_SECONDS = 1.0


class _PodReading(NamedTuple):
    """What a pod's record shows that the ledger does not have yet."""

    opening: Opening | None = None
    closing: Closing | None = None
    settled: bool = False
    """Whether the ledger needs nothing more from this pod once both are booked."""
    left_out: bool = False
    """Whether the pod is seen for the first time, and is never metered because its namespace's policy is so now."""


class _Ending(NamedTuple):
    """When a deleted pod's grace ends, and when this process saw that first: in our time, and in monotonic seconds."""

    due: Instant
    seen: Instant
    since: float


class Intervals:
    """The intervals of one cluster's pods; `fail` notes an error that the controller's look reports."""

    def __init__(
        self,
        settings: Settings,
        books: Books,
        policy: PolicyFile,
        pods: Pods,
        openings: Openings,
        strays: StrayPods,
        clocks: NodeClocks,
        fail: Callable[[str, Exception], None],
    ) -> None:
        self._settings = settings
        self._books = books
        self._policy = policy
        self._pods = pods
        self._openings = openings
        self._strays = strays
        self._clocks = clocks
        self._fail = fail
        self._apart_ms = int(NODE_CLOCK_MS * settings.clock.speed)
        """How far `bound-at` may be from the API server's own record of the binding; the limit is in real time."""
        self._later: dict[str, float] = {}
        """When pods are to be read again, by UID (monotonic seconds)."""
        self._ending: dict[str, _Ending] = {}
        """The deleted pods whose end is awaited, by UID."""
        self._end_seen: dict[str, Instant] = {}
        """When an end that lies in the future was first seen, by UID."""
        self._reported: dict[str, Instant] = {}
        """When the API server accepted an end, by UID, as first seen: owners may change it later."""

    def retry(self, uid: str) -> None:
        """Read a pod again soon."""
        self._later[uid] = time.monotonic() + READ_AGAIN_SECONDS

    def take(self) -> tuple[dict[str, Object], dict[str, Object]]:
        """Return the pods that have changed or are to be read again, by UID: existing ones, and those that are gone."""
        now = time.monotonic()
        again = [uid for uid, at in self._later.items() if at <= now]
        for uid in again:
            del self._later[uid]
        self._pods.mark([*again, *self._ending])
        there, gone = self._pods.take()
        for uid in [uid for uid, pod in gone.items() if has_finalizer(pod)]:
            # A pod with our finalizer cannot be gone: it lost our label, and is still charged.
            self._strays.add(gone.pop(uid))
        return there, gone

    def book(self, there: dict[str, Object], gone: dict[str, Object], now: Instant) -> tuple[set[str], list[str]]:
        """Book pods' intervals; return the pods whose finalizer may be removed, and all that are settled."""
        with self._books.database.reading() as session:
            rows = workloads.by_uid(session, {*there, *gone})
            unmetered = workloads.unmetered(session, {*there, *gone} - rows.keys())
        left_out: list[str] = []
        openings: dict[str, Opening] = {}
        closings: dict[str, Closing] = {}
        settled: list[str] = []
        for uid, pod in (there | gone).items():
            try:
                read = self._read(pod, rows.get(uid), now, gone=uid in gone, unmetered=uid in unmetered)
            except Exception as error:  # noqa: BLE001 - an error with one pod does not affect the others
                if isinstance(error, Unavailable):
                    log.info("pod %s waits: %s", full_name(pod), error)
                else:
                    self._fail(f"pod {full_name(pod)}", error)
                self._again(uid, pod, gone=uid in gone)
                continue
            if read.opening:
                openings[uid] = read.opening
            if read.closing:
                closings[uid] = read.closing
            if read.settled:
                settled.append(uid)
            if read.left_out:
                left_out.append(uid)
        workload.leave_unmetered(self._books, left_out, now)
        refused = self.apply(openings, closings, now)
        for uid in refused:
            self._again(uid, (there | gone)[uid], gone=uid in gone)
        settled = [uid for uid in settled if uid not in refused]
        for uid in settled:
            self._ending.pop(uid, None)
            self._end_seen.pop(uid, None)
            self._reported.pop(uid, None)
            self._clocks.forget(uid)
        return {uid for uid in settled if uid in there}, settled

    def _again(self, uid: str, pod: Object, *, gone: bool) -> None:
        """Look at a pod again soon."""
        self.retry(uid)
        if gone:
            self._pods.mark([], [pod])

    def apply(self, openings: dict[str, Opening], closings: dict[str, Closing], now: Instant) -> list[str]:
        """Append intervals, in one transaction if possible; return the pods whose records the ledger refuses.

        If it refuses any, each pod gets a transaction of its own. Raises the database's error if it may accept all of
        them later.
        """
        if not openings and not closings:
            return []
        policies = {opening.namespace: self._policy.of(opening.namespace) for opening in openings.values()}
        try:
            workload.apply(self._books, list(openings.values()), list(closings.values()), policies, now)
        except Exception as error:
            pods = openings.keys() | closings.keys()
            if is_away(error):
                raise
            if len(pods) == 1:
                self._fail(f"pod {min(pods)}", error)
                return list(pods)
            return [
                refused
                for uid in sorted(pods)
                for refused in self.apply(
                    {uid: openings[uid]} if uid in openings else {},
                    {uid: closings[uid]} if uid in closings else {},
                    now,
                )
            ]
        return []

    def _read(self, pod: Object, row: WorkloadRow | None, now: Instant, *, gone: bool, unmetered: bool) -> _PodReading:
        """Read a pod's record; `row` is what the ledger has of it, None if it is new, or `unmetered` for good."""
        if unmetered:
            return _PodReading(settled=_is_over(pod, gone=gone))
        if row is not None and row.ended_at is not None:
            return _PodReading(settled=True)
        # A record that was written while the timekeeper was down is read as it would have been read then.
        now = min(now, pod.get(SEEN_AT, now))
        if row is not None:
            closing = self._closing(pod, row.started_at, holders_of(row.holders), now, gone=gone)
            return _PodReading(None, closing, settled=closing is not None)
        start = interval.start_of(pod, now, self._apart_ms)
        policy = self._policy.of(namespace_of(pod))
        opening = None if start is None else self._openings.opening(pod, start, policy)
        if start is None or opening is None:
            left_out = start is not None and self._openings.is_left_out(pod, policy)
            return _PodReading(settled=self._is_free(pod, policy, gone=gone), left_out=left_out)
        closing = self._closing(pod, start.at, holders_of(opening.holders), now, gone=gone)
        return _PodReading(opening, closing, settled=closing is not None)

    def _is_free(self, pod: Object, policy: NamespacePolicy, *, gone: bool) -> bool:
        """Whether a pod without an interval will never have one.

        A pod that ends before it is bound held nothing. A pod that was bound and requests GPUs held them, even if its
        record does not show yet since when.
        """
        if not _is_over(pod, gone=gone):
            return False
        return not (is_bound(pod) and self._openings.is_charged(pod, policy))

    def _closing(
        self, pod: Object, began: Instant, holders: Collection[str], now: Instant, *, gone: bool
    ) -> Closing | None:
        """Return the end of an interval; None while its record does not show one."""
        # EPOCH rather than the start: an end before the start shows that a clock is wrong, and is corrected below.
        end = interval.end_of(pod, holders, EPOCH, final=gone or self._overdue(pod, now))
        if end is None and gone:
            end = interval.End(max(began, last_confirmed(self._books, now)), LAST_CONFIRMED)
        if end is None:
            return None
        at = self._credible(pod, end, began, now)
        flags = [f"end-{end.source}"] if end.source != "finished" else []
        if at != max(end.at, began) or end.at < began - CLOCK_SKEW_MS:
            flags.append("clock-skew")
        return Closing(pod["metadata"]["uid"], at, end.source, tuple(flags))

    def _credible(self, pod: Object, end: interval.End, began: Instant, now: Instant) -> Instant:
        """Return when an interval closed. Raises Unavailable while that depends on a node's clock not read yet."""
        uid = pod["metadata"]["uid"]
        reported = self._reported.get(uid) or interval.reported_at(pod)
        if reported is not None:
            self._reported[uid] = reported
        seen = self._end_seen.setdefault(uid, now) if end.at > now else now
        ahead = None
        if reported is not None and SEEN_AT not in pod and interval.is_doubtful(end, reported):
            ahead = self._clocks.ahead(pod, reported)
        return interval.credible(end.at, began, seen, reported, ahead)

    def _overdue(self, pod: Object, now: Instant) -> bool:
        """Whether kubelet has had enough time to report how a deleted pod ended."""
        uid, due = pod["metadata"]["uid"], deletion_due_at(pod)
        if due is None or has_ended(pod):
            return due is not None
        # If a long grace is shortened, the pod has run until then, and kubelet begins to end it only now.
        if uid not in self._ending or self._ending[uid].due != due:
            self._ending[uid] = _Ending(due, now, time.monotonic())
        _, seen, since = self._ending[uid]
        return now > max(due, seen) + KUBELET_MS and time.monotonic() - since > KUBELET_SECONDS


def _is_over(pod: Object, *, gone: bool) -> bool:
    """Whether a pod has ended, or is about to."""
    return gone or has_ended(pod) or deletion_requested_at(pod) is not None


def last_confirmed(books: Books, now: Instant) -> Instant:
    """Return until when the watch is known to have been up: a pod that vanished unseen existed until then."""
    with books.database.reading() as session:
        return min(workloads.confirmed(session, books.cluster) or now, now)
