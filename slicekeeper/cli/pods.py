# SPDX-License-Identifier: Apache-2.0
"""`slicekeeper pods`: the holders of GPUs, what they use, and what they are charged."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import Any, Final

import click

from slicekeeper import names
from slicekeeper.cli.budget_options import uid_option
from slicekeeper.cli.connection import cluster, cluster_options, timekeeper
from slicekeeper.cli.main import Context
from slicekeeper.cli.namespaces import current_if_any
from slicekeeper.cli.output import LISTS, Column, key_column, output_option, rounded, show_list
from slicekeeper.cli.seat_usage import Agents, figure_columns, figures
from slicekeeper.config.settings import Resources, Settings
from slicekeeper.errors import Forbidden, ServiceError
from slicekeeper.gpu.pod_request import parse_admitted
from slicekeeper.kube.client import NODES, PODS, KubeClient, Object
from slicekeeper.kube.objects import Pod, read
from slicekeeper.kube.pod import has_ended
from slicekeeper.kube.pod_manifest import annotations_of
from slicekeeper.units import format_duration
from slicekeeper.wire.live_seats import SeatUse
from slicekeeper.wire.timekeeper import Workload

_Row = dict[str, Any]


_COLUMNS: Final[Sequence[Column[_Row]]] = (
    key_column("NAMESPACE", "namespace"),
    key_column("NAME", "name"),
    key_column("PHASE", "phase"),
    Column("STATE", lambda row: row["budgetState"] or "-", narrow=True),
    key_column("BUDGET-STATE", "budgetState", wide=True),
    key_column("CLASS", "priorityClass", wide=True),
    key_column("NODE", "node", wide=True),
    key_column("GPU", "gpus", wide=True),
    *figure_columns(),
    Column("CHARGED", lambda row: "-" if row["chargedMs"] is None else rounded(row["chargedMs"]), narrow=True),
    Column("CHARGED", lambda row: _time(row["chargedMs"]), wide=True),
    Column("OVER-BUDGET", lambda row: _time(row["overBudgetMs"]), wide=True),
    Column("GPU", lambda row: row["gpus"] or "-", narrow=True),
)


@click.command()
@click.option("-n", "--namespace", default="", help="Only this namespace.")
@click.option("-a", "--all", "every", is_flag=True, help="Also those that have ended, as far as the ledger has them.")
@uid_option
@cluster_options
@output_option(*LISTS)
def pods(context: Context, namespace: str, every: bool, uid: str, output: str) -> None:
    """Show the pods that hold GPUs or wait for one.

    Each with its budget state, class, GPU, the current usage of its share, and its charge.
    """
    show_pods(context, namespace, output, every=every, uid=uid)


@contextmanager
def own_pods_instead(context: Context, output: str) -> Iterator[None]:
    """Show the pods of the context's namespace in place of a table that the user may not see, and exit."""
    try:
        yield
    except Forbidden as error:
        if output not in ("table", "wide"):
            raise
        namespace = current_if_any(context)
        click.echo(f"{error}\nThese are the pods of namespace {namespace} with their GPUs:", err=True)
        show_pods(context, namespace, output)
        sys.exit()


def show_pods(context: Context, namespace: str, output: str, *, every: bool = False, uid: str = "") -> None:
    """Show the pods of a namespace, or of all that the user may see; `every` shows also those that have ended."""
    settings = context.loaded.settings
    client = cluster(context)
    try:
        objects, _ = client.list(PODS, namespace=namespace, label_selector=names.MANAGED_SELECTOR)
    except Forbidden:
        if namespace:
            raise
        namespace = current_if_any(context)
        click.echo(f"only namespace {namespace}: you may not list the pods of all namespaces", err=True)
        objects, _ = client.list(PODS, namespace=namespace, label_selector=names.MANAGED_SELECTOR)
    known = {w.pod_uid: w for w in timekeeper(context).workloads(namespace, uid, "all" if every else "running")}
    if uid:  # existing pods belong to the existing namespace
        objects = [pod for pod in objects if pod["metadata"]["uid"] in known]
    used = _used(objects, client, context)
    charged = [(pod, known.pop(pod["metadata"]["uid"], None)) for pod in objects]
    rows = [_pod_row(pod, workload, used, settings) for pod, workload in charged if every or not has_ended(pod)]
    rows += [_gone_row(workload) for workload in known.values()]
    rows.sort(key=lambda row: (row["namespace"], row["name"]))
    show_list(rows, output, _COLUMNS, lambda row: f"{row['namespace']}/{row['name']}")


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
        **_charged(workload),
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
        **_charged(workload),
    }


def _charged(workload: Workload | None) -> dict[str, Any]:
    """Return what the ledger has about a pod; None if it does not know the pod."""
    return {
        "chargedMs": workload and workload.charged_ms,
        "overBudgetMs": workload and workload.over_budget_ms,
        "usedMs": workload and workload.used_ms,
        "peakMemoryMib": workload and workload.peak_memory_mib,
    }


def _placement(pod: Object, resources: Resources) -> str:
    annotations = annotations_of(pod)
    parts = [
        f"{annotations.get(names.gpu_annotation(r.container), '?')} ({r.core}%)"
        for r in parse_admitted(read(pod, Pod), resources)[0].requests
        if names.gpu_annotation(r.container) in annotations
    ]
    return " ".join(parts)
