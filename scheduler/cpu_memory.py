# SPDX-License-Identifier: Apache-2.0
"""CPU and memory beside the GPUs: the capacity of nodes, and the requests of all pods bound to them.

Policies that look ahead need this to place well, and the extender's calls do not contain it. Of each bound pod only its
node and two numbers are kept, because a watch repeats itself, and a pod's requests may be changed while it runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

from slicekeeper.kube.effective_request import effective_request
from slicekeeper.kube.pod import holds_gpus
from slicekeeper.kube.pod_manifest import containers
from slicekeeper.units import parse_quantity
from slicekeeper.untyped_json import as_list, as_map

MIB = 1 << 20

Amount = tuple[int, int]
"""Thousandths of a core, and MiB."""

Entry = tuple[str, int, int]
"""A node, and the amount that a pod uses there."""


def asked_by(pod: Mapping[str, Any]) -> Amount:
    """Return a pod's request, as kube-scheduler counts it.

    A request of the pod itself replaces those of its containers. While a request is changed, the largest of what is
    asked for, allocated and in effect counts.
    """
    spec, status = as_map(pod.get("spec")), as_map(pod.get("status"))
    never = any(
        (of.get("type"), of.get("reason")) == ("PodResizePending", "Infeasible")
        for of in map(as_map, as_list(status.get("conditions")))
    )
    statuses = {
        entry.get("name"): entry
        for key in ("containerStatuses", "initContainerStatuses")
        for entry in map(as_map, as_list(status.get(key)))
    }
    counted = effective_request(
        (kind, _named(_requested(one, statuses.get(one.get("name")) if kind != "init" else None, never)))
        for _, kind, one in containers(spec)
    )
    cpu, ram = counted.get("cpu", 0), counted.get("memory", 0)
    of_pod = as_map(as_map(spec.get("resources")).get("requests"))
    if of_pod:
        mine_cpu, mine_ram = _requested(spec, status, never)
        cpu, ram = mine_cpu if "cpu" in of_pod else cpu, mine_ram if "memory" in of_pod else ram
    over_cpu, over_ram = _amount(spec.get("overhead"))
    return cpu + over_cpu, ram + over_ram


def _named(amount: Amount) -> dict[str, int]:
    return {"cpu": amount[0], "memory": amount[1]}


def _requested(spec: Mapping[str, Any], status: Mapping[str, Any] | None, never: bool) -> Amount:
    """Return the request of a container, or of a pod itself; `never`: the requested change can never be granted."""
    asked = _amount(as_map(spec.get("resources")).get("requests"))
    there = as_map(status.get("resources")) if status else None
    if not status or not there:
        return asked
    now, allocated = _amount(there.get("requests")), _amount(status.get("allocatedResources"))
    if never:
        asked = now
    return max(asked[0], now[0], allocated[0]), max(asked[1], now[1], allocated[1])


def offered_by(node: Mapping[str, Any]) -> Amount | None:
    """Return a node's capacity for pods; None if it does not publish it."""
    allocatable = as_map(as_map(node.get("status")).get("allocatable"))
    return _amount(allocatable) if "cpu" in allocatable and "memory" in allocatable else None


def _amount(resources: object) -> Amount:
    found = as_map(resources)
    return _scaled(found.get("cpu"), 1000, 1), _scaled(found.get("memory"), 1, MIB)


def _scaled(value: object, times: int, per: int) -> int:
    return _parsed(value, times, per) if isinstance(value, str | int) else 0


@lru_cache(4096)
def _parsed(value: str | int, times: int, per: int) -> int:
    try:
        return max(0, -(-parse_quantity(value) * times // per))
    except ValueError:
        return 0


def entry_of(pod: Mapping[str, Any]) -> Entry | None:
    """Return a pod's node and its amount there; None unless it is bound and has not ended."""
    return (str(as_map(pod.get("spec")).get("nodeName")), *asked_by(pod)) if holds_gpus(pod) else None


def comes_with_its_node(pod: Mapping[str, Any]) -> bool:
    """Whether a DaemonSet created the pod: such pods do not show what usually arrives."""
    owners = map(as_map, as_list(as_map(pod.get("metadata")).get("ownerReferences")))
    return any(owner.get("kind") == "DaemonSet" for owner in owners)


class CpuMemoryUse:
    """Each node's capacity, and the sum of its pods' requests. The caller locks it."""

    def __init__(self) -> None:
        self._offered: dict[str, Amount] = {}
        self._sums: dict[str, Amount] = {}
        self._pods: dict[str, Entry] = {}

    def set_node(self, name: str, offered: Amount | None) -> bool:
        """Record a node's capacity; return whether it has changed."""
        before = self._offered.get(name)
        if offered is None:
            self._offered.pop(name, None)
        else:
            self._offered[name] = offered
        return before != offered

    def __contains__(self, uid: str) -> bool:
        return uid in self._pods

    def uids(self) -> set[str]:
        """Return the pods that count."""
        return set(self._pods)

    def free(self, name: str, others: Iterator[tuple[str, Amount]]) -> tuple[float, float]:
        """Return a node's free cores and MiB, infinite if its capacity is unknown.

        `others` are the requests of pods that are about to be bound there; they count until the watch shows the pods.
        """
        offered = self._offered.get(name)
        if offered is None:
            return float("inf"), float("inf")
        cpu, ram = self._sums.get(name, (0, 0))
        for uid, (more_cpu, more_ram) in others:
            if uid not in self._pods:
                cpu, ram = cpu + more_cpu, ram + more_ram
        return max(0, offered[0] - cpu) / 1000, float(max(0, offered[1] - ram))

    def put(self, uid: str, now: Entry | None) -> Iterator[str]:
        """Record a pod's amount, None if it has none; yield the nodes whose sums change."""
        before = self._pods.pop(uid, None)
        if now is not None:
            self._pods[uid] = now
        if before == now:
            return
        for entry, sign in ((before, -1), (now, 1)):
            if entry is None:
                continue
            node, cpu, ram = entry
            old_cpu, old_ram = self._sums.get(node, (0, 0))
            self._sums[node] = old_cpu + sign * cpu, old_ram + sign * ram
            if self._sums[node] == (0, 0):
                del self._sums[node]
            yield node
