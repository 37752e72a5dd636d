# SPDX-License-Identifier: Apache-2.0
"""The holders of all GPUs: kept by list and watch, rebuilt from the API server at the start.

One thread at a time writes (`held`), and publishes arrays that never change. What is only read takes no lock: `find`
prices nodes by the version that was published last, and writes one place at the end, if its node is still as it was.

No GPU is given twice, because only `choose` gives: while it alone writes, it finds GPUs that neither BOUND, BINDING nor
another's RESERVED holds, and records BINDING before the API server hears of it. `places` says what these are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import replace
from typing import Any, Final

import numpy as np

from scheduler import nodes as node_objects
from scheduler.cpu_memory import Entry, comes_with_its_node, entry_of
from scheduler.finder import Cheapest, Finder, Found
from scheduler.gang_places import Muster, Near, Trial, places_for
from scheduler.held import Held
from scheduler.nodefit import admits
from scheduler.placement.best_fit import BestFit
from scheduler.placement.demand import Demand
from scheduler.placement.fleet_version import FleetVersion, Ints
from scheduler.placement.learner import Learner
from scheduler.placement.links import relinked
from scheduler.placement.policy import Policy
from scheduler.placement.prices import Prices, merged
from scheduler.placement.reasons import Why, explain
from scheduler.placement.survey import Survey, survey
from scheduler.places import FIRM, HoldKind, Place, nodes_of
from scheduler.pods import Hold, Pod, chosen_hold, gpu_rows, held_by, read_pod
from scheduler.snapshot import NodeView, Snapshot
from slicekeeper.clock import Clock
from slicekeeper.config.settings import Resources
from slicekeeper.errors import SlicekeeperError
from slicekeeper.gpu.inventory import is_slice
from slicekeeper.gpu.pod_manifest import asks_for
from slicekeeper.names import MIG
from slicekeeper.untyped import as_map

ReadObject = Mapping[str, Any]

TRIES: Final = 3
"""How often all is looked at again because the best node has changed. A place that is not held steers no other pod."""


class NoPlace(SlicekeeperError):
    """The pod cannot be bound to this node now; the message gives the reason."""

    code = "no-place"


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
        self._lost_ns = int(lost_seconds * 1_000_000_000)
        self._fresh_ns = int(min(fresh_seconds, hold_seconds) * 1_000_000_000)
        self._held = held = Held(clock)
        self._nodes, self._pods, self._places = held.nodes, held.pods, held.places
        self._finder = Finder(held.nodes)
        self._under_way: set[str] = set()
        """Pods of which a bind has not ended."""
        self._last: Demand | None = None
        """What was asked for last."""
        self._next: Demand | None = None
        """What is probably asked for next, if it is priced quickly: `look_ahead` keeps other calls waiting."""

    # Updates from the watches.

    def set_nodes(self, objects: Iterable[ReadObject]) -> None:
        """Replace all nodes by a list."""
        read = [node_objects.read(obj) for obj in objects]
        with self._held.writing():
            for name in self._nodes.gpus.keys() - {node.facts.name for node in read}:
                self._drop_node(name)
            for node in read:
                self._take_node(node)

    def set_node(self, obj: ReadObject) -> None:
        """Update one node."""
        node = node_objects.read(obj)
        with self._held.writing():
            self._take_node(node)

    def drop_node(self, name: str) -> None:
        """Forget a node; pods that are bound to it count again should it come back."""
        with self._held.writing():
            self._drop_node(name)

    def set_pods(self, objects: Iterable[ReadObject]) -> None:
        """Replace all managed pods by a list.

        A pod that is missing may have been made after the list was read, so what is BINDING for it stays.
        """
        pods = [_read_pod(obj, self.resources) for obj in objects]  # the slow part, outside the lock
        with self._held.writing():
            for pod, hold in pods:
                self._take(pod, hold)
            for uid in self._pods.uids() - {pod.uid for pod, _ in pods if pod is not None}:
                self._lose(uid)
                self._held.let_go(uid, lambda place: place.kind is not HoldKind.BINDING)

    def set_pod(self, obj: ReadObject) -> None:
        """Update one pod."""
        pod, hold = _read_pod(obj, self.resources)
        with self._held.writing():
            self._take(pod, hold)

    def drop_pod(self, uid: str) -> None:
        """Forget a pod that is gone, and free what it held."""
        with self._held.writing():
            self._lose(uid)
            self._held.put(uid, ())

    def set_others(self, objects: Iterable[ReadObject]) -> None:
        """Replace all bound pods that are not managed by a list, for the CPU and memory that they use."""
        # The slow part, outside the lock.
        entries = {_uid(obj): (entry_of(obj), self._wants_cores_alone(obj)) for obj in objects}
        with self._held.writing():
            gone = self._held.beside.uids() - entries.keys() - self._pods.uids()
            for uid, (entry, cores_alone) in (entries | dict.fromkeys(gone, (None, False))).items():
                self._take_other(uid, entry, cores_alone)

    def set_other(self, obj: ReadObject) -> None:
        """Update one bound pod that is not managed."""
        entry, cores_alone = entry_of(obj), self._wants_cores_alone(obj)
        with self._held.writing():
            self._take_other(_uid(obj), entry, cores_alone)

    def drop_other(self, uid: str) -> None:
        """Record that a bound pod that is not managed is gone, or has ended."""
        with self._held.writing():
            self._held.put_beside(uid, None)

    # What the extender asks.

    def pod(self, uid: str) -> Pod | None:
        """Return a managed pod by its UID."""
        return self._pods.get(uid)

    def agent(self, node: str) -> str:
        """Return the address of the node's agent; empty if unknown."""
        facts = self._nodes.facts.get(node)
        return facts.agent if facts else ""

    def avoid(self, node: str) -> None:
        """Prefer other nodes for a while."""
        with self._held.writing():
            self._nodes.avoid(node, self._clock.monotonic_ns())

    def find(self, pod: Pod, names: bytes, *, again: bool = False) -> Found:
        """Judge nodes for `pod`, and hold the best place for it (TENTATIVE), instead of the one held before.

        `names` is a JSON list. With `again` what the last call for this pod saw is used, if that is still known. If
        the best node has changed while all were judged, all are looked at again. Raises BadRequest.
        """
        self._held.end_due()
        roster = self._finder.roster(self._held.published)
        rows, unknown = roster.rows(names)
        for _ in range(TRIES):
            judged, version = (self._finder.seen(pod) if again else None) or self._judge(pod, rows)
            found = self._finder.found(roster, rows, unknown, judged)
            if found.best is None:
                break
            if self._hold_best(pod, found, int(found.rows[found.best]), int(found.fits.sum()), version):
                break
            again = False
        return found

    def look_ahead(self) -> None:
        """Price for the pod that comes next what the last one has changed, if they are probably alike.

        Pods of one controller come together, so a shape that was asked for twice is expected a third time.
        """
        expected = self._next
        if expected is not None:
            self._finder.cheapest(self._held.published, expected, self._learner.policy)

    def best(self, pod: Pod, names: bytes) -> str:
        """Return the best node for `pod`, and hold its place (TENTATIVE); empty if only `find` can tell.

        That is if it is none of the cheapest of the fleet, if something is held for the pod already, or if some nodes
        are to be avoided. numpy gives others their turn at every step over a whole fleet, so there is none here if
        `look_ahead` has made it.
        """
        self._held.end_due()
        self._expect(pod.demand)
        if self._nodes.avoided or self._places.of(pod.uid):
            return ""
        for _ in range(TRIES):
            found = self._finder.cheapest(self._held.published, pod.demand, self._learner.policy)
            row = found.roster.first_in(names, found.rows)
            if row < 0:
                return ""
            if self._hold_best(pod, found, row, found.fitting, found.version):
                return found.roster.names[row]
        return ""

    def _expect(self, demand: Demand) -> None:
        self._next = demand if demand == self._last and not demand.is_unequal else None
        self._last = demand

    def _judge(self, pod: Pod, rows: Ints) -> tuple[Survey, int]:
        """Return the answer for the whole fleet, without what is held for the pod itself, and the version it is of.

        `rows` are those that the pod may use.
        """
        if any(place.kind is HoldKind.TENTATIVE for place in self._places.of(pod.uid)):
            with self._held.writing():
                self._held.let_go(pod.uid, _is_tentative)
        policy = self._learner.policy
        judged, version = self._finder.prices.survey(self._held.published, pod.demand, policy)
        if not judged.fits[rows[rows < len(judged.fits)]].any() and self.drop_old_expectations():
            judged, version = self._finder.prices.survey(self._held.published, pod.demand, policy)
        if self._places.of(pod.uid):
            judged = self._judge_own(pod, judged, policy)
        self._finder.remember(pod, judged, version)
        return judged, version

    def _judge_own(self, pod: Pod, judged: Survey, policy: Policy) -> Survey:
        """Evaluate again the nodes on which something is held for the pod itself."""
        with self._held.writing():
            mine = nodes_of(self._places.of(pod.uid)) & self._nodes.gpus.keys()
            fleet = self._held.fleet_without(mine, lambda place: place.pod.uid == pod.uid).publish()
        own = np.array(sorted(row for row in map(fleet.row, mine) if 0 <= row < len(judged.fits)), np.int64)
        if not own.size:
            return judged
        return merged(judged, own, survey(fleet.view_rows(own, pod.demand), pod.demand, policy))

    def drop_old_expectations(self) -> bool:
        """Drop the TENTATIVE places that were not taken at once; return whether there were any.

        kube-scheduler binds within moments, or has chosen another node: such a place must not make a pod wait.
        """
        before_ns = self._clock.monotonic_ns() + self._hold_ns - self._fresh_ns
        with self._held.writing():
            old = [
                place.pod.uid
                for place in self._places.passing()
                if _is_tentative(place) and place.until_ns is not None and place.until_ns <= before_ns
            ]
            for uid in old:
                self._held.let_go(uid, _is_tentative)
        return bool(old)

    def _hold_best(self, pod: Pod, found: Found | Cheapest, row: int, among: int, version: int) -> bool:
        """Hold the best place for a pod, the best `among` so many; return False if its node has changed since."""
        node = found.roster.names[row]
        with self._held.writing():
            places = self._places.of(pod.uid)
            held = next(filter(_is_tentative, places), None)
            kept = [place for place in places if place is not held]
            if any(place.kind is not HoldKind.RESERVED for place in kept):
                self._held.put(pod.uid, kept)
                return True
            if held is None or held.hold.node != node:
                if self._held.fleet.row(node) != row or self._held.fleet.version_of(row) > version:
                    return False
                held = self._place(HoldKind.TENTATIVE, pod, node, found.judged, row)
                self._held.put(pod.uid, [*kept, held])
                held = replace(held, among=among, version=self._held.fleet.version_of(row))
            self._held.put(pod.uid, [*kept, replace(held, until_ns=self._clock.monotonic_ns() + self._hold_ns)])
            return True

    def is_reserved(self, uid: str) -> bool:
        """Whether the reclaimer has reserved a place for a pod."""
        self._held.end_due()
        return any(place.kind is HoldKind.RESERVED for place in self._places.of(uid))

    def fits_without(self, pod: Pod, node: str, gone: Set[str]) -> bool:
        """Whether the pod would fit on a node if the pods `gone` were; what others merely expect does not count."""
        with self._held.writing():
            if node not in self._held.fleet:
                return False
            fleet = self._held.fleet_without(
                [node], lambda place: place.pod.uid == pod.uid or place.pod.uid in gone or _is_tentative(place)
            )
        return bool(survey(fleet.view([node], pod.demand), pod.demand, self._learner.policy).fits[0])

    # Calls of the binder.

    def choose(self, pod: Pod, node: str) -> Place:
        """Choose GPUs on `node` for a binding and hold them; the same again if an earlier try's fate is unknown.

        Others' TENTATIVE places are spared if that is possible, and else taken. Until `bound`, `lost` or
        `refused` is called, no other try for this pod is let in. Raises NoPlace.
        """
        with self._held.writing():
            if pod.uid in self._under_way:
                raise NoPlace("another bind of this pod is under way; try again when it has ended")
            mine = self._places.of(pod.uid)
            place = next((p for p in mine if p.kind is HoldKind.BINDING and p.hold.node == node), None)
            if place is None:
                place = self._choose(pod, node)
            kept = [p for p in self._places.of(pod.uid) if not _is_tentative(p) and p is not place]
            self._held.put(pod.uid, [*kept, place])
            self._under_way.add(pod.uid)
            return place

    def _choose(self, pod: Pod, node: str) -> Place:
        if node not in self._held.fleet:
            raise NoPlace(explain(Why.DAMAGED if node in self._nodes.damaged else Why.NO_GPUS, pod.demand))
        why = self._why_there(pod, node)
        place = self._found(pod, node) or self._search(pod, node)
        return replace(place, why=f"{why}; {self._free_before(place)}")

    def _found(self, pod: Pod, node: str) -> Place | None:
        """Return the place that `find` holds for a pod there, None if anything may have changed for it since."""
        place = next((place for place in self._places.of(pod.uid) if _is_tentative(place)), None)
        if place is None or place.hold.node != node:
            return None
        if place.version != self._held.fleet.version_of(self._held.fleet.row(node)):
            return None
        if pod.demand.affinity or sum(piece.whole for piece in pod.demand.slices) > 1:
            return None  # other nodes count too; the best links are not found yet
        if (place.pod.request, place.pod.demand) != (pod.request, pod.demand):
            return None
        return replace(place, kind=HoldKind.BINDING, pod=pod, until_ns=None)

    def _search(self, pod: Pod, node: str) -> Place:
        mine = nodes_of(self._places.of(pod.uid))
        fleet = self._held.fleet_without(mine, lambda place: place.pod.uid == pod.uid).publish()
        result = self._linked(fleet, node, pod.demand)
        if not result.fits[0]:
            expected = nodes_of(filter(_is_tentative, self._places.passing()))
            fleet = self._held.fleet_without(
                mine | expected, lambda place: place.pod.uid == pod.uid or _is_tentative(place)
            ).publish()
            result = self._linked(fleet, node, pod.demand)
            if not result.fits[0]:
                raise NoPlace(explain(int(result.why[0]), pod.demand))
            for uid in {place.pod.uid for place in self._places.on(node)}:
                self._held.let_go(uid, _is_tentative)
        return self._place(HoldKind.BINDING, pod, node, result, 0)

    def _free_before(self, place: Place) -> str:
        """Return a description of what was free on the GPUs that a pod gets."""
        uuids = {share.uuid for share in place.hold.shares}
        if any(map(is_slice, uuids)):
            return "the smallest slices that fit" if len(uuids) > 1 else "the smallest slice that fits"
        node = place.hold.node
        others = (other.hold for other in self._places.on(node) if other.pod.uid != place.pod.uid)
        found = Counter(
            "idle" if gpu.idle else f"{gpu.core} percent and {gpu.memory} MiB free"
            for gpu in gpu_rows([gpu for gpu in self._nodes.gpus[node] if gpu.uuid in uuids], others)
        )
        return "GPU before: " + ", ".join(f"{n} times {text}" if n > 1 else text for text, n in found.items())

    def _why_there(self, pod: Pod, node: str) -> str:
        """Return a description of why a pod is placed on a node."""
        policy = self._learner.name
        for place in self._places.of(pod.uid):
            if place.kind is HoldKind.RESERVED and place.hold.node == node:
                return f"{policy}, for all pods of its gang together" if pod.gang else "room was made or kept for it"
            if place.kind is HoldKind.TENTATIVE and place.hold.node == node:
                return (
                    f"{policy}, the cheapest of {place.among} nodes with room" if place.among > 1 else "the only room"
                )
            if place.kind is HoldKind.TENTATIVE and self._are_equal(pod, node, place.hold.node):
                return f"{policy}, as good as node {place.hold.node}; kube-scheduler chose between them"
            if place.kind is HoldKind.TENTATIVE:
                return f"kube-scheduler's own rules; {policy} would have taken node {place.hold.node}"
        return "kube-scheduler's own rules"

    def _are_equal(self, pod: Pod, *nodes: str) -> bool:
        """Whether the policy found nodes equally good for a pod when they were last compared."""
        seen = self._finder.seen(pod)
        if seen is None:
            return False
        judged, rows = seen[0], [self._held.fleet.row(node) for node in nodes]
        fit = all(0 <= row < len(judged.fits) and judged.fits[row] for row in rows)
        return fit and len({int(judged.price[row]) for row in rows}) == 1

    def bound(self, uid: str, node: str) -> None:
        """Record that the pod is bound to `node`: what was held elsewhere is free, this stays until it is seen."""
        until = self._clock.monotonic_ns() + self._hold_ns
        with self._held.writing():
            self._under_way.discard(uid)
            places = self._places.of(uid)
            seen = [p for p in places if p.kind is HoldKind.BOUND]
            here = [replace(p, until_ns=until) for p in places if p.kind is HoldKind.BINDING and p.hold.node == node]
            self._held.put(uid, seen or here)

    def lost(self, uid: str, node: str) -> None:
        """Record that no answer came and the pod is not bound yet: it may still be, so the place stays."""
        until = self._clock.monotonic_ns() + self._lost_ns
        with self._held.writing():
            self._under_way.discard(uid)
            places = self._places.of(uid)
            mine = [p.kind is HoldKind.BINDING and p.hold.node == node for p in places]
            self._held.put(uid, [replace(p, until_ns=until) if at else p for p, at in zip(places, mine, strict=True)])

    def refused(self, uid: str, node: str) -> None:
        """Record that this try will not bind the pod; an earlier one whose answer was lost may yet do so."""
        with self._held.writing():
            self._under_way.discard(uid)
            self._held.let_go(uid, lambda p: p.kind is HoldKind.BINDING and p.hold.node == node and p.until_ns is None)

    def overdue(self) -> list[Pod]:
        """Return the pods to look at because no watch has shown them bound in time."""
        now = self._clock.monotonic_ns()
        with self._held.writing():
            due = {place.pod.uid: place.pod for place in self._places.passing() if place.is_due(now)}
            return [pod for uid, pod in due.items() if uid not in self._under_way]

    def looked(self, uid: str, obj: ReadObject | None) -> None:
        """Record what the API server says about an overdue pod; None: it has no such pod."""
        now = self._clock.monotonic_ns()
        pod = read_pod(obj, self.resources) if obj is not None else None
        with self._held.writing():
            if uid in self._under_way or not any(p.kind is HoldKind.BINDING for p in self._places.of(uid)):
                return
            if pod is None or pod.uid != uid or pod.finished:
                self._held.let_go(uid, lambda p: p.kind is HoldKind.BINDING)
            elif not pod.node:
                self._held.let_go(uid, lambda p: p.is_due(now))
            else:
                hold = held_by(pod, obj or {})
                self._held.put(uid, [Place(HoldKind.BINDING, pod, hold, now + self._hold_ns)] if hold else [])

    # Calls for gangs.

    @property
    def policy(self) -> Policy:
        """The policy as it is now."""
        return self._learner.policy

    def muster(self, key: str, asking: Pod | None = None) -> Muster | None:
        """Return the pods of a gang, None if it has none; `asking` counts even if no watch has shown it yet."""

        def is_binding(pod: Pod) -> bool:
            return any(place.kind is HoldKind.BINDING for place in self._places.of(pod.uid))

        with self._held.writing():
            return self._pods.muster(key, asking, is_binding)

    def version(self) -> int:
        """Return a number that increases with every change of what is held, or free."""
        self._held.end_due()
        return self._held.published.version

    def near(self, names: bytes) -> Near:
        """Return the nodes of a JSON list. Raises BadRequest."""
        roster = self._finder.roster(self._held.published)
        rows, _ = roster.rows(names)
        mask = np.zeros(len(roster.names), np.bool_)
        mask[rows] = True
        return Near(roster, mask)

    def trial(self, without: Set[str]) -> Trial:
        """Return a copy of all that is held, but for what is held for some pods, to place those on."""
        with self._held.writing():
            mine = {node for uid in without for node in nodes_of(self._places.of(uid))} & self._nodes.gpus.keys()
            version = self._held.fleet.version
            fleet = self._held.fleet_without(mine, lambda place: place.pod.uid in without)
        return Trial(
            fleet, self._finder.prices.copy(), self._finder.roster(fleet.publish()),
            facts=self._nodes.facts, gpus_of=lambda node: self._nodes.gpus.get(node, []),
            holds_of=lambda node: self._holds(node, without), version=version,
            avoided=list(self._nodes.avoided),
        )  # fmt: skip

    def most_if_idle(self, there: Muster) -> int:
        """Return how many of the pods of a gang that wait would find a place if nothing was held anywhere."""

        def begin() -> Trial:
            with self._held.writing():
                fleet = self._held.fleet.idle()
            return Trial(
                fleet, Prices(), self._finder.roster(fleet.publish()),
                facts=self._nodes.facts, gpus_of=lambda node: self._nodes.gpus.get(node, []), holds_of=lambda _: (),
            )  # fmt: skip

        return len(places_for(begin, there, {}, BestFit())[1])

    def _holds(self, node: str, without: Set[str]) -> list[Hold]:
        with self._held.writing():
            return [place.hold for place in self._places.on(node) if place.pod.uid not in without]

    def reserve_all(self, wanted: Sequence[tuple[Pod, Hold]], until_ns: int, *, version: int | None = None) -> bool:
        """Keep all these places for waiting pods, instead of those kept before, or none of them.

        Return False if a node has changed since `version`, or a pod is not waiting any more.
        """
        with self._held.writing():
            for pod, hold in wanted:
                row = self._held.fleet.row(hold.node)
                known = self._pods.get(pod.uid) or pod
                if (
                    row < 0
                    or (version is not None and self._held.fleet.version_of(row) > version)
                    or known.node
                    or known.leaving
                    or known.finished
                    or any(place.kind in FIRM for place in self._places.of(pod.uid))
                ):
                    return False
            for pod, hold in wanted:
                self._held.put(pod.uid, [Place(HoldKind.RESERVED, pod, hold, until_ns)])
            return True

    def keep_reserved(self, uids: Iterable[str], until_ns: int) -> None:
        """Extend the reservations of some pods."""
        with self._held.writing():
            for uid in uids:
                places = self._places.of(uid)
                longer = [replace(p, until_ns=until_ns) if p.kind is HoldKind.RESERVED else p for p in places]
                self._held.put(uid, longer)

    def are_kept(self, holds: Mapping[str, Hold]) -> bool:
        """Whether all pods, by UID, still have the places that were kept for them, or have got one."""
        self._held.end_due()
        return all(
            any(p.kind in FIRM or (p.kind, p.hold) == (HoldKind.RESERVED, hold) for p in self._places.of(uid))
            for uid, hold in holds.items()
        )

    # Calls of the reclaimer.

    def waiting(self) -> list[Pod]:
        """Return the pods without a node."""
        return self._pods.waiting()

    def may_yield(self) -> bool:
        """Whether any pod could give way, or is on its way out."""
        return self._pods.may_yield()

    def changes(self) -> int:
        """Return a number that increases with every change of nodes, pods or places."""
        return self._held.stirs + self._held.published.version

    def fits_now(self, pod: Pod) -> bool:
        """Whether the pod would fit on a node that admits it if it came now: as `find` judges that."""
        self._held.end_due()
        return self._fits_admitted(pod) or (self.drop_old_expectations() and self._fits_admitted(pod))

    def _fits_admitted(self, pod: Pod) -> bool:
        fleet = self._held.published
        judged, _ = self._finder.prices.survey(fleet, pod.demand, self._learner.policy)
        fitting = (fleet.names[row] for row in np.flatnonzero(judged.fits[: len(fleet.names)]).tolist())
        known = (self._nodes.facts.get(name) for name in fitting)
        return any(facts is not None and admits(facts, pod.waiting or {}) for facts in known)

    def stirred(self, *, everything: bool) -> dict[str, NodeView | None]:
        """Return the nodes that have changed since the last call, or all of them; None: it is gone, or has no GPUs."""
        with self._held.writing():
            stirred = self._held.stirred
            names = stirred | self._nodes.gpus.keys() if everything else stirred
            self._held.stirred = set()
            return {name: self._view(name) for name in names}

    def places_of(self, uids: Iterable[str]) -> list[Place]:
        """Return the places of some pods."""
        self._held.end_due()
        return [place for uid in uids for place in self._places.of(uid)]

    def snapshot(self) -> Snapshot:
        """Return the current nodes with GPUs, pods and places."""
        with self._held.writing():
            return Snapshot(self._nodes.with_gpus(), self._pods.every(), self._places.every())

    def reserve(self, pod: Pod, hold: Hold) -> bool:
        """Keep a place for a waiting pod, instead of one kept before; return False if it is not waiting any more."""
        until = self._clock.monotonic_ns() + self._hold_ns
        with self._held.writing():
            known = self._pods.get(pod.uid)
            if known is None or known.node or any(place.kind in FIRM for place in self._places.of(pod.uid)):
                return False
            self._held.put(pod.uid, [Place(HoldKind.RESERVED, pod, hold, until)])
            return True

    def release(self, uid: str) -> None:
        """Release the place reserved for a waiting pod."""
        with self._held.writing():
            self._held.let_go(uid, lambda place: place.kind is HoldKind.RESERVED)

    def learn(self) -> bool:
        """Make the policy again if enough pods have arrived since; return whether it was. May take a second."""
        with self._held.writing():
            models = self._held.fleet.models
            mix = self._learner.due(models)
        if mix is None:
            return False
        self._learner.learn(mix, models)
        return True

    def counts(self) -> Counter[HoldKind]:
        """Return the number of places by kind."""
        return self._places.counts()

    def totals(self) -> tuple[int, int, int, int]:
        """Return the number of nodes with GPUs, of GPUs, and their free compute (percent) and memory (MiB)."""
        fleet = self._held.published
        return len(fleet.row_of), *fleet.totals()

    # Below, only while writing.

    def _view(self, name: str) -> NodeView | None:
        gpus = self._nodes.gpus.get(name)
        if not gpus:
            return None
        here = [(self._pods.get(place.pod.uid), place) for place in self._places.on(name)]
        places = (place if pod is None or pod is place.pod else replace(place, pod=pod) for pod, place in here)
        return NodeView(self._nodes.facts[name], tuple(gpus), tuple(places))

    def _take_node(self, node: node_objects.Node) -> None:
        name = node.facts.name
        self._held.stirred.add(name)
        more = self._held.beside.set_node(name, node.offered)
        if self._nodes.put(node):
            self._held.refresh([name])
        elif more:
            self._held.recount(name)

    def _drop_node(self, name: str) -> None:
        self._nodes.drop(name)
        self._held.beside.set_node(name, None)
        self._held.refresh([name])

    def _take(self, pod: Pod | None, hold: Hold | None) -> None:
        known = self._pods.get(pod.uid) if pod is not None else None
        if pod is None or (known is not None and known.node and not pod.node):
            return  # nothing to hold for; or an old event: a pod never loses its node
        bound = (Place(HoldKind.BOUND, pod, hold),) if hold else ()
        if known == pod and pod.node and not pod.finished and self._places.of(pod.uid) == bound:
            return  # seen again: a list of all pods makes no garbage of what is known, and marks no node as changed
        if known is None and pod.managed:
            self._learner.arrivals.add(pod.demand)
        if known is not None and pod.finished:
            self._end(known)
        self._change(pod.uid)
        self._pods.put(pod)
        taken = (pod.node, pod.demand.cpu_milli, pod.demand.ram_mib)
        self._held.put_beside(pod.uid, taken if pod.node and not pod.finished else None)
        if pod.finished:
            self._held.put(pod.uid, ())
        elif pod.node:
            self._held.put(pod.uid, bound)

    def _lose(self, uid: str) -> None:
        known = self._pods.get(uid)
        if known is not None:
            self._end(known)
        self._change(uid)
        self._pods.forget(uid)
        self._held.put_beside(uid, None)

    def _end(self, known: Pod) -> None:
        if known.node and not known.finished and known.demand.mode != MIG:
            self._learner.arrivals.end()

    def _change(self, uid: str) -> None:
        self._held.stir(nodes_of(self._places.of(uid)))

    def _wants_cores_alone(self, obj: ReadObject) -> bool:
        """Whether a pod that arrives takes cores beside GPUs and no GPU; needs nothing but the pod."""
        return not asks_for(obj, (self.resources.core, self.resources.memory)) and not comes_with_its_node(obj)

    def _take_other(self, uid: str, entry: Entry | None, cores_alone: bool) -> None:
        if cores_alone and entry is not None and uid not in self._held.beside and entry[0] in self._held.fleet:
            self._learner.arrivals.add_without_gpus()
        self._held.put_beside(uid, entry)

    def _linked(self, fleet: FleetVersion, node: str, demand: Demand) -> Survey:
        """Return the answer for one node, with the whole GPUs that are linked best."""
        view = fleet.view([node], demand)
        result = survey(view, demand, self._learner.policy)
        if result.fits[0]:
            result.gpus[0] = relinked(self._nodes.gpus[node], view, 0, demand, result.gpus[0].tolist())
        return result

    def _place(self, kind: HoldKind, pod: Pod, node: str, result: Survey, row: int) -> Place:
        uuids = self._held.fleet.publish().uuids(node)
        hold, gpus = chosen_hold(pod, node, [uuids[column] for column in result.gpus[row].tolist()])
        until = self._clock.monotonic_ns() + self._hold_ns if kind is HoldKind.TENTATIVE else None
        return Place(kind, pod, hold, until, gpus)


def _is_tentative(place: Place) -> bool:
    return place.kind is HoldKind.TENTATIVE


def _read_pod(obj: ReadObject, resources: Resources) -> tuple[Pod | None, Hold | None]:
    pod = read_pod(obj, resources)
    return pod, held_by(pod, obj) if pod is not None and pod.node and not pod.finished else None


def _uid(obj: ReadObject) -> str:
    return str(as_map(obj.get("metadata")).get("uid", ""))
