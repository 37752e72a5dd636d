# SPDX-License-Identifier: Apache-2.0
"""The places that are held, by pod and by node.

A place is held for a pod in one of four ways:

- BOUND: the pod's own annotations say so. Ends with the pod. Only the watch makes and ends it.
- BINDING: `choose` gave it. Ends when the watch shows the pod bound, or when the API server has said that the pod is
  gone, or is not bound and no binding can be under way any more; never by time alone.
- TENTATIVE: `find` expects kube-scheduler to choose it, because it alone has the highest score. Ends with the pod's
  next call, with `choose`, with its PodGroup's attempt, or by time. It only steers other pods elsewhere.
- RESERVED: the reclaimer made room there for a waiting pod, or its gang has its places. Ends when that pod is bound
  or gone, or by time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType
from typing import Final

from scheduler.pods import Hold, KnownPod

NO_GPUS: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType({})

NEVER: Final = 1 << 63
"""Later than any instant."""


class HoldKind(Enum):
    """How a place is held."""

    BOUND = "bound"
    BINDING = "binding"
    TENTATIVE = "tentative"
    RESERVED = "reserved"


TIMED: Final = (HoldKind.TENTATIVE, HoldKind.RESERVED)
"""Kinds that end only by time."""

FIRM: Final = (HoldKind.BOUND, HoldKind.BINDING)
"""With such a place a pod is no longer waiting."""


@dataclass(frozen=True, slots=True)
class Place:
    """A hold for one pod.

    `until_ns` is when it ends; for BINDING, when the pod itself is to be read, None before the first answer.
    """

    kind: HoldKind
    pod: KnownPod
    hold: Hold
    until_ns: int | None = None
    gpus: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: NO_GPUS)
    """Each container's GPUs, if the scheduler chose them."""
    among: int = 0
    """For TENTATIVE: how many nodes had room."""
    version: int = 0
    """For TENTATIVE: the version of the node's row that contains the place."""
    why: str = ""
    """For BINDING: why the pod is placed there."""

    def has_ended(self, now_ns: int) -> bool:
        """Whether it has expired."""
        return self.kind in TIMED and self.until_ns is not None and self.until_ns <= now_ns

    def is_due(self, now_ns: int) -> bool:
        """Whether its binding should have been seen by now."""
        return self.kind is HoldKind.BINDING and self.until_ns is not None and self.until_ns <= now_ns


class Places:
    """All places. One thread at a time may change them; `of` may be called at any time."""

    def __init__(self) -> None:
        self._of: dict[str, tuple[Place, ...]] = {}
        self._on: dict[str, dict[str, None]] = {}
        self._passing: dict[str, None] = {}
        """Pods with a place that is not BOUND: few, so every call searches them."""
        self.next_end_ns = NEVER
        """No place ends by time before."""

    def of(self, uid: str) -> tuple[Place, ...]:
        """Return what is held for a pod."""
        return self._of.get(uid, ())

    def on(self, node: str) -> Iterator[Place]:
        """Yield what is held on a node."""
        for uid in self._on.get(node, ()):
            yield from (place for place in self._of[uid] if place.hold.node == node)

    def nodes(self) -> set[str]:
        """Return the nodes on which something is held."""
        return set(self._on)

    def every(self) -> list[Place]:
        """Return all places."""
        return [place for places in list(self._of.values()) for place in places]

    def passing(self) -> Iterator[Place]:
        """Yield the places of the pods that have one that is not BOUND."""
        for uid in list(self._passing):
            yield from self._of[uid]

    def is_passing(self, uid: str) -> bool:
        """Whether a pod has a place that is not BOUND."""
        return uid in self._passing

    def counts(self) -> Counter[HoldKind]:
        """Return the number of places by kind."""
        return Counter(place.kind for place in self.every())

    def without(self, uid: str, unwanted: Callable[[Place], bool]) -> tuple[Place, ...]:
        """Return what is held for a pod, without what is unwanted."""
        return tuple(place for place in self.of(uid) if not unwanted(place))

    def put(self, uid: str, places: Sequence[Place]) -> set[str]:
        """Set `places` as everything that is held for a pod; return the nodes whose held places have changed."""
        before = self.of(uid)
        if places:
            self._of[uid] = tuple(places)
        else:
            self._of.pop(uid, None)
        if any(place.kind is not HoldKind.BOUND for place in places):
            self._passing[uid] = None
        else:
            self._passing.pop(uid, None)
        ends = [place.until_ns for place in places if place.kind in TIMED and place.until_ns is not None]
        self.next_end_ns = min([self.next_end_ns, *ends])
        if [(p.kind, p.hold) for p in before] == [(p.kind, p.hold) for p in places]:
            return set()
        gone, come = nodes_of(before), nodes_of(places)
        for node in gone - come:
            here = self._on[node]
            del here[uid]
            if not here:
                del self._on[node]
        for node in come:
            self._on.setdefault(node, {})[uid] = None
        return gone | come

    def end(self, now_ns: int) -> set[str]:
        """Remove expired places; return the nodes whose held places have changed."""
        changed: set[str] = set()
        for uid in list(self._passing):
            if any(place.has_ended(now_ns) for place in self._of[uid]):
                changed |= self.put(uid, self.without(uid, lambda place: place.has_ended(now_ns)))
        self.next_end_ns = min(
            (place.until_ns for place in self.passing() if place.kind in TIMED and place.until_ns is not None),
            default=NEVER,
        )
        return changed


def is_tentative(place: Place) -> bool:
    """Whether a place is only expected to be chosen."""
    return place.kind is HoldKind.TENTATIVE


def nodes_of(places: Iterable[Place]) -> set[str]:
    """Return the nodes of places."""
    return {place.hold.node for place in places}
