#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measure two language models of about 4B parameters on one GPU, as NVIDIA compared ways of sharing one.

    language_models.py [--seconds N] [--engine transformers|torch] [--peer libvgpu.so] [--dry-run]

The models have Qwen3-4B's shape and random weights in bfloat16, by model_programs.py: `transformers` if that library is
installed, else `torch`. Each decodes for 2, 4, 8, 16 and 32 requests at a time, on a GPU of its own (the others rest),
then both at the same time: bare, with the limiter at 50/50, and with HAMi-core's library and ceilings of 50 %, for
twice as long, because its ceilings settle slowly. A model on a GPU of its own is 100 in each row, for tokens per second
and for the time between two tokens. The last column says if the first tokens of each request are those of the model
alone.
"""

from __future__ import annotations

import importlib.util
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "vcuda" / "test" / "run"))

from harness import Node, Seat
from torch_bench import STAND_IN, Worker, measure, node, parser, peer_env, prepared

PROGRAMS = Path(__file__).with_name("model_programs.py")
REQUESTS = (2, 4, 8, 16, 32)
MODELS = ("model-a", "model-b")

Result = dict[str, Any]


def per_cent(results: list[Result], alone: Result, field: str) -> str:
    """Return each model's value in per cent of what it is alone, and the mean."""
    values = [100 * result[field] / alone[field] for result in results]
    return f"{' / '.join(f'{value:.1f}' for value in values)} ({statistics.mean(values):.1f})"


def show(requests: int, kind: str, results: list[Result], alone: Result) -> None:
    same = "yes" if all(result["tokens"] == alone["tokens"] for result in results) else "NO"
    rates, gaps = per_cent(results, alone, "rate"), per_cent(results, alone, "p50")
    print(f"| {requests} | {kind} | {rates} | {gaps} | {same} |", flush=True)


def models(gpu: Node, command: list[str], seconds: float) -> dict[int, Result]:
    """Measure a model alone, and two bare and limited; return what one is alone."""
    seats = [Seat(50, memory="30GiB", name=name, program=command) for name in MODELS]
    bare = [Worker(gpu.bare(seat)) for seat in seats]
    limited = [Worker(gpu.run(seat)) for seat in seats]
    for worker in (*bare, *limited):
        worker.ready()
    alone = {}
    for requests in REQUESTS:
        [alone[requests]] = measure(bare[:1], seconds, requests)
        own = alone[requests]
        print(f"| {requests} | alone: {own['rate']:.0f} tokens/s, {own['p50']:.1f} ms | 100 | 100 | |", flush=True)
        for kind, workers in (("bare", bare), ("limited", limited)):
            show(requests, kind, measure(workers, seconds, requests), own)
    for worker in (*bare, *limited):
        worker.end()
    return alone


def peer(gpu: Node, command: list[str], seconds: float, library: str, alone: dict[int, Result]) -> None:
    """Measure two with HAMi-core's library; one is started after the other is warm, or they may be taken for one."""
    with tempfile.TemporaryDirectory() as folder:
        workers = []
        for name in MODELS:
            env = peer_env(library, f"{folder}/{name}", 50)
            workers.append(Worker(gpu.bare(Seat(50, program=command, env=env))))
            workers[-1].ready()
        for requests in REQUESTS:
            show(requests, "HAMi-core", measure(workers, 2 * seconds, requests), alone[requests])


def main() -> int:
    options = parser(__doc__, 3)
    options.add_argument("--engine", choices=("transformers", "torch"), help="what runs the models")
    options.add_argument("--peer", help="HAMi-core's library, to be preloaded in the same run")
    given = options.parse_args()
    if not prepared(given.dry_run):
        return 0
    engine = given.engine or ("transformers" if importlib.util.find_spec("transformers") else "torch")
    command = [sys.executable, str(STAND_IN), "model"] if given.dry_run else [sys.executable, str(PROGRAMS), engine]
    print(f"engine: {engine}\n")
    print(
        "| requests | kind | tokens/s, % of alone (mean) | between tokens, p50, % of alone (mean) | tokens as alone |"
    )
    print("|---|---|---|---|---|", flush=True)
    with node(given.dry_run) as gpu:
        alone = models(gpu, command, given.seconds)
        if not given.peer:
            print("\nHAMi-core: skipped, no --peer says where its library is")
        elif not Path(given.peer).exists():
            print(f"\nHAMi-core: skipped, there is no {given.peer}")
        else:
            try:
                peer(gpu, command, given.seconds, given.peer, alone)
            except (RuntimeError, OSError) as error:
                print(f"\nHAMi-core: {error}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
