# SPDX-License-Identifier: Apache-2.0
"""Find room for a waiting pod: now, once the leaving pods have left, or by evicting others.

All three follow from the cluster as it was at one instant. Its arrays are kept from one look to the next, and so is
what pods of one shape find in them: computing them takes seconds for 5,000 nodes, and a millisecond for the few that
have changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from scheduler.cluster_snapshot import NodeSnapshot
from scheduler.held_places import HoldKind, Place
from scheduler.node_finder import cheapest_hold
from scheduler.node_fit import admits, fields_judged
from scheduler.placement.demand import Demand
from scheduler.placement.evaluation_cache import EvaluationCache
from scheduler.placement.fleet import Fleet
from scheduler.placement.policy import Policy
from scheduler.pods import Hold, KnownPod, gpu_rows
from scheduler.reclaim.victim_choice import NodeGpus, Tenant, choose_victims, rank_of

MOST_SHAPES: Final = 256
"""For so many kinds of pods it is kept which nodes admit them: a quarter of a MB each at 5,000 nodes, and users can
create any number."""


class _Layer:
    """The arrays for one question: what is free if only some of the places count. Only changed nodes are computed."""

    def __init__(self, counts: Callable[[Place], bool]) -> None:
        self._counts = counts
        self._fleet = Fleet()
        self._cache = EvaluationCache()
        self.stale: set[str] = set()

    def fleet(self, nodes: Mapping[str, NodeSnapshot]) -> Fleet:
        """Return the arrays for the current `nodes`."""
        for name in self.stale:
            node = nodes.get(name)
            if node is None:
                self._fleet.remove(name)
            else:
                self._fleet.set(name, gpu_rows(node.gpus, [p.hold for p in node.places if self._counts(p)]))
        self.stale = set()
        return self._fleet

    def fitting(self, nodes: Mapping[str, NodeSnapshot], demand: Demand, policy: Policy) -> frozenset[str]:
        """Return the nodes on which a demand fits."""
        fleet = self.fleet(nodes).publish()
        evaluation, _ = self._cache.evaluate(fleet, demand, policy)
        return frozenset(fleet.names[row] for row in np.flatnonzero(evaluation.fits).tolist())


@dataclass(frozen=True)
class FreedPlace:
    """A place for a pod, and the pods to evict so that it is free."""

    pod: KnownPod
    hold: Hold
    victims: tuple[KnownPod, ...] = ()


class RoomFinder:
    """Nodes, the pods on them, and the pods that are leaving. It is kept, and updated with the nodes that change."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._nodes: dict[str, NodeSnapshot] = {}
        self._leaving: Set[str] = frozenset()
        self._blocked: Set[str] = frozenset()
        self._admitted: dict[tuple[int, int, str], frozenset[str]] = {}
        """Nodes that admit a pod and are large enough, by its CPU, memory and the fields that decide."""
        self._with_leaving: set[str] = set()
        """Nodes with a terminating pod."""
        self._expecting: set[str] = set()
        """Nodes with a TENTATIVE place."""
        self._certain = _Layer(lambda place: place.kind is not HoldKind.TENTATIVE)
        """What is free now."""
        self._staying = _Layer(lambda place: place.kind is not HoldKind.TENTATIVE and self._stays(place))
        """What will be free once the leaving pods have left."""
        self._expected = _Layer(self._stays)
        """As `_staying`, and if others take the places that they expect."""
        self._floor = _Layer(lambda place: self._stays(place) and self._rank(place, 0) is None)
        """What would be free if every pod that may be evicted were: elsewhere no eviction can help."""

    def update(self, changed: Mapping[str, NodeSnapshot | None], leaving: Set[str], blocked: Set[str]) -> None:
        """Update some nodes; pods `leaving` are evicted already, pods `blocked` must not be evicted now."""
        for name, node in changed.items():
            before = self._nodes.pop(name, None)
            if node is not None:
                self._nodes[name] = node
            if before is None or node is None or before.facts != node.facts:
                self._admitted.clear()
        other = (leaving ^ self._leaving) | (blocked ^ self._blocked)
        self._leaving, self._blocked = leaving, blocked
        stale = set(changed)
        if other:
            stale |= {name for name, node in self._nodes.items() if any(p.pod.uid in other for p in node.places)}
        for name in stale:
            places = self._nodes[name].places if name in self._nodes else ()
            _mark(self._with_leaving, name, any(not self._stays(place) for place in places))
            _mark(self._expecting, name, any(place.kind is HoldKind.TENTATIVE for place in places))
        for layer in (self._certain, self._staying, self._expected, self._floor):
            layer.stale |= stale

    def _without_leaving(self) -> _Layer:
        """Return the layer without leaving pods: if there are none, `_certain`, which is computed already."""
        return self._staying if self._with_leaving else self._certain

    def _stays(self, place: Place) -> bool:
        return not place.pod.leaving and place.pod.uid not in self._leaving

    def _rank(self, place: Place, priority: int) -> int | None:
        """Return the rank of a place's pod among those that may be evicted; None if it may not be."""
        pod = place.pod
        return None if place.kind is not HoldKind.BOUND or pod.uid in self._blocked else rank_of(pod, priority)

    # Queries.

    def fits(self, pod: KnownPod) -> bool:
        """Whether the pod fits now: then kube-scheduler places it, or something other than GPUs prevents that."""
        return self._fit(self._certain, pod) is not None

    def room_after_leaving(self, pod: KnownPod) -> FreedPlace | None:
        """Return where the pod fits once leaving pods have left, and others have taken what they expect."""
        hold = self._fit(self._expected if self._expecting else self._without_leaving(), pod)
        return None if hold is None else FreedPlace(pod, hold)

    def may_have_room_after_leaving(self, pod: KnownPod) -> bool:
        """Whether the pod fits once leaving pods have left, if others do not take what they expect."""
        return self._fit(self._without_leaving(), pod) is not None

    def room_by_eviction(self, pod: KnownPod) -> FreedPlace | None:
        """Return the pods to evict for the pod and what it then holds, None if that would not help."""
        names = self._admit(pod)
        if not pod.demand.affinity:  # an affine pod depends on others' presence
            names &= self._floor.fitting(self._nodes, pod.demand, self._policy)
        nodes = [self._node(name, pod.priority) for name in sorted(names)]
        choice = choose_victims(pod.demand, nodes, has_friends=self._has_friends(pod))
        if choice is None:
            return None
        node = self._nodes[choice.node]
        fleet = Fleet()
        stay = [p.hold for p in node.places if self._stays(p) and p.pod.uid not in choice.victims]
        fleet.set(choice.node, gpu_rows(node.gpus, stay))
        hold = self._best(fleet, [choice.node], pod)
        pods = {place.pod.uid: place.pod for place in node.places}
        return None if hold is None else FreedPlace(pod, hold, tuple(pods[uid] for uid in choice.victims))

    def room_for_gang(self, pods: Sequence[KnownPod], needed: int) -> list[FreedPlace] | None:
        """Return places for as many of the pods as possible, and the victims of each; None if fewer than `needed`.

        Each is found as if the pods before it had theirs. The cluster is unchanged afterwards.
        """
        leaving = self._leaving
        before: dict[str, NodeSnapshot] = {}
        found: list[FreedPlace] = []
        try:
            for pod in pods:
                place = self.room_after_leaving(pod) or self.room_by_eviction(pod)
                if place is None:
                    continue
                found.append(place)
                node = self._nodes[place.hold.node]
                before.setdefault(place.hold.node, node)
                taken = replace(node, places=(*node.places, Place(HoldKind.RESERVED, pod, place.hold)))
                gone = self._leaving | {victim.uid for victim in place.victims}
                self.update({place.hold.node: taken}, gone, self._blocked)
        finally:
            self.update(before, leaving, self._blocked)
        return found if len(found) >= needed else None

    def awaited(self, places: Iterable[FreedPlace]) -> frozenset[str]:
        """Return the pods whose end makes room for places: their victims, and the terminating pods on their nodes."""
        found: set[str] = set()
        for place in places:
            found |= {victim.uid for victim in place.victims}
            found |= {other.pod.uid for other in self._nodes[place.hold.node].places if not self._stays(other)}
        return frozenset(found)

    def _node(self, name: str, priority: int) -> NodeGpus:
        node = self._nodes[name]
        tenants = tuple(
            Tenant(place.pod.uid, place.hold, self._rank(place, priority), place.pod.bound_ms)
            for place in node.places
            if self._stays(place)
        )
        return NodeGpus(name, node.gpus, tenants)

    def _admit(self, pod: KnownPod) -> frozenset[str]:
        """Return the nodes that admit a pod and are large enough for it.

        Pods of one controller have the same, so it is computed once for them.
        """
        manifest = pod.waiting or {}
        cpu_memory = pod.demand.cpu_milli, pod.demand.ram_mib
        key = *cpu_memory, fields_judged(manifest)
        if key not in self._admitted:
            if len(self._admitted) == MOST_SHAPES:
                self._admitted.clear()
            self._admitted[key] = frozenset(
                n for n, node in self._nodes.items() if node.facts.has(*cpu_memory) and admits(node.facts, manifest)
            )
        return self._admitted[key]

    def _has_friends(self, pod: KnownPod) -> bool:
        label = pod.demand.affinity
        return bool(label) and any(
            place.hold.affinity == label and any(not share.whole for share in place.hold.shares)
            for node in self._nodes.values()
            for place in node.places
            if self._stays(place)
        )

    def _fit(self, layer: _Layer, pod: KnownPod) -> Hold | None:
        nodes = self._admit(pod)
        if not pod.demand.affinity:  # an affine pod depends on others' presence
            nodes &= layer.fitting(self._nodes, pod.demand, self._policy)
        return self._best(layer.fleet(self._nodes), sorted(nodes), pod) if nodes else None

    def _best(self, fleet: Fleet, nodes: Sequence[str], pod: KnownPod) -> Hold | None:
        return cheapest_hold(fleet, nodes, pod, self._policy, has_friends=self._has_friends(pod))


def _mark(marked: set[str], name: str, wanted: bool) -> None:
    if wanted:
        marked.add(name)
    else:
        marked.discard(name)
