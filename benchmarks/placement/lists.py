# SPDX-License-Identifier: Apache-2.0
"""Make lists of nodes and pods that are unlike openb's, so that no rule is tuned to one list alone.

    .venv/bin/python benchmarks/placement/lists.py FOLDER

Writes `NAME-nodes.csv` and `NAME-pods.csv` for each list of `LISTS`, in the format of `run.py`; always the same ones.
"""

from __future__ import annotations

import argparse
import csv
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

GIB: Final = 1024
PODS: Final = 4000


@dataclass(frozen=True)
class Nodes:
    """Equal nodes."""

    count: int
    gpus: int
    cpu: int
    """Cores of a node."""
    model: str = "A"


@dataclass(frozen=True)
class Pods:
    """Pods of one kind: how often they are drawn, and what they may want."""

    weight: float
    gpus: tuple[int, ...] = (1,)
    milli: tuple[int, ...] = (1000,)
    cpu: tuple[int, ...] = (4, 8)
    models: str = ""


@dataclass(frozen=True)
class Lists:
    """What a cluster has, and what is asked of it."""

    nodes: tuple[Nodes, ...]
    pods: tuple[Pods, ...]


EIGHT: Final = (Nodes(120, 8, 96),)
MIXED: Final = (Nodes(60, 8, 96, "A"), Nodes(60, 4, 64, "B"), Nodes(80, 2, 32, "C"))
ANY: Final = (100, 200, 250, 300, 400, 500, 600, 700, 750, 800, 900)
WITHOUT_GPUS: Final = Pods(0.15, gpus=(0,), milli=(0,), cpu=(2, 4, 8, 16))

LISTS: Final = {
    "mixed-models": Lists(MIXED, (
        Pods(0.4, milli=ANY), Pods(0.2, milli=(500, 800), models="A|B"), Pods(0.15, models="C"), Pods(0.1, gpus=(2, 4)),
        WITHOUT_GPUS,
    )),
    "short-of-cpu": Lists((Nodes(120, 8, 48),), (
        Pods(0.45, milli=ANY, cpu=(2, 4, 6, 8)), Pods(0.3, cpu=(4, 6, 8, 12)), Pods(0.1, gpus=(2, 4, 8), cpu=(12, 24)),
        WITHOUT_GPUS,
    )),
    "very-short-of-cpu": Lists((Nodes(120, 8, 32),), (
        Pods(0.6, milli=ANY, cpu=(1, 2, 4, 6)), Pods(0.3, cpu=(2, 4, 8)), Pods(0.1, gpus=(2, 4), cpu=(8, 12)),
    )),
    "whole-gpus": Lists(EIGHT, (
        Pods(0.6), Pods(0.2, gpus=(2,)), Pods(0.12, gpus=(4,)), Pods(0.08, gpus=(8,)), WITHOUT_GPUS,
    )),
    "fractions": Lists(EIGHT, (Pods(0.8, milli=ANY), Pods(0.2, milli=(330, 660, 510, 810)), WITHOUT_GPUS)),
    "quarters": Lists(EIGHT, (
        Pods(0.4, milli=(250,)), Pods(0.25, milli=(500,)), Pods(0.15, milli=(750,)), Pods(0.15), Pods(0.05, gpus=(4,)),
    )),
    "large-fractions": Lists(EIGHT, (
        Pods(0.5, milli=(600, 700)), Pods(0.3, milli=(300, 350)), Pods(0.2, milli=(950,)),
    )),
    "small-nodes": Lists((Nodes(400, 1, 16), Nodes(150, 2, 24)), (
        Pods(0.6, milli=ANY, cpu=(2, 4, 8)), Pods(0.3, cpu=(4, 8, 12)), Pods(0.1, gpus=(2,), cpu=(8, 16)),
    )),
}  # fmt: skip


def nodes(lists: Lists) -> Iterator[dict[str, object]]:
    """Yield the rows of the list of nodes; a core comes with 8 GiB."""
    for kind in lists.nodes:
        for number in range(kind.count):
            name = f"{kind.model}-{kind.gpus}-{number}"
            yield {
                "sn": name,
                "cpu_milli": kind.cpu * 1000,
                "memory_mib": kind.cpu * 8 * GIB,
                "gpu": kind.gpus,
                "model": kind.model,
            }


def pods(lists: Lists, chance: random.Random) -> Iterator[dict[str, object]]:
    """Yield the rows of the list of pods, which live for minutes to days."""
    weights = [kind.weight for kind in lists.pods]
    for number in range(PODS):
        kind = chance.choices(lists.pods, weights)[0]
        cores = chance.choice(kind.cpu)
        yield {
            "name": f"pod-{number}",
            "cpu_milli": cores * 1000,
            "memory_mib": cores * 4 * GIB,
            "num_gpu": chance.choice(kind.gpus),
            "gpu_milli": chance.choice(kind.milli),
            "gpu_spec": kind.models,
            "creation_time": 0,
            "deletion_time": 60 + int(chance.lognormvariate(8, 1.5)),
        }


def main() -> None:
    """Write the lists."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    folder: Path = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    for name, lists in LISTS.items():
        for what, rows in (("nodes", list(nodes(lists))), ("pods", list(pods(lists, random.Random(name))))):
            with (folder / f"{name}-{what}.csv").open("w", newline="") as file:
                writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
                writer.writeheader()
                writer.writerows(rows)


if __name__ == "__main__":
    main()
