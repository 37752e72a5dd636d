# SPDX-License-Identifier: Apache-2.0
"""The holders of all GPUs: kept by list and watch, rebuilt from the API server at the start.

One thread at a time writes (`cluster_state`), and publishes arrays that never change. What is only read takes no lock:
`find` prices nodes by the version that was published last, and writes one place at the end, if its node is still as it
was.

`watch_intake` records what the watches show, and `pending_bindings` gives GPUs. This file answers the extender, the
gangs and the reclaimer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import replace
from functools import partial
from typing import Final

import numpy as np

from scheduler.cluster_snapshot import NodeSnapshot, Snapshot, out_of_sight
from scheduler.cluster_state import ClusterState
from scheduler.gang_members import GangMembers
from scheduler.gang_places import OfferedNodes, Trial, places_for
from scheduler.held_places import FIRM, HoldKind, Place, is_tentative, nodes_of
from scheduler.node_finder import Cheapest, Found, NodeFinder
from scheduler.node_fit import admits
from scheduler.pending_bindings import PendingBindings
from scheduler.placement.best_fit import BestFit
from scheduler.placement.evaluation import Evaluation, evaluate
from scheduler.placement.evaluation_cache import EvaluationCache, merged
from scheduler.placement.fleet import Fleet
from scheduler.placement.fleet_version import Ints
from scheduler.placement.learner import Learner
from scheduler.placement.policy import Policy
from scheduler.pods import Hold, KnownPod
from scheduler.watch_intake import Intake
from slicekeeper.clock import Clock
from slicekeeper.config.settings import Resources

TRIES: Final = 3
"""How often nodes are evaluated again because the best one has changed. After that, the answer is given without a place
that steers other pods away."""


class SchedulerState:
    """Nodes, managed pods, and the places held. All methods are safe from any thread."""

    def __init__(
        self,
        resources: Resources,
        learner: Learner,
        clock: Clock,
        *,
        hold_seconds: float,
        lost_seconds: float,
        fresh_seconds: float = 2.0,
    ) -> None:
        self.resources = resources
        self._learner = learner
        self._clock = clock
        self._hold_ns = int(hold_seconds * 1_000_000_000)
        self._fresh_ns = int(min(fresh_seconds, hold_seconds) * 1_000_000_000)
        self._groups: dict[str, int] = {}
        """When kube-scheduler last asked about a pod of each PodGroup that may have TENTATIVE places."""
        self._cluster = cluster = ClusterState(clock)
        self._nodes, self._pods, self._places = cluster.nodes, cluster.pods, cluster.places
        self._finder = NodeFinder(cluster.nodes)
        self._new_trial = partial(
            Trial, facts=cluster.nodes.facts, gpus_of=lambda node: cluster.nodes.gpus.get(node, [])
        )
        self.intake = Intake(cluster, learner, resources)
        self.bindings = PendingBindings(
            cluster, self._finder, learner, resources, clock, hold_seconds=hold_seconds, lost_seconds=lost_seconds
        )

    # Calls of the extender and the binder.

    def pod(self, uid: str) -> KnownPod | None:
        """Return a managed pod by its UID."""
        return self._pods.get(uid)

    def agent(self, node: str) -> str:
        """Return the address of the node's agent; empty if unknown."""
        facts = self._nodes.facts.get(node)
        return facts.agent if facts else ""

    def avoid(self, node: str) -> None:
        """Prefer other nodes for a while."""
        with self._cluster.writing():
            self._nodes.avoid(node, self._clock.monotonic_ns())

    def end_former_groups(self, pod: KnownPod) -> None:
        """Drop the TENTATIVE places of PodGroups that kube-scheduler has given up, before it is told about `pod`.

        It asks about the pods of a group one after the other, about no other pod meanwhile, and then binds all or none.
        So a try has ended if it asks about a pod that has a place by that try, or, a little later, about another pod.
        The pods' conditions do not show every end: they stay as they are if the group is given up for the same reason.
        """
        if not (self._groups or pod.group):
            return
        now_ns, again = self._clock.monotonic_ns(), any(map(is_tentative, self._places.of(pod.uid)))
        with self._cluster.writing():
            ended = {
                group
                for group, asked_ns in self._groups.items()
                if (again if group == pod.group else asked_ns <= now_ns - self._fresh_ns)
            }
            for uid in {place.pod.uid for place in self._places.passing() if place.pod.group in ended}:
                self._cluster.drop_places(uid, is_tentative)
            for group in ended:
                del self._groups[group]
            if pod.group:
                self._groups[pod.group] = now_ns

    def find(self, pod: KnownPod, names: bytes, *, again: bool = False) -> Found:
        """Evaluate nodes for `pod`, and hold the best place for it (TENTATIVE), instead of the one held before.

        `names` is a JSON list. With `again`, the result of the last call for this pod is used if it is still known. If
        the best node has changed in the meantime, all are evaluated again. Raises BadRequest.
        """
        self._cluster.end_due()
        roster = self._finder.roster(self._cluster.published)
        rows, unknown = roster.rows(names)
        for _ in range(TRIES):
            evaluation, version = (self._finder.seen(pod) if again else None) or self._evaluate(pod, rows)
            found = self._finder.found(roster, rows, unknown, evaluation)
            if found.best is None:
                break
            if self._hold_best(pod, found, int(found.rows[found.best]), int(found.fits.sum()), version):
                break
            again = False
        return found

    def look_ahead(self) -> None:
        """Price for the pod that comes next what the last one has changed."""
        self._finder.look_ahead(self._cluster.published, self._learner.policy)

    def best(self, pod: KnownPod, names: bytes) -> str:
        """Return the best node for `pod`, and hold its place (TENTATIVE); empty if only `find` can tell.

        That is if it is none of the cheapest of the fleet, if something is held for the pod already, or if some nodes
        are to be avoided. numpy gives others their turn at every step over a whole fleet, so there is none here if
        `look_ahead` has made it.
        """
        self._cluster.end_due()
        self._finder.expect_another(pod.demand)
        if self._nodes.avoided or self._places.of(pod.uid):
            return ""
        for _ in range(TRIES):
            found = self._finder.cheapest(self._cluster.published, pod.demand, self._learner.policy)
            row = found.roster.first_in(names, found.rows)
            if row < 0:
                return ""
            if self._hold_best(pod, found, row, found.fitting, found.version):
                return found.roster.names[row]
        return ""

    def _evaluate(self, pod: KnownPod, rows: Ints) -> tuple[Evaluation, int]:
        """Return the answer for the whole fleet, without what is held for the pod itself, and the version it is of.

        `rows` are those that the pod may use.
        """
        if any(place.kind is HoldKind.TENTATIVE for place in self._places.of(pod.uid)):
            with self._cluster.writing():
                self._cluster.drop_places(pod.uid, is_tentative)
        policy = self._learner.policy
        evaluation, version = self._finder.cache.evaluate(self._cluster.published, pod.demand, policy)
        if not evaluation.fits[rows[rows < len(evaluation.fits)]].any() and self.drop_old_expectations():
            evaluation, version = self._finder.cache.evaluate(self._cluster.published, pod.demand, policy)
        if self._places.of(pod.uid):
            evaluation = self._evaluate_own(pod, evaluation, policy)
        self._finder.remember(pod, evaluation, version)
        return evaluation, version

    def _evaluate_own(self, pod: KnownPod, evaluation: Evaluation, policy: Policy) -> Evaluation:
        """Evaluate again the nodes on which something is held for the pod itself."""
        with self._cluster.writing():
            mine = nodes_of(self._places.of(pod.uid)) & self._nodes.gpus.keys()
            fleet = self._cluster.fleet_without(mine, lambda place: place.pod.uid == pod.uid, uid=pod.uid).publish()
        own = np.array(sorted(row for row in map(fleet.row, mine) if 0 <= row < len(evaluation.fits)), np.int64)
        if not own.size:
            return evaluation
        return merged(evaluation, own, evaluate(fleet.view_rows(own, pod.demand), pod.demand, policy))

    def drop_old_expectations(self) -> bool:
        """Drop the TENTATIVE places that were not taken at once; return whether there were any.

        kube-scheduler binds within moments, or has chosen another node: such a place must not make a pod wait.
        """
        before_ns = self._clock.monotonic_ns() + self._hold_ns - self._fresh_ns
        with self._cluster.writing():
            old = [
                place.pod.uid
                for place in self._places.passing()
                if is_tentative(place) and place.until_ns is not None and place.until_ns <= before_ns
            ]
            for uid in old:
                self._cluster.drop_places(uid, is_tentative)
        return bool(old)

    def _hold_best(self, pod: KnownPod, found: Found | Cheapest, row: int, among: int, version: int) -> bool:
        """Hold the best place for a pod, the best of `among`; return False if its node has changed since."""
        node = found.roster.names[row]
        with self._cluster.writing():
            places = self._places.of(pod.uid)
            held = next(filter(is_tentative, places), None)
            kept = [place for place in places if place is not held]
            # A pod that is bound, or being bound, needs no other place; one that is reserved may get a better one.
            if any(place.kind is not HoldKind.RESERVED for place in kept):
                self._cluster.put(pod.uid, kept)
                return True
            if held is None or held.hold.node != node:
                if self._cluster.fleet.row(node) != row or self._cluster.fleet.version_of(row) > version:
                    return False
                held = self._cluster.place(HoldKind.TENTATIVE, pod, node, found.evaluation.gpus[row].tolist())
                self._cluster.put(pod.uid, [*kept, held])
                held = replace(held, among=among, version=self._cluster.fleet.version_of(row))
            self._cluster.put(pod.uid, [*kept, replace(held, until_ns=self._clock.monotonic_ns() + self._hold_ns)])
            return True

    def is_reserved(self, uid: str) -> bool:
        """Whether the reclaimer has reserved a place for a pod."""
        self._cluster.end_due()
        return any(place.kind is HoldKind.RESERVED for place in self._places.of(uid))

    def fits_without(self, pod: KnownPod, node: str, gone: Set[str]) -> bool:
        """Whether the pod would fit on a node if the pods `gone` were; what others merely expect does not count."""
        with self._cluster.writing():
            if node not in self._cluster.fleet:
                return False
            fleet = self._cluster.fleet_without(
                [node], lambda place: place.pod.uid == pod.uid or place.pod.uid in gone or is_tentative(place)
            )
        return bool(evaluate(fleet.view([node], pod.demand), pod.demand, self._learner.policy).fits[0])

    # Calls for gangs.

    @property
    def policy(self) -> Policy:
        """The policy as it is now."""
        return self._learner.policy

    def gang_members(self, key: str, asking: KnownPod | None = None) -> GangMembers | None:
        """Return the pods of a gang, None if it has none; `asking` counts even if no watch has shown it yet."""

        def is_binding(pod: KnownPod) -> bool:
            return any(place.kind is HoldKind.BINDING for place in self._places.of(pod.uid))

        with self._cluster.writing():
            return self._pods.gang_members(key, asking, is_binding)

    def note_succeeded(self, key: str, succeeded: Mapping[str, int]) -> None:
        """Record how many pods of each controller of a gang have succeeded, also those that were removed."""
        with self._cluster.writing():
            self._pods.note_succeeded(key, succeeded)

    def version(self) -> int:
        """Return a number that increases with every change of the held places or the free GPUs."""
        self._cluster.end_due()
        return self._cluster.published.version

    def offered_nodes(self, names: bytes) -> OfferedNodes:
        """Return the nodes of a JSON list. Raises BadRequest."""
        roster = self._finder.roster(self._cluster.published)
        rows, _ = roster.rows(names)
        mask = np.zeros(len(roster.names), np.bool_)
        mask[rows] = True
        return OfferedNodes(roster, mask)

    def trial(self, without: Set[str]) -> Trial:
        """Return a copy of all held places except those of the pods `without`, to place these pods on."""
        with self._cluster.writing():
            mine = {node for uid in without for node in nodes_of(self._places.of(uid))} & self._nodes.gpus.keys()
            version = self._cluster.fleet.version
            fleet = self._cluster.fleet_without(mine, lambda place: place.pod.uid in without)
        return self._new_trial(
            fleet,
            self._finder.cache.copy(),
            self._finder.roster(fleet.publish()),
            holds_of=partial(self._holds, without=without),
            version=version,
            avoided=list(self._nodes.avoided),
        )

    def most_if_idle(self, members: GangMembers) -> int:
        """Return how many of a gang's waiting pods would find a place if no pod held any."""

        def begin() -> Trial:
            fleet = Fleet(self._cluster.published).idle()
            return self._new_trial(
                fleet, EvaluationCache(), self._finder.roster(fleet.publish()), holds_of=lambda _: ()
            )

        return len(places_for(begin, members, {}, BestFit())[1])

    def _holds(self, node: str, without: Set[str]) -> list[Hold]:
        with self._cluster.writing():
            return [place.hold for place in self._places.on(node) if place.pod.uid not in without]

    def reserve(self, wanted: Sequence[tuple[KnownPod, Hold]], until_ns: int, *, version: int | None = None) -> bool:
        """Keep all these places for waiting pods, instead of those kept before, or none of them.

        Return False if a node has changed since `version`, or a pod is not waiting any more.
        """
        with self._cluster.writing():
            for pod, hold in wanted:
                row = self._cluster.fleet.row(hold.node)
                known = self._pods.get(pod.uid) or pod
                if (
                    row < 0
                    or (version is not None and self._cluster.fleet.version_of(row) > version)
                    or known.node
                    or known.leaving
                    or known.finished
                    or any(place.kind in FIRM for place in self._places.of(pod.uid))
                ):
                    return False
            for pod, hold in wanted:
                self._cluster.put(pod.uid, [Place(HoldKind.RESERVED, pod, hold, until_ns)])
            return True

    def keep_reserved(self, uids: Iterable[str], until_ns: int) -> None:
        """Extend the reservations of some pods."""
        with self._cluster.writing():
            for uid in uids:
                places = self._places.of(uid)
                longer = [replace(p, until_ns=until_ns) if p.kind is HoldKind.RESERVED else p for p in places]
                self._cluster.put(uid, longer)

    def are_kept(self, holds: Mapping[str, Hold]) -> bool:
        """Whether all pods, by UID, still have the places that were kept for them, or have got one."""
        self._cluster.end_due()
        return all(
            any(p.kind in FIRM or (p.kind, p.hold) == (HoldKind.RESERVED, hold) for p in self._places.of(uid))
            for uid, hold in holds.items()
        )

    # Calls of the reclaimer.

    def waiting(self) -> list[KnownPod]:
        """Return the pods without a node."""
        return self._pods.waiting()

    def may_yield(self) -> bool:
        """Whether any pod could give way, or is terminating."""
        return self._pods.may_yield()

    def changes(self) -> int:
        """Return a number that increases with every change of nodes, pods or places."""
        return self._cluster.unpublished_changes + self._cluster.published.version

    def fits_now(self, pod: KnownPod) -> bool:
        """Whether the pod would fit on a node that admits it if it came now, as `find` would judge."""
        self._cluster.end_due()
        return self._fits_admitted(pod) or (self.drop_old_expectations() and self._fits_admitted(pod))

    def _fits_admitted(self, pod: KnownPod) -> bool:
        fleet = self._cluster.published
        evaluation, _ = self._finder.cache.evaluate(fleet, pod.demand, self._learner.policy)
        fitting = (fleet.names[row] for row in np.flatnonzero(evaluation.fits[: len(fleet.names)]).tolist())
        known = (self._nodes.facts.get(name) for name in fitting)
        return any(facts is not None and admits(facts, pod.waiting or {}) for facts in known)

    def changed_nodes(self, *, everything: bool) -> dict[str, NodeSnapshot | None]:
        """Return the nodes that have changed since the last call, or all of them.

        None: the node shows no GPUs, and has no pod with an affinity label that others have to join.
        """
        with self._cluster.writing():
            names = self._cluster.changed_nodes
            if everything:
                names = names | self._nodes.gpus.keys() | self._places.nodes()
            self._cluster.changed_nodes = set()
            return {name: self._view(name) for name in names}

    def places_of(self, uids: Iterable[str]) -> list[Place]:
        """Return the places of some pods."""
        self._cluster.end_due()
        return [place for uid in uids for place in self._places.of(uid)]

    def snapshot(self) -> Snapshot:
        """Return the current nodes with GPUs, pods and places."""
        with self._cluster.writing():
            nodes, pods, places = self._nodes.with_gpus(), self._pods.every(), self._places.every()
            fleet = self._cluster.published
        cpu_memory = {name: fleet.cpu_memory(name) for name in nodes}
        return Snapshot(nodes, pods, places, cpu_memory, self._pods.succeeded())

    def release(self, uid: str) -> None:
        """Release the place reserved for a waiting pod."""
        with self._cluster.writing():
            self._cluster.drop_places(uid, lambda place: place.kind is HoldKind.RESERVED)

    def learn(self) -> None:
        """Update the policy if enough pods have arrived since the last time. May take a second."""
        with self._cluster.writing():
            fleet = self._cluster.published
            mix = self._learner.due(fleet.models)
        if mix is not None:
            self._learner.learn(mix, fleet)

    def counts(self) -> Counter[HoldKind]:
        """Return the number of places by kind."""
        return self._places.counts()

    def totals(self) -> tuple[int, int, int, int]:
        """Return the number of nodes with GPUs, of GPUs, and their free compute (percent) and memory (MiB)."""
        fleet = self._cluster.published
        return len(fleet.row_of), *fleet.totals()

    # Below, only while writing.

    def _view(self, name: str) -> NodeSnapshot | None:
        gpus = self._nodes.gpus.get(name, [])
        held = [place for place in self._places.on(name) if gpus or place.hold.affinity]
        if not gpus and not held:
            return None
        here = [(self._pods.get(place.pod.uid), place) for place in held]
        places = (place if pod is None or pod is place.pod else replace(place, pod=pod) for pod, place in here)
        facts = self._nodes.facts[name] if gpus else out_of_sight(name)
        return NodeSnapshot(facts, tuple(gpus), tuple(places))
