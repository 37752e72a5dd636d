# SPDX-License-Identifier: Apache-2.0
"""Let pods of `safe` namespaces start: reserve GPU time until each one's deadline, then remove our scheduling gate.

In a namespace the oldest waiting pod comes first, and no younger one goes before it, however small: else a large pod
would wait forever. A pod that needs more than a period brings could not have its reservation even with nothing else set
aside: it gets an event and is passed over. If the controller dies between reservation and lifting, its next look lifts.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping
from typing import Final

from slicekeeper.clock import Clock
from slicekeeper.config.policy import NamespacePolicy
from slicekeeper.errors import ServiceError
from slicekeeper.kube.client import PODS, KubeClient, Object
from slicekeeper.kube.pod import gate_index
from slicekeeper.units import Instant, format_duration, format_instant
from timekeeper.cluster import pod_patch
from timekeeper.cluster.opening import Openings, namespace_of
from timekeeper.cluster.watches import Pods
from timekeeper.core import interval
from timekeeper.core.refusal import LedgerError
from timekeeper.core.reservation import Need, span_of
from timekeeper.ledger import reservation
from timekeeper.ledger.books import Books
from timekeeper.ledger.movement import NamespaceRef
from timekeeper.ledger.standing import Position
from timekeeper.store import rates
from timekeeper.store import reservations as store

log = logging.getLogger(__name__)

AGAIN_SECONDS: Final = 5.0
"""Real seconds for the watch to show that a gate is lifted, before it is lifted again."""

Act = Callable[[Object], None]
Each = Callable[[list[Object], Act], None]


class Gates:
    """The waiting pods, and the pods that have GPU time set aside. Used by the controller's one thread.

    `each` acts on pods concurrently, and an error with one does not affect the others.
    """

    def __init__(
        self, client: KubeClient, clock: Clock, books: Books, openings: Openings, pods: Pods, *,
        margin_ms: int, each: Each,
    ) -> None:  # fmt: skip
        self._client = client
        self._clock = clock
        self._books = books
        self._openings = openings
        self._pods = pods
        self._margin_ms = margin_ms
        self._each = each
        self._waiting: dict[str, Object] = {}
        self._reserved: dict[str, tuple[str, str]] | None = None
        """Pods with an open reservation; None: not read yet. This process alone opens and ends them."""
        self._done: set[str] = set()
        self._lists = 0
        self._lifted: dict[str, float] = {}
        self._explained: dict[str, str] = {}

    def start_over(self) -> None:
        """Forget everything that is remembered: another process may have led in the meantime."""
        self._reserved = None
        self._lists = 0
        self._lifted.clear()

    def keeps_in_budget(self, pod: Object) -> bool:
        """Whether a pod has a reservation, or does not start before it has one."""
        return pod["metadata"]["uid"] in (self._reserved or {}) or gate_index(pod) is not None

    def look(
        self,
        there: Mapping[str, Object],
        done: Collection[str],
        policy_of: Callable[[str], NamespacePolicy],
        now: Instant,
    ) -> None:
        """End the reservations of finished pods, and admit those for which there is GPU time.

        `there` are the pods that have changed, `done` those of which nothing more is to come.
        """
        self._done.update(done)
        for uid, pod in there.items():
            if gate_index(pod) is None or interval.deleted_at(pod) is not None:
                self._waiting.pop(uid, None)
                self._lifted.pop(uid, None)
                self._explained.pop(uid, None)
            else:
                self._waiting[uid] = pod
        for uid in [uid for uid in self._waiting if self._pods.find(uid) is None]:
            del self._waiting[uid]
            self._explained.pop(uid, None)
        self._end(self._done & self._known().keys(), now)
        self._done.clear()
        if self._lists != self._pods.lists:
            self._look_for_absent(now)
            self._lists = self._pods.lists
        queues: dict[str, list[Object]] = {}
        for pod in sorted(self._waiting.values(), key=_age):
            queues.setdefault(namespace_of(pod), []).append(pod)
        for namespace, queue in queues.items():
            try:
                self._serve(queue, policy_of(namespace), now)
            except (LedgerError, ServiceError) as error:
                log.info("namespace %s: waiting pods are looked at again: %s", namespace, error)

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

    def _serve(self, queue: list[Object], policy: NamespacePolicy, now: Instant) -> None:
        ready: list[tuple[Object, str]] = []
        ahead = ""
        for pod in queue:
            name = pod["metadata"]["name"]
            if pod["metadata"]["uid"] in self._known():
                ready.append((pod, "GPU time until this pod's deadline is set aside"))
                continue
            if ahead:
                self._tell(pod, "behind", f"waits behind pod {ahead}, which is older and needs more GPU time")
                continue
            why, waits = self._admit(pod, policy, now)
            if why:
                ready.append((pod, why))
            elif waits:
                ahead = name
        fresh = time.monotonic() - AGAIN_SECONDS
        words = {pod["metadata"]["uid"]: why for pod, why in ready}
        due = [pod for pod, _ in ready if self._lifted.get(pod["metadata"]["uid"], 0.0) < fresh]
        self._each(due, lambda pod: self._lift(pod, words[pod["metadata"]["uid"]]))

    def _lift(self, pod: Object, why: str) -> None:
        pod_patch.lift(self._client, self._clock, pod, why)
        self._lifted[pod["metadata"]["uid"]] = time.monotonic()

    def _admit(self, pod: Object, policy: NamespacePolicy, now: Instant) -> tuple[str, bool]:
        """Return why a pod may start, empty if it may not; and whether those behind it wait with it."""
        namespace, uid = namespace_of(pod), pod["metadata"]["uid"]
        if not policy.reserves or not self._openings.is_charged(pod, policy):
            return f"namespace {namespace} sets no GPU time aside for this pod", False
        span = span_of(pod, self._margin_ms)
        if span is None:
            self._tell(pod, "deadline", "has no activeDeadlineSeconds, so it is not known how much GPU time it needs")
            return "", False
        with self._books.database.reading() as session:
            need = self._openings.need(pod, policy, span, rates.read(session), now)
        if need is None:
            self._tell(pod, "gpu", "waits for a node with a GPU that fits it; until then its share is not known")
            return "", False
        place = NamespaceRef(self._openings.namespace_uid(namespace), namespace, policy)
        needs = f"{format_duration(need.amount)} of GPU time (deadline, grace and margin are {format_duration(span)})"
        if not self._fits(place, need) or not reservation.open_for_pod(
            self._books, place, uid, pod["metadata"]["name"], need, now
        ):
            return "", self._explain(pod, place, need, needs, now)
        self._known()[uid] = (namespace, pod["metadata"]["name"])
        return f"{needs} are set aside until it ends; what it does not use is returned then", False

    def _fits(self, place: NamespaceRef, need: Need) -> bool:
        """Whether a reservation is worth trying: a look that finds nothing new must not write."""
        position = self._position(place)
        if position is None:
            return True
        now = self._clock.now_ms()
        with self._books.database.reading() as session:
            free = reservation.free_of(session, position, now)
        return need.amount <= free.amount and reservation.gap_of(position, free, need, now) is None

    def _position(self, place: NamespaceRef) -> Position | None:
        position = self._books.position_of(place.uid)
        return position if position is not None and position.account.uid == place.uid else None

    def _explain(self, pod: Object, place: NamespaceRef, need: Need, needs: str, now: Instant) -> bool:
        """Write an event with what is missing; return whether younger pods wait too."""
        position = self._position(place)
        if position is None:
            self._tell(pod, "missing", f"needs {needs}, more than the budget has")
            return False
        with self._books.database.reading() as session:
            free = reservation.free_of(session, position, now)
        most = reservation.most_of(position, now)
        if need.amount > most:
            self._tell(
                pod,
                "never",
                f"needs {needs}, and the budget can provide {format_duration(max(most, 0))} at most; it waits for a "
                f"grant, a larger budget, or lower activeDeadlineSeconds; younger pods may start before it",
            )
            return False
        gap = reservation.gap_of(position, free, need, now) if need.amount <= free.amount else None
        if gap is not None:
            waits = reservation.gap_of(position, free, need, now, alone=True) is None
            self._tell(
                pod,
                "later",
                f"needs {needs}: {format_duration(gap.amount)} would be missing from {format_instant(gap.at)} on, "
                "because the GPU time they would come from expires; it waits for "
                + ("what is set aside for others" if waits else "a grant, or lower activeDeadlineSeconds"),
            )
            return waits
        missing = need.amount - max(free.amount, 0)
        tight = next(account for account in (position.account, *position.above) if account.id == free.tightest)
        comes = position.together.at(now)[tight.id].period.expires
        rule = position.together.forest.records[tight.id].rules[-1]
        where = "" if tight is position.account else f" in the budget of {tight.title} above"
        when = (
            ""
            if comes is None or rule.amount == 0
            else (f"; the next period begins {format_instant(comes)} and brings {format_duration(rule.amount)}")
        )
        self._tell(
            pod,
            "missing",
            f"needs {needs}: {format_duration(missing)} are missing ({format_duration(max(free.amount, 0))} are free, "
            f"{format_duration(free.held)} set aside for others){where}{when}",
        )
        return True

    def _tell(self, pod: Object, kind: str, note: str) -> None:
        """Write an event if it is another reason than before: amounts change with every look."""
        uid = pod["metadata"]["uid"]
        if self._explained.get(uid) != kind:
            self._explained[uid] = kind
            pod_patch.say(
                self._client, self._clock, pod,
                kind="Warning", reason="WaitsForGpuTime", action="Reserve", note=f"This pod {note}",
            )  # fmt: skip


def _age(pod: Object) -> tuple[str, str]:
    metadata = pod["metadata"]
    return str(metadata.get("creationTimestamp", "")), str(metadata["uid"])
