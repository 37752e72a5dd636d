# SPDX-License-Identifier: Apache-2.0
"""Nodes whose GPUs another plugin allocates too, for `slicekeeper check`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from fractions import Fraction
from typing import Final

from slicekeeper import names
from slicekeeper.config.resource_names import is_named
from slicekeeper.config.settings import Resources
from slicekeeper.gpu import inventory
from slicekeeper.gpu.devices import labels_of, part_of
from slicekeeper.kube.client import Object
from slicekeeper.kube.pod_manifest import annotations_of
from slicekeeper.units import whole_quantity
from slicekeeper.untyped_json import as_map

COUNT: Final = "nvidia.com/gpu.count"
"""NVIDIA's GPU feature discovery writes here how many GPUs a node has."""


def overlaps(nodes: Iterable[Object], resources: Resources) -> Iterator[tuple[str, str]]:
    """Yield each node where our agent finds another plugin's GPUs, and offers none or offers too many."""
    for node in nodes:
        if names.NODE_GPUS not in annotations_of(node):
            continue
        labels, capacity = labels_of(node), as_map(as_map(node.get("status")).get("capacity"))
        others = {
            name: amount
            for name, value in capacity.items()
            if is_named(name, resources.devices) and (amount := whole_quantity(value))
        }
        if not others:
            continue
        where, ours = f"node {node['metadata']['name']}", len(inventory.readable_of(node))
        theirs = sum((amount * part_of(name, labels).core for name, amount in others.items()), Fraction(0))
        there = labels.get(COUNT, "")
        listed = ", ".join(others)
        if not ours:
            yield (
                f"{where} has {listed} of another plugin, so Slicekeeper offers none of its GPUs",
                "name the GPUs that the other plugin does not have by nodeAgent.gpus; or take the label "
                "slicekeeper.io/gpus from the node",
            )
        elif there.isdecimal() and ours + theirs > int(there):
            yield (
                f"{where} has {there} GPUs: Slicekeeper offers {ours} of them, and {listed} offers {_text(theirs)}",
                "remove the GPUs that nodeAgent.gpus names from the other plugin",
            )


def _text(amount: Fraction) -> str:
    return str(amount) if amount.denominator == 1 else f"{float(amount):.2f}"
