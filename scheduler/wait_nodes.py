# SPDX-License-Identifier: Apache-2.0
"""What the nodes offer a waiting pod: which of them are open to it, what they lack, and how much would fit now."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from scheduler.cluster_snapshot import Snapshot
from scheduler.held_places import HoldKind
from scheduler.node_fit import admits, closed_because
from scheduler.placement.demand import Demand
from scheduler.placement.evaluation import evaluate, shareable
from scheduler.placement.fleet import Fleet
from scheduler.placement.mig import suits
from scheduler.placement.policy import Policy
from scheduler.placement.reasons import Why, explain
from scheduler.pods import Hold, KnownPod, gpu_rows, labels_out_of_sight
from slicekeeper.gpu.inventory import Gpu, is_wanted
from slicekeeper.names import MIG


class NodesForPod:
    """The nodes and what is definitely held there by pods other than the explained one."""

    def __init__(self, snapshot: Snapshot, pod: KnownPod, policy: Policy) -> None:
        self._snapshot = snapshot
        self.pod = pod
        self._policy = policy
        self._held: dict[str, dict[str, Hold]] = {name: {} for name in snapshot.nodes}
        affine: dict[str, list[Hold]] = {}
        for place in snapshot.places:
            if place.kind is HoldKind.TENTATIVE or place.pod.uid == pod.uid:
                continue
            node, hold = place.hold.node, place.hold
            if node in self._held:
                self._held[node][place.pod.uid] = hold
            if hold.affinity:
                affine.setdefault(node, []).append(hold)
        self._cpu_memory = dict(snapshot.cpu_memory)
        self._fleet = Fleet()
        for name, labelled in affine.items():
            gpus = snapshot.nodes[name][1] if name in snapshot.nodes else ()
            self._fleet.set_out_of_sight(name, labels_out_of_sight(gpus, labelled))
        for name in snapshot.nodes:
            self._count(name)
        self.open_nodes = self._open_to(pod, snapshot.nodes)
        """The nodes that are open to the pod."""

    def _count(self, node: str) -> None:
        self._fleet.set(node, gpu_rows(self._snapshot.nodes[node][1], self._held[node].values()))
        self._fleet.set_cpu_memory(node, *self._cpu_memory[node])

    def _open_to(self, pod: KnownPod, nodes: Iterable[str]) -> list[str]:
        manifest = pod.waiting or {}
        return [name for name in nodes if admits(self._snapshot.nodes[name][0], manifest)]

    def _has_cpu_memory(self, pod: KnownPod, node: str) -> bool:
        """Whether a node has enough CPU and memory left for a pod."""
        cpu, ram = self._cpu_memory[node]
        return pod.demand.cpu_milli / 1000 <= cpu and pod.demand.ram_mib <= ram

    def judge(self) -> Counter[Why]:
        """Return for each answer the number of nodes open to the pod to which it applies."""
        return Counter(why for _, why in self._judged(self.pod, self.open_nodes))

    def _judged(self, pod: KnownPod, nodes: Sequence[str]) -> Iterator[tuple[str, Why]]:
        demand = pod.demand
        view = self._fleet.view(nodes, demand)
        for node, why in zip(nodes, evaluate(view, demand, self._policy).why.tolist(), strict=True):
            if why < Why.UUID and not self._snapshot.nodes[node][0].has(demand.cpu_milli, demand.ram_mib):
                yield node, Why.CPU_MEMORY_TOO_SMALL
            elif why == Why.FITS and not self._has_cpu_memory(pod, node):
                yield node, Why.CPU_MEMORY_TAKEN
            else:
                yield node, Why(why)

    def closed(self) -> dict[str, Why]:
        """Return the answer for each node that is not open to the pod, as if it was."""
        return dict(self._judged(self.pod, sorted(self._snapshot.nodes.keys() - set(self.open_nodes))))

    def most_cpu_memory(self) -> tuple[float, float]:
        """Return the most free cores, and the most free MiB, of a node on which GPUs are free for the pod."""
        judged = self._judged(self.pod, self.open_nodes)
        short = [self._cpu_memory[node] for node, why in judged if why is Why.CPU_MEMORY_TAKEN]
        return max(0.0, *(cpu for cpu, _ in short)), max(0.0, *(ram for _, ram in short))

    def sizes(self) -> list[tuple[int, int]]:
        """Return the CPU, in thousandths of a core, and MiB of the largest nodes that are too small only in these.

        Of those that are open to the pod, or of all if none is.
        """
        judged = self._judged(self.pod, self.open_nodes or list(self._snapshot.nodes))
        offered = {
            self._snapshot.nodes[node][0].offered or (0, 0) for node, why in judged if why is Why.CPU_MEMORY_TOO_SMALL
        }
        return sorted(
            (cpu, ram) for cpu, ram in offered if not any(cpu <= c and ram <= r for c, r in offered - {(cpu, ram)})
        )

    def gpus(self) -> list[list[Gpu]]:
        """Return the GPUs of each node that is open to the pod, or of all if none is, of the models that it accepts."""
        nodes, models = self.open_nodes or self._snapshot.nodes, self.pod.demand.models
        return [[gpu for gpu in self._snapshot.nodes[n][1] if is_wanted(gpu.model, models)] for n in nodes]

    def models(self) -> list[str]:
        """Return the models of the nodes that are open to the pod, or of all if none is."""
        nodes = self.open_nodes or self._snapshot.nodes
        return sorted({gpu.model for node in nodes for gpu in self._snapshot.nodes[node][1]})

    def fits(self, demand: Demand) -> bool:
        """Whether another demand would fit now on a node that is open to the pod, with as much CPU and memory."""
        nodes = self._with_cpu_memory()
        return bool(evaluate(self._fleet.view(nodes, demand), demand, self._policy, reasons=False).fits.any())

    def _with_cpu_memory(self) -> list[str]:
        return [node for node in self.open_nodes if self._has_cpu_memory(self.pod, node)]

    def in_words(self, why: Counter[Why]) -> tuple[tuple[str, int], ...]:
        """Return the reasons and their nodes, including closed nodes."""
        counts = Counter({explain(reason, self.pod.demand): n for reason, n in why.items() if reason is not Why.FITS})
        manifest = self.pod.waiting or {}
        counts.update(filter(None, (closed_because(facts, manifest) for facts, _ in self._snapshot.nodes.values())))
        return tuple(counts.most_common())

    def kept(self) -> str:
        """Return the node on which a place is kept for the pod, empty if none is."""
        mine = (p for p in self._snapshot.places if p.kind is HoldKind.RESERVED and p.pod.uid == self.pod.uid)
        return next((place.hold.node for place in mine), "")

    def largest(self) -> tuple[int, int]:
        """Return the most compute, in percent, and the most memory, in MiB, that would fit now.

        Each is computed with the other as requested, for a demand of one share.
        """
        view = self._fleet.view(self._with_cpu_memory(), self.pod.demand)
        piece = self.pod.demand.pieces[0]
        if self.pod.demand.mode == MIG:
            free = [
                row.mig
                for there in view.sliced.values()
                for row in there.rows
                if row.free and suits(row, self.pod.demand)
            ]
            return (
                max((one.core for one in free if one.memory_mib >= piece.memory_mib), default=0),
                max((one.memory_mib for one in free if one.core >= piece.core), default=0),
            )
        usable = shareable(view, self.pod.demand)
        core = np.where(usable & (view.memory >= piece.memory_mib), view.core, 0)
        memory = np.where(usable & (view.core >= piece.core), view.memory, 0)
        return int(core.max(initial=0)), int(memory.max(initial=0))
