# SPDX-License-Identifier: Apache-2.0
"""How much of a cluster's GPUs a policy gives out: a list of pods put on a list of nodes by the extender's own code.

    .venv/bin/python benchmarks/placement/run.py --nodes FILE --pods FILE [--policy P] [--seeds 10]
        [--cpu-pods policy|random|kube] [--prior] [--load PERCENT] [--at-once N] [--copies N]
        [--shards N]

The lists have the columns of Alibaba's openb trace. The pods are shuffled, then drawn with replacement until they ask
for 130 % of all GPUs; they arrive one after the other, and one that does not fit is dropped. With `--load` they arrive
and end by the list's own lengths of life, at that load, and what is given out is the mean over the second half.

kube-scheduler's part is played here: CPU, memory and models of nodes are respected, the extender's integer scores
decide, equal ones by chance. Pods without GPUs are unknown to the extender; `--cpu-pods` says what places them. A
policy that looks ahead learns from the arrivals, or knows the whole list's mix (`--prior`).

With `--at-once` each pod comes that many times in a row, as those of a large Job do.

`--copies` makes a larger cluster of the same list. With `--shards` its nodes are dealt out to so many schedulers, and
each pod, by chance, to one of them: if it does not fit there, it is dropped.
"""

from __future__ import annotations

import argparse
import csv
import heapq
import itertools
import math
import random
import statistics
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from scheduler.placement.arrivals import Arrivals, Mix
from scheduler.placement.demand import Demand, Piece
from scheduler.placement.evaluation_cache import EvaluationCache
from scheduler.placement.fleet import Fleet, GpuRow
from scheduler.placement.learner import FIXED, LEARNING, Learner
from scheduler.placement.ranking import scores
from slicekeeper.units import CORES_PER_GPU

MIB = 16_384
"""Memory of each GPU; the lists say nothing of it, and no pod asks for any."""

OFFERED = 1.3

MOST = 10**12
MOST_GPUS = 1_000
"""More is taken for a mistake in the list."""

AT = "at"
"""The key under which a row keeps its file and line, for messages."""


@dataclass(frozen=True)
class Node:
    """A row of the nodes' list."""

    name: str
    cpu: int
    ram: int
    gpus: int
    model: str


@dataclass(frozen=True)
class Pod:
    """A row of the pods' list; `core` is percent of each of its GPUs, `life` seconds."""

    cpu: int
    ram: int
    gpus: int
    core: int
    models: tuple[str, ...]
    life: float

    @property
    def asks(self) -> int:
        """Percent of a GPU in all."""
        return self.gpus * self.core

    @cached_property
    def demand(self) -> Demand:
        """What the extender would read from the pod's manifest; a pod without GPUs takes a share of nothing."""
        whole = self.core >= CORES_PER_GPU
        pieces = (Piece(("main",), self.core, 0, whole),) * self.gpus or (Piece((), 0, 0, whole=False),)
        return Demand(pieces, models=self.models, cpu_milli=self.cpu, ram_mib=self.ram)


def read_nodes(path: Path) -> list[Node]:
    """Return the nodes that have GPUs. Ends the program if the list is bad or has none."""
    nodes = [
        Node(
            row["sn"],
            _number(row, "cpu_milli"),
            _number(row, "memory_mib"),
            _number(row, "gpu", most=MOST_GPUS),
            row["model"],
        )
        for row in _rows(path, "sn", "cpu_milli", "memory_mib", "gpu", "model")
    ]
    if twice := [name for name, count in Counter(node.name for node in nodes).items() if count > 1]:
        raise SystemExit(f"{path}: node {twice[0]} is there twice; column sn must be different in each row")
    found = [node for node in nodes if node.gpus]
    if not found:
        raise SystemExit(f"{path}: no node has a GPU; column gpu must be above 0 in at least one row")
    return found


def read_pods(path: Path) -> list[Pod]:
    """Return all pods. Ends the program if the list is bad or none of them asks for a GPU."""
    pods = [_pod(row) for row in _rows(path, "cpu_milli", "memory_mib", "num_gpu", "gpu_milli")]
    if not any(pod.gpus for pod in pods):
        raise SystemExit(f"{path}: no pod asks for a GPU; column num_gpu must be above 0 in at least one row")
    return pods


def _pod(row: dict[str, str]) -> Pod:
    gpus = _number(row, "num_gpu", most=MOST_GPUS)
    core = -(-_number(row, "gpu_milli", least=1, most=1000) * CORES_PER_GPU // 1000) if gpus else 0
    models = tuple(model for model in row.get("gpu_spec", "").split("|") if model)
    life = _seconds(row, "deletion_time") - _seconds(row, "creation_time")
    return Pod(_number(row, "cpu_milli"), _number(row, "memory_mib"), gpus, core, models, max(life, 1.0))


def _rows(path: Path, *columns: str) -> list[dict[str, str]]:
    """Return the rows of a list that must have these columns; each row keeps its file and line for messages."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            lines = list(file)
            blank = len(list(itertools.takewhile(str.isspace, lines)))
            reader = csv.DictReader(lines[blank:], restval="", skipinitialspace=True)
            for column in columns:
                if column not in (reader.fieldnames or []):
                    raise SystemExit(f"{path}: column {column} is missing; its first line must name it")
            return [{**row, AT: f"{path}, line {blank + reader.line_num}"} for row in reader]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise SystemExit(f"{path}: cannot be read as CSV: {error}") from error


def _number(row: dict[str, str], column: str, *, least: int = 0, most: int = MOST) -> int:
    text = row[column]
    value = _float(text)
    if not (least <= value <= most and value.is_integer()):
        raise SystemExit(f"{row[AT]}: {column} is {text!r}; write a whole number from {least} to {most}")
    return int(value)


def _seconds(row: dict[str, str], column: str) -> float:
    """Return a time, 0 if the list does not say it."""
    text = row.get(column) or "0"
    value = _float(text)
    if not math.isfinite(value):
        raise SystemExit(f"{row[AT]}: {column} is {text!r}; write seconds, or nothing")
    return value


def _float(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


class Cluster:
    """The nodes' GPUs as the extender keeps them, CPU and memory as kube-scheduler does."""

    def __init__(self, nodes: list[Node], policy: str, cpu_pods: str, chance: random.Random) -> None:
        self.nodes = nodes
        self.fleet = Fleet()
        self.cpu = np.array([node.cpu for node in nodes])
        self.ram = np.array([node.ram for node in nodes])
        self._all = (self.cpu.copy(), self.ram.copy())
        self._held = [Counter[int]() for _ in nodes]
        self._tenants = [Counter[int]() for _ in nodes]
        for row in range(len(nodes)):
            self._show(row)
        self.learner = Learner(policy)
        self.known: Mix | None = None
        """What it knows of the pods to come, if it need not learn that."""
        self._cache = EvaluationCache()
        self._cpu_pods = cpu_pods
        self._chance = chance
        self.given = 0

    def place(self, pod: Pod) -> tuple[int, list[int]] | None:
        """Put a pod on a node; return its row and columns, None if it fits nowhere."""
        enough = (self.cpu >= pod.cpu) & (self.ram >= pod.ram)
        if not pod.gpus and self._cpu_pods != "policy":
            row, columns = self._beside(enough, pod), []
            if row is None:
                return None
        else:
            evaluation, _ = self._cache.evaluate(self.fleet.publish(), pod.demand, self.learner.policy)
            fits = evaluation.fits & enough
            if not fits.any():
                return None
            row = self._choose(fits, evaluation.price)
            columns = evaluation.gpus[row].tolist()[: pod.gpus]
        self._take(row, columns, pod, 1)
        return row, columns

    def leave(self, row: int, columns: list[int], pod: Pod) -> None:
        """Take a pod off again."""
        self._take(row, columns, pod, -1)

    def _choose(self, fits: np.ndarray, price: np.ndarray) -> int:
        """Return the node that kube-scheduler takes by the extender's scores."""
        cheapest = np.flatnonzero(fits & (price == price[fits].min()))
        given = scores(fits, price, int(cheapest[self._chance.randrange(len(cheapest))]))
        most = np.flatnonzero(given == given.max())
        return int(most[self._chance.randrange(len(most))])

    def _beside(self, enough: np.ndarray, pod: Pod) -> int | None:
        """Return where a pod without GPUs goes, by chance or by kube-scheduler's own two rules."""
        rows = np.flatnonzero(enough)
        if not len(rows):
            return None
        if self._cpu_pods == "kube":
            cpu, ram = (self.cpu[rows] - pod.cpu) / self._all[0][rows], (self.ram[rows] - pod.ram) / self._all[1][rows]
            least = ((cpu + ram) / 2 * 100).astype(np.int64)
            balanced = ((1 - abs(cpu - ram) / 2) * 100).astype(np.int64)
            rows = rows[least + balanced == (least + balanced).max()]
        return int(rows[self._chance.randrange(len(rows))])

    def _take(self, row: int, columns: list[int], pod: Pod, sign: int) -> None:
        self.cpu[row] -= sign * pod.cpu
        self.ram[row] -= sign * pod.ram
        for column in columns:
            self._held[row][column] += sign * pod.core
            self._tenants[row][column] += sign
        self.given += sign * pod.asks
        self._show(row)

    def _show(self, row: int) -> None:
        """Tell the fleet of a node what the watches would."""
        name = self.nodes[row].name
        self.fleet.set(name, self._gpus(row))
        self.fleet.set_cpu_memory(name, self.cpu[row] / 1000, float(self.ram[row]))

    def _gpus(self, row: int) -> list[GpuRow]:
        node, held, tenants = self.nodes[row], self._held[row], self._tenants[row]
        return [
            GpuRow(f"{row}-{column}", node.model, MIB, core=CORES_PER_GPU - held[column], idle=not tenants[column])
            for column in range(node.gpus)
        ]


def arrivals(pods: list[Pod], chance: random.Random, percent: float, at_once: int = 1) -> Iterator[Pod]:
    """Yield the pods in another order, then pods drawn again, until they ask for `percent` in all."""
    order = list(pods)
    chance.shuffle(order)
    drawn = itertools.chain(order, (chance.choice(pods) for _ in itertools.count()))
    asked = 0
    for pod in itertools.chain.from_iterable(itertools.repeat(pod, at_once) for pod in drawn):
        if asked >= percent:
            return
        asked += pod.asks
        yield pod


def run(nodes: list[Node], pods: list[Pod], seed: int, options: argparse.Namespace) -> float:
    """Return the percent of all GPUs that are given out in one run."""
    chance = random.Random(seed)
    shards = [
        Cluster(nodes[shard :: options.shards], options.policy, options.cpu_pods, random.Random(seed + 1_000 + shard))
        for shard in range(options.shards)
    ]
    if options.prior:
        known = _mix(pods)
        for cluster in shards:
            cluster.known = known
            cluster.learner.learn(known, cluster.fleet.publish())
    whole = sum(node.gpus for node in nodes) * CORES_PER_GPU
    if options.load:
        return _churn(shards[0], pods, chance, whole, options)
    dealt = random.Random(seed + 2_000)
    for pod in arrivals(pods, chance, OFFERED * whole, options.at_once):
        cluster = dealt.choice(shards)
        _arrive(cluster, pod)
        cluster.place(pod)
    return 100 * sum(cluster.given for cluster in shards) / whole


def _mix(pods: list[Pod]) -> Mix:
    """Return what a policy that has seen the whole list knows."""
    known = Arrivals()
    for pod in pods:
        if not pod.gpus:
            known.add_without_gpus()
            continue
        known.add(pod.demand)
    return known.mix()


def _arrive(cluster: Cluster, pod: Pod) -> None:
    if not pod.gpus:
        cluster.learner.arrivals.add_without_gpus()
        return
    cluster.learner.arrivals.add(pod.demand)
    mix = cluster.learner.due(cluster.fleet.publish().models)
    if mix is not None:
        cluster.learner.learn(cluster.known or mix, cluster.fleet.publish())


def _churn(cluster: Cluster, pods: list[Pod], chance: random.Random, whole: int, options: argparse.Namespace) -> float:
    """Return the mean over the second half of a run in which pods end, too.

    It begins with pods in the middle of their lives, because the longest live for months: those that are there at any
    instant are drawn by the length of their lives.
    """
    ends: list[tuple[float, int, int, list[int], Pod]] = []
    asked, number = 0.0, 0

    def arrive(pod: Pod, now: float, left: float) -> None:
        nonlocal number
        number += 1
        _arrive(cluster, pod)
        placed = cluster.place(pod)
        if placed is not None:
            heapq.heappush(ends, (now + left, number, *placed, pod))

    weights = list(itertools.accumulate(pod.life for pod in pods))
    while asked < options.load / 100 * whole:
        pod = chance.choices(pods, cum_weights=weights)[0]
        asked += pod.asks
        arrive(pod, 0.0, pod.life * chance.random())
    rate = options.load / 100 * whole / statistics.fmean(pod.asks * pod.life for pod in pods)
    now, given, seconds, coming = 0.0, 0.0, 0.0, pods[0]
    for turn in range(options.arrivals):
        then = now + chance.expovariate(rate)
        counts = turn >= options.arrivals // 2
        while ends and ends[0][0] <= then:
            end, _, row, columns, pod = heapq.heappop(ends)
            given, seconds = given + counts * (end - now) * cluster.given, seconds + counts * (end - now)
            now = end
            cluster.leave(row, columns, pod)
        given, seconds = given + counts * (then - now) * cluster.given, seconds + counts * (then - now)
        now = then
        if turn % options.at_once == 0:
            coming = chance.choice(pods)
        arrive(coming, now, coming.life)
    return 100 * given / seconds / whole


def _count(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r} is no number from 1; write one")
    return int(text)


def _percentage(text: str) -> float:
    if not 0 <= _float(text) < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is no percentage; write a number from 0")
    return float(text)


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--nodes", type=Path, required=True)
    parser.add_argument("--pods", type=Path, required=True)
    parser.add_argument("--policy", choices=[*LEARNING, *FIXED], default="expected-fill")
    parser.add_argument("--seeds", type=_count, default=10)
    parser.add_argument("--cpu-pods", choices=["policy", "random", "kube"], default="policy")
    parser.add_argument("--prior", action="store_true", help="the policy knows the whole list's mix from the start")
    parser.add_argument(
        "--load", type=_percentage, default=0.0, help="let pods end; percentage of all GPUs that is asked for"
    )
    parser.add_argument("--arrivals", type=_count, default=10_000, help="pods of a run with --load")
    parser.add_argument("--at-once", type=_count, default=1, help="each pod comes so many times in a row")
    parser.add_argument("--copies", type=_count, default=1, help="take the list of nodes so many times")
    parser.add_argument("--shards", type=_count, default=1, help="deal nodes and pods out to so many schedulers")
    options = parser.parse_args()
    if options.load and options.shards > 1:
        parser.error("--load is for one scheduler: leave --shards away")
    pods = read_pods(options.pods)
    nodes = [
        replace(node, name=f"{node.name}-{copy}")
        for copy in range(options.copies)
        for node in read_nodes(options.nodes)
    ]
    if options.shards > len(nodes):
        parser.error(f"--shards is {options.shards}, but only {len(nodes)} nodes have GPUs: write that or less")
    found = []
    for seed in range(options.seeds):
        found.append(run(nodes, pods, seed, options))
        print(f"seed {seed} {found[-1]:.4f}", flush=True)
    print(f"allocation {statistics.fmean(found):.2f} {statistics.stdev(found) if len(found) > 1 else 0:.2f}")


if __name__ == "__main__":
    main()
