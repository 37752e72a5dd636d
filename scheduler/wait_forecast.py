# SPDX-License-Identifier: Apache-2.0
"""Forecast when a waiting pod starts: pods end at their deadlines, and those that are served before it take room first.

A gang gets room for all that it needs or for none.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, Final

from scheduler.cluster_snapshot import Snapshot
from scheduler.gang_places import Trial, places_for
from scheduler.node_finder import cheapest_hold
from scheduler.node_names import Roster
from scheduler.placement.demand import Demand
from scheduler.placement.evaluation_cache import EvaluationCache
from scheduler.placement.fleet import Fleet
from scheduler.placement.policy import Policy
from scheduler.pods import Hold, KnownPod, end_of
from scheduler.wait_nodes import NodesForPod
from scheduler.wait_turns import WaitTurn, kind_of
from slicekeeper.units import MS_PER_SECOND, Instant
from slicekeeper.untyped_json import as_list, as_map

MOST_ENDS: Final = 2_000
"""The maximum number of ends of pods in the forecast."""

FARTHEST_MS: Final = 100 * 365 * 86_400 * MS_PER_SECOND
"""The forecast looks a century ahead: a Job's deadline has no bound, and some have no date."""


@dataclass(frozen=True)
class Expected:
    """When and where there is room: `after` is the pod whose end makes room, empty if there is room now."""

    at_ms: Instant
    node: str
    after: str = ""
    is_leaving: bool = False
    """Whether that pod is being deleted, so that its deadline does not matter."""


def deadlines(pods: Iterable[Mapping[str, Any]], jobs: Iterable[Mapping[str, Any]] = ()) -> dict[str, int]:
    """Return when pods end at the latest, in milliseconds by UID: by their own deadlines, or their Jobs'."""
    of_jobs = {as_map(job.get("metadata")).get("uid"): end_of(job) for job in jobs}
    found: dict[str, int] = {}
    for pod in pods:
        metadata = as_map(pod.get("metadata"))
        owners = [as_map(owner).get("uid") for owner in as_list(metadata.get("ownerReferences"))]
        ends = [end for end in (end_of(pod), *map(of_jobs.get, owners)) if end is not None]
        if ends:
            found[str(metadata.get("uid"))] = min(ends)
    return found


class StartForecast(NodesForPod):
    """The nodes as they change until the pod starts."""

    def __init__(self, snapshot: Snapshot, pod: KnownPod, policy: Policy) -> None:
        super().__init__(snapshot, pod, policy)
        self._leaving = {other.uid for other in snapshot.pods if other.leaving}
        self._ever: dict[tuple[Demand, str], bool] = {}
        """Whether there would ever be room for pods of some kinds."""
        self._cache = EvaluationCache()

    def may_ever_fit(self, turn: WaitTurn) -> bool:
        """Whether there would be room if other pods ended."""
        if turn.gang is not None:
            begin = partial(self._trial, self._idle, EvaluationCache(), lambda _: ())
            return len(places_for(begin, turn.gang, {}, self._policy)[1]) >= turn.gang.needed
        [pod] = turn.pods
        kind = kind_of(pod)
        if kind not in self._ever:
            judged = self._judged(pod, self._open_to(pod, self._snapshot.nodes))
            self._ever[kind] = any(not why.unresolvable for _, why in judged)
        return self._ever[kind]

    @cached_property
    def _idle(self) -> Fleet:
        """The nodes without pods."""
        fleet = self._fleet.idle()
        for name, (facts, _) in self._snapshot.nodes.items():
            if facts.offered is not None:
                fleet.set_cpu_memory(name, facts.offered[0] / 1000, facts.offered[1])
        return fleet

    @cached_property
    def _roster(self) -> Roster:
        return Roster(self._fleet.publish().names)

    def _trial(self, fleet: Fleet, cache: EvaluationCache, holds_of: Callable[[str], Iterable[Hold]]) -> Trial:
        nodes = self._snapshot.nodes
        return Trial(
            Fleet(fleet.publish()),
            cache.copy(),
            self._roster,
            facts={name: facts for name, (facts, _) in nodes.items()},
            gpus_of=lambda node: nodes[node][1],
            holds_of=lambda node: list(holds_of(node)),
            checks_cpu_memory=True,
        )

    def forecast(self, turns: Sequence[WaitTurn], ends: Mapping[str, int], now_ms: int) -> Expected | None:
        """Return where and when the pod, of the last turn, finds room. Pods that are being deleted count as gone."""
        waiting, first_end_ms = list(turns), _first_end(turns, ends)
        asking = {kind_of(pod): pod for turn in turns for pod in turn.pods}
        known = {pod.uid: pod for pod in self._snapshot.pods}
        due: list[tuple[int, str, str]] = [
            (now_ms if uid in self._leaving else max(ends[uid], now_ms), uid, node)
            for node, held in self._held.items()
            for uid in held
            if uid in ends or uid in self._leaving
        ]
        heapq.heapify(due)
        at_ms, uid, changed = now_ms, "", set(self._snapshot.nodes)
        for _ in range(MOST_ENDS):
            if first_end_ms < at_ms:
                waiting = [left for turn in waiting if (left := turn.at(at_ms, ends)) is not None]
                first_end_ms = _first_end(waiting, ends)
            # Thousands of pods may wait, of few kinds: most ends make no room for any.
            hopeless: set[object] = {kind for kind, pod in asking.items() if self._best(pod, changed) is None}
            node = self._fill(waiting, changed, hopeless, due, at_ms, ends) if len(hopeless) < len(asking) else ""
            if node:
                after = known[uid].key if uid in known else uid
                return Expected(Instant(at_ms), node, after, uid in self._leaving)
            if not due or due[0][0] > now_ms + FARTHEST_MS:
                return None
            at_ms, uid, where = heapq.heappop(due)
            changed = {where}
            self._held[where].pop(uid, None)
            if uid in known:
                self._use_cpu_memory(known[uid], where, -1)
            self._count(where)
        return None

    def _fill(
        self,
        waiting: list[WaitTurn],
        nodes: Set[str],
        hopeless: set[object],
        due: list[tuple[int, str, str]],
        at_ms: int,
        ends: Mapping[str, int],
    ) -> str:
        """Give room that `nodes` got to the waiting pods, in their order; return the pod's own node, or nothing.

        `hopeless` are the kinds of pods, and of gangs, for which there is none.
        """
        left: list[WaitTurn] = []
        for turn in waiting:
            found = [] if turn.kinds <= hopeless else self._places(turn, nodes, hopeless)
            if not found:
                left.append(turn)
                continue
            given = {pod.uid for pod, _ in found}
            left += [WaitTurn((pod,)) for pod in turn.pods if pod.uid not in given]
            for pod, hold in found:
                if pod.uid == self.pod.uid:
                    return hold.node
                self._held[hold.node][pod.uid] = hold
                self._use_cpu_memory(pod, hold.node, 1)
                self._count(hold.node)
                seconds = pod.spec.get("activeDeadlineSeconds")
                own = at_ms + seconds * MS_PER_SECOND if isinstance(seconds, int) else None
                end = min((end for end in (own, ends.get(pod.uid)) if end is not None), default=None)
                if end is not None:
                    heapq.heappush(due, (end, pod.uid, hold.node))
        waiting[:] = left
        return ""

    def _places(self, turn: WaitTurn, nodes: Set[str], hopeless: set[object]) -> list[tuple[KnownPod, Hold]]:
        """Return places for the pods of a turn: for one on `nodes`, for as many as a gang needs anywhere; or none.

        Places for a gang are sought only if one of its pods fits on `nodes`. What finds none, of pods and of gangs, is
        added to `hopeless`, and not tried again.
        """
        fitting: list[tuple[KnownPod, Hold]] = []
        for kind, pod in {kind_of(pod): pod for pod in turn.pods}.items():
            hold = None if kind in hopeless else self._best(pod, nodes)
            if hold is None:
                hopeless.add(kind)
            else:
                fitting.append((pod, hold))
        if turn.gang is None or not fitting:
            return fitting
        kinds = turn.gang.needed, frozenset(Counter(map(kind_of, turn.pods)).items())
        if kinds in hopeless:
            return []
        for pod in turn.pods:  # what has changed is priced once, not again in each trial
            self._cache.evaluate(self._fleet.publish(), pod.demand, self._policy)
        there = replace(turn.gang, waiting=turn.pods)
        begin = partial(self._trial, self._fleet, self._cache, lambda node: self._held[node].values())
        _, found = places_for(begin, there, {}, self._policy)
        if len(found) < there.needed:
            hopeless.add(kinds)
            return []
        return found

    def _best(self, pod: KnownPod, nodes: Set[str]) -> Hold | None:
        """Return what a pod would hold on the cheapest of some nodes, None if it fits on none."""
        usable = sorted(name for name in self._open_to(pod, nodes) if self._has_cpu_memory(pod, name))
        return cheapest_hold(self._fleet, usable, pod, self._policy)

    def _use_cpu_memory(self, pod: KnownPod, node: str, times: int) -> None:
        cpu, ram = self._cpu_memory[node]
        self._cpu_memory[node] = cpu - times * pod.demand.cpu_milli / 1000, ram - times * pod.demand.ram_mib


def _first_end(turns: Iterable[WaitTurn], ends: Mapping[str, int]) -> float:
    """Return when the first of the waiting pods ends that have a deadline."""
    return min((ends[pod.uid] for turn in turns for pod in turn.pods if pod.uid in ends), default=math.inf)
