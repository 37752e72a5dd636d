# SPDX-License-Identifier: Apache-2.0
"""Who holds which GPU: kept by list and watch, rebuilt from the API server at start, guarded by one lock.

A place is held for a pod in one of four ways:

- BOUND: the pod's own annotations say so. Ends with the pod. Only the watch makes and ends it.
- BINDING: `choose` gave it. Ends when the watch shows the pod bound, or when the API server has said that the pod is
  gone, or is not bound and no binding can be under way any more; never by time alone.
- TENTATIVE: `find` expects kube-scheduler to choose it, because it alone is scored with the most. The pod's next call
  replaces it, `choose` ends it, time ends it. It steers others elsewhere; nothing rests on it.
- RESERVED: the reclaimer made room there for a waiting pod. Ends when that pod is bound or gone, or by time.

No GPU is given twice, because only `choose` gives: under the lock it finds GPUs that neither BOUND, BINDING nor
another's RESERVED holds, and records BINDING before the API server hears of it.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Container, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, Final

import numpy as np

from scheduler.demand import Demand
from scheduler.fleet import Fleet
from scheduler.nodefit import NodeFacts, read_node
from scheduler.placement import Survey, Why, explain, survey
from scheduler.pods import Hold, Pod, chosen_hold, gpu_rows, held_by, read_pod
from scheduler.policy import Policy
from slicekeeper import inventory
from slicekeeper.clock import Clock
from slicekeeper.errors import SlicekeeperError
from slicekeeper.request import as_map
from slicekeeper.settings import Resources

log = logging.getLogger(__name__)

Object = Mapping[str, Any]

AVOID_NS: Final = 5_000_000_000


class Kind(Enum):
    """How a place is held."""

    BOUND = "bound"
    BINDING = "binding"
    TENTATIVE = "tentative"
    RESERVED = "reserved"


class NoPlace(SlicekeeperError):
    """The pod cannot be bound to this node now; the message says why."""

    code = "no-place"


@dataclass(frozen=True)
class Place:
    """A hold for one pod.

    `until_ns` is when it ends; of BINDING, when the pod itself is to be looked at, None before the first answer.
    """

    kind: Kind
    pod: Pod
    hold: Hold
    until_ns: int | None = None
    gpus: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Each container's GPUs, where the scheduler chose them."""


@dataclass(frozen=True)
class Found:
    """The nodes asked for: `names` in `survey`'s order, `best` among them, and those that were not judged, with why."""

    names: list[str]
    survey: Survey
    best: int | None
    others: dict[str, Why]


@dataclass(frozen=True)
class Snapshot:
    """All that the reclaimer looks at, as it was at one instant."""

    nodes: dict[str, tuple[NodeFacts, tuple[inventory.Gpu, ...]]]
    pods: list[Pod]
    places: list[Place]


class State:
    """Nodes, managed pods, and the places held. All methods are safe from any thread."""

    def __init__(
        self, resources: Resources, policy: Policy, clock: Clock, *, hold_seconds: float, lost_seconds: float
    ) -> None:
        self.resources = resources
        self._policy = policy
        self._clock = clock
        self._hold_ns = int(hold_seconds * 1_000_000_000)
        self._lost_ns = int(lost_seconds * 1_000_000_000)
        self._lock = threading.RLock()
        self._fleet = Fleet()
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

    # What the watches bring.

    def set_nodes(self, objects: Sequence[Object]) -> None:
        """Take the whole list of nodes in place of what was known."""
        with self._lock:
            for name in self._inventory.keys() - {_name(obj) for obj in objects}:
                self.drop_node(name)
            for obj in objects:
                self.set_node(obj)

    def set_node(self, obj: Object) -> None:
        """Take one node as it is now."""
        name = _name(obj)
        with self._lock:
            self._facts[name] = read_node(obj)
            gpus: list[inventory.Gpu] = []
            try:
                gpus = list({gpu.uuid: gpu for gpu in inventory.of_node(obj)}.values())
                self._damaged.discard(name)
            except (ValueError, TypeError, AttributeError) as error:
                if name not in self._damaged:
                    log.warning("node %s gets no pods: %s", name, error)
                self._damaged.add(name)
            if self._inventory.get(name) != gpus:
                self._inventory[name] = gpus
                self._refresh([name])

    def drop_node(self, name: str) -> None:
        """Forget a node; pods that are bound to it count again should it come back."""
        with self._lock:
            self._inventory.pop(name, None)
            self._facts.pop(name, None)
            self._damaged.discard(name)
            self._refresh([name])

    def set_pods(self, objects: Sequence[Object]) -> None:
        """Take the whole list of managed pods in place of what was known.

        A pod that is missing may have been made after the list was read, so what is BINDING for it stays.
        """
        pods = [(read_pod(obj, self.resources), obj) for obj in objects]  # the slow part, before the lock
        with self._lock:
            for pod, obj in pods:
                self._take(pod, obj)
            for uid in self._pods.keys() - {pod.uid for pod, _ in pods if pod is not None}:
                del self._pods[uid]
                self._keep(uid, lambda place: place.kind is Kind.BINDING)

    def set_pod(self, obj: Object) -> None:
        """Take one pod as it is now."""
        pod = read_pod(obj, self.resources)
        with self._lock:
            self._take(pod, obj)

    def drop_pod(self, uid: str) -> None:
        """Forget a pod that is gone, and free what it held."""
        with self._lock:
            self._pods.pop(uid, None)
            self._put(uid, [])

    # What the extender asks.

    def pod(self, uid: str) -> Pod | None:
        """Return a managed pod by its UID."""
        with self._lock:
            return self._pods.get(uid)

    def agent(self, node: str) -> str:
        """Return where the node's agent is asked whether it is ready, empty where nothing is known of that."""
        with self._lock:
            facts = self._facts.get(node)
            return facts.agent if facts else ""

    def avoid(self, node: str) -> None:
        """Prefer other nodes for a while."""
        with self._lock:
            self._avoided[node] = self._clock.monotonic_ns() + AVOID_NS

    def find(self, pod: Pod, names: Sequence[str]) -> Found:
        """Judge nodes for `pod`, and hold the best place for it (TENTATIVE), instead of the one held before."""
        with self._lock:
            self._expire()
            known = self._fleet.known(names)
            others = {
                name: Why.DAMAGED if name in self._damaged else Why.NO_GPUS
                for name in (names if len(known) < len(names) else ())
                if name not in self._fleet
            }
            with self._without(lambda place: place.pod.uid == pod.uid):
                result = self._survey(known, pod.demand)
            best = best_of(known, result, self._avoided)
            places = [p for p in self._places.get(pod.uid, []) if p.kind is not Kind.TENTATIVE]
            if best is not None and all(p.kind is Kind.RESERVED for p in places):
                places.append(self._place(Kind.TENTATIVE, pod, known[best], result, best))
            self._put(pod.uid, places)
            return Found(known, result, best, others)

    def choose(self, pod: Pod, node: str) -> Place:
        """Choose GPUs on `node` for a binding and hold them; the same again where an earlier try's fate is unknown.

        Others' TENTATIVE places are spared where that is possible, and taken where not. Until `bound`, `lost` or
        `refused` is called, no other try for this pod is let in. Raises NoPlace.
        """
        with self._lock:
            self._expire()
            if pod.uid in self._under_way:
                raise NoPlace("another bind of this pod is under way; try again when it has ended")
            mine = self._places.get(pod.uid, [])
            place = next((p for p in mine if p.kind is Kind.BINDING and p.hold.node == node), None)
            if place is None:
                place = self._choose(pod, node)
            kept = [p for p in self._places.get(pod.uid, []) if p.kind is not Kind.TENTATIVE and p is not place]
            self._put(pod.uid, [*kept, place])
            self._under_way.add(pod.uid)
            return place

    def is_reserved(self, uid: str) -> bool:
        """Whether the reclaimer keeps a place for a pod."""
        with self._lock:
            self._expire()
            return any(place.kind is Kind.RESERVED for place in self._places.get(uid, []))

    def fits_without(self, pod: Pod, node: str, gone: Set[str]) -> bool:
        """Whether the pod would fit on a node if the pods `gone` were; what others merely expect does not count."""

        def ignored(place: Place) -> bool:
            return place.pod.uid == pod.uid or place.pod.uid in gone or place.kind is Kind.TENTATIVE

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
        with self._without(lambda place: place.pod.uid == pod.uid):
            result = self._survey([node], pod.demand)
        if not result.fits[0]:
            with self._without(lambda place: place.pod.uid == pod.uid or place.kind is Kind.TENTATIVE):
                result = self._survey([node], pod.demand)
            if not result.fits[0]:
                raise NoPlace(explain(int(result.why[0]), pod.demand))
            for uid in list(self._on_node.get(node, ())):
                self._keep(uid, lambda place: place.kind is not Kind.TENTATIVE)
        return self._place(Kind.BINDING, pod, node, result, 0)

    def bound(self, uid: str, node: str) -> None:
        """Take that the pod is bound to `node`: what was held elsewhere is free, this stays until it is seen."""
        until = self._clock.monotonic_ns() + self._hold_ns
        with self._lock:
            self._under_way.discard(uid)
            places = self._places.get(uid, [])
            seen = [p for p in places if p.kind is Kind.BOUND]
            here = [replace(p, until_ns=until) for p in places if p.kind is Kind.BINDING and p.hold.node == node]
            self._put(uid, seen or here)

    def lost(self, uid: str, node: str) -> None:
        """Take that no answer came and the pod is not bound yet: it may still be, so the place stays."""
        until = self._clock.monotonic_ns() + self._lost_ns
        with self._lock:
            self._under_way.discard(uid)
            places = self._places.get(uid, [])
            mine = [p.kind is Kind.BINDING and p.hold.node == node for p in places]
            self._put(uid, [replace(p, until_ns=until) if at else p for p, at in zip(places, mine, strict=True)])

    def refused(self, uid: str, node: str) -> None:
        """Take that this try will not bind the pod; an earlier one whose answer was lost may yet do so."""
        with self._lock:
            self._under_way.discard(uid)
            self._keep(uid, lambda p: p.kind is not Kind.BINDING or p.hold.node != node or p.until_ns is not None)

    def overdue(self) -> list[Pod]:
        """Return the pods that are due to be looked at, because no watch has shown them bound."""
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
        """Take what the API server says of an overdue pod; None: it has no such pod."""
        now = self._clock.monotonic_ns()
        pod = read_pod(obj, self.resources) if obj is not None else None
        with self._lock:
            if uid in self._under_way or not any(p.kind is Kind.BINDING for p in self._places.get(uid, [])):
                return
            if pod is None or pod.uid != uid or pod.finished:
                self._keep(uid, lambda p: p.kind is not Kind.BINDING)
            elif not pod.node:
                self._keep(uid, lambda p: not _is_due(p, now))
            else:
                hold = held_by(pod, obj or {})
                self._put(uid, [Place(Kind.BINDING, pod, hold, now + self._hold_ns)] if hold else [])

    # What the reclaimer does.

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
        """Keep a place for a waiting pod, instead of one kept before; return False where it is not waiting any more."""
        until = self._clock.monotonic_ns() + self._hold_ns
        with self._lock:
            known = self._pods.get(pod.uid)
            places = self._places.get(pod.uid, [])
            if known is None or known.node or any(p.kind in (Kind.BOUND, Kind.BINDING) for p in places):
                return False
            self._put(pod.uid, [Place(Kind.RESERVED, pod, hold, until)])
            return True

    def release(self, uid: str) -> None:
        """Give up the place kept for a waiting pod."""
        with self._lock:
            self._keep(uid, lambda place: place.kind is not Kind.RESERVED)

    def counts(self) -> Counter[Kind]:
        """Return the number of places by kind."""
        with self._lock:
            return Counter(place.kind for places in self._places.values() for place in places)

    def totals(self) -> tuple[int, int, int, int]:
        """Return the number of nodes with GPUs, of GPUs, and their free compute (percent) and memory (MiB)."""
        with self._lock:
            return len(self._fleet), *self._fleet.totals()

    # Below, the lock is held.

    def _take(self, pod: Pod | None, obj: Object) -> None:
        known = self._pods.get(pod.uid) if pod is not None else None
        if pod is None or (known is not None and known.node and not pod.node):
            return  # nothing to hold for; or an old event: a pod never loses its node
        self._pods[pod.uid] = pod
        if pod.finished:
            self._put(pod.uid, [])
        elif pod.node:
            hold = held_by(pod, obj)
            self._put(pod.uid, [Place(Kind.BOUND, pod, hold)] if hold else [])

    def _survey(self, names: Sequence[str], demand: Demand) -> Survey:
        return survey(self._fleet.view(names, demand), demand, self._policy)

    def _place(self, kind: Kind, pod: Pod, node: str, result: Survey, row: int) -> Place:
        uuids = self._fleet.uuids(node)
        hold, gpus = chosen_hold(pod, node, [uuids[column] for column in result.gpus[row].tolist()])
        until = self._clock.monotonic_ns() + self._hold_ns if kind is Kind.TENTATIVE else None
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
        before = self._places.pop(uid, [])
        if places:
            self._places[uid] = places
        if any(place.kind is not Kind.BOUND for place in places):
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
        """Work out nodes' rows anew from their GPUs and all that is held there."""
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


_TIMED = (Kind.TENTATIVE, Kind.RESERVED)


def _is_due(place: Place, now: int) -> bool:
    return place.kind is Kind.BINDING and place.until_ns is not None and place.until_ns <= now


def _name(obj: Object) -> str:
    return str(as_map(obj.get("metadata")).get("name", ""))


def best_of(names: Sequence[str], result: Survey, avoided: Container[str] = ()) -> int | None:
    """Return the index of the cheapest node that fits, by name among equals; of one to avoid if there is no other."""
    fitting = result.fits.nonzero()[0]
    if avoided:
        others = [i for i in fitting.tolist() if names[i] not in avoided]
        fitting = np.array(others, dtype=fitting.dtype) if others else fitting
    if not fitting.size:
        return None
    prices = result.price[fitting]
    return int(min(fitting[prices == prices.min()].tolist(), key=names.__getitem__))
