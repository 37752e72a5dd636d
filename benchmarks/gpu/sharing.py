#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measure PyTorch programs that share a real GPU: without a limiter, with ours, and with HAMi-core's.

    sharing.py [--seconds N] [--peer libvgpu.so]

The programs are those of torch_programs.py: `training` and `serving` in budget, with requests of 60 and 30 %, and
`loop` in the background, or in budget beside another one. All of them are started once and rest while others are
measured, bare and limited in turn, so that a machine that gets slower does so for both. `bare` is the driver's own
time-slicing; what it gives each program alone is 100. HAMi-core knows ceilings, and no classes without its monitor:
its `loop` beside `training` has a ceiling of 20 %. Its programs are started one after the other, because two that
start at once may not be told apart.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "vcuda" / "test" / "run"))

from harness import Node, Seat
from torch_bench import Worker, described_gpu, measure, peer_env

Result = dict[str, float]

PROGRAMS = Path(__file__).resolve().with_name("torch_programs.py")
SEATS = {
    "training": Seat(60, memory="16GiB"),
    "serving": Seat(30, memory="4GiB"),
    "loop": Seat(10, vclass="background", memory="4GiB"),
    "second loop": Seat(30, memory="4GiB"),
}
PEER_CEILINGS = {"loop of 70 %": 70, "loop of 30 %": 30, "training": 100, "loop": 20}


def command(name: str) -> list[str]:
    return [sys.executable, str(PROGRAMS), name.replace("second ", "").partition(" ")[0]]


@dataclass
class Row:
    """Programs at work at the same time, and how often they are measured."""

    name: str
    programs: tuple[str, ...]
    rounds: int = 1
    loop: tuple[str, int] = ("background", 10)
    """The loop's class and request."""


ROWS = [
    Row("training, the others at rest", ("training",), 3),
    Row("serving, the others at rest", ("serving",), 2),
    Row("loop, the others at rest", ("loop",), 2),
    Row("training in budget, loop in the background", ("training", "loop")),
    Row("serving in budget, loop in the background", ("serving", "loop")),
    Row("two loops, 70 and 30 %", ("loop", "second loop"), loop=("in-budget", 70)),
    Row("training 60 %, loop 30 %", ("training", "second loop")),
    Row("training 60 %, serving 30 %", ("training", "serving")),
]


def show(name: str, kind: str, programs: Iterable[str], results: list[list[Result]], alone: dict[str, float]) -> None:
    """Print means of the rounds, each program's rate in per cent of what it is alone and bare."""
    rates, waits = [], []
    for program, rounds in zip(programs, zip(*results, strict=True), strict=True):
        what = command(program)[-1]
        rate = statistics.mean(r["rate"] for r in rounds)
        rates.append(f"{100 * rate / alone[what]:.1f}")
        if what == "serving":
            waits = [f"{statistics.mean(r[p] for r in rounds):.1f}" for p in ("p50", "p99")]
    print(f"| {name} | {kind} | {' / '.join(rates)} | {' / '.join(waits)} |", flush=True)


def table(node: Node, bare: dict[str, Worker], limited: dict[str, Worker], seconds: float) -> dict[str, float]:
    """Measure all rows; return each program's rate alone and bare."""
    alone: dict[str, float] = {}
    print("| at work | kind | rates, % of alone and bare | answers of `serving`, p50 / p99, ms |\n|---|---|---|---|")
    for row in ROWS:
        vclass, core = row.loop
        node.ask(op="change", seat="loop", core=core, **{"class": vclass})
        results: dict[str, list[list[Result]]] = {"bare": [], "limited": []}
        for _ in range(row.rounds):
            for kind, workers in (("bare", bare), ("limited", limited)):
                results[kind].append(measure((workers[name] for name in row.programs), seconds))
        if len(row.programs) == 1:
            alone[row.programs[0]] = statistics.mean(r[0]["rate"] for r in results["bare"])
        for kind, rounds in results.items():
            show(row.name, kind, row.programs, rounds, alone)
    return alone


def peer(node: Node, library: str, seconds: float, alone: dict[str, float]) -> None:
    """The same with HAMi-core's library, as far as it knows such things."""
    workers = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, ceiling in PEER_CEILINGS.items():
            env = peer_env(library, f"{folder}/{len(workers)}", ceiling)
            workers[name] = Worker(node.bare(Seat(100, program=command(name), env=env)))
            workers[name].ready()
        loops, pair = ("loop of 70 %", "loop of 30 %"), ("training", "loop")
        for title, names in (
            ("two loops, 70 and 30 %", loops),
            ("training without a ceiling, loop with one of 20 %", pair),
        ):
            show(title, "HAMi-core", names, [measure((workers[name] for name in names), 3 * seconds)], alone)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--peer", help="HAMi-core's library, to be preloaded in the same run")
    options = parser.parse_args()
    said = described_gpu()
    if not said:
        print("there is no NVIDIA GPU on this machine")
        return 0
    print(f"{said}\n", flush=True)
    with Node(virtual=False, real=True) as node:
        seats = {
            name: replace(seat, name=name.replace(" ", "-"), program=command(name)) for name, seat in SEATS.items()
        }
        bare = {name: Worker(node.bare(seat)) for name, seat in seats.items()}
        limited = {name: Worker(node.run(seat)) for name, seat in seats.items()}
        for worker in (*bare.values(), *limited.values()):
            worker.ready()
        alone = table(node, bare, limited, options.seconds)
        if options.peer:
            peer(node, options.peer, options.seconds, alone)
    return 0


if __name__ == "__main__":
    sys.exit(main())
