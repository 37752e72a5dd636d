# SPDX-License-Identifier: Apache-2.0
"""Keep the arbiter's shares in step with the pods' annotations, while their containers run.

The arbiter is compared with the desired state repeatedly, and at once when a pod changes. A pod's last values are saved
with its seat, so they apply while the API server does not answer, and after restarts and reboots.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from nodeagent.arbiter_client import Arbiter, ArbiterAway, ArbiterRefused, ArbiterSeat, SeatPolicy
from nodeagent.coalesced_call import CoalescedCall
from nodeagent.node_pods import NodePods
from nodeagent.seat_store import Seat, SeatStore
from nodeagent.sharing_rule import SharingRule
from slicekeeper import names, threads
from slicekeeper.config.settings import RULES, Rule
from slicekeeper.gpu.share_ceiling import ceiling_in_force
from slicekeeper.kube.client import Object
from slicekeeper.kube.objects import Pod, read
from slicekeeper.kube.pod_manifest import annotations_of
from slicekeeper.units import CORES_PER_GPU

log = logging.getLogger(__name__)

COMPARE_SECONDS: Final = 1.0
"""Interval of comparisons: an arbiter that lost a seat has it again by then."""
AWAY_SECONDS: Final = 0.1
"""Interval at which an arbiter that does not answer is asked."""

_MIB: Final = 1 << 20


class Shares:
    """The node's fractions, as the arbiter must have them."""

    def __init__(
        self,
        arbiter: Arbiter,
        store: SeatStore,
        *,
        limits: bool,
        rule: Rule = RULES[0],
        ceiling_of: Callable[[str], int | None] = lambda _namespace: CORES_PER_GPU,
    ) -> None:
        """`ceiling_of` returns a namespace's ceiling, None while it is not known."""
        self._arbiter = arbiter
        self._read_for_starts = CoalescedCall(arbiter.read)
        self._store = store
        self._limits = limits
        self._ceiling_of = ceiling_of
        self._rule = SharingRule(rule)
        self._pods: NodePods | None = None
        self._dirty = threading.Event()
        self._stop = threading.Event()
        self._away = "it was not asked yet"
        self._refused: dict[str, str] = {}
        self._heard: dict[str, tuple[Object, int | None]] = {}
        """By seat, the pod whose values are saved with the seat, and its namespace's ceiling: neither need be read
        again."""
        self._unsaved: set[str] = set()
        """Seats whose current values could not be written to disk."""

    def start(self, pods: NodePods) -> None:
        """Start comparing, in a daemon thread."""
        self._pods = pods
        threads.keep("shares", self._run, self._stop.is_set)

    def stop(self) -> None:
        """Stop comparing; the arbiter continues with its seats."""
        self._stop.set()
        self._dirty.set()

    @property
    def ready(self) -> bool:
        """Whether containers with the limiter can start."""
        return not (self._limits and self._away)

    def changed(self) -> None:
        """Compare now, because a pod or a seat has changed."""
        self._dirty.set()

    def look_at(self, node: Mapping[str, Any]) -> None:
        """Follow the rule that the node's label names."""
        if self._rule.look_at(node):
            self.changed()

    def as_pod_says(self, pod: Mapping[str, Any], seat: Seat) -> Seat:
        """Return a seat with its pod's current ceiling and class."""
        if not seat.is_fraction:
            return seat
        annotations = annotations_of(pod)
        background = (
            annotations.get(names.BUDGET_STATE) == names.OVER_BUDGET
            or annotations.get(names.GPU_CLASS) == names.BACKGROUND
        )
        limit = ceiling_in_force(
            read(pod, Pod), seat.container, seat.core, before=seat.limit, of_namespace=self._ceiling_of(seat.namespace)
        )
        return msgspec.structs.replace(seat, limit=limit, background=background)

    def give(self, seat: Seat) -> None:
        """Give the arbiter a seat before its container starts, if it is a fraction: only fractions are limited.

        Raises ArbiterAway or ArbiterRefused for a container that may not run without the limiter.
        """
        if not seat.is_fraction:
            return
        try:
            gpus = {gpu.uuid: gpu.gpu for gpu in self._read_for_starts().gpus}
            self._set(seat, gpus)
        except (ArbiterAway, ArbiterRefused):
            if seat.limited:
                raise

    def compare(self) -> None:
        """Bring the arbiter to the desired state. Raises ArbiterAway."""
        telemetry = self._arbiter.read()
        self._rule.give(self._arbiter, telemetry.rule)
        held = {seat.seat: seat for seat in telemetry.seats}
        gpus = {gpu.uuid: gpu.gpu for gpu in telemetry.gpus}
        # Read after the arbiter's seats: a seat that is added in between is in both.
        wanted = {seat.name: seat for seat in self._store.all() if seat.taken and seat.is_fraction}
        pods = {pod["metadata"]["uid"]: pod for pod in self._pods.all()} if self._pods is not None else {}
        self._heard = {name: pod for name, pod in self._heard.items() if name in wanted}
        self._unsaved &= wanted.keys()
        for seat in wanted.values():
            self._bring(seat, self._now(seat, pods.get(seat.uid)), held.get(seat.name), gpus)
        for name in held.keys() - wanted.keys():
            try:
                self._arbiter.drop(name)
            except ArbiterRefused as error:
                log.info("seat %s is not dropped: %s", name, error)

    def _now(self, seat: Seat, pod: Object | None) -> Seat:
        """Return a seat with its pod's values; an unchanged pod is not read again."""
        ceiling = self._ceiling_of(seat.namespace)
        before = self._heard.get(seat.name)
        if pod is None or (before is not None and before[0] is pod and before[1] == ceiling):
            return seat
        now = self.as_pod_says(pod, seat)
        if now == seat:
            self._heard[seat.name] = pod, ceiling
        return now

    def _bring(self, before: Seat, now: Seat, held: ArbiterSeat | None, gpus: Mapping[str, int]) -> None:
        if held is None or not policy(now).holds(held):
            try:
                self._set(now, gpus)
                log.info("seat %s: %s, %d to %d%%", now.name, policy(now).vclass, now.core, now.limit)
                self._refused.pop(now.name, None)
            except ArbiterRefused as error:
                if self._refused.get(now.name) != str(error):
                    log.error("seat %s is not held: %s", now.name, error)
                    self._refused[now.name] = str(error)
        if now != before or now.name in self._unsaved:
            self._save(before, now)

    def _save(self, before: Seat, now: Seat) -> None:
        """Save a pod's current values; a full disk must not delay the changes of other seats."""
        try:
            self._store.change(before, now)
            self._unsaved.discard(now.name)
        except OSError as error:
            if not self._unsaved:
                log.error("a restart of the agent may lose what pods have changed: %s", error.strerror)
            self._unsaved.add(now.name)

    def _set(self, seat: Seat, gpus: Mapping[str, int]) -> None:
        wanted = policy(seat)
        if wanted.uuid not in gpus:
            raise ArbiterRefused(f"the arbiter does not know GPU {wanted.uuid}")
        self._arbiter.set(seat.name, gpus[wanted.uuid], wanted)

    def _run(self) -> None:
        while not self._stop.is_set():
            self._dirty.wait(AWAY_SECONDS if self._away else COMPARE_SECONDS)
            self._dirty.clear()
            try:
                self.compare()
                if self._away:
                    log.info("the arbiter answers")
                self._away = ""
            except ArbiterAway as error:
                if self._limits and self._away != str(error):
                    log.warning("shares are not held: %s", error)
                self._away = str(error)


def policy(seat: Seat) -> SeatPolicy:
    """Return the arbiter's policy for a fraction.

    A pod's UID is in its control groups' paths, with dashes or, if systemd makes them, with underscores: the arbiter
    takes one for the other.
    """
    return SeatPolicy(
        uuid=seat.gpus[0],
        core=seat.core,
        limit=seat.limit or CORES_PER_GPU,
        memory=seat.memory_mib * _MIB,
        background=seat.background,
        cgroup=f"pod{seat.uid}",
    )
