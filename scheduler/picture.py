# SPDX-License-Identifier: Apache-2.0
"""The cluster as the reclaimer sees it at one instant, and its questions about it, asked for one waiting pod at a time.

The arrays are built once and asked for all waiting pods: building them costs far more than asking.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from functools import cached_property

from scheduler.fleet import Fleet
from scheduler.nodefit import admits
from scheduler.placement import survey
from scheduler.pods import Hold, Pod, chosen_hold, gpu_rows
from scheduler.policy import Policy
from scheduler.reclaim import Choice, NodeGpus, Tenant, choose_victims
from scheduler.state import Kind, Place, Snapshot, best_of
from slicekeeper import names


def rank_of(pod: Pod, priority: int) -> int | None:
    """Return how lowly a pod's class is, 0 the lowest; None where it may not be taken for a pod of `priority`.

    Volunteered background work goes first, then pods admitted over budget, then pods whose namespace has run out since.
    """
    if pod.gpu_class == names.BACKGROUND:
        return 0
    if pod.budget_state != names.OVER_BUDGET:
        return None
    return 1 if pod.priority < priority else 2


class Picture:
    """One snapshot; `leaving` are pods evicted already, `blocked` pods that are not to be tried now."""

    def __init__(self, snapshot: Snapshot, policy: Policy, *, leaving: Set[str], blocked: Set[str]) -> None:
        self._snapshot = snapshot
        self._policy = policy
        self.pods = {pod.uid: pod for pod in snapshot.pods}
        self._leaving = leaving | {pod.uid for pod in snapshot.pods if pod.leaving}
        self._blocked = blocked
        self._on: dict[str, list[Place]] = {name: [] for name in snapshot.nodes}
        for place in snapshot.places:
            if place.hold.node in self._on:
                self._on[place.hold.node].append(place)

    # The arrays: with all that is held for certain; with what stays; with what others are about to take, too; with what
    # would be left if everybody went who may be taken.

    @cached_property
    def _certain(self) -> Fleet:
        return self._fleet(lambda place: place.kind is not Kind.TENTATIVE)

    @cached_property
    def _staying(self) -> Fleet:
        if all(map(self._stays, self._snapshot.places)):
            return self._certain
        return self._fleet(lambda place: place.kind is not Kind.TENTATIVE and self._stays(place))

    @cached_property
    def _expected(self) -> Fleet:
        if all(place.kind is not Kind.TENTATIVE for place in self._snapshot.places):
            return self._staying
        return self._fleet(self._stays)

    @cached_property
    def _floor(self) -> Fleet:
        return self._fleet(lambda place: self._stays(place) and self._rank(place, 0) is None)

    def _fleet(self, counts: Callable[[Place], bool]) -> Fleet:
        fleet = Fleet()
        for name, (_, gpus) in self._snapshot.nodes.items():
            fleet.set(name, gpu_rows(gpus, [place.hold for place in self._on[name] if counts(place)]))
        return fleet

    def _stays(self, place: Place) -> bool:
        return place.pod.uid not in self._leaving

    def _rank(self, place: Place, priority: int) -> int | None:
        pod = self.pods.get(place.pod.uid)
        if pod is None or place.kind is not Kind.BOUND or pod.uid in self._blocked:
            return None
        return rank_of(pod, priority)

    # The questions.

    def fits(self, pod: Pod) -> bool:
        """Whether the pod fits as things are: then kube-scheduler sees to it, or something but GPUs keeps it."""
        return self._fit(self._certain, pod) is not None

    def room(self, pod: Pod) -> Hold | None:
        """Return where the pod fits once those who leave have left, and others have taken what they expect."""
        return self._fit(self._expected, pod)

    def may_have_room(self, pod: Pod) -> bool:
        """Whether the pod fits once those who leave have left, should others not take what they expect."""
        return self._fit(self._staying, pod) is not None

    def choose(self, pod: Pod) -> tuple[Choice, Hold] | None:
        """Return whom to evict for the pod and what it then holds, None where that would not help."""
        near = self._nodes(pod)
        if not pod.demand.affinity:  # an affine pod depends on others' presence
            result = survey(self._floor.view(near, pod.demand), pod.demand, self._policy, reasons=False)
            near = [near[row] for row in result.fits.nonzero()[0].tolist()]
        nodes = [self._node(name, pod.priority) for name in near]
        choice = choose_victims(pod.demand, nodes, has_friends=self._has_friends(pod))
        if choice is None:
            return None
        fleet = Fleet()
        stay = [p.hold for p in self._on[choice.node] if self._stays(p) and p.pod.uid not in choice.victims]
        fleet.set(choice.node, gpu_rows(self._snapshot.nodes[choice.node][1], stay))
        hold = self._fit(fleet, pod)
        return None if hold is None else (choice, hold)

    def leaving_for(self, hold: Hold) -> frozenset[str]:
        """Return the pods on the node of `hold` that are on their way out."""
        return frozenset(p.pod.uid for p in self._on[hold.node] if p.pod.uid in self._leaving)

    def _node(self, name: str, priority: int) -> NodeGpus:
        tenants = tuple(
            Tenant(place.pod.uid, place.hold, self._rank(place, priority), place.pod.bound_ms)
            for place in self._on[name]
            if self._stays(place)
        )
        return NodeGpus(name, self._snapshot.nodes[name][1], tenants)

    def _nodes(self, pod: Pod) -> list[str]:
        manifest = pod.waiting or {}
        return [name for name, (facts, _) in self._snapshot.nodes.items() if admits(facts, manifest)]

    def _has_friends(self, pod: Pod) -> bool:
        label = pod.demand.affinity
        return bool(label) and any(
            place.hold.affinity == label and any(not share.whole for share in place.hold.shares)
            for place in self._snapshot.places
            if self._stays(place)
        )

    def _fit(self, fleet: Fleet, pod: Pod) -> Hold | None:
        near: Sequence[str] = [name for name in self._nodes(pod) if name in fleet]
        view = fleet.view(near, pod.demand, has_friends=self._has_friends(pod))
        result = survey(view, pod.demand, self._policy, reasons=False)
        best = best_of(near, result)
        if best is None:
            return None
        uuids = fleet.uuids(near[best])
        hold, _ = chosen_hold(pod, near[best], [uuids[column] for column in result.gpus[best].tolist()])
        return hold
