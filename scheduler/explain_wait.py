# SPDX-License-Identifier: Apache-2.0
"""Explain why a pod waits, which pods are served before it, what would help, and when it is expected to start.

Pure: it uses one snapshot, and deadlines. The forecast lets pods end at their deadlines and gives the room to the
waiting pods in kube-scheduler's order, the highest priority first and then the oldest. A gang has the place of its
first pod in that order, and gets room for all that it needs or for none.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, Final

import numpy as np

from scheduler.gang_members import Muster, muster
from scheduler.gang_places import Trial, places_for
from scheduler.held_places import HoldKind
from scheduler.node_fit import admits, closed_because, fields_judged
from scheduler.node_names import Roster
from scheduler.placement.affinity import company_of
from scheduler.placement.demand import Demand
from scheduler.placement.fleet import Fleet
from scheduler.placement.mig import suits
from scheduler.placement.policy import Policy
from scheduler.placement.prices import Prices
from scheduler.placement.ranking import best_of
from scheduler.placement.reasons import Why, explain
from scheduler.placement.survey import shareable, survey
from scheduler.pods import Hold, Pod, chosen_hold, end_of, gpu_rows, labels_out_of_sight
from scheduler.reclaim.room import Picture
from scheduler.snapshot import Snapshot
from slicekeeper import names
from slicekeeper.gpu.inventory import Gpu, is_wanted
from slicekeeper.names import MIG
from slicekeeper.units import CORES_PER_GPU, MIB_PER_BLOCK, MS_PER_SECOND, Instant
from slicekeeper.untyped import as_list, as_map

MOST_ENDS: Final = 2_000
"""The maximum number of ends of pods in the forecast."""

FARTHEST_MS: Final = 100 * 365 * 86_400 * MS_PER_SECOND
"""The forecast looks a century ahead: a Job's deadline has no bound, and some have no date."""

ROOM: Final = "there is room on GPUs: kube-scheduler's last message says what else keeps it, if anything does"

SHOWN: Final = 5
"""The maximum number of nodes that are named."""


@dataclass(frozen=True)
class Expected:
    """When and where there is room: `after` is the pod whose end makes room, empty if there is room now."""

    at_ms: Instant
    node: str
    after: str = ""
    is_leaving: bool = False
    """Whether that pod is being deleted, so that its deadline does not matter."""


@dataclass(frozen=True)
class Outlook:
    """The information for the owner of a waiting pod; pods are `namespace/name`."""

    reasons: tuple[tuple[str, int], ...]
    """Each reason and the number of nodes to which it applies, the most frequent first."""
    ahead: tuple[str, ...]
    """The pods that are served before it."""
    give_way: tuple[str, ...]
    """The pods that are evicted for it, or would be if it were in budget."""
    expected: Expected | None
    """None: according to the deadlines there will be no room."""
    is_stuck: bool
    """No pod's end would make room: something else has to change."""
    held_back: tuple[str, ...]
    """The scheduling gates that it waits for first."""
    helps: tuple[str, ...]
    """Actions that would help."""


def outlook(snapshot: Snapshot, pod: Pod, policy: Policy, ends: Mapping[str, int], now_ms: int) -> Outlook:
    """Return the outlook of a pod that waits; `ends` are deadlines by UID in milliseconds."""
    cluster = _Cluster(snapshot, pod, policy)
    turns = _turns(snapshot, pod.scheduler)
    mine = next((turn for turn in turns if pod.uid in {other.uid for other in turn.pods}), None)
    order = _order(pod) if mine is None else mine.order
    ahead = [turn for turn in turns if turn.order < order and cluster.may_ever_fit(turn)]
    held_back = tuple(str(as_map(gate).get("name")) for gate in as_list(_spec(pod).get("schedulingGates")))
    why = cluster.judge()
    helps = tuple(_helps(cluster, why))  # before the forecast, which lets pods end
    expected = None if mine is None else cluster.forecast([*ahead, mine], ends, now_ms)
    has_room = bool(why[Why.FITS]) or (expected is not None and expected.is_leaving)
    give_way = () if has_room else _give_way(snapshot, pod, policy)
    return Outlook(
        reasons=cluster.in_words(why),
        ahead=tuple(other.key for turn in ahead for other in turn.pods),
        give_way=give_way,
        expected=expected,
        is_stuck=all(reason.unresolvable for reason in why),
        held_back=held_back,
        helps=(*_grants(pod, held_back, give_way), *helps),
    )


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


def _spec(pod: Pod) -> Mapping[str, Any]:
    return as_map(as_map(pod.waiting).get("spec"))


def _waits(pod: Pod) -> bool:
    gated = bool(as_list(_spec(pod).get("schedulingGates")))
    return not (pod.node or pod.finished or pod.leaving or pod.refusal or gated) and bool(pod.demand.slices)


def _shape(pod: Pod) -> tuple[Demand, str]:
    """Return what decides where there is room for a pod."""
    return pod.demand, fields_judged(pod.waiting or {})


def _order(pod: Pod) -> tuple[int, int, str]:
    """kube-scheduler's order, as far as it follows from the pods."""
    return -pod.priority, pod.created_ms, pod.key


@dataclass(frozen=True)
class _Turn:
    """Pods that get room at the same time: one, or those of a gang that has not started."""

    pods: tuple[Pod, ...]
    gang: Muster | None = None

    @property
    def order(self) -> tuple[int, int, str]:
        """The turn's place in kube-scheduler's order."""
        return min(map(_order, self.pods))

    def at(self, at_ms: int, ends: Mapping[str, int]) -> _Turn | None:
        """Return the turn without the pods that have ended; None if too few are left."""
        pods = tuple(pod for pod in self.pods if ends.get(pod.uid, at_ms) >= at_ms)
        return replace(self, pods=pods) if len(pods) >= (self.gang.needed if self.gang else 1) else None


def _turns(snapshot: Snapshot, scheduler: str) -> list[_Turn]:
    """Return the turns of the pods that wait for a scheduler, in order; a gang that lacks pods has none."""
    waiting = [pod for pod in snapshot.pods if _waits(pod) and pod.scheduler == scheduler]
    gangs = _gangs(snapshot, {pod.gang.key for pod in waiting if pod.gang is not None})
    turns: dict[str, _Turn] = {}
    for pod in waiting:
        there = gangs[pod.gang.key] if pod.gang is not None else None
        if there is None or not there.needed:
            turns[pod.uid] = _Turn((pod,))
        elif there.is_complete and len(there.schedulers) == 1:
            turns[there.gang.key] = _Turn(there.waiting, there)
    return sorted(turns.values(), key=lambda turn: turn.order)


def _give_way(snapshot: Snapshot, pod: Pod, policy: Policy) -> tuple[str, ...]:
    """Return the pods that are evicted for a pod, or would be if it were in budget: for all of its gang, or for none.

    With a grant, the other pods of its namespace would be in budget too.
    """
    has_budget = pod.budget_state != names.OVER_BUDGET
    alike = {other.uid for other in snapshot.pods if other.namespace == pod.namespace}
    picture = Picture(policy)
    picture.take(snapshot.views(), leaving=set(), blocked=set() if has_budget else alike)
    there = _gang(snapshot, pod)
    together = there.waiting if there else (pod,)
    if (there and not there.is_complete) or not all(
        other.gpu_class == names.STANDARD and (other.budget_state == names.IN_BUDGET or not has_budget)
        for other in together
    ):
        return ()
    if there:
        places = picture.choose_all(together, there.needed) or ()
        return tuple(sorted(victim.key for place in places for victim in place.victims))
    chosen = picture.choose(pod)
    return () if chosen is None else tuple(sorted(victim.key for victim in picture.victims(chosen[0])))


def _gang(snapshot: Snapshot, pod: Pod) -> Muster | None:
    """Return the pods of a pod's gang; None without one, or if it has started and the pod is placed separately."""
    there = _gangs(snapshot, {pod.gang.key})[pod.gang.key] if pod.gang is not None else None
    return there if there is not None and there.needed else None


def _gangs(snapshot: Snapshot, keys: Set[str]) -> dict[str, Muster]:
    """Return the pods of some gangs, by key."""
    if not keys:
        return {}
    binding = {place.pod.uid for place in snapshot.places if place.kind is HoldKind.BINDING}
    members: dict[str, list[Pod]] = {}
    for pod in snapshot.pods:
        if pod.gang is not None and pod.gang.key in keys:
            members.setdefault(pod.gang.key, []).append(pod)
    there = {key: muster(pods, lambda pod: pod.uid in binding) for key, pods in members.items()}
    return {key: found for key, found in there.items() if found is not None}


def _grants(pod: Pod, held_back: Sequence[str], give_way: Sequence[str]) -> Iterator[str]:
    """Yield what a grant would do for a pod."""
    grant = f"slicekeeper budget grant {pod.namespace} AMOUNT"
    if held_back:
        yield f"it is held back by {', '.join(held_back)}; if that is its namespace's hard budget: {grant}"
    if pod.budget_state == names.OVER_BUDGET and give_way:
        yield f"with budget again, other pods ({len(give_way)}) would give way to it: {grant}"


class _Cluster:
    """The nodes and what is definitely held there by pods other than the explained one."""

    def __init__(self, snapshot: Snapshot, pod: Pod, policy: Policy) -> None:
        self._snapshot = snapshot
        self.pod = pod
        self._policy = policy
        self._leaving = {other.uid for other in snapshot.pods if other.leaving}
        self._held: dict[str, dict[str, Hold]] = {name: {} for name in snapshot.nodes}
        affine: dict[str, list[Hold]] = {}
        for place in snapshot.places:
            if place.kind is HoldKind.TENTATIVE or place.pod.uid == pod.uid:
                continue
            node, hold = place.hold.node, place.hold
            if node in self._held:
                self._held[node][place.pod.uid] = hold
            if hold.affinity:
                affine.setdefault(node, []).append(hold)
        self._beside = dict(snapshot.beside)
        self._ever: dict[tuple[Demand, str], bool] = {}
        """Whether there would ever be room for pods of some shapes."""
        self._fleet = Fleet()
        self._prices = Prices()
        for name, labelled in affine.items():
            gpus = snapshot.nodes[name][1] if name in snapshot.nodes else ()
            self._fleet.set_out_of_sight(name, labels_out_of_sight(gpus, labelled))
        for name in snapshot.nodes:
            self._count(name)
        self.near = self._open_to(pod, snapshot.nodes)
        """The nodes that are open to the pod."""

    def _count(self, node: str) -> None:
        self._fleet.set(node, gpu_rows(self._snapshot.nodes[node][1], self._held[node].values()))
        self._fleet.set_beside(node, *self._beside[node])

    def _open_to(self, pod: Pod, nodes: Iterable[str]) -> list[str]:
        manifest = pod.waiting or {}
        return [name for name in nodes if admits(self._snapshot.nodes[name][0], manifest)]

    def _has_beside(self, pod: Pod, node: str) -> bool:
        """Whether a node has enough CPU and memory left for a pod."""
        cpu, ram = self._beside[node]
        return pod.demand.cpu_milli / 1000 <= cpu and pod.demand.ram_mib <= ram

    def judge(self) -> Counter[Why]:
        """Return for each answer the number of nodes open to the pod to which it applies."""
        return Counter(why for _, why in self._judged(self.pod, self.near))

    def _judged(self, pod: Pod, nodes: Sequence[str]) -> Iterator[tuple[str, Why]]:
        demand = pod.demand
        view = self._fleet.view(nodes, demand)
        for node, why in zip(nodes, survey(view, demand, self._policy).why.tolist(), strict=True):
            if why < Why.UUID and not self._snapshot.nodes[node][0].has(demand.cpu_milli, demand.ram_mib):
                yield node, Why.LESS_BESIDE
            elif why == Why.FITS and not self._has_beside(pod, node):
                yield node, Why.BESIDE
            else:
                yield node, Why(why)

    def may_ever_fit(self, turn: _Turn) -> bool:
        """Whether there would be room if other pods ended."""
        if turn.gang is not None:
            begin = partial(self._trial, self._idle, Prices(), lambda _: ())
            return len(places_for(begin, turn.gang, {}, self._policy)[1]) >= turn.gang.needed
        [pod] = turn.pods
        shape = _shape(pod)
        if shape not in self._ever:
            judged = self._judged(pod, self._open_to(pod, self._snapshot.nodes))
            self._ever[shape] = any(not why.unresolvable for _, why in judged)
        return self._ever[shape]

    @cached_property
    def _idle(self) -> Fleet:
        """The nodes without pods."""
        fleet = self._fleet.idle()
        for name, (facts, _) in self._snapshot.nodes.items():
            if facts.offered is not None:
                fleet.set_beside(name, facts.offered[0] / 1000, facts.offered[1])
        return fleet

    @cached_property
    def _roster(self) -> Roster:
        return Roster(self._fleet.publish().names)

    def _trial(self, fleet: Fleet, prices: Prices, holds_of: Callable[[str], Iterable[Hold]]) -> Trial:
        nodes = self._snapshot.nodes
        return Trial(
            Fleet(fleet.publish()),
            prices.copy(),
            self._roster,
            facts={name: facts for name, (facts, _) in nodes.items()},
            gpus_of=lambda node: nodes[node][1],
            holds_of=lambda node: list(holds_of(node)),
            minds_beside=True,
        )

    def closed(self) -> dict[str, Why]:
        """Return the answer for each node that is not open to the pod, as if it was."""
        return dict(self._judged(self.pod, sorted(self._snapshot.nodes.keys() - set(self.near))))

    def most_beside(self) -> tuple[float, float]:
        """Return the most free cores, and the most free MiB, of a node on which GPUs are free for the pod."""
        short = [self._beside[node] for node, why in self._judged(self.pod, self.near) if why is Why.BESIDE]
        return max(0.0, *(cpu for cpu, _ in short)), max(0.0, *(ram for _, ram in short))

    def sizes(self) -> list[tuple[int, int]]:
        """Return the CPU, in thousandths of a core, and MiB of the largest nodes that are too small only in these.

        Of those that are open to the pod, or of all if none is.
        """
        judged = self._judged(self.pod, self.near or list(self._snapshot.nodes))
        offered = {self._snapshot.nodes[node][0].offered or (0, 0) for node, why in judged if why is Why.LESS_BESIDE}
        return sorted(
            (cpu, ram) for cpu, ram in offered if not any(cpu <= c and ram <= r for c, r in offered - {(cpu, ram)})
        )

    def gpus(self) -> list[list[Gpu]]:
        """Return the GPUs of each node that is open to the pod, or of all if none is, of the models that it accepts."""
        nodes, models = self.near or self._snapshot.nodes, self.pod.demand.models
        return [[gpu for gpu in self._snapshot.nodes[n][1] if is_wanted(gpu.model, models)] for n in nodes]

    def models(self) -> list[str]:
        """Return the models of the nodes that are open to the pod, or of all if none is."""
        nodes = self.near or self._snapshot.nodes
        return sorted({gpu.model for node in nodes for gpu in self._snapshot.nodes[node][1]})

    def fits(self, demand: Demand) -> bool:
        """Whether another demand would fit now on a node that is open to the pod, with as much CPU and memory."""
        near = self._with_beside()
        return bool(survey(self._fleet.view(near, demand), demand, self._policy, reasons=False).fits.any())

    def _with_beside(self) -> list[str]:
        return [node for node in self.near if self._has_beside(self.pod, node)]

    def in_words(self, why: Counter[Why]) -> tuple[tuple[str, int], ...]:
        """Return the reasons and their nodes, including closed nodes."""
        counts = Counter({explain(reason, self.pod.demand): n for reason, n in why.items() if reason is not Why.FITS})
        manifest = self.pod.waiting or {}
        counts.update(filter(None, (closed_because(facts, manifest) for facts, _ in self._snapshot.nodes.values())))
        return tuple(counts.most_common())

    def kept(self) -> str:
        """Return the node on which a place is kept for the pod, empty if none is."""
        mine = (p for p in self._snapshot.places if p.kind is HoldKind.RESERVED and p.pod.uid == self.pod.uid)
        return next((place.hold.node for place in mine), "")

    def largest(self) -> tuple[int, int]:
        """Return the most compute, in percent, and the most memory, in MiB, that would fit now.

        Each is computed with the other as requested, for a demand of one share.
        """
        view = self._fleet.view(self._with_beside(), self.pod.demand)
        piece = self.pod.demand.slices[0]
        if self.pod.demand.mode == MIG:
            free = [
                row.mig
                for there in view.sliced.values()
                for row in there.rows
                if row.free and suits(row, self.pod.demand)
            ]
            return (
                max((one.core for one in free if one.memory_mib >= piece.memory_mib), default=0),
                max((one.memory_mib for one in free if one.core >= piece.core), default=0),
            )
        usable = shareable(view, self.pod.demand)
        core = np.where(usable & (view.memory >= piece.memory_mib), view.core, 0)
        memory = np.where(usable & (view.core >= piece.core), view.memory, 0)
        return int(core.max(initial=0)), int(memory.max(initial=0))

    def forecast(self, turns: Sequence[_Turn], ends: Mapping[str, int], now_ms: int) -> Expected | None:
        """Return where and when the pod, of the last turn, finds room. Pods that are being deleted count as gone."""
        waiting = list(turns)
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
            waiting = [left for turn in waiting if (left := turn.at(at_ms, ends)) is not None]
            node = self._fill(waiting, changed, due, at_ms, ends)
            if node:
                after = known[uid].key if uid in known else uid
                return Expected(Instant(at_ms), node, after, uid in self._leaving)
            if not due or due[0][0] > now_ms + FARTHEST_MS:
                return None
            at_ms, uid, where = heapq.heappop(due)
            changed = {where}
            self._held[where].pop(uid, None)
            if uid in known:
                self._use_beside(known[uid], where, -1)
            self._count(where)
        return None

    def _fill(
        self,
        waiting: list[_Turn],
        nodes: Set[str],
        due: list[tuple[int, str, str]],
        at_ms: int,
        ends: Mapping[str, int],
    ) -> str:
        """Give room that `nodes` got to the waiting pods, in their order; return the pod's own node, or nothing."""
        hopeless: set[object] = set()
        for turn in list(waiting):
            found = self._places(turn, nodes, hopeless)
            if not found:
                continue
            index, given = waiting.index(turn), {pod.uid for pod, _ in found}
            waiting[index : index + 1] = [_Turn((pod,)) for pod in turn.pods if pod.uid not in given]
            for pod, hold in found:
                if pod.uid == self.pod.uid:
                    return hold.node
                self._held[hold.node][pod.uid] = hold
                self._use_beside(pod, hold.node, 1)
                self._count(hold.node)
                seconds = _spec(pod).get("activeDeadlineSeconds")
                own = at_ms + seconds * MS_PER_SECOND if isinstance(seconds, int) else None
                end = min((end for end in (own, ends.get(pod.uid)) if end is not None), default=None)
                if end is not None:
                    heapq.heappush(due, (end, pod.uid, hold.node))
        return ""

    def _places(self, turn: _Turn, nodes: Set[str], hopeless: set[object]) -> list[tuple[Pod, Hold]]:
        """Return places for the pods of a turn: for one on `nodes`, for as many as a gang needs anywhere; or none.

        Places for a gang are sought only if one of its pods fits on `nodes`. What finds none, of pods and of gangs, is
        added to `hopeless`, and not tried again.
        """
        fitting: list[tuple[Pod, Hold]] = []
        for shape, pod in {_shape(pod): pod for pod in turn.pods}.items():
            hold = None if shape in hopeless else self._best(pod, nodes)
            if hold is None:
                hopeless.add(shape)
            else:
                fitting.append((pod, hold))
        if turn.gang is None or not fitting:
            return fitting
        shapes = turn.gang.needed, frozenset(Counter(map(_shape, turn.pods)).items())
        if shapes in hopeless:
            return []
        for pod in turn.pods:  # what has changed is priced once, not again in each trial
            self._prices.survey(self._fleet.publish(), pod.demand, self._policy)
        there = replace(turn.gang, waiting=turn.pods)
        begin = partial(self._trial, self._fleet, self._prices, lambda node: self._held[node].values())
        _, found = places_for(begin, there, {}, self._policy)
        if len(found) < there.needed:
            hopeless.add(shapes)
            return []
        return found

    def _best(self, pod: Pod, nodes: Set[str]) -> Hold | None:
        """Return what a pod would hold on the cheapest of some nodes, None if it fits on none."""
        near = sorted(name for name in self._open_to(pod, nodes) if self._has_beside(pod, name))
        result = survey(self._fleet.view(near, pod.demand), pod.demand, self._policy, reasons=False)
        best = best_of(result.fits, result.price, np.arange(len(near)))
        if best is None:
            return None
        uuids = self._fleet.publish().uuids(near[best])
        return chosen_hold(pod, near[best], [uuids[column] for column in result.gpus[best].tolist()])[0]

    def _use_beside(self, pod: Pod, node: str, times: int) -> None:
        cpu, ram = self._beside[node]
        self._beside[node] = cpu - times * pod.demand.cpu_milli / 1000, ram - times * pod.demand.ram_mib


def _helps(cluster: _Cluster, why: Counter[Why]) -> Iterable[str]:
    """Yield what else helps a pod to start sooner; `why` counts the nodes by what they lack."""
    if why[Why.FITS]:
        kept = cluster.kept()
        yield f"a place is kept for it on node {kept}, for when kube-scheduler tries it again" if kept else ROOM
        return
    is_stuck = all(reason.unresolvable for reason in why)
    closed = cluster.closed()
    now = [node for node, reason in closed.items() if reason is Why.FITS]
    ever = [node for node, reason in closed.items() if not reason.unresolvable]
    if is_stuck and not ever:
        yield from _changes(cluster, why or Counter(closed.values()))
    elif why[Why.BESIDE]:
        cpu, ram = cluster.most_beside()
        yield f"ask for less CPU or memory: where GPUs are free, at most cpu {cpu:g} and memory {ram:.0f}Mi are free"
    elif why[Why.COMPANY]:
        yield from _company(cluster)
    elif not is_stuck:
        yield from _less(cluster)
    if now or (is_stuck and ever):
        yield f"open {_named(now or ever)} to it: {'it would fit there now' if now else 'its GPUs could hold it'}"


def _named(nodes: Sequence[str]) -> str:
    more = f" or one of {len(nodes) - SHOWN} more" if len(nodes) > SHOWN else ""
    return f"node {' or '.join(nodes[:SHOWN])}{more}"


def _less(cluster: _Cluster) -> Iterable[str]:
    """Return what would fit now of what the pod asks for."""
    demand = cluster.pod.demand
    if len(demand.slices) == 1 and not demand.slices[0].whole:
        core, memory = cluster.largest()
        piece = demand.slices[0]
        if core >= 1:
            yield f"{core} percent of a GPU with the same memory would fit now ({piece.core} are asked for)"
        if memory >= MIB_PER_BLOCK:
            blocks = memory // MIB_PER_BLOCK
            yield f"the same share with {blocks * MIB_PER_BLOCK} MiB ({blocks} blocks) would fit now"
    elif all(piece.whole for piece in demand.slices):
        asked = len(demand.slices)
        fewer = (
            count for count in range(asked - 1, 0, -1) if cluster.fits(replace(demand, slices=demand.slices[:count]))
        )
        if count := next(fewer, 0):
            yield f"{count} whole GPU{'s' if count > 1 else ''} would fit now ({asked} are asked for)"
    elif all(cluster.fits(replace(demand, slices=(piece,))) for piece in set(demand.slices)):
        yield "each of its GPUs and shares would fit now by itself: split it into several pods"


def _company(cluster: _Cluster) -> Iterable[str]:
    """Return what helps if GPUs are free, but not with the company allowed."""
    demand = cluster.pod.demand
    free = replace(demand, affinity="", anti_affinity="", exclusion="", alone=False)
    if free != demand and cluster.fits(free):
        yield f"it would fit now without its rule about company ({company_of(demand)})"
    elif demand.affinity:  # where its label is, or on an idle GPU, less may fit; the end of others gives it nothing
        yield from _less(cluster)
    else:
        yield "the GPUs with enough free are kept by pods that exclude others: it fits when these end"


def _changes(cluster: _Cluster, why: Counter[Why]) -> Iterable[str]:
    """Return what must change if no pod's end can help, and no node need only be opened."""
    demand, nodes = cluster.pod.demand, cluster.gpus()
    gpus = [gpu for node in nodes for gpu in node]
    if not why:
        yield "add a node with GPUs that Slicekeeper manages"
    elif set(why) == {Why.UUID}:
        yield f"name a GPU that there is, or none: {demand.gpu_uuid} is on no node that it may use"
    elif not gpus:
        yield f"name a model that there is: {', '.join(cluster.models())}"
    if why[Why.TOO_SMALL]:
        whole = [[gpu for gpu in node if not gpu.mig] for node in nodes]
        largest, most = max(gpu.memory_mib for node in whole for gpu in node), max(map(len, whole))
        together = max(piece.core for piece in demand.slices)
        if demand.gpu_uuid:
            yield f"ask for no more than GPU {demand.gpu_uuid} has, or name none"
        elif together > CORES_PER_GPU:
            yield f"ask for less: with an affinity its shares are on one GPU, and take {together} percent of it"
        else:
            gpu, of = "GPU" if most == 1 else "GPUs", f" of model {' or '.join(demand.models)}" if demand.models else ""
            other = " outside of MIG mode" if any(gpu.mig for gpu in gpus) else ""
            yield (
                f"ask for less on one node: the largest GPU{other} has {largest} MiB, the largest node {most} {gpu}{of}"
            )
    if why[Why.LESS_BESIDE]:
        there = " or ".join(f"cpu {cpu / 1000:g} with memory {ram}Mi" for cpu, ram in cluster.sizes())
        yield f"ask for no more CPU and memory than a node has ({there})"
    if why[Why.NO_SLICE]:
        sizes = sorted({(one.core, one.memory_mib) for gpu in gpus for one in gpu.mig})
        there = " or ".join(f"{core} percent with {memory} MiB" for core, memory in sizes)
        yield (
            f"ask for no more than a MIG slice has ({there})"
            if there
            else "choose a mode that shares GPUs: there are no MIG slices"
        )
    if why[Why.HEALTH]:
        yield "its GPUs are unhealthy or in MIG mode: `slicekeeper nodes -o wide` says why"
