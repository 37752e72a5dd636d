# SPDX-License-Identifier: Apache-2.0
"""Hold the place that was chosen for a binding until it is known whether the pod was bound.

No GPU is given twice, because only `choose` gives: while it alone writes, it finds GPUs that neither BOUND, BINDING nor
another's RESERVED holds, and records BINDING before the API server gets it. `held_places` explains these kinds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from scheduler.cluster_state import ClusterState
from scheduler.explain_place import free_before, why_node
from scheduler.held_places import HoldKind, Place, is_tentative, nodes_of
from scheduler.node_finder import NodeFinder
from scheduler.placement.demand import Demand
from scheduler.placement.evaluation import Evaluation, evaluate
from scheduler.placement.fleet_version import FleetVersion
from scheduler.placement.learner import Learner
from scheduler.placement.links import relinked
from scheduler.placement.reasons import Why, explain
from scheduler.pods import KnownPod, held_by, read_pod
from slicekeeper.clock import Clock
from slicekeeper.config.settings import Resources
from slicekeeper.errors import SlicekeeperError


class NoPlace(SlicekeeperError):
    """The pod cannot be bound to this node now; the message gives the reason."""


class PendingBindings:
    """The pods that are being bound. All methods are safe from any thread."""

    def __init__(
        self,
        cluster: ClusterState,
        finder: NodeFinder,
        learner: Learner,
        resources: Resources,
        clock: Clock,
        *,
        hold_seconds: float,
        lost_seconds: float,
    ) -> None:
        self._cluster = cluster
        self._nodes, self._places = cluster.nodes, cluster.places
        self._finder = finder
        self._learner = learner
        self._resources = resources
        self._clock = clock
        self._hold_ns = int(hold_seconds * 1_000_000_000)
        self._lost_ns = int(lost_seconds * 1_000_000_000)
        self._under_way: set[str] = set()
        """Pods with a bind that has not ended."""

    def choose(self, pod: KnownPod, node: str) -> Place:
        """Choose GPUs on `node` for a binding, and hold them.

        If the result of an earlier try is unknown, the same GPUs are chosen again: the pod may be bound to them by now.
        TENTATIVE places of other pods are spared if possible. Until `bound`, `lost` or `refused` is called, every other
        try for this pod is refused. Raises NoPlace.
        """
        with self._cluster.writing():
            if pod.uid in self._under_way:
                raise NoPlace("another bind of this pod is under way; try again when it has ended")
            mine = self._places.of(pod.uid)
            place = next((p for p in mine if p.kind is HoldKind.BINDING and p.hold.node == node), None)
            if place is None:
                place = self._choose(pod, node)
            kept = [p for p in self._places.of(pod.uid) if not is_tentative(p) and p is not place]
            self._cluster.put(pod.uid, [*kept, place])
            self._under_way.add(pod.uid)
            return place

    def _choose(self, pod: KnownPod, node: str) -> Place:
        if node not in self._cluster.fleet:
            raise NoPlace(explain(Why.DAMAGED if node in self._nodes.damaged else Why.NO_GPUS, pod.demand))
        policy, mine = self._learner.name, self._places.of(pod.uid)
        why = why_node(pod, node, mine, policy, is_equal=lambda other: self._are_equal(pod, node, other))
        place = self._found(pod, node) or self._search(pod, node)
        others = (other.hold for other in self._places.on(node) if other.pod.uid != pod.uid)
        return replace(place, why=f"{why}; {free_before(place.hold, self._nodes.gpus[node], others)}")

    def _found(self, pod: KnownPod, node: str) -> Place | None:
        """Return the place that `find` holds for a pod there, None if anything may have changed for it since."""
        place = next((place for place in self._places.of(pod.uid) if is_tentative(place)), None)
        if place is None or place.hold.node != node:
            return None
        if place.version != self._cluster.fleet.version_of(self._cluster.fleet.row(node)):
            return None
        if pod.demand.affinity or sum(piece.whole for piece in pod.demand.pieces) > 1:
            return None  # other nodes count too; the best links are not found yet
        if (place.pod.request, place.pod.demand) != (pod.request, pod.demand):
            return None
        return replace(place, kind=HoldKind.BINDING, pod=pod, until_ns=None)

    def _search(self, pod: KnownPod, node: str) -> Place:
        """Search for GPUs on a node: first beside the TENTATIVE places of other pods, then in place of them."""
        mine = nodes_of(self._places.of(pod.uid))
        fleet = self._cluster.fleet_without(mine, lambda place: place.pod.uid == pod.uid, uid=pod.uid).publish()
        result = self._linked(fleet, node, pod.demand)
        if not result.fits[0]:
            expected = nodes_of(filter(is_tentative, self._places.passing()))
            fleet = self._cluster.fleet_without(
                mine | expected, lambda place: place.pod.uid == pod.uid or is_tentative(place), uid=pod.uid
            ).publish()
            result = self._linked(fleet, node, pod.demand)
            if not result.fits[0]:
                raise NoPlace(explain(int(result.why[0]), pod.demand))
            for uid in {place.pod.uid for place in self._places.on(node)}:
                self._cluster.drop_places(uid, is_tentative)
        return self._cluster.place(HoldKind.BINDING, pod, node, result.gpus[0].tolist())

    def _are_equal(self, pod: KnownPod, *nodes: str) -> bool:
        """Whether the policy found nodes equally good for a pod when they were last compared."""
        seen = self._finder.seen(pod)
        if seen is None:
            return False
        evaluation, rows = seen[0], [self._cluster.fleet.row(node) for node in nodes]
        fit = all(0 <= row < len(evaluation.fits) and evaluation.fits[row] for row in rows)
        return fit and len({int(evaluation.price[row]) for row in rows}) == 1

    def bound(self, uid: str, node: str) -> None:
        """Record that the pod is bound to `node`: places elsewhere are freed, this one stays until it is seen."""
        until = self._clock.monotonic_ns() + self._hold_ns
        with self._cluster.writing():
            self._under_way.discard(uid)
            places = self._places.of(uid)
            seen = [p for p in places if p.kind is HoldKind.BOUND]
            here = [replace(p, until_ns=until) for p in places if p.kind is HoldKind.BINDING and p.hold.node == node]
            self._cluster.put(uid, seen or here)

    def lost(self, uid: str, node: str) -> None:
        """Record that no answer came and the pod is not bound yet: it may still be bound, so the place stays."""
        until = self._clock.monotonic_ns() + self._lost_ns
        with self._cluster.writing():
            self._under_way.discard(uid)
            longer = (
                replace(p, until_ns=until) if p.kind is HoldKind.BINDING and p.hold.node == node else p
                for p in self._places.of(uid)
            )
            self._cluster.put(uid, [*longer])

    def refused(self, uid: str, node: str) -> None:
        """Record that this try will not bind the pod; an earlier one whose answer was lost may still do so."""
        with self._cluster.writing():
            self._under_way.discard(uid)
            # Only a place whose try got no answer has an end: that one stays.
            self._cluster.drop_places(
                uid, lambda p: p.kind is HoldKind.BINDING and p.hold.node == node and p.until_ns is None
            )

    def overdue(self) -> list[KnownPod]:
        """Return the pods to look at because no watch has shown them bound in time."""
        now = self._clock.monotonic_ns()
        with self._cluster.writing():
            due = {place.pod.uid: place.pod for place in self._places.passing() if place.is_due(now)}
            return [pod for uid, pod in due.items() if uid not in self._under_way]

    def looked(self, uid: str, obj: Mapping[str, Any] | None) -> None:
        """Record what the API server says about an overdue pod; None: it has no such pod."""
        now = self._clock.monotonic_ns()
        pod = read_pod(obj, self._resources) if obj is not None else None
        with self._cluster.writing():
            if uid in self._under_way or not any(p.kind is HoldKind.BINDING for p in self._places.of(uid)):
                return
            if pod is None or pod.uid != uid or pod.finished:
                self._cluster.drop_places(uid, lambda p: p.kind is HoldKind.BINDING)
            elif not pod.node:
                self._cluster.drop_places(uid, lambda p: p.is_due(now))
            else:  # bound: only the watch makes it BOUND, so it is held as BINDING until the watch shows it
                hold = held_by(pod, obj or {})
                self._cluster.put(uid, [Place(HoldKind.BINDING, pod, hold, now + self._hold_ns)] if hold else [])

    # Below, only while writing.

    def _linked(self, fleet: FleetVersion, node: str, demand: Demand) -> Evaluation:
        """Return the answer for one node, with the whole GPUs that are linked best."""
        view = fleet.view([node], demand)
        result = evaluate(view, demand, self._learner.policy)
        if result.fits[0]:
            result.gpus[0] = relinked(self._nodes.gpus[node], view, 0, demand, result.gpus[0].tolist())
        return result
