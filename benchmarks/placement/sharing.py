# SPDX-License-Identifier: Apache-2.0
"""What sharing does for jobs: waits, completion times and use of GPUs, with whole GPUs, with shares, and adaptively.

    .venv/bin/python benchmarks/placement/sharing.py --nodes FILE --pods FILE [--seeds 2] [--plots DIR]

The jobs are drawn from the GPU pods of a list in openb's format that end within two hours, and come by chance at a
load; they wait in kube-scheduler's queue (the first come first, what fits goes ahead) and are placed by the
extender's own code. A job needs the share of a GPU that its pod asks for and runs no faster with more: neither a whole
GPU nor what neighbours leave makes it faster. On a shared GPU it keeps the part of its speed that was measured for the
limiter (`--kept`, docs/limiter.md): each job one of the given percentages, drawn by chance.

- exclusive: each pod gets whole GPUs, as without sharing.
- shared: each pod gets shares, those that want one whole GPU too, under the limiter; more GPUs cannot be a share.
- adaptive: shares for pods that ask for a share, whole GPUs for the others (`slicekeeper.io/sharing: adaptive`).

The tables: first the jobs that ask for shares alone, exclusive beside shared (XJTU's experiment), then all jobs in the
three modes (KubeGPU's). The load is what the pods ask for when each has whole GPUs, in percent of all GPUs. A third
has MIG slices: every second GPU of a node is divided into two, for jobs that fit there; exclusive and shared jobs can
only use the other GPUs, `mig` jobs only the slices. A fourth: how long jobs that ask for shares take if so many come at
once to so many GPUs. `--plots` draws all, `--tables` selects some.
"""

from __future__ import annotations

import argparse
import heapq
import random
import statistics
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

sys.path.insert(1, str(Path(__file__).parents[2] / "tests"))

from cluster.harness import svg_chart
from run import MIB, Cluster, Node, Pod, read_nodes, read_pods

from scheduler.placement.demand import Demand, Piece
from scheduler.placement.fleet import GpuRow
from scheduler.placement.mig import MigRow, in_order
from slicekeeper.gpu.inventory import MigSlice
from slicekeeper.names import MIG
from slicekeeper.units import CORES_PER_GPU

LONGEST = 7_200.0
"""Seconds that a job takes at most."""

JOBS = 5_000
"""Jobs of a run."""


FIXED = ("exclusive", "shared")
TABLES = ("shares", "all", "mig", "at-once")

PARTS, WHOLE = (3, 4), 7
"""A divided GPU's MIG slices, in parts of its compute."""

BATCH_GPUS = (2, 4, 8, 16, 32)
BATCHES = (2, 4, 8, 16, 32, 64, 128)
DRAWN_GPUS, DRAWN_BATCH = 8, 32
"""The pictures show jobs by their number on so many GPUs, and so many jobs by the number of GPUs."""

Coming = list[tuple[float, Pod, float]]
"""Jobs: the second at which each comes, and how much of its speed it keeps on a shared GPU."""


@dataclass(frozen=True)
class Figures:
    """One run: the seconds that a job waits, and takes from its arrival to its end; the GPU time used, % of all.

    The last job ends at second `last`.
    """

    wait: float
    completion: float
    p95: float
    used: float
    last: float


@dataclass(frozen=True)
class Share(Pod):
    """A pod whose one GPU is a share, however large."""

    @property
    def demand(self) -> Demand:
        """Return one share."""
        return Demand(
            (Piece(("main",), self.core, 0, whole=False),), models=self.models, cpu_milli=self.cpu, ram_mib=self.ram
        )


@dataclass(frozen=True)
class Sliceable(Pod):
    """A pod whose share may be on a MIG slice, or has to be."""

    must: bool

    @property
    def demand(self) -> Demand:
        """Return its share, or its slice."""
        return replace(super().demand, mode=MIG) if self.must else replace(super().demand, may_slice=True)


class SlicedCluster(Cluster):
    """A cluster in which every second GPU of a node is divided into two MIG slices."""

    def __init__(self, nodes: list[Node], policy: str, cpu_pods: str, chance: random.Random) -> None:
        self._slices = [in_order([*_slices_of(row, node)]) for row, node in enumerate(nodes)]
        super().__init__(nodes, policy, cpu_pods, chance)

    def _gpus(self, row: int) -> list[GpuRow]:
        made, tenants = super()._gpus(row), self._tenants[row]
        slices = [replace(one, free=not tenants[len(made) + at]) for at, one in enumerate(self._slices[row])]
        for column in range(1, len(made), 2):
            mig = tuple(one for one in slices if one.gpu == made[column].uuid)
            made[column] = replace(made[column], core=0, memory=0, healthy=False, idle=False, mig=mig)
        return made


def _slices_of(row: int, node: Node) -> Iterator[MigRow]:
    for column in range(1, node.gpus, 2):
        for part in PARTS:
            mig = MigSlice(f"{row}-{column}-{part}", MIB * part // WHOLE, part, WHOLE)
            yield MigRow(mig, f"{row}-{column}", node.model, MIB)


def as_mode(pod: Pod, mode: str) -> Pod:
    """Return what the pod asks for in a mode."""
    if mode == "exclusive":
        return replace(pod, core=CORES_PER_GPU)
    if pod.core < CORES_PER_GPU and mode in ("adaptive", MIG):
        return Sliceable(pod.cpu, pod.ram, pod.gpus, pod.core, pod.models, pod.life, must=mode == MIG)
    if mode == "shared" and pod.gpus == 1:
        return Share(pod.cpu, pod.ram, 1, pod.core, pod.models, pod.life)
    return pod


def by_chance(nodes: list[Node], pods: list[Pod], load: float, kept: list[float], seed: int) -> Coming:
    """Return jobs that come at a load; the same seed is the same jobs at the same times."""
    chance, draws = random.Random(seed), random.Random(seed + 2_000)
    rate = load / 100 * sum(node.gpus for node in nodes) / statistics.fmean(pod.gpus * pod.life for pod in pods)
    arriving, coming = 0.0, []
    for pod in chance.choices(pods, k=JOBS):
        arriving += chance.expovariate(rate)
        coming.append((arriving, pod, draws.choice(kept) / 100))
    return coming


def play(nodes: list[Node], coming: Coming, mode: str, seed: int, kind: type[Cluster] = Cluster) -> Figures:
    """Let all jobs come, each at its second, and end."""
    gpus = sum(node.gpus for node in nodes)
    cluster = kind(nodes, "expected-fill", "policy", random.Random(seed + 1_000))
    waiting: list[tuple[float, Pod, float, Pod]] = []
    ends: list[tuple[float, int, int, list[int], Pod]] = []
    ran: list[tuple[float, float, float, Pod]] = []
    hopeless: set[Demand] = set()

    def start(came: float, pod: Pod, kept: float, asked: Pod, now: float) -> bool:
        if asked.demand in hopeless:
            return False
        placed = cluster.place(asked)
        if placed is None:
            hopeless.add(asked.demand)
            return False
        shared = isinstance(asked, Share) or asked.core < CORES_PER_GPU
        end = now + pod.life / (kept if shared else 1.0)
        heapq.heappush(ends, (end, len(ran), *placed, asked))
        ran.append((came, now, end, pod))
        return True

    def end_until(then: float) -> None:
        nonlocal waiting
        while ends and ends[0][0] <= then:
            now, _, row, columns, pod = heapq.heappop(ends)
            cluster.leave(row, columns, pod)
            hopeless.clear()
            waiting = [one for one in waiting if not start(*one, now)]

    arriving = 0.0
    for arriving, pod, kept in coming:
        end_until(arriving)
        asked = as_mode(pod, mode)
        cluster.learner.arrivals.add(asked.demand)
        mix = cluster.learner.due(cluster.fleet.publish().models)
        if mix is not None:
            cluster.learner.learn(mix, cluster.fleet.publish())
        if not start(arriving, pod, kept, asked, arriving):
            waiting.append((arriving, pod, kept, asked))
    end_until(float("inf"))
    assert not waiting, f"{len(waiting)} pods fit no node even when it is empty"
    took = [end - came for came, _, end, _ in ran]
    worked = (  # while pods came
        pod.asks * pod.life * (min(end, arriving) - min(began, arriving)) / (end - began) for _, began, end, pod in ran
    )
    return Figures(
        statistics.fmean(began - came for came, began, _, _ in ran),
        statistics.fmean(took),
        statistics.quantiles(took, n=20)[-1],
        100 * sum(worked) / (gpus * CORES_PER_GPU * max(arriving, 1.0)),
        max(end for _, _, end, _ in ran),
    )


def batches(nodes: list[Node], pods: list[Pod], options: argparse.Namespace) -> None:
    """Print how long jobs take that come at once, by their number and that of GPUs; draw it if asked."""
    took: dict[tuple[str, int, int], float] = {}
    print("\nJobs that come at once\n")
    print("| GPUs | containers | exclusive: mean, s | last, s | shared: mean, s | last, s | mean, of exclusive |")
    print("|---:|---:|---:|---:|---:|---:|---:|")
    for gpus in BATCH_GPUS:
        some = _nodes_of(nodes, gpus)
        fitting = [pod for pod in pods if any(pod.cpu <= node.cpu and pod.ram <= node.ram for node in some)]
        for containers in BATCHES:
            row = f"| {gpus} | {containers} |"
            for mode in FIXED:
                runs = []
                for seed in range(options.batch_seeds):
                    jobs, draws = random.Random(seed).choices(fitting, k=containers), random.Random(seed + 2_000)
                    runs.append(play(some, [(0.0, job, draws.choice(options.kept) / 100) for job in jobs], mode, seed))
                mean = statistics.fmean(figures.completion for figures in runs)
                row += f" {mean:.0f} | {statistics.fmean(figures.last for figures in runs):.0f} |"
                took[mode, gpus, containers] = mean
            print(f"{row} {100 * mean / took['exclusive', gpus, containers]:.0f} % |", flush=True)
    if options.plots:
        by_containers = {mode: [(count, took[mode, DRAWN_GPUS, count]) for count in BATCHES] for mode in FIXED}
        by_gpus = {mode: [(gpus, took[mode, gpus, DRAWN_BATCH]) for gpus in BATCH_GPUS] for mode in FIXED}
        _draw(options.plots / "by-containers.svg", by_containers, f"containers on {DRAWN_GPUS} GPUs")
        _draw(options.plots / "by-gpus.svg", by_gpus, f"GPUs for {DRAWN_BATCH} containers")


def _draw(file: Path, times: Mapping[str, svg_chart.Points], x: str) -> None:
    """Draw completion times."""
    highest = max(seconds for points in times.values() for _, seconds in points)
    file.write_text(svg_chart.lines(times, {}, x=x, y="completion time, s", most=highest))


def _nodes_of(nodes: list[Node], gpus: int) -> list[Node]:
    """Return the first nodes that have so many GPUs together."""
    some: list[Node] = []
    for node in nodes:
        if node.gpus <= gpus - sum(one.gpus for one in some) and not node.gpus % 2:
            some.append(node)
    return some


def table(
    title: str,
    nodes: list[Node],
    pods: list[Pod],
    modes: list[str],
    options: argparse.Namespace,
    kind: type[Cluster] = Cluster,
) -> None:
    """Print what each mode does at each load, and its ratio to whole GPUs; draw the completion times if asked."""
    drawn: dict[str, list[tuple[float, float]]] = {mode: [] for mode in modes}
    print(f"\n{title}: {len(pods)} jobs, {sum(node.gpus for node in nodes)} GPUs\n")
    print("| load | mode | wait, s | completion, s | of exclusive | 95th, s | GPU time used |")
    print("|---:|---|---:|---:|---:|---:|---:|")
    for load in options.loads:
        whole = 0.0
        for mode in modes:
            runs = [
                play(nodes, by_chance(nodes, pods, load, options.kept, seed), mode, seed, kind)
                for seed in range(options.seeds)
            ]
            wait, completion, p95, used = (
                statistics.fmean(getattr(figures, name) for figures in runs)
                for name in ("wait", "completion", "p95", "used")
            )
            whole = whole or completion
            drawn[mode].append((load, completion))
            print(
                f"| {load:g} % | {mode} | {wait:.0f} | {completion:.0f} | {100 * completion / whole:.0f} % | "
                f"{p95:.0f} | {used:.1f} % |",
                flush=True,
            )
    if options.plots:
        _draw(options.plots / f"{title.lower().replace(' ', '-')}.svg", drawn, "load, %")


def main() -> None:
    """Run the experiments."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--nodes", type=Path, required=True)
    parser.add_argument("--pods", type=Path, required=True)
    parser.add_argument("--every", type=int, default=50, help="take one node of so many")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--loads", type=float, nargs="+", default=[80.0, 95.0, 110.0])
    parser.add_argument(
        "--kept", type=float, nargs="+", default=[97.4], help="percent of its speed that a job keeps on a shared GPU"
    )
    parser.add_argument("--batch-seeds", type=int, default=20, help="runs of each batch")
    parser.add_argument("--tables", nargs="+", choices=TABLES, default=TABLES, help="which to run")
    parser.add_argument("--plots", type=Path, help="a folder for an SVG file of each table")
    options = parser.parse_args()
    nodes = read_nodes(options.nodes)[:: options.every]
    most = max(node.gpus for node in nodes)
    models = {node.model for node in nodes}
    pods = [
        pod
        for pod in read_pods(options.pods)
        if 0 < pod.gpus <= most and pod.life <= LONGEST and (not pod.models or models & set(pod.models))
    ]
    shares = [pod for pod in pods if pod.core < CORES_PER_GPU]
    if "shares" in options.tables:
        table("Jobs that ask for a share", nodes, shares, [*FIXED], options)
    if "all" in options.tables:
        table("All jobs", nodes, pods, [*FIXED, "adaptive"], options)
    if "mig" in options.tables:
        small = [pod for pod in shares if pod.core <= CORES_PER_GPU * max(PARTS) // WHOLE]
        table("Beside MIG slices", nodes, small, [*FIXED, MIG, "adaptive"], options, SlicedCluster)
    if "at-once" in options.tables:
        batches(read_nodes(options.nodes), [pod for pod in shares if not pod.models], options)


if __name__ == "__main__":
    main()
