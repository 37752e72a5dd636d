# SPDX-License-Identifier: Apache-2.0
"""Advice for the owner of a waiting pod: what to ask for instead, or what to change, so that it starts sooner."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Final

from scheduler.placement.affinity import company_of
from scheduler.placement.reasons import Why
from scheduler.pods import KnownPod
from scheduler.wait_nodes import NodesForPod
from slicekeeper import names
from slicekeeper.units import CORES_PER_GPU, MIB_PER_BLOCK

ROOM: Final = "there is room on GPUs: kube-scheduler's last message says what else keeps it, if anything does"

SHOWN: Final = 5
"""The maximum number of nodes that are named."""


def remedies(cluster: NodesForPod, why: Counter[Why]) -> Iterable[str]:
    """Yield what helps a pod to start sooner, but for GPU time; `why` counts the nodes by what they lack."""
    if why[Why.FITS]:
        kept = cluster.kept()
        yield f"a place is kept for it on node {kept}, for when kube-scheduler tries it again" if kept else ROOM
        return
    is_stuck = all(reason.unresolvable for reason in why)
    closed = cluster.closed()
    now = [node for node, reason in closed.items() if reason is Why.FITS]
    ever = [node for node, reason in closed.items() if not reason.unresolvable]
    if is_stuck and not ever:
        yield from _changes(cluster, why or Counter(closed.values()))
    elif why[Why.CPU_MEMORY_TAKEN]:
        cpu, ram = cluster.most_cpu_memory()
        yield f"ask for less CPU or memory: where GPUs are free, at most cpu {cpu:g} and memory {ram:.0f}Mi are free"
    elif why[Why.COMPANY]:
        yield from _company(cluster)
    elif not is_stuck:
        yield from _less(cluster)
    if now or (is_stuck and ever):
        yield f"open {_named(now or ever)} to it: {'it would fit there now' if now else 'its GPUs could hold it'}"


def grants(pod: KnownPod, give_way: Sequence[str]) -> Iterator[str]:
    """Yield what GPU time would do for a pod."""
    grant = f"slicekeeper budget grant {pod.namespace} AMOUNT"
    if names.GATE in pod.gates:
        yield f"GPU time until its deadline, which the namespace's safe budget sets aside for it: {grant}"
    if others := [gate for gate in pod.gates if gate != names.GATE]:
        yield f"whoever holds it back by {', '.join(others)} must remove that scheduling gate"
    if pod.budget_state == names.OVER_BUDGET and give_way:
        yield f"with budget again, other pods ({len(give_way)}) would give way to it: {grant}"


def _named(nodes: Sequence[str]) -> str:
    more = f" or one of {len(nodes) - SHOWN} more" if len(nodes) > SHOWN else ""
    return f"node {' or '.join(nodes[:SHOWN])}{more}"


def _less(cluster: NodesForPod) -> Iterable[str]:
    """Return what would fit now of what the pod asks for."""
    demand = cluster.pod.demand
    if len(demand.pieces) == 1 and not demand.pieces[0].whole:
        core, memory = cluster.largest()
        piece = demand.pieces[0]
        if core >= 1:
            yield f"{core} percent of a GPU with the same memory would fit now ({piece.core} are asked for)"
        if memory >= MIB_PER_BLOCK:
            blocks = memory // MIB_PER_BLOCK
            yield f"the same share with {blocks * MIB_PER_BLOCK} MiB ({blocks} blocks) would fit now"
    elif all(piece.whole for piece in demand.pieces):
        asked = len(demand.pieces)
        fewer = (
            count for count in range(asked - 1, 0, -1) if cluster.fits(replace(demand, pieces=demand.pieces[:count]))
        )
        if count := next(fewer, 0):
            yield f"{count} whole GPU{'s' if count > 1 else ''} would fit now ({asked} are asked for)"
    elif all(cluster.fits(replace(demand, pieces=(piece,))) for piece in set(demand.pieces)):
        yield "each of its GPUs and shares would fit now by itself: split it into several pods"


def _company(cluster: NodesForPod) -> Iterable[str]:
    """Return what helps if GPUs are free, but not with the company allowed."""
    demand = cluster.pod.demand
    free = replace(demand, affinity="", anti_affinity="", exclusion="", alone=False)
    if free != demand and cluster.fits(free):
        yield f"it would fit now without its rule about company ({company_of(demand)})"
    elif demand.affinity:  # where its label is, or on an idle GPU, less may fit; the end of others gives it nothing
        yield from _less(cluster)
    else:
        yield "the GPUs with enough free are kept by pods that exclude others: it fits when these end"


def _changes(cluster: NodesForPod, why: Counter[Why]) -> Iterable[str]:
    """Return what must change if no pod's end can help, and no node need only be opened."""
    demand, nodes = cluster.pod.demand, cluster.gpus()
    gpus = [gpu for node in nodes for gpu in node]
    if not why:
        yield "add a node with GPUs that Slicekeeper manages"
    elif set(why) == {Why.UUID}:
        yield f"name a GPU that there is, or none: {demand.gpu_uuid} is on no node that it may use"
    elif not gpus:
        yield f"name a model that there is: {', '.join(cluster.models())}"
    if why[Why.TOO_SMALL]:
        whole = [[gpu for gpu in node if not gpu.mig] for node in nodes]
        largest, most = max(gpu.memory_mib for node in whole for gpu in node), max(map(len, whole))
        together = max(piece.core for piece in demand.pieces)
        if demand.gpu_uuid:
            yield f"ask for no more than GPU {demand.gpu_uuid} has, or name none"
        elif together > CORES_PER_GPU:
            yield f"ask for less: with an affinity its shares are on one GPU, and take {together} percent of it"
        else:
            gpu, of = "GPU" if most == 1 else "GPUs", f" of model {' or '.join(demand.models)}" if demand.models else ""
            other = " outside of MIG mode" if any(gpu.mig for gpu in gpus) else ""
            yield (
                f"ask for less on one node: the largest GPU{other} has {largest} MiB, the largest node {most} {gpu}{of}"
            )
    if why[Why.CPU_MEMORY_TOO_SMALL]:
        there = " or ".join(f"cpu {cpu / 1000:g} with memory {ram}Mi" for cpu, ram in cluster.sizes())
        yield f"ask for no more CPU and memory than a node has ({there})"
    if why[Why.NO_SLICE]:
        sizes = sorted({(one.core, one.memory_mib) for gpu in gpus for one in gpu.mig})
        there = " or ".join(f"{core} percent with {memory} MiB" for core, memory in sizes)
        yield (
            f"ask for no more than a MIG slice has ({there})"
            if there
            else "choose a mode that shares GPUs: there are no MIG slices"
        )
    if why[Why.HEALTH]:
        yield "its GPUs are unhealthy or in MIG mode: `slicekeeper nodes -o wide` says why"
