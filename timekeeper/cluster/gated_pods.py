# SPDX-License-Identifier: Apache-2.0
"""Let pods of `safe` namespaces start: reserve GPU time until the pod's deadline, then remove our scheduling gate.

In a namespace the oldest waiting pod comes first, and no younger one starts before it, however small: otherwise a large
pod could wait forever. A pod that needs more than a period provides could not start even if nothing else were
reserved: it gets an event and is skipped. If the controller dies after a reservation, its next look removes the gate.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping, Set
from dataclasses import dataclass
from typing import Final

from slicekeeper import names
from slicekeeper.clock import Clock
from slicekeeper.config.policy import NamespacePolicy
from slicekeeper.errors import ServiceError
from slicekeeper.kube.client import PODS, KubeClient, Object
from slicekeeper.kube.pod import deletion_requested_at, full_name, gate_index
from slicekeeper.units import GpuMilliseconds, Instant, format_duration, format_instant
from timekeeper.cluster import pod_patch
from timekeeper.cluster.opening import Openings, namespace_of
from timekeeper.cluster.pod_patch import Each
from timekeeper.cluster.watches import Pods
from timekeeper.core.coverage import Cover, Gap, planned
from timekeeper.core.pod_need import Need, span_of
from timekeeper.core.refusal import LedgerError
from timekeeper.ledger import coverage, reservation
from timekeeper.ledger.account import AccountRef
from timekeeper.ledger.books import Books
from timekeeper.ledger.standing import BudgetStanding
from timekeeper.store import rates
from timekeeper.store import reservations as store
from timekeeper.store.db.failures import is_away

log = logging.getLogger(__name__)

AGAIN_SECONDS: Final = 5.0
"""Real seconds for the watch to show that a gate is lifted, before it is lifted again."""


@dataclass
class _Waiting:
    """A pod with our gate, the kind of the last reported reason why it waits, and when the gate was last lifted."""

    pod: Object
    reported: str = ""
    lifted: float = 0.0

    @property
    def uid(self) -> str:
        return str(self.pod["metadata"]["uid"])

    @property
    def age(self) -> tuple[str, str]:
        return str(self.pod["metadata"].get("creationTimestamp", "")), self.uid


@dataclass(frozen=True)
class _Reason:
    """Why a pod waits: the kind of reason, the text, and whether younger pods wait too."""

    kind: str
    note: str
    holds_others: bool = False


class GatedPods:
    """The waiting pods, and the pods that have a reservation. Used by the controller's one thread.

    `each` acts on pods concurrently, and an error with one does not affect the others; `fail` notes an error that the
    controller's look reports.
    """

    def __init__(
        self,
        client: KubeClient,
        clock: Clock,
        books: Books,
        openings: Openings,
        pods: Pods,
        *,
        margin_ms: int,
        each: Each,
        fail: Callable[[str, Exception], None],
    ) -> None:
        self._client = client
        self._clock = clock
        self._books = books
        self._openings = openings
        self._pods = pods
        self._margin_ms = margin_ms
        self._each = each
        self._fail = fail
        self._waiting: dict[str, _Waiting] = {}
        """By UID."""
        self._reserved: dict[str, tuple[str, str]] | None = None
        """Pods with an open reservation, which only this process opens and ends; None: not read yet."""
        self._lists = 0
        """`Pods.lists` when reservations of vanished pods were last looked for."""

    def keeps_in_budget(self, pod: Object) -> bool:
        """Whether a pod has a reservation, or does not start before it has one."""
        return pod["metadata"]["uid"] in self._known() or gate_index(pod) is not None

    def look(
        self, there: Mapping[str, Object], done: Set[str], policy_of: Callable[[str], NamespacePolicy], now: Instant
    ) -> None:
        """End the reservations of finished pods, and admit those for which there is GPU time.

        `there` are the pods that have changed, `done` the UIDs of those that are finished. After an error, pass the
        same ones again.
        """
        for uid, pod in there.items():
            if gate_index(pod) is None or deletion_requested_at(pod) is not None:
                self._waiting.pop(uid, None)
            else:
                self._waiting.setdefault(uid, _Waiting(pod)).pod = pod
        self._waiting = {uid: one for uid, one in self._waiting.items() if self._pods.find(uid) is not None}
        self._end(self._known().keys() & done, now)
        if self._lists != self._pods.lists:
            self._look_for_absent(now)
            self._lists = self._pods.lists
        queues: dict[str, list[_Waiting]] = {}
        for one in sorted(self._waiting.values(), key=lambda one: one.age):
            queues.setdefault(namespace_of(one.pod), []).append(one)
        for namespace, queue in queues.items():
            self._serve(queue, policy_of(namespace), now)

    def _known(self) -> dict[str, tuple[str, str]]:
        if self._reserved is None:
            with self._books.database.reading() as session:
                self._reserved = store.pods(session, self._books.cluster)
        return self._reserved

    def _end(self, uids: Collection[str], now: Instant) -> None:
        if uids:
            reservation.end_pods(self._books, {uid: self._known()[uid] for uid in uids}, now)
            for uid in uids:
                self._known().pop(uid, None)

    def _look_for_absent(self, now: Instant) -> None:
        """End the reservations of pods that vanished unseen."""
        gone = []
        for uid, (namespace, name) in self._known().items():
            if self._pods.find(uid) is None and self._client.find(PODS, name, namespace, uid=uid) is None:
                gone.append(uid)
        self._end(gone, now)

    # One namespace's queue, the oldest first

    def _serve(self, queue: list[_Waiting], policy: NamespacePolicy, now: Instant) -> None:
        """Admit pods, oldest first, up to one that must wait for GPU time which younger ones would take from it.

        One that cannot be examined now holds up the younger ones too, because its need is not known.
        """
        ready: dict[str, str] = {}
        ahead = ""
        for one in queue:
            if one.uid in self._known():
                ready[one.uid] = "GPU time until this pod's deadline is set aside"
                continue
            behind = _Reason("behind", f"waits behind pod {ahead}, which is older and needs more GPU time")
            try:
                found = behind if ahead else self._admit(one.pod, policy, now)
            except Exception as error:
                if is_away(error):
                    raise
                if isinstance(error, LedgerError | ServiceError):
                    log.info("pod %s waits: %s", full_name(one.pod), error)
                else:
                    self._fail(f"pod {full_name(one.pod)}", error)
                break
            if isinstance(found, str):
                ready[one.uid] = found
                continue
            self._report(one, found)
            if found.holds_others:
                ahead = one.pod["metadata"]["name"]
        lifted_before = time.monotonic() - AGAIN_SECONDS
        due = [one.pod for one in queue if one.uid in ready and one.lifted < lifted_before]
        self._each(due, lambda pod: self._lift(pod, ready[pod["metadata"]["uid"]]))

    def _lift(self, pod: Object, why: str) -> None:
        pod_patch.lift(self._client, self._clock, pod, why)
        self._waiting[pod["metadata"]["uid"]].lifted = time.monotonic()

    def _admit(self, pod: Object, policy: NamespacePolicy, now: Instant) -> str | _Reason:
        """Reserve GPU time for a pod if it needs any; return why it may start, or why it waits."""
        namespace, uid, name = namespace_of(pod), pod["metadata"]["uid"], pod["metadata"]["name"]
        if not policy.reserves or not self._openings.is_charged(pod, policy):
            return f"namespace {namespace} sets no GPU time aside for this pod"
        span = span_of(pod, self._margin_ms)
        if span is None:
            return _Reason("deadline", "has no activeDeadlineSeconds, so it is not known how much GPU time it needs")
        with self._books.database.reading() as session:
            need = self._openings.need(pod, policy, span, rates.read(session), now)
        if need is None:
            return _Reason("gpu", "waits for a node with a GPU that fits it; until then its share is not known")
        ref = AccountRef(self._openings.namespace_uid(namespace), namespace, policy)
        # First without a transaction that writes: most looks find nothing new.
        why = self._lack(ref, need, now)
        if why is None:
            if reservation.open_for_pod(self._books, ref, uid, name, need, now):
                self._known()[uid] = (namespace, name)
                return f"{_words(need)} are set aside until it ends; what it does not use is returned then"
            why = self._lack(ref, need, now)
        # Nothing is missing any more: what another process had reserved is free again. The next look tries again.
        return why or _Reason("missing", f"needs {_words(need)}", holds_others=True)

    def _lack(self, ref: AccountRef, need: Need, now: Instant) -> _Reason | None:
        """Return why a need cannot be reserved, as far as this process knows; None if it can."""
        standing = self._books.standing_of(ref.uid)
        if standing is None:
            return None
        budget = standing.account.id
        with self._books.database.reading() as session:
            cover = coverage.known(session, standing, now)
        more = planned("new", budget, need.amount, need.span, cover.at)
        gap, most = cover.lack(more), cover.most(budget)
        if gap is None:
            return None
        if need.amount > most:
            return _never(need, most)
        if gap.at > cover.at:
            return _later(need, gap, waits_for_others=cover.lack(more, alone=True) is None)
        return _missing(need, gap, cover, standing)

    def _report(self, one: _Waiting, why: _Reason) -> None:
        """Write an event if the kind of reason has changed; amounts change with every look."""
        if one.reported != why.kind:
            one.reported = why.kind
            pod_patch.say(
                self._client,
                self._clock,
                one.pod,
                kind="Warning",
                reason=names.WAITS_FOR_GPU_TIME,
                action="Reserve",
                note=f"This pod {why.note}",
            )


def _never(need: Need, most: GpuMilliseconds) -> _Reason:
    """Return that no period provides that much. Younger pods need not wait, because this one may wait forever."""
    return _Reason(
        "never",
        f"needs {_words(need)}, and the budget can provide {format_duration(max(most, 0))} at most; it waits "
        "for a grant, a larger budget, or lower activeDeadlineSeconds; younger pods may start before it",
    )


def _later(need: Need, gap: Gap, *, waits_for_others: bool) -> _Reason:
    """Return that there is enough now, but a part of it expires before the pod's deadline."""
    relief = "what is set aside for others" if waits_for_others else "a grant, or lower activeDeadlineSeconds"
    return _Reason(
        "later",
        f"needs {_words(need)}: {format_duration(gap.amount)} would be missing from {format_instant(gap.at)} "
        f"on, because the GPU time they would come from expires; it waits for {relief}",
        holds_others=waits_for_others,
    )


def _missing(need: Need, gap: Gap, cover: Cover, standing: BudgetStanding) -> _Reason:
    """Return how much less is free now than the pod needs, in its namespace's budget or in one above."""
    free = max(need.amount - gap.amount, 0)
    tight = next(account for account in (standing.account, *standing.above) if account.id == gap.budget)
    next_period, rule = cover.states[tight.id].period.expires, cover.forest.records[tight.id].rules[-1]
    where = "" if tight is standing.account else f" in the budget of {tight.title} above"
    when = ""
    if next_period is not None and rule.amount:
        when = f"; the next period begins {format_instant(next_period)} and brings {format_duration(rule.amount)}"
    return _Reason(
        "missing",
        f"needs {_words(need)}: {format_duration(need.amount - free)} are missing ({format_duration(free)} are free, "
        f"{format_duration(cover.reserved_in(standing.account.id))} set aside for others){where}{when}",
        holds_others=True,
    )


def _words(need: Need) -> str:
    span = format_duration(need.span)
    return f"{format_duration(need.amount)} of GPU time (deadline, grace and margin are {span})"
