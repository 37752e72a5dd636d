# SPDX-License-Identifier: Apache-2.0
"""The scheduler's knowledge of the cluster: nodes, pods, held places, and the arrays of free GPUs built from them.

One thread at a time writes, and publishes a version when it is done. Readers use `published`, without a lock.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

from scheduler.cpu_memory import CpuMemoryUse, Entry
from scheduler.held_places import FIRM, NEVER, HoldKind, Place, Places
from scheduler.known_pods import KnownPods
from scheduler.nodes import Nodes
from scheduler.placement.fleet import Fleet
from scheduler.placement.fleet_version import FleetVersion
from scheduler.pods import Hold, KnownPod, chosen_hold, gpu_rows, label_of, labels_out_of_sight
from slicekeeper.clock import Clock

Unwanted = Callable[[Place], bool]


class ClusterState:
    """Nodes, pods, places and the fleet, which agree with each other between writes."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.RLock()
        self.nodes = Nodes()
        self.pods = KnownPods()
        self.places = Places()
        self.cpu_memory = CpuMemoryUse()
        self.fleet = Fleet()
        self.published: FleetVersion = self.fleet.publish()
        """The fleet after the last change that is complete."""
        self.changed_nodes: set[str] = set()
        """Nodes that have changed since the reclaimer asked, or pods on them."""
        self.unpublished_changes = 0
        """Increases with every change that leaves the arrays as they are."""
        self._next_end_ns = NEVER

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Lock out other writers: drop expired places first, and publish the fleet at the end."""
        with self._lock:
            self._end()
            try:
                yield
            finally:
                self._next_end_ns = min(self.places.next_end_ns, *self.nodes.avoided.values(), NEVER)
                self.published = self.fleet.publish()

    def end_due(self) -> None:
        """Drop expired places; usually that is only a look at the clock."""
        if self._clock.monotonic_ns() >= self._next_end_ns:
            with self.writing():
                pass

    def _end(self) -> None:
        now_ns = self._clock.monotonic_ns()
        if now_ns >= self.places.next_end_ns:
            self.refresh(self.places.end(now_ns))
        self.nodes.end_avoiding(now_ns)

    # Below, only while writing.

    def put(self, uid: str, places: Sequence[Place]) -> None:
        """Make `places` all that is held for a pod."""
        self.pods.place_changed(uid)
        before = self.places.of(uid)
        changed = self.places.put(uid, places)
        if _taken(before) != _taken(places):
            self.refresh(changed)
        elif changed:  # as much is free as before, so prices stay valid without a new version
            self.mark_changed(changed)
            for node in changed:
                self.recount(node)

    def mark_changed(self, nodes: Iterable[str]) -> None:
        """Record a change that leaves as much free as before."""
        self.unpublished_changes += 1
        self.changed_nodes.update(nodes)

    def drop_places(self, uid: str, unwanted: Unwanted) -> None:
        """Drop some of the places that are held for a pod."""
        self.put(uid, self.places.without(uid, unwanted))

    def refresh(self, nodes: Iterable[str]) -> None:
        """Compute nodes' rows again from their GPUs and all that is held there."""
        for node in nodes:
            self.changed_nodes.add(node)
            self._fill(self.fleet, node, None)

    def place(self, kind: HoldKind, pod: KnownPod, node: str, columns: Iterable[int]) -> Place:
        """Return a place on a node by the columns of its GPUs."""
        uuids = self.fleet.publish().uuids(node)
        hold, gpus = chosen_hold(pod, node, [uuids[column] for column in columns])
        return Place(kind, pod, hold, gpus=gpus)

    def put_cpu_memory(self, uid: str, entry: Entry | None) -> None:
        """Record the CPU and memory of a bound pod; None if it uses none any more."""
        for node in self.cpu_memory.put(uid, entry):
            self.recount(node)

    def recount(self, node: str) -> None:
        """Compute a node's free CPU and memory again."""
        self._fill_cpu_memory(self.fleet, node, None)

    def fleet_without(self, nodes: Iterable[str], ignored: Unwanted, *, uid: str = "") -> Fleet:
        """Return the fleet as it would be without some of the places that are held on `nodes`.

        If a place is reserved for the pod `uid`, its affinity label still counts there: others may have joined it.
        """
        other = Fleet(self.fleet.publish())
        labels: dict[str, list[Hold]] = {}
        for place in self.places.of(uid):
            if place.kind is HoldKind.RESERVED and place.hold.affinity and not place.hold.alone:
                labels.setdefault(place.hold.node, []).append(label_of(place.hold))
        for node in nodes:
            self._fill(other, node, ignored, labels.get(node, ()))
        return other

    def _fill(self, fleet: Fleet, node: str, ignored: Unwanted | None, more: Iterable[Hold] = ()) -> None:
        gpus = self.nodes.gpus.get(node, [])
        here = [*(place.hold for place in self.places.on(node) if ignored is None or not ignored(place)), *more]
        fleet.set_out_of_sight(node, labels_out_of_sight(gpus, here))
        if not gpus:
            fleet.remove(node)
            return
        fleet.set(node, gpu_rows(gpus, here))
        self._fill_cpu_memory(fleet, node, ignored)

    def _fill_cpu_memory(self, fleet: Fleet, node: str, ignored: Unwanted | None) -> None:
        """Compute a node's free CPU and memory; pods that are about to be bound there count already."""
        if node not in fleet:
            return
        coming = (
            (place.pod.uid, (place.pod.demand.cpu_milli, place.pod.demand.ram_mib))
            for place in self.places.on(node)
            if self.places.is_passing(place.pod.uid) and (ignored is None or not ignored(place))
        )
        fleet.set_cpu_memory(node, *self.cpu_memory.free(node, coming))


def _taken(places: Sequence[Place]) -> list[tuple[Hold, bool]]:
    """Return what places take from nodes, and for a gang's pods whether they are firm.

    A search for a gang ignores places that are only reserved for its own pods.
    """
    return [(place.hold, place.pod.gang is not None and place.kind in FIRM) for place in places]
