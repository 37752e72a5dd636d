# SPDX-License-Identifier: Apache-2.0
"""`slicekeeper nodes`: the GPUs of nodes, what is allocated of them, and who holds it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, Final

import click

from slicekeeper import names
from slicekeeper.cli.connection import cluster, cluster_options
from slicekeeper.cli.main import Context
from slicekeeper.cli.output import LISTS, Column, key_column, output_option, show_list
from slicekeeper.cli.pods import own_pods_instead
from slicekeeper.cli.seat_usage import Agents, figure_columns, figures, node_cell, parts
from slicekeeper.config.settings import Resources
from slicekeeper.gpu import inventory
from slicekeeper.gpu.pod_request import parse_admitted
from slicekeeper.kube.client import NODES, PODS, Object
from slicekeeper.kube.objects import Pod, read
from slicekeeper.kube.pod import full_name, has_ended
from slicekeeper.kube.pod_manifest import annotations_of, sharing_mode
from slicekeeper.units import CORES_PER_GPU

_Row = dict[str, Any]

_COLUMNS: Final[Sequence[Column[_Row]]] = (
    Column("NODE", node_cell),
    key_column("GPU", "gpu"),
    Column("MODEL", lambda row: row["model"] + ("" if row["healthy"] else ", not healthy"), narrow=True),
    key_column("MODEL", "model", wide=True),
    key_column("MEMORY-MIB", "memoryMib", wide=True),
    Column("HEALTHY", lambda row: f"no: {row['trouble']}" if row["trouble"] else row["healthy"], wide=True),
    Column("ALLOCATED", lambda row: f"{row['coreAllocated']}%"),
    *figure_columns(),
    Column("PODS", lambda row: ", ".join(row["pods"]) or "-"),
)


@click.command()
@cluster_options
@output_option(*LISTS)
def nodes(context: Context, output: str) -> None:
    """Show the GPUs of nodes: model, allocated share, usage, pods."""
    settings = context.loaded.settings
    client = cluster(context)
    with own_pods_instead(context, output):
        objects, _ = client.list(NODES)
        held, _ = client.list(PODS, label_selector=names.MANAGED_SELECTOR)
    shares = _shares(held, settings.resources)
    rows = [
        {
            **described,
            "coreAllocated": _allocated(part, shares.get(part.uuid, {})),
            **figures(seats),
            "pods": [*shares.get(part.uuid, ())],
        }
        for described, part, seats in parts(objects, Agents(context).ask(objects))
    ]
    show_list(rows, output, _COLUMNS, lambda row: str(row["gpu"]))


def _allocated(part: inventory.Part, holders: Mapping[str, int]) -> int:
    """Return the allocated compute of a GPU, in percent; for a MIG slice, all of it or nothing."""
    if inventory.is_slice(part.uuid):
        return part.core if holders else 0
    return sum(holders.values())


def _shares(pods: list[Object], resources: Resources) -> dict[str, dict[str, int]]:
    """Return for each GPU the running pods that hold a share of it, in percent."""
    shares: defaultdict[str, dict[str, int]] = defaultdict(dict)
    for pod in pods:
        if has_ended(pod):
            continue
        name = full_name(pod)
        alone = sharing_mode(pod) == names.EXCLUSIVE
        for request in parse_admitted(read(pod, Pod), resources)[0].requests:
            chosen = annotations_of(pod).get(names.gpu_annotation(request.container), "")
            for uuid in filter(None, chosen.split(",")):
                held = shares[uuid].get(name, 0) + request.core
                shares[uuid][name] = CORES_PER_GPU if alone else min(held, CORES_PER_GPU)
    return shares
