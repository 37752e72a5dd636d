# SPDX-License-Identifier: Apache-2.0
"""Who holds which GPU: kept by list and watch, rebuilt from the API server at start, guarded by one lock.

A place is held for a pod in one of four ways:

- BOUND: the pod's own annotations say so. Ends with the pod. Only the watch makes and ends it.
- BINDING: `choose` gave it. Ends when the watch shows the pod bound, or when the API server has said that the pod is
  gone, or is not bound and no binding can be under way any more; never by time alone.
- TENTATIVE: `find` expects kube-scheduler to choose it, because it alone is scored with the most. The pod's next call
  replaces it, `choose` ends it, time ends it. It steers others elsewhere; nothing rests on it.
- RESERVED: the reclaimer made room there for a waiting pod, or its gang has its places. Ends when that pod is bound
  or gone, or by time.

No GPU is given twice, because only `choose` gives: under the lock it finds GPUs that neither BOUND, BINDING nor
another's RESERVED holds, and records BINDING before the API server hears of it.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from enum import Enum
from types import MappingProxyType
from typing import Any, Final

import numpy as np

from scheduler.cpu_memory import Amount, Beside, Entry, comes_with_its_node, entry_of, offered_by
from scheduler.gang_places import Muster, Near, Trial, muster
from scheduler.node_names import Roster
from scheduler.nodefit import NodeFacts, admits, read_node
from scheduler.placement.demand import Demand
from scheduler.placement.fleet import Bools, Fleet, Ints
from scheduler.placement.links import relinked
from scheduler.placement.policies import Learner
from scheduler.placement.policy import BestFit, Policy
from scheduler.placement.prices import Prices, merged
from scheduler.placement.survey import Survey, Why, best_of, explain, survey
from scheduler.pods import Hold, Pod, chosen_hold, gpu_rows, held_by, read_pod
from slicekeeper import names as marks
from slicekeeper.clock import Clock
from slicekeeper.config.settings import Resources
from slicekeeper.errors import SlicekeeperError
from slicekeeper.gpu import inventory
from slicekeeper.gpu.request import asks_for
from slicekeeper.untyped import as_map

log = logging.getLogger(__name__)

Object = Mapping[str, Any]

AVOID_NS: Final = 5_000_000_000

SURVEYS: Final = 16
"""Pods whose last survey is kept for the next call."""

TRIES: Final = 3
"""How often all is looked at again because the best node has changed. A place that is not held steers no other pod."""


NO_GPUS: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType({})


class HoldKind(Enum):
    """How a place is held."""

    BOUND = "bound"
    BINDING = "binding"
    TENTATIVE = "tentative"
    RESERVED = "reserved"


class NoPlace(SlicekeeperError):
    """The pod cannot be bound to this node now; the message says why."""

    code = "no-place"


@dataclass(frozen=True, slots=True)
class Place:
    """A hold for one pod.

    `until_ns` is when it ends; of BINDING, when the pod itself is to be looked at, None before the first answer.
    """

    kind: HoldKind
    pod: Pod
    hold: Hold
    until_ns: int | None = None
    gpus: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: NO_GPUS)
    """Each container's GPUs, where the scheduler chose them."""
    among: int = 0
    """Of TENTATIVE: how many nodes had room."""
    why: str = ""
    """Of BINDING: why the pod goes there, in words."""


@dataclass(frozen=True)
class Found:
    """The nodes asked for, by their rows in `judged`, the whole fleet's answer, and those not judged, with why."""

    roster: Roster
    rows: Ints
    judged: Survey
    fits: Bools
    price: Ints
    best: int | None
    """An index into `rows`, `fits` and `price`, which are in the order asked."""
    others: dict[str, Why]


@dataclass(frozen=True)
class NodeView:
    """A node with GPUs, and all places there with their pods as they are now."""

    facts: NodeFacts
    gpus: tuple[inventory.Gpu, ...]
    places: tuple[Place, ...]


@dataclass(frozen=True)
class Snapshot:
    """Nodes with GPUs, pods and places as they were at one instant."""

    nodes: dict[str, tuple[NodeFacts, tuple[inventory.Gpu, ...]]]
    pods: list[Pod]
    places: list[Place]

    def views(self) -> dict[str, NodeView]:
        """Return the nodes with the places there."""
        pods = {pod.uid: pod for pod in self.pods}
        here: dict[str, list[Place]] = {name: [] for name in self.nodes}
        for place in self.places:
            if place.hold.node in here:
                here[place.hold.node].append(replace(place, pod=pods.get(place.pod.uid, place.pod)))
        return {name: NodeView(facts, gpus, tuple(here[name])) for name, (facts, gpus) in self.nodes.items()}


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
        self._lock = threading.RLock()
        self._fleet = Fleet()
        self._prices = Prices(self._fleet, self._lock)
        self._roster, self._roster_of = Roster([]), 0
        self._beside = Beside()
        self._surveys: OrderedDict[str, tuple[Demand, Survey, int]] = OrderedDict()
        """What `find` saw last for a few pods: `prioritize` follows `filter` at once."""
        self._inventory: dict[str, list[inventory.Gpu]] = {}
        self._facts: dict[str, NodeFacts] = {}
        self._damaged: set[str] = set()
        self._pods: dict[str, Pod] = {}
        self._places: dict[str, list[Place]] = {}
        self._on_node: dict[str, dict[str, None]] = {}
        self._avoided: dict[str, int] = {}
        """Nodes that could not take a pod just now, and until when others are preferred."""
        self._passing: dict[str, None] = {}
        """Pods with a place that is not BOUND: few, looked through at every call."""
        self._under_way: set[str] = set()
        self._waiting: dict[str, Pod] = {}
        """Pods without a node: all that the reclaimer has to care for."""
        self._yielding: set[str] = set()
        """Pods on nodes that may have to give way, or are on their way out: without any, no eviction makes room."""
        self._gangs: dict[str, dict[str, None]] = {}
        """Each gang's pods."""
        self._musters: dict[str, Muster] = {}
        """What `muster` found, while none of the gang's pods and places has changed."""
        self._changes = 0
        self._stirred: set[str] = set()
        """Nodes that have changed since the reclaimer asked, or pods on them."""

    # What the watches bring.

    def set_nodes(self, objects: Iterable[Object]) -> None:
        """Replace all nodes by a list."""
        read = [_read_node(obj) for obj in objects]
        with self._lock:
            for name in self._inventory.keys() - {node.facts.name for node in read}:
                self.drop_node(name)
            for node in read:
                self._take_node(node)

    def set_node(self, obj: Object) -> None:
        """Put in one node as it is now."""
        node = _read_node(obj)
        with self._lock:
            self._take_node(node)

    def drop_node(self, name: str) -> None:
        """Forget a node; pods that are bound to it count again should it come back."""
        with self._lock:
            self._inventory.pop(name, None)
            self._facts.pop(name, None)
            self._damaged.discard(name)
            self._beside.set_node(name, None)
            self._refresh([name])

    def set_pods(self, objects: Iterable[Object]) -> None:
        """Replace all managed pods by a list.

        A pod that is missing may have been made after the list was read, so what is BINDING for it stays.
        """
        pods = [_read_pod(obj, self.resources) for obj in objects]  # the slow part, before the lock
        with self._lock:
            for pod, hold in pods:
                self._take(pod, hold)
            for uid in self._pods.keys() - {pod.uid for pod, _ in pods if pod is not None}:
                self._lose(uid)
                self._keep(uid, lambda place: place.kind is HoldKind.BINDING)

    def set_pod(self, obj: Object) -> None:
        """Put in one pod as it is now."""
        pod, hold = _read_pod(obj, self.resources)
        with self._lock:
            self._take(pod, hold)

    def drop_pod(self, uid: str) -> None:
        """Forget a pod that is gone, and free what it held."""
        with self._lock:
            self._lose(uid)
            self._put(uid, [])

    def set_bound(self, objects: Iterable[Object]) -> None:
        """Replace all bound pods by a list, managed or not, for the CPU and memory that they take."""
        # The slow part, before the lock.
        entries = {_uid(obj): (entry_of(obj), self._wants_cores_alone(obj)) for obj in objects}
        with self._lock:
            gone = dict.fromkeys(self._beside.uids() - entries.keys(), (None, False))
            changed = {node for uid, entry in (entries | gone).items() for node in self._put_beside(uid, *entry)}
            for node in changed:
                self._recount(node)

    def set_bound_pod(self, obj: Object) -> None:
        """Put in one bound pod as it is now."""
        entry, cores_alone = entry_of(obj), self._wants_cores_alone(obj)
        with self._lock:
            for node in self._put_beside(_uid(obj), entry, cores_alone):
                self._recount(node)

    def drop_bound_pod(self, uid: str) -> None:
        """Record that a bound pod is gone, or has ended."""
        with self._lock:
            for node in self._beside.put(uid, None):
                self._recount(node)

    # What the extender asks.

    def pod(self, uid: str) -> Pod | None:
        """Return a managed pod by its UID."""
        with self._lock:
            return self._pods.get(uid)

    def agent(self, node: str) -> str:
        """Return where the node's agent is asked whether it is ready, empty if nothing is known of that."""
        with self._lock:
            facts = self._facts.get(node)
            return facts.agent if facts else ""

    def avoid(self, node: str) -> None:
        """Prefer other nodes for a while."""
        with self._lock:
            self._avoided[node] = self._clock.monotonic_ns() + AVOID_NS

    def find(self, pod: Pod, names: bytes, *, again: bool = False) -> Found:
        """Judge nodes for `pod`, and hold the best place for it (TENTATIVE), instead of the one held before.

        `names` is a JSON list. With `again` what the last call for this pod saw is used, if that is still known. The
        lock is held for moments only, never while nodes are priced; if the best node has changed meanwhile, all is
        looked at again. Raises BadRequest.
        """
        roster = self._current_roster()
        rows, unknown = roster.rows(names)
        for _ in range(TRIES):
            judged, version = self._judge(pod, rows, again=again)
            found = self._found(roster, rows, unknown, judged)
            if found.best is None or self._hold_best(pod, found, version):
                break
            again = False
        return found

    def _current_roster(self) -> Roster:
        with self._lock:
            if self._roster_of != self._fleet.renamed:
                self._roster, self._roster_of = Roster(self._fleet.names_by_row()), self._fleet.renamed
            return self._roster

    def _judge(self, pod: Pod, rows: Ints, *, again: bool) -> tuple[Survey, int]:
        """Return the answer for the whole fleet, without what is held for the pod itself, and the version it is of.

        `rows` are those that the pod may use.
        """
        with self._lock:
            self._expire()
            known = self._surveys.get(pod.uid)
            if again and known is not None and known[0] == pod.demand:
                return known[1:]
            self._keep(pod.uid, lambda place: place.kind is not HoldKind.TENTATIVE)
        policy = self._learner.policy
        judged, version = self._prices.survey(pod.demand, policy)
        if not judged.fits[rows[rows < len(judged.fits)]].any() and self.drop_old_expectations():
            judged, version = self._prices.survey(pod.demand, policy)
        with self._lock:
            mine = {place.hold.node for place in self._places.get(pod.uid, ())}
            own = np.array(sorted(row for row in map(self._fleet.row, mine) if 0 <= row < len(judged.fits)), np.int64)
            if own.size:
                with self._without(lambda place: place.pod.uid == pod.uid):
                    view = self._fleet.view_rows(own, pod.demand)
                judged, version = merged(judged, own, survey(view, pod.demand, policy)), self._fleet.version
            self._surveys[pod.uid] = pod.demand, judged, version
            self._surveys.move_to_end(pod.uid)
            if len(self._surveys) > SURVEYS:
                self._surveys.popitem(last=False)
        return judged, version

    def drop_old_expectations(self) -> bool:
        """Drop the TENTATIVE places that were not taken at once; return whether there were any.

        kube-scheduler binds within moments, or has chosen another node: such a place must not make a pod wait.
        """
        before_ns = self._clock.monotonic_ns() + self._hold_ns - self._fresh_ns
        with self._lock:
            old = [
                place.pod.uid
                for uid in self._passing
                for place in self._places[uid]
                if place.kind is HoldKind.TENTATIVE and place.until_ns is not None and place.until_ns <= before_ns
            ]
            for uid in old:
                self._keep(uid, lambda place: place.kind is not HoldKind.TENTATIVE)
        return bool(old)

    def _found(self, roster: Roster, rows: Ints, unknown: Sequence[str], judged: Survey) -> Found:
        """Return the answer for the nodes of `rows`."""
        others = {name: Why.DAMAGED if name in self._damaged else Why.NO_GPUS for name in unknown}
        here = rows < len(judged.fits)
        if not here.all():  # nodes that have come since
            others |= {roster.names[row]: Why.NO_GPUS for row in rows[~here].tolist()}
            rows = rows[here]
        fits, price, rank = judged.fits[rows], judged.price[rows], roster.rank[rows]
        with self._lock:
            avoided = [row for row in map(self._fleet.row, self._avoided) if row >= 0]
        best = best_of(fits & ~np.isin(rows, avoided), price, rank) if avoided else None
        if best is None:
            best = best_of(fits, price, rank)
        return Found(roster, rows, judged, fits, price, best, others)

    def _hold_best(self, pod: Pod, found: Found, version: int) -> bool:
        """Hold the best place for a pod; return False if its node has changed since it was judged."""
        row = int(found.rows[found.best or 0])
        node = found.roster.names[row]
        with self._lock:
            places = self._places.get(pod.uid, [])
            held = next((place for place in places if place.kind is HoldKind.TENTATIVE), None)
            kept = [place for place in places if place is not held]
            if any(place.kind is not HoldKind.RESERVED for place in kept):
                self._put(pod.uid, kept)
                return True
            if held is None or held.hold.node != node:
                if self._fleet.row(node) != row or self._fleet.version_of(row) > version:
                    return False
                held = self._place(HoldKind.TENTATIVE, pod, node, found.judged, row)
                held = replace(held, among=int(found.fits.sum()))
            self._put(pod.uid, [*kept, replace(held, until_ns=self._clock.monotonic_ns() + self._hold_ns)])
            return True

    def choose(self, pod: Pod, node: str) -> Place:
        """Choose GPUs on `node` for a binding and hold them; the same again if an earlier try's fate is unknown.

        Others' TENTATIVE places are spared if that is possible, and else taken. Until `bound`, `lost` or
        `refused` is called, no other try for this pod is let in. Raises NoPlace.
        """
        with self._lock:
            self._expire()
            if pod.uid in self._under_way:
                raise NoPlace("another bind of this pod is under way; try again when it has ended")
            mine = self._places.get(pod.uid, [])
            place = next((p for p in mine if p.kind is HoldKind.BINDING and p.hold.node == node), None)
            if place is None:
                place = self._choose(pod, node)
            kept = [p for p in self._places.get(pod.uid, []) if p.kind is not HoldKind.TENTATIVE and p is not place]
            self._put(pod.uid, [*kept, place])
            self._under_way.add(pod.uid)
            return place

    def is_reserved(self, uid: str) -> bool:
        """Whether the reclaimer keeps a place for a pod."""
        with self._lock:
            self._expire()
            return any(place.kind is HoldKind.RESERVED for place in self._places.get(uid, []))

    def fits_without(self, pod: Pod, node: str, gone: Set[str]) -> bool:
        """Whether the pod would fit on a node if the pods `gone` were; what others merely expect does not count."""

        def ignored(place: Place) -> bool:
            return place.pod.uid == pod.uid or place.pod.uid in gone or place.kind is HoldKind.TENTATIVE

        with self._lock:
            if node not in self._fleet:
                return False
            self._refresh([node], ignored)
            try:
                return bool(self._survey([node], pod.demand).fits[0])
            finally:
                self._refresh([node])

    def _choose(self, pod: Pod, node: str) -> Place:
        if node not in self._fleet:
            raise NoPlace(explain(Why.DAMAGED if node in self._damaged else Why.NO_GPUS, pod.demand))
        why = self._why_there(pod, node)
        with self._without(lambda place: place.pod.uid == pod.uid):
            result = self._linked(node, pod.demand)
            free = self._free_before(node, pod.demand, result)
        if not result.fits[0]:
            with self._without(lambda place: place.pod.uid == pod.uid or place.kind is HoldKind.TENTATIVE):
                result = self._linked(node, pod.demand)
                free = self._free_before(node, pod.demand, result)
            if not result.fits[0]:
                raise NoPlace(explain(int(result.why[0]), pod.demand))
            for uid in list(self._on_node.get(node, ())):
                self._keep(uid, lambda place: place.kind is not HoldKind.TENTATIVE)
        return replace(self._place(HoldKind.BINDING, pod, node, result, 0), why=f"{why}; {free}")

    def _why_there(self, pod: Pod, node: str) -> str:
        """Return in words what led a pod to a node."""
        policy = self._learner.name
        for place in self._places.get(pod.uid, ()):
            if place.kind is HoldKind.RESERVED and place.hold.node == node:
                return f"{policy}, for all pods of its gang together" if pod.gang else "room was made or kept for it"
            if place.kind is HoldKind.TENTATIVE and place.hold.node == node:
                return (
                    f"{policy}, the cheapest of {place.among} nodes with room" if place.among > 1 else "the only room"
                )
            if place.kind is HoldKind.TENTATIVE:
                return f"kube-scheduler's own rules; {policy} would have taken node {place.hold.node}"
        return "kube-scheduler's own rules"

    def _free_before(self, node: str, demand: Demand, result: Survey) -> str:
        """Return in words what was free of the GPUs that a pod gets on a node."""
        view = self._fleet.view([node], demand)
        columns = dict.fromkeys(result.gpus[0].tolist())
        found = Counter(
            "idle" if view.idle[0, column] else f"{view.core[0, column]} percent and {view.memory[0, column]} MiB free"
            for column in columns
        )
        return "GPU before: " + ", ".join(f"{n} times {text}" if n > 1 else text for text, n in found.items())

    def bound(self, uid: str, node: str) -> None:
        """Record that the pod is bound to `node`: what was held elsewhere is free, this stays until it is seen."""
        until = self._clock.monotonic_ns() + self._hold_ns
        with self._lock:
            self._under_way.discard(uid)
            places = self._places.get(uid, [])
            seen = [p for p in places if p.kind is HoldKind.BOUND]
            here = [replace(p, until_ns=until) for p in places if p.kind is HoldKind.BINDING and p.hold.node == node]
            self._put(uid, seen or here)

    def lost(self, uid: str, node: str) -> None:
        """Record that no answer came and the pod is not bound yet: it may still be, so the place stays."""
        until = self._clock.monotonic_ns() + self._lost_ns
        with self._lock:
            self._under_way.discard(uid)
            places = self._places.get(uid, [])
            mine = [p.kind is HoldKind.BINDING and p.hold.node == node for p in places]
            self._put(uid, [replace(p, until_ns=until) if at else p for p, at in zip(places, mine, strict=True)])

    def refused(self, uid: str, node: str) -> None:
        """Record that this try will not bind the pod; an earlier one whose answer was lost may yet do so."""
        with self._lock:
            self._under_way.discard(uid)
            self._keep(uid, lambda p: p.kind is not HoldKind.BINDING or p.hold.node != node or p.until_ns is not None)

    def overdue(self) -> list[Pod]:
        """Return the pods to look at because no watch has shown them bound in time."""
        now = self._clock.monotonic_ns()
        with self._lock:
            return [
                place.pod
                for uid in self._passing
                if uid not in self._under_way
                for place in self._places[uid][:1]
                if any(_is_due(p, now) for p in self._places[uid])
            ]

    def looked(self, uid: str, obj: Object | None) -> None:
        """Record what the API server says about an overdue pod; None: it has no such pod."""
        now = self._clock.monotonic_ns()
        pod = read_pod(obj, self.resources) if obj is not None else None
        with self._lock:
            if uid in self._under_way or not any(p.kind is HoldKind.BINDING for p in self._places.get(uid, [])):
                return
            if pod is None or pod.uid != uid or pod.finished:
                self._keep(uid, lambda p: p.kind is not HoldKind.BINDING)
            elif not pod.node:
                self._keep(uid, lambda p: not _is_due(p, now))
            else:
                hold = held_by(pod, obj or {})
                self._put(uid, [Place(HoldKind.BINDING, pod, hold, now + self._hold_ns)] if hold else [])

    # What gangs need.

    @property
    def policy(self) -> Policy:
        """The policy as it is now."""
        return self._learner.policy

    def muster(self, key: str, asking: Pod | None = None) -> Muster | None:
        """Return the pods of a gang, None if it has none; `asking` counts even if no watch has shown it yet."""
        with self._lock:
            self._expire()
            members = self._gangs.get(key, {})
            unseen = [asking] if asking is not None and asking.uid not in members else []
            there = None if unseen else self._musters.get(key)
            if there is None:
                pods = (*(self._pods[uid] for uid in members), *unseen)
                there = muster(pods, lambda pod: any(p.kind is HoldKind.BINDING for p in self._places.get(pod.uid, ())))
                if there is not None and not unseen:
                    self._musters[key] = there
            return there

    def version(self) -> int:
        """Return a number that rises with every change of what is held, or free."""
        with self._lock:
            self._expire()
            return self._fleet.version

    def near(self, names: bytes) -> Near:
        """Return the nodes of a JSON list. Raises BadRequest."""
        roster = self._current_roster()
        rows, _ = roster.rows(names)
        mask = np.zeros(len(roster.names), np.bool_)
        mask[rows] = True
        return Near(roster, mask)

    def trial(self, without: Set[str]) -> Trial:
        """Return a copy of all that is held, but for what is held for some pods, to place those on."""
        with self._lock:
            self._expire()
            roster = self._current_roster()
            fleet, version = self._fleet.copy(), self._fleet.version
            prices = self._prices.copy(fleet)
            mine = {place.hold.node for uid in without for place in self._places.get(uid, ())}
            for node in mine & self._inventory.keys():
                if node in fleet:
                    fleet.set(node, gpu_rows(self._inventory[node], self._holds(node, without)))
            return Trial(
                fleet, prices, roster,
                facts=self._facts, gpus_of=lambda node: self._inventory.get(node, []),
                holds_of=lambda node: self._holds(node, without), version=version,
                avoided=list(self._avoided),
            )  # fmt: skip

    def most_if_idle(self, pods: Sequence[Pod]) -> int:
        """Return how many of some pods would find a place if nothing was held anywhere."""
        with self._lock:
            roster = self._current_roster()
            fleet = self._fleet.idle()
        trial = Trial(
            fleet, Prices(fleet, nullcontext()), roster,
            facts=self._facts, gpus_of=lambda node: self._inventory.get(node, []), holds_of=lambda _: (),
        )  # fmt: skip
        policy = BestFit()
        return len(trial.place(trial.fewest_places_first(pods, {}, policy), {}, policy))

    def _holds(self, node: str, without: Set[str]) -> list[Hold]:
        with self._lock:
            return [
                place.hold
                for uid in self._on_node.get(node, ())
                if uid not in without
                for place in self._places[uid]
                if place.hold.node == node
            ]

    def reserve_all(self, wanted: Sequence[tuple[Pod, Hold]], until_ns: int, *, version: int | None = None) -> bool:
        """Keep all these places for waiting pods, instead of those kept before, or none of them.

        Return False if a node has changed since `version`, or a pod is not waiting any more.
        """
        with self._lock:
            for pod, hold in wanted:
                row = self._fleet.row(hold.node)
                known = self._pods.get(pod.uid, pod)
                places = self._places.get(pod.uid, [])
                if (
                    row < 0
                    or (version is not None and self._fleet.version_of(row) > version)
                    or known.node or known.leaving or known.finished
                    or any(p.kind in (HoldKind.BOUND, HoldKind.BINDING) for p in places)
                ):  # fmt: skip
                    return False
            for pod, hold in wanted:
                self._put(pod.uid, [Place(HoldKind.RESERVED, pod, hold, until_ns)])
            return True

    def keep_reserved(self, uids: Iterable[str], until_ns: int) -> None:
        """Keep the places of some pods longer."""
        with self._lock:
            for uid in uids:
                places = self._places.get(uid, [])
                self._put(uid, [replace(p, until_ns=until_ns) if p.kind is HoldKind.RESERVED else p for p in places])

    def are_kept(self, holds: Mapping[str, Hold]) -> bool:
        """Whether all pods, by UID, still have the places that were kept for them, or have got one."""
        with self._lock:
            self._expire()
            return all(
                any(p.kind in (HoldKind.BOUND, HoldKind.BINDING) or (p.kind, p.hold) == (HoldKind.RESERVED, hold)
                    for p in self._places.get(uid, ()))
                for uid, hold in holds.items()
            )  # fmt: skip

    # What the reclaimer does.

    def waiting(self) -> list[Pod]:
        """Return the pods without a node."""
        with self._lock:
            return list(self._waiting.values())

    def may_yield(self) -> bool:
        """Whether any pod could give way, or is on its way out."""
        with self._lock:
            return bool(self._yielding)

    def changes(self) -> int:
        """Return a number that rises with every change of nodes, pods or places."""
        with self._lock:
            return self._changes + self._fleet.version

    def fits_now(self, pod: Pod) -> bool:
        """Whether the pod would fit on a node that admits it if it came now: as `find` judges that."""
        with self._lock:
            self._expire()
        return self._fits_admitted(pod) or (self.drop_old_expectations() and self._fits_admitted(pod))

    def _fits_admitted(self, pod: Pod) -> bool:
        judged, _ = self._prices.survey(pod.demand, self._learner.policy)
        rows = set(np.flatnonzero(judged.fits).tolist())
        if not rows:
            return False
        with self._lock:
            return any(
                self._fleet.row(name) in rows and admits(f, pod.waiting or {}) for name, f in self._facts.items()
            )

    def stirred(self, *, everything: bool) -> dict[str, NodeView | None]:
        """Return the nodes that have changed since the last call, or all of them; None: it is gone, or has no GPUs."""
        with self._lock:
            self._expire()
            names = self._stirred | self._inventory.keys() if everything else self._stirred
            self._stirred = set()
            return {name: self._view(name) for name in names}

    def places_of(self, uids: Iterable[str]) -> list[Place]:
        """Return the places of some pods."""
        with self._lock:
            self._expire()
            return [place for uid in uids for place in self._places.get(uid, ())]

    def snapshot(self) -> Snapshot:
        """Return nodes with GPUs, pods and places as they are."""
        with self._lock:
            self._expire()
            return Snapshot(
                {name: (self._facts[name], tuple(gpus)) for name, gpus in sorted(self._inventory.items()) if gpus},
                list(self._pods.values()),
                [place for places in self._places.values() for place in places],
            )

    def reserve(self, pod: Pod, hold: Hold) -> bool:
        """Keep a place for a waiting pod, instead of one kept before; return False if it is not waiting any more."""
        until = self._clock.monotonic_ns() + self._hold_ns
        with self._lock:
            known = self._pods.get(pod.uid)
            places = self._places.get(pod.uid, [])
            if known is None or known.node or any(p.kind in (HoldKind.BOUND, HoldKind.BINDING) for p in places):
                return False
            self._put(pod.uid, [Place(HoldKind.RESERVED, pod, hold, until)])
            return True

    def release(self, uid: str) -> None:
        """Give up the place kept for a waiting pod."""
        with self._lock:
            self._keep(uid, lambda place: place.kind is not HoldKind.RESERVED)

    def learn(self) -> bool:
        """Make the policy again if enough pods have arrived since; return whether it was. May take a second."""
        with self._lock:
            models = self._fleet.models
            mix = self._learner.due(models)
        if mix is None:
            return False
        self._learner.learn(mix, models)
        return True

    def counts(self) -> Counter[HoldKind]:
        """Return the number of places by kind."""
        with self._lock:
            return Counter(place.kind for places in self._places.values() for place in places)

    def totals(self) -> tuple[int, int, int, int]:
        """Return the number of nodes with GPUs, of GPUs, and their free compute (percent) and memory (MiB)."""
        with self._lock:
            return len(self._fleet), *self._fleet.totals()

    # Below, the lock is held.

    def _wants_cores_alone(self, obj: Object) -> bool:
        """Whether a pod that arrives takes cores beside GPUs and no GPU; takes no lock."""
        return not asks_for(obj, (self.resources.core, self.resources.memory)) and not comes_with_its_node(obj)

    def _put_beside(self, uid: str, entry: Entry | None, cores_alone: bool) -> Iterator[str]:
        """Record what a bound pod takes beside GPUs; yield the nodes whose sums change."""
        if cores_alone and entry is not None and uid not in self._beside and entry[0] in self._fleet:
            self._learner.arrivals.add_without_gpus()
        return self._beside.put(uid, entry)

    def _view(self, name: str) -> NodeView | None:
        gpus = self._inventory.get(name)
        if not gpus:
            return None
        here = [(self._pods.get(uid), self._places[uid]) for uid in self._on_node.get(name, ())]
        places = [
            place if pod is None or pod is place.pod else replace(place, pod=pod)
            for pod, mine in here
            for place in mine
            if place.hold.node == name
        ]
        return NodeView(self._facts[name], tuple(gpus), tuple(places))

    def _take_node(self, node: _Node) -> None:
        name = node.facts.name
        self._stirred.add(name)
        self._facts[name] = node.facts
        if node.damage:
            if name not in self._damaged:
                log.warning("node %s gets no pods: %s", name, node.damage)
            self._damaged.add(name)
        else:
            self._damaged.discard(name)
        more = self._beside.set_node(name, node.offered)
        if self._inventory.get(name) != node.gpus:
            self._inventory[name] = node.gpus
            self._refresh([name])
        elif more:
            self._recount(name)

    def _take(self, pod: Pod | None, hold: Hold | None) -> None:
        known = self._pods.get(pod.uid) if pod is not None else None
        if pod is None or (known is not None and known.node and not pod.node):
            return  # nothing to hold for; or an old event: a pod never loses its node
        bound = [Place(HoldKind.BOUND, pod, hold)] if hold else []
        if known == pod and pod.node and not pod.finished and self._places.get(pod.uid, []) == bound:
            return  # seen again: a list of all pods makes no garbage of what is known, and marks no node as changed
        if known is None and pod.managed:
            self._learner.arrivals.add(pod.demand)
        if known is not None and known.node and pod.finished and not known.finished:
            self._learner.arrivals.end()
        self._forget(pod.uid)
        self._pods[pod.uid] = pod
        if pod.gang is not None:
            self._gangs.setdefault(pod.gang.key, {})[pod.uid] = None
            self._musters.pop(pod.gang.key, None)
        if pod.finished:
            self._put(pod.uid, [])
            return
        if not pod.node:
            self._waiting[pod.uid] = pod
            return
        if pod.leaving or pod.budget_state == marks.OVER_BUDGET or pod.gpu_class == marks.BACKGROUND:
            self._yielding.add(pod.uid)
        self._put(pod.uid, bound)

    def _lose(self, uid: str) -> None:
        known = self._pods.get(uid)
        if known is not None and known.node and not known.finished:
            self._learner.arrivals.end()
        self._forget(uid)

    def _forget(self, uid: str) -> None:
        self._changes += 1
        self._stirred.update(place.hold.node for place in self._places.get(uid, ()))
        known = self._pods.pop(uid, None)
        if known is not None and known.gang is not None:
            members = self._gangs[known.gang.key]
            self._musters.pop(known.gang.key, None)
            del members[uid]
            if not members:
                del self._gangs[known.gang.key]
        self._waiting.pop(uid, None)
        self._yielding.discard(uid)

    def _survey(self, names: Sequence[str], demand: Demand) -> Survey:
        return survey(self._fleet.view(names, demand), demand, self._learner.policy)

    def _linked(self, node: str, demand: Demand) -> Survey:
        """Return the answer for one node, with the whole GPUs that are linked best."""
        view = self._fleet.view([node], demand)
        result = survey(view, demand, self._learner.policy)
        if result.fits[0]:
            result.gpus[0] = relinked(self._inventory[node], view, 0, demand, result.gpus[0].tolist())
        return result

    def _place(self, kind: HoldKind, pod: Pod, node: str, result: Survey, row: int) -> Place:
        uuids = self._fleet.uuids(node)
        hold, gpus = chosen_hold(pod, node, [uuids[column] for column in result.gpus[row].tolist()])
        until = self._clock.monotonic_ns() + self._hold_ns if kind is HoldKind.TENTATIVE else None
        return Place(kind, pod, hold, until, gpus)

    def _expire(self) -> None:
        now = self._clock.monotonic_ns()
        for uid in list(self._passing):
            if any(p.kind in _TIMED and p.until_ns is not None and p.until_ns <= now for p in self._places[uid]):
                self._keep(uid, lambda p: p.kind not in _TIMED or p.until_ns is None or p.until_ns > now)
        for node in [node for node, until_ns in self._avoided.items() if until_ns <= now]:
            del self._avoided[node]

    def _keep(self, uid: str, wanted: Callable[[Place], bool]) -> None:
        self._put(uid, [place for place in self._places.get(uid, []) if wanted(place)])

    def _put(self, uid: str, places: list[Place]) -> None:
        """Make `places` all that is held for a pod."""
        known = self._pods.get(uid)
        if known is not None and known.gang is not None:
            self._musters.pop(known.gang.key, None)
        before = self._places.pop(uid, [])
        if places:
            self._places[uid] = places
        if any(place.kind is not HoldKind.BOUND for place in places):
            self._passing[uid] = None
        else:
            self._passing.pop(uid, None)
        if [(p.kind, p.hold) for p in before] == [(p.kind, p.hold) for p in places]:
            return
        for node in {place.hold.node for place in before}:
            self._on_node[node].pop(uid, None)
        for place in places:
            self._on_node.setdefault(place.hold.node, {})[uid] = None
        self._refresh({place.hold.node for place in (*before, *places)})

    @contextmanager
    def _without(self, ignored: Callable[[Place], bool]) -> Iterator[None]:
        """Let the arrays leave out some passing places for a moment."""
        nodes = {p.hold.node for uid in self._passing for p in self._places[uid] if ignored(p)}
        self._refresh(nodes, ignored)
        try:
            yield
        finally:
            self._refresh(nodes)

    def _refresh(self, nodes: set[str] | Sequence[str], ignored: Callable[[Place], bool] | None = None) -> None:
        """Compute nodes' rows again from their GPUs and all that is held there."""
        self._stirred.update(nodes)
        for node in nodes:
            if not self._on_node.get(node):
                self._on_node.pop(node, None)
            gpus = self._inventory.get(node)
            if not gpus:
                self._fleet.remove(node)
                continue
            holds = [
                place.hold
                for uid in self._on_node.get(node, ())
                for place in self._places[uid]
                if place.hold.node == node and not (ignored and ignored(place))
            ]
            self._fleet.set(node, gpu_rows(gpus, holds))
            self._recount(node, ignored)

    def _recount(self, node: str, ignored: Callable[[Place], bool] | None = None) -> None:
        """Work out again what CPU and memory a node has free; pods that are about to be there count already."""
        if node not in self._fleet:
            return
        coming = (
            (uid, (place.pod.demand.cpu_milli, place.pod.demand.ram_mib))
            for uid in self._on_node.get(node, ())
            if uid in self._passing
            for place in self._places[uid]
            if place.hold.node == node and not (ignored and ignored(place))
        )
        self._fleet.set_beside(node, *self._beside.free(node, coming))


@dataclass(frozen=True)
class _Node:
    """What is kept of a Node object; `damage` says why its GPUs cannot be read, empty if they can."""

    facts: NodeFacts
    gpus: list[inventory.Gpu]
    offered: Amount | None
    damage: str


def _read_node(obj: Object) -> _Node:
    gpus: list[inventory.Gpu] = []
    damage = ""
    try:
        gpus = list({gpu.uuid: gpu for gpu in inventory.of_node(obj)}.values())
    except (ValueError, TypeError, AttributeError) as error:
        damage = str(error) or type(error).__name__
    return _Node(read_node(obj), gpus, offered_by(obj), damage)


def _read_pod(obj: Object, resources: Resources) -> tuple[Pod | None, Hold | None]:
    pod = read_pod(obj, resources)
    return pod, held_by(pod, obj) if pod is not None and pod.node and not pod.finished else None


_TIMED = (HoldKind.TENTATIVE, HoldKind.RESERVED)


def _is_due(place: Place, now: int) -> bool:
    return place.kind is HoldKind.BINDING and place.until_ns is not None and place.until_ns <= now


def _uid(obj: Object) -> str:
    return str(as_map(obj.get("metadata")).get("uid", ""))


def _name(obj: Object) -> str:
    return str(as_map(obj.get("metadata")).get("name", ""))
