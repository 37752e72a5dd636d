# SPDX-License-Identifier: Apache-2.0
"""The order in which waiting pods are served: kube-scheduler's, the highest priority first and then the oldest.

A gang has the place of its first pod in that order.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, replace

from scheduler.gang_members import Muster, muster
from scheduler.held_places import HoldKind
from scheduler.pods import Pod
from scheduler.snapshot import Snapshot


@dataclass(frozen=True)
class WaitTurn:
    """Pods that get room at the same time: one, or those of a gang that has not started."""

    pods: tuple[Pod, ...]
    gang: Muster | None = None

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
        there = gangs[pod.gang.key] if pod.gang is not None else None
        if there is None or not there.needed:
            found[pod.uid] = WaitTurn((pod,))
        elif there.is_complete and len(there.schedulers) == 1:
            found[there.gang.key] = WaitTurn(there.waiting, there)
    return sorted(found.values(), key=lambda turn: turn.order)


def gang_of(snapshot: Snapshot, pod: Pod) -> Muster | None:
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


def order(pod: Pod) -> tuple[int, int, str]:
    """kube-scheduler's order, as far as it follows from the pods."""
    return -pod.priority, pod.created_ms, pod.key
