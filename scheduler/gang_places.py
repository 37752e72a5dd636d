# SPDX-License-Identifier: Apache-2.0
"""Find places for several pods together, on a copy of the arrays: all are found before any is held."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np

from scheduler.gang_members import GangMembers
from scheduler.node_fit import NodeFacts, admits, fields_judged
from scheduler.node_names import Roster
from scheduler.placement.bin_completion import Space
from scheduler.placement.demand import Demand
from scheduler.placement.evaluation import shareable
from scheduler.placement.evaluation_cache import EvaluationCache
from scheduler.placement.fleet import Fleet
from scheduler.placement.fleet_version import Bools, Ints
from scheduler.placement.joint_search import SEARCH_DEMANDS, SEARCH_NODES, SEARCH_STEPS, search_jointly
from scheduler.placement.links import relinked
from scheduler.placement.node_search import StepBudget
from scheduler.placement.policy import Policy
from scheduler.pods import Hold, KnownPod, chosen_hold, gpu_rows
from slicekeeper.gpu.inventory import Gpu
from slicekeeper.names import MIG


@dataclass(frozen=True)
class OfferedNodes:
    """The nodes that kube-scheduler offered for a pod, by the rows of one roster."""

    roster: Roster
    rows: Bools


class Trial:
    """The fleet at one instant. Places found here count only here."""

    def __init__(
        self,
        fleet: Fleet,
        cache: EvaluationCache,
        roster: Roster,
        *,
        facts: Mapping[str, NodeFacts],
        gpus_of: Callable[[str], Sequence[Gpu]],
        holds_of: Callable[[str], Sequence[Hold]],
        version: int = 0,
        avoided: Iterable[str] = (),
        checks_cpu_memory: bool = False,
    ) -> None:
        """`holds_of` returns what is held on a node without the trial; nodes of `avoided` come last.

        With `checks_cpu_memory`, nodes must have enough free CPU and memory; kube-scheduler checks that itself.
        """
        self._fleet = fleet
        self.version = version
        """The version of the fleet that was copied."""
        self._cache = cache
        self._roster = roster
        self._facts = facts
        self._gpus_of = gpus_of
        self._holds_of = holds_of
        self._avoided = [row for row in map(fleet.row, avoided) if row >= 0]
        self._held: dict[str, list[Hold]] = {}
        self._checks_cpu_memory = checks_cpu_memory

    def place_in_turn(
        self, pods: Iterable[KnownPod], offers: Mapping[str, OfferedNodes], policy: Policy
    ) -> list[tuple[KnownPod, Hold]]:
        """Place pods one after the other, each where it is cheapest now; return those that found a place.

        A pod that is not in `offers`, by its UID, may use the nodes that admit it by their own fields.
        """
        found: list[tuple[KnownPod, Hold]] = []
        for pod in pods:
            evaluation, _ = self._cache.evaluate(self._fleet.publish(), pod.demand, policy)
            row = next(self._open(evaluation.fits, evaluation.price, pod, offers.get(pod.uid)), None)
            if row is not None:
                node = self._roster.names[row]
                view = self._fleet.view([node], pod.demand)
                gpus = relinked(self._gpus_of(node), view, 0, pod.demand, evaluation.gpus[row].tolist())
                found.append((pod, self._take(pod, row, gpus)))
        return found

    def fewest_places_first(
        self, pods: Sequence[KnownPod], offers: Mapping[str, OfferedNodes], policy: Policy
    ) -> list[KnownPod]:
        """Return pods in the order of how many nodes each may use now, those that come first in `pods` among equals.

        A pod that may be anywhere must not take the only place of one that may not.
        """
        known: dict[tuple[Demand, int], int] = {}

        def places(pod: KnownPod) -> int:
            offered = offers.get(pod.uid)
            shape = pod.demand, id(offered)
            if shape not in known:
                evaluation, _ = self._cache.evaluate(self._fleet.publish(), pod.demand, policy)
                fits = evaluation.fits[: len(self._roster.names)]
                if offered is not None and self._is_of_roster(offered):
                    fits = fits & offered.rows[: len(fits)]
                known[shape] = int(fits.sum())
            return known[shape]

        return sorted(pods, key=places)

    def place_jointly(
        self, pods: Sequence[KnownPod], offers: Mapping[str, OfferedNodes], policy: Policy
    ) -> list[tuple[KnownPod, Hold]]:
        """Search for places for all of some pods at any price; return them, or nothing if none were found.

        For pods of which some found no place one after the other. Pods with an affinity or with different exclusions
        are not searched for, nor are MIG slices.
        """
        demands = {pod.demand for pod in pods}
        if any(demand.affinity or demand.mode == MIG for demand in demands) or len({d.exclusion for d in demands}) > 1:
            return []
        fleet = self._fleet.publish()
        bits: dict[tuple[Demand, int, str], int] = {}
        """A bit for each kind of pods: those with equal requests that may be on the same nodes."""
        open_to: dict[int, Ints] = {}
        """For each GPU of a row, the bits of the pods that may be there."""
        asked: list[tuple[int, Demand]] = []
        for pod in pods:
            offered = offers.get(pod.uid)
            kind = pod.demand, id(offered), "" if self._is_of_roster(offered) else fields_judged(pod.waiting or {})
            if kind not in bits:
                if len(bits) == SEARCH_DEMANDS:
                    return []
                bits[kind] = 1 << len(bits)
                fits = self._cache.evaluate(fleet, pod.demand, policy)[0].fits
                free = fleet.view_rows(np.arange(len(fits)), pod.demand).core.sum(axis=1)
                rows = np.array([*islice(self._open(fits, -free, pod, offered), SEARCH_NODES)], np.int64)
                if not len(rows):
                    return []
                usable = shareable(fleet.view_rows(rows, pod.demand), pod.demand)
                for row, gpus in zip(rows.tolist(), usable, strict=True):
                    open_to[row] = open_to.get(row, 0) + gpus * bits[kind]
            asked.append((bits[kind], pod.demand))
        rows = np.array([*open_to], np.int64)
        view = fleet.view_rows(rows, pods[0].demand)
        usable_by = np.array([*open_to.values()])
        columns = np.where(usable_by > 0, view.core, 0), view.memory, view.capacity, view.idle, usable_by
        nodes = [[*map(Space, *node)] for node in zip(*(column.tolist() for column in columns), strict=True)]
        found = search_jointly(nodes, asked, StepBudget(SEARCH_STEPS[0] + SEARCH_STEPS[1] * len(pods))) or ()
        return [(pod, self._take(pod, int(rows[at]), gpus)) for pod, (at, gpus) in zip(pods, found, strict=False)]

    def _open(self, fits: Bools, price: Ints, pod: KnownPod, offered: OfferedNodes | None) -> Iterator[int]:
        """Yield the rows of nodes that fit and are open to a pod, the cheapest first, those to avoid last."""
        fits = fits[: len(self._roster.names)]
        known = self._is_of_roster(offered)
        if offered is not None and known:
            fits = fits & offered.rows[: len(fits)]
        rows = np.flatnonzero(fits)
        last = np.isin(rows, self._avoided)
        for index in np.lexsort((self._roster.rank[rows], price[rows], last)).tolist():
            row = int(rows[index])
            facts = self._facts.get(self._roster.names[row])
            if (known or (facts is not None and admits(facts, pod.waiting or {}))) and self._has_cpu_memory(pod, row):
                yield row

    def _has_cpu_memory(self, pod: KnownPod, row: int) -> bool:
        if not self._checks_cpu_memory:
            return True
        cpu, ram = self._fleet.publish().cpu_memory(self._roster.names[row])
        return pod.demand.cpu_milli / 1000 <= cpu and pod.demand.ram_mib <= ram

    def _is_of_roster(self, offered: OfferedNodes | None) -> bool:
        return offered is not None and offered.roster is self._roster

    def _take(self, pod: KnownPod, row: int, gpus: Sequence[int]) -> Hold:
        """Hold GPUs of a row for a pod, by the columns of its pieces."""
        node = self._roster.names[row]
        fleet = self._fleet.publish()
        uuids = fleet.uuids(node)
        hold, _ = chosen_hold(pod, node, [uuids[column] for column in gpus])
        mine = self._held.setdefault(node, [])
        mine.append(hold)
        cpu, ram = fleet.cpu_memory(node)
        self._fleet.set(node, gpu_rows(self._gpus_of(node), [*self._holds_of(node), *mine]))
        self._fleet.set_cpu_memory(node, cpu - pod.demand.cpu_milli / 1000, ram - pod.demand.ram_mib)
        return hold


def places_for(
    begin: Callable[[], Trial], members: GangMembers, offers: Mapping[str, OfferedNodes], policy: Policy
) -> tuple[int, list[tuple[KnownPod, Hold]]]:
    """Return places for as many pods as a gang needs or more, or for fewer, and the version they were found on.

    Each trial is a new one of `begin`. The pods are placed one after the other, and what is left for the last depends
    on the order: those with the fewest nodes first, then those that ask for the most, and if some may be left out,
    those that ask for the least. If all orders fail, unequal pods, or pods with unequal containers, are searched for.
    """
    waiting, needed = list(members.waiting), min(members.needed, len(members.waiting))
    trial = begin()
    orders = [trial.fewest_places_first(waiting, offers, policy), waiting]
    if len(waiting) > needed:
        orders.append(waiting[::-1])
    found = trial.place_in_turn(orders[0], offers, policy)
    for tried, order in enumerate(orders[1:], 1):
        if len(found) >= needed:
            return trial.version, found
        if order not in orders[:tried]:
            trial = begin()
            found = max(found, trial.place_in_turn(order, offers, policy), key=len)
    demands = {pod.demand for pod in waiting}
    if len(found) < needed and (len(demands) > 1 or any(demand.is_unequal for demand in demands)):
        trial = begin()
        found = trial.place_jointly(waiting[-needed:], offers, policy) or found
    return trial.version, found
