# SPDX-License-Identifier: Apache-2.0
"""The nodes: their objects, which ones have unreadable GPUs, and which are avoided for a moment."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from scheduler.cpu_memory import offered_by
from scheduler.node_fit import NodeFacts, read_node
from slicekeeper.gpu import inventory

log = logging.getLogger(__name__)

AVOID_NS: Final = 5_000_000_000


@dataclass(frozen=True)
class Node:
    """The stored fields of a Node object; `damage` says why its GPUs cannot be read, empty if they can."""

    facts: NodeFacts
    gpus: list[inventory.Gpu]
    damage: str


def read(obj: Mapping[str, Any]) -> Node:
    """Return the relevant fields of a Node object."""
    gpus: list[inventory.Gpu] = []
    damage = ""
    try:
        gpus = list({gpu.uuid: gpu for gpu in inventory.of_node(obj)}.values())
    except (ValueError, TypeError, AttributeError) as error:
        damage = str(error) or type(error).__name__
    return Node(replace(read_node(obj), offered=offered_by(obj)), gpus, damage)


class Nodes:
    """All nodes. One thread at a time may change them; single queries are allowed at any time."""

    def __init__(self) -> None:
        self.gpus: dict[str, list[inventory.Gpu]] = {}
        self.facts: dict[str, NodeFacts] = {}
        self.damaged: set[str] = set()
        self.avoided: dict[str, int] = {}
        """Nodes that could not accept a pod just now, and until when others are preferred."""

    def put(self, node: Node) -> bool:
        """Update a node; return whether its GPUs have changed."""
        name = node.facts.name
        self.facts[name] = node.facts
        if node.damage:
            if name not in self.damaged:
                log.warning("node %s gets no pods: %s", name, node.damage)
            self.damaged.add(name)
        else:
            self.damaged.discard(name)
        changed = self.gpus.get(name) != node.gpus
        if changed:
            self.gpus[name] = node.gpus
        return changed

    def drop(self, name: str) -> None:
        """Forget a node."""
        self.gpus.pop(name, None)
        self.facts.pop(name, None)
        self.damaged.discard(name)

    def with_gpus(self) -> dict[str, tuple[NodeFacts, tuple[inventory.Gpu, ...]]]:
        """Return the nodes with GPUs, in order of their names."""
        return {name: (self.facts[name], tuple(gpus)) for name, gpus in sorted(self.gpus.items()) if gpus}

    def avoid(self, name: str, now_ns: int) -> None:
        """Prefer other nodes for a while."""
        self.avoided[name] = now_ns + AVOID_NS

    def end_avoiding(self, now_ns: int) -> None:
        """Stop avoiding nodes whose time is over."""
        for name in [name for name, until_ns in self.avoided.items() if until_ns <= now_ns]:
            del self.avoided[name]
