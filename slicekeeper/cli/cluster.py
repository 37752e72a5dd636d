# SPDX-License-Identifier: Apache-2.0
"""`slicekeeper pods` and `slicekeeper nodes`: holders of GPUs, charges, and free capacity."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any, Final

import click

from slicekeeper import names
from slicekeeper.cli.accounts import uid_option
from slicekeeper.cli.connection import cluster, cluster_options, timekeeper
from slicekeeper.cli.main import Context
from slicekeeper.cli.output import LISTS, Column, output_option, rounded, show_list
from slicekeeper.cli.seat_usage import Agents, described, figure_columns, figures, short
from slicekeeper.config.settings import Resources, Settings
from slicekeeper.errors import ServiceError
from slicekeeper.gpu import inventory
from slicekeeper.gpu.parse import parse_admitted
from slicekeeper.gpu.pod_manifest import annotations_of, sharing_mode
from slicekeeper.kube.client import NODES, PODS, KubeClient, Object
from slicekeeper.kube.pod import has_ended
from slicekeeper.units import CORES_PER_GPU, format_duration
from slicekeeper.wire.node import SeatUse
from slicekeeper.wire.timekeeper import Workload

_Row = dict[str, Any]


def _plain(head: str, key: str, *, wide: bool = False) -> Column[_Row]:
    return Column(head, lambda row: row[key] or "-", wide=wide)


_POD_COLUMNS: Final[Sequence[Column[_Row]]] = (
    _plain("NAMESPACE", "namespace"),
    _plain("NAME", "name"),
    _plain("PHASE", "phase"),
    Column("STATE", lambda row: row["budgetState"] or "-", narrow=True),
    _plain("BUDGET-STATE", "budgetState", wide=True),
    _plain("CLASS", "priorityClass", wide=True),
    _plain("NODE", "node", wide=True),
    _plain("GPU", "gpus", wide=True),
    *figure_columns(),
    Column("CHARGED", lambda row: "-" if row["chargedMs"] is None else rounded(row["chargedMs"]), narrow=True),
    Column("CHARGED", lambda row: _time(row["chargedMs"]), wide=True),
    Column("OVER-BUDGET", lambda row: _time(row["overBudgetMs"]), wide=True),
    Column("GPU", lambda row: short(row["gpus"]) or "-", narrow=True),
)
_GPU_COLUMNS: Final[Sequence[Column[_Row]]] = (
    _plain("NODE", "node"),
    Column("GPU", lambda row: short(row["gpu"]), narrow=True),
    _plain("GPU", "gpu", wide=True),
    Column("MODEL", lambda row: row["model"] + ("" if row["healthy"] else ", not healthy"), narrow=True),
    _plain("MODEL", "model", wide=True),
    _plain("MEMORY-MIB", "memoryMib", wide=True),
    Column("HEALTHY", lambda row: f"no: {row['trouble']}" if row["trouble"] else row["healthy"], wide=True),
    Column("ALLOCATED", lambda row: f"{row['coreAllocated']}%"),
    *figure_columns(),
    Column("PODS", lambda row: ",".join(row["pods"]) or "-"),
)


@click.command()
@click.option("-n", "--namespace", default="", help="Only this namespace.")
@uid_option
@cluster_options
@output_option(*LISTS)
@click.pass_obj
def pods(context: Context, namespace: str, uid: str, output: str) -> None:
    """Show GPU pods: budget state, class, GPU, its current usage, and charged time."""
    settings = context.loaded.settings
    client = cluster(context)
    objects, _ = client.list(PODS, namespace=namespace, label_selector=names.MANAGED_SELECTOR)
    known = {w.pod_uid: w for w in timekeeper(context).workloads(namespace, uid)}
    if uid:  # existing pods belong to the existing namespace
        objects = [pod for pod in objects if pod["metadata"]["uid"] in known]
    used = _used(objects, client, context)
    rows = [_pod_row(pod, known.pop(pod["metadata"]["uid"], None), used, settings) for pod in objects]
    rows += [_gone_row(workload) for workload in known.values()]
    rows.sort(key=lambda row: (row["namespace"], row["name"]))
    show_list(rows, output, _POD_COLUMNS, lambda row: f"{row['namespace']}/{row['name']}")


def _time(ms: int | None) -> str:
    return "-" if ms is None else format_duration(ms)


def _used(pods: list[Object], client: KubeClient, context: Context) -> dict[str, list[SeatUse]]:
    """Return the seats of pods by UID, as far as the agents of their nodes answer."""
    names_of_nodes = {pod["spec"].get("nodeName") for pod in pods if not has_ended(pod)}
    if not names_of_nodes:
        return {}
    try:
        all_nodes, _ = client.list(NODES)
    except ServiceError:
        return {}  # a user who may read the pods of a namespace may not be allowed to read nodes
    found: dict[str, list[SeatUse]] = {}
    by_node = Agents(context).ask([node for node in all_nodes if node["metadata"]["name"] in names_of_nodes])
    for seat in chain.from_iterable(by_node.values()):
        found.setdefault(seat.uid, []).append(seat)
    return found


def _pod_row(
    pod: Object, workload: Workload | None, used: Mapping[str, list[SeatUse]], settings: Settings
) -> dict[str, Any]:
    metadata, spec = pod["metadata"], pod["spec"]
    return {
        "namespace": metadata["namespace"],
        "name": metadata["name"],
        "uid": metadata["uid"],
        "phase": pod.get("status", {}).get("phase", "Unknown"),
        "budgetState": annotations_of(pod).get(names.BUDGET_STATE, ""),
        "priorityClass": spec.get("priorityClassName", ""),
        "node": spec.get("nodeName", ""),
        "gpus": _placement(pod, settings.resources),
        **figures(used.get(metadata["uid"])),
        "chargedMs": workload.charged_ms if workload else None,
        "overBudgetMs": workload.over_budget_ms if workload else None,
        "usedMs": workload.used_ms if workload else None,
        "peakMemoryMib": workload.peak_memory_mib if workload else None,
    }


def _gone_row(workload: Workload) -> dict[str, Any]:
    return {
        "namespace": workload.namespace,
        "name": workload.pod_name,
        "uid": workload.pod_uid,
        "phase": "Gone",
        "budgetState": workload.budget_state,
        "priorityClass": "",
        "node": workload.node,
        "gpus": ",".join(workload.gpus),
        **figures(None),
        "chargedMs": workload.charged_ms,
        "overBudgetMs": workload.over_budget_ms,
        "usedMs": workload.used_ms,
        "peakMemoryMib": workload.peak_memory_mib,
    }


def _placement(pod: Object, resources: Resources) -> str:
    annotations = annotations_of(pod)
    parts = [
        f"{annotations.get(names.gpu_annotation(r.container), '?')} ({r.core}%)"
        for r in parse_admitted(pod, resources)[0].requests
        if names.gpu_annotation(r.container) in annotations
    ]
    return " ".join(parts)


@click.command()
@cluster_options
@output_option(*LISTS)
@click.pass_obj
def nodes(context: Context, output: str) -> None:
    """Show the GPUs of nodes: model, memory, the allocated share, and its current usage."""
    settings = context.loaded.settings
    client = cluster(context)
    objects, _ = client.list(NODES)
    held, _ = client.list(PODS, label_selector=names.MANAGED_SELECTOR)
    shares = _shares(held, settings.resources)
    by_node = Agents(context).ask(objects)
    rows = [
        {
            **described(node, gpu, part),
            "coreAllocated": _allocated(part, shares.get(part.uuid, {})),
            **figures(_seats_on(part.uuid, by_node.get(node["metadata"]["name"]))),
            "pods": [*shares.get(part.uuid, ())],
        }
        for node in objects
        for gpu in inventory.readable_of(node)
        for part in gpu.parts
    ]
    show_list(rows, output, _GPU_COLUMNS, lambda row: str(row["gpu"]))


def _allocated(part: inventory.Part, holders: Mapping[str, int]) -> int:
    """Return the allocated compute of a GPU, in percent; for a MIG slice, all of it or nothing."""
    if inventory.is_slice(part.uuid):
        return part.core if holders else 0
    return sum(holders.values())


def _seats_on(uuid: str, seats: list[SeatUse] | None) -> list[SeatUse] | None:
    return None if seats is None else [seat for seat in seats if seat.gpu == uuid]


def _shares(pods: list[Object], resources: Resources) -> dict[str, dict[str, int]]:
    """Return for each GPU the running pods that hold a share of it, in percent."""
    shares: defaultdict[str, dict[str, int]] = defaultdict(dict)
    for pod in pods:
        if has_ended(pod):
            continue
        name = f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"
        alone = sharing_mode(pod) == names.EXCLUSIVE
        for request in parse_admitted(pod, resources)[0].requests:
            chosen = annotations_of(pod).get(names.gpu_annotation(request.container), "")
            for uuid in filter(None, chosen.split(",")):
                held = shares[uuid].get(name, 0) + request.core
                shares[uuid][name] = CORES_PER_GPU if alone else min(held, CORES_PER_GPU)
    return shares
