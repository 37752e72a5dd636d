# SPDX-License-Identifier: Apache-2.0
"""Nodes with their places, for the reclaimer and `explain`."""

from __future__ import annotations

from dataclasses import dataclass, replace

from scheduler.held_places import Place
from scheduler.node_fit import NodeFacts
from scheduler.pods import KnownPod
from slicekeeper.gpu import inventory


@dataclass(frozen=True)
class NodeSnapshot:
    """A node with all places there, with their pods as they are now.

    If its GPUs are not in sight it has none, and only the places with an affinity label.
    """

    facts: NodeFacts
    gpus: tuple[inventory.Gpu, ...]
    places: tuple[Place, ...]


@dataclass(frozen=True)
class Snapshot:
    """Nodes with GPUs, pods and places as they were at one instant."""

    nodes: dict[str, tuple[NodeFacts, tuple[inventory.Gpu, ...]]]
    pods: list[KnownPod]
    places: list[Place]
    cpu_memory: dict[str, tuple[float, float]]
    """The free cores and MiB of each node, infinite if unknown."""
    succeeded: dict[str, int]
    """How many pods of each controller have succeeded, as far as it is known."""

    def views(self) -> dict[str, NodeSnapshot]:
        """Return the nodes with the places there."""
        pods = {pod.uid: pod for pod in self.pods}
        here: dict[str, list[Place]] = {name: [] for name in self.nodes}
        for place in self.places:
            if place.hold.node in self.nodes or place.hold.affinity:
                here.setdefault(place.hold.node, []).append(replace(place, pod=pods.get(place.pod.uid, place.pod)))
        return {
            name: NodeSnapshot(*self.nodes.get(name, (out_of_sight(name), ())), tuple(places))
            for name, places in here.items()
        }


def out_of_sight(name: str) -> NodeFacts:
    """Return the facts of a node that has no GPUs in sight: it accepts no pod."""
    return NodeFacts(name, {}, (), unschedulable=True)
