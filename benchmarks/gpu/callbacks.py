#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measure PyTorch programs that go on when a stream tells them to: by host functions, and by events of other streams.

    callbacks.py [--seconds N] [--dry-run]

`callbacks` and `events` of torch_programs.py, each alone, in pairs, and beside another of its kind, bare and with the
limiter at 50/50 in turn. What the driver's own time-slicing gives each program alone is 100. A share is what the
arbiter saw of a seat's work in flight, so a program without a limiter has none.
"""

from __future__ import annotations

import statistics
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "vcuda" / "test" / "run"))

from harness import Node, Seat
from torch_bench import STAND_IN, Worker, measure, node, parser, prepared

PROGRAMS = Path(__file__).with_name("torch_programs.py")
NAMES = ("callbacks", "events", "second callbacks", "second events")
ROWS = [
    ("callbacks",),
    ("events",),
    ("callbacks", "events"),
    ("callbacks", "second callbacks"),
    ("events", "second events"),
]
ROUNDS = 2


def what(name: str) -> str:
    return name.removeprefix("second ")


def shares(before: dict[str, Any], after: dict[str, Any], names: tuple[str, ...]) -> list[float]:
    """Return what part of the GPU each seat's work took between two readings, in per cent."""
    seats = [name.replace(" ", "-") for name in names]
    return [
        100 * (after[s]["busy_ns"] - before[s]["busy_ns"]) / (after[s]["wall_ns"] - before[s]["wall_ns"]) for s in seats
    ]


def means(rounds: list[list[float]]) -> list[float]:
    return [statistics.mean(values) for values in zip(*rounds, strict=True)]


def joined(values: list[float]) -> str:
    return " / ".join(f"{value:.1f}" for value in values)


def table(gpu: Node, workers: dict[str, dict[str, Worker]], seconds: float) -> None:
    """Measure all rows; those of one program come first and say what is 100."""
    alone: dict[str, float] = {}
    print(
        "| at work | kind | rates, % of alone and bare | shares, % of the GPU | p50 of a step, ms | p99, ms |\n"
        "|---|---|---|---|---|---|"
    )
    for names in ROWS:
        rates, steps, busy = defaultdict(list), defaultdict(list), []
        for _ in range(ROUNDS):
            for kind in ("bare", "limited"):
                before = gpu.seats()
                got = measure((workers[kind][name] for name in names), seconds)
                if kind == "limited":
                    busy.append(shares(before, gpu.seats(), names))
                rates[kind].append([r["rate"] for r in got])
                steps[kind].append([r["p50"] for r in got] + [r["p99"] for r in got])
        if len(names) == 1:
            alone[names[0]] = means(rates["bare"])[0]
        for kind in ("bare", "limited"):
            kept = [100 * rate / alone[what(name)] for name, rate in zip(names, means(rates[kind]), strict=True)]
            took = means(steps[kind])
            share = joined(means(busy)) if kind == "limited" else ""
            p50, p99 = joined(took[: len(names)]), joined(took[len(names) :])
            print(f"| {', '.join(names)} | {kind} | {joined(kept)} | {share} | {p50} | {p99} |", flush=True)


def main() -> int:
    options = parser(__doc__, 5).parse_args()
    if not prepared(options.dry_run):
        return 0
    with node(options.dry_run) as gpu:
        seats = {
            name: Seat(
                50,
                memory="8GiB",
                name=name.replace(" ", "-"),
                program=[sys.executable, str(STAND_IN if options.dry_run else PROGRAMS), what(name)],
            )
            for name in NAMES
        }
        workers = {
            "bare": {name: Worker(gpu.bare(seat)) for name, seat in seats.items()},
            "limited": {name: Worker(gpu.run(seat)) for name, seat in seats.items()},
        }
        for worker in (*workers["bare"].values(), *workers["limited"].values()):
            worker.ready()
        table(gpu, workers, options.seconds)
    return 0


if __name__ == "__main__":
    sys.exit(main())
