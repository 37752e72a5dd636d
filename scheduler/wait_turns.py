# SPDX-License-Identifier: Apache-2.0
"""The order in which waiting pods are served: kube-scheduler's, the highest priority first and then the oldest.

A gang has the place of its first pod in that order.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, replace
from functools import cached_property

from scheduler.cluster_snapshot import Snapshot
from scheduler.gang_members import GangMembers, gang_members
from scheduler.held_places import HoldKind
from scheduler.node_fit import fields_judged
from scheduler.placement.demand import Demand
from scheduler.pods import KnownPod


@dataclass(frozen=True)
class WaitTurn:
    """Pods that get room at the same time: one, or those of a gang that has not started."""

    pods: tuple[KnownPod, ...]
    gang: GangMembers | None = None

    @cached_property
    def kinds(self) -> frozenset[tuple[Demand, str]]:
        """What decides where there is room for each of its pods."""
        return frozenset(map(kind_of, self.pods))

    @property
    def order(self) -> tuple[int, int, str]:
        """The turn's place in kube-scheduler's order."""
        return min(map(order, self.pods))

    def at(self, at_ms: int, ends: Mapping[str, int]) -> WaitTurn | None:
        """Return the turn without the pods that have ended; None if too few are left."""
        pods = tuple(pod for pod in self.pods if ends.get(pod.uid, at_ms) >= at_ms)
        return replace(self, pods=pods) if len(pods) >= (self.gang.needed if self.gang else 1) else None


def turns(snapshot: Snapshot, scheduler: str) -> list[WaitTurn]:
    """Return the turns of the pods that wait for a scheduler, in order; a gang that lacks pods has none."""
    waiting = [pod for pod in snapshot.pods if pod.is_placeable and pod.scheduler == scheduler]
    gangs = _gangs(snapshot, {pod.gang.key for pod in waiting if pod.gang is not None})
    found: dict[str, WaitTurn] = {}
    for pod in waiting:
        members = gangs[pod.gang.key] if pod.gang is not None else None
        if members is None or not members.needed:
            found[pod.uid] = WaitTurn((pod,))
        elif members.is_complete and len(members.schedulers) == 1:
            found[members.gang.key] = WaitTurn(members.waiting, members)
    return sorted(found.values(), key=lambda turn: turn.order)


def gang_of(snapshot: Snapshot, pod: KnownPod) -> GangMembers | None:
    """Return the pods of a pod's gang; None without one, or if it has started and the pod is placed separately."""
    members = _gangs(snapshot, {pod.gang.key})[pod.gang.key] if pod.gang is not None else None
    return members if members is not None and members.needed else None


def _gangs(snapshot: Snapshot, keys: Set[str]) -> dict[str, GangMembers]:
    """Return the pods of some gangs, by key."""
    if not keys:
        return {}
    binding = {place.pod.uid for place in snapshot.places if place.kind is HoldKind.BINDING}
    pods_of: dict[str, list[KnownPod]] = {}
    for pod in snapshot.pods:
        if pod.gang is not None and pod.gang.key in keys:
            pods_of.setdefault(pod.gang.key, []).append(pod)
    members = {
        key: gang_members(pods, lambda pod: pod.uid in binding, snapshot.succeeded) for key, pods in pods_of.items()
    }
    return {key: found for key, found in members.items() if found is not None}


def kind_of(pod: KnownPod) -> tuple[Demand, str]:
    """Return what decides where there is room for a pod."""
    return pod.demand, fields_judged(pod.waiting or {})


def order(pod: KnownPod) -> tuple[int, int, str]:
    """kube-scheduler's order, as far as it follows from the pods."""
    return -pod.priority, pod.created_ms, pod.key
