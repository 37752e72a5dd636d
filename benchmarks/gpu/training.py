#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measure PyTorch programs that share a real GPU: without a limiter, with ours, and with a peer's.

    training.py [--seconds N] [--kinds bare,limited,peer] [--peer libvgpu.so]

Three programs, each started once for each kind and idle while others are measured:

    training   steps of a transformer of 8 layers, with the optimizer and a read of the loss; in budget, request 60 %
    loop       products of matrices without end, at most 8 of them ahead; background, or as a pair with 30 and 70 %
    serving    a request every 20 ms to a transformer of 8 layers; in budget, request 30 %

`bare` is the driver's own time-slicing. `peer` is HAMi-core's library with the same shares as ceilings. The table shows
rates relative to the same program alone and bare. Everything is printed as Markdown, with GPU and driver in front.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "vcuda" / "test" / "run"))

from harness import Node, Seat

Result = dict[str, float]


# ---- the programs ----


def training() -> Callable[[], float]:
    import torch

    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(1024, 16, 4096, batch_first=True, device="cuda", dtype=torch.bfloat16)
    model = torch.nn.TransformerEncoder(layer, 8, enable_nested_tensor=False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    x = torch.randn(16, 512, 1024, device="cuda", dtype=torch.bfloat16)

    def step() -> float:
        optimizer.zero_grad()
        loss = model(x).float().square().mean()
        loss.backward()
        optimizer.step()
        return float(loss.item())

    return step


def loop() -> Callable[[], float]:
    import torch

    a = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)
    out = torch.empty_like(a)
    ends: list[Any] = []

    def step() -> float:
        torch.matmul(a, a, out=out)
        ends.append(torch.cuda.Event())
        ends[-1].record()
        if len(ends) > 8:
            ends.pop(0).synchronize()
        return 0.0

    return step


def serving() -> Callable[[], float]:
    import torch

    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(1024, 16, 4096, batch_first=True, device="cuda", dtype=torch.bfloat16)
    model = torch.nn.TransformerEncoder(layer, 8, enable_nested_tensor=False).eval()
    x = torch.randn(4, 256, 1024, device="cuda", dtype=torch.bfloat16)
    due = [time.monotonic()]

    def step() -> float:
        """Wait for the next request; return what it took in milliseconds, from when it was due if the last was late."""
        now = time.monotonic()
        due[0] = due[0] + 0.02 if now - due[0] < 0.1 else now
        time.sleep(max(0.0, due[0] - now))
        with torch.no_grad():
            model(x).sum().item()
        return (time.monotonic() - due[0]) * 1e3

    return step


PROGRAMS = {"training": training, "loop": loop, "serving": serving}


def work(name: str) -> None:
    """Say when warm, then run for as many seconds as each line of the input says."""
    import torch

    step = PROGRAMS[name]()
    for _ in range(20):
        step()
    torch.cuda.synchronize()
    print("ready", torch.cuda.mem_get_info()[1] >> 20, flush=True)
    for line in sys.stdin:
        took: list[float] = []
        seconds = float(line)
        for _ in range(3):
            step()
        torch.cuda.synchronize()
        start = time.monotonic()
        while time.monotonic() - start < seconds:
            took.append(step())
        torch.cuda.synchronize()
        wall = time.monotonic() - start
        cuts = statistics.quantiles(took, n=100)
        print(json.dumps({"rate": len(took) / wall, "p50": cuts[49], "p99": cuts[98]}), flush=True)


# ---- who runs beside whom ----


class Worker:
    """A program that runs when told to."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process

    def ready(self) -> None:
        assert self.process.stdout
        line = self.process.stdout.readline()
        if not line.startswith("ready"):
            raise RuntimeError(f"a program did not start: {self.process.communicate(timeout=30)[1][-2000:]}")

    def go(self, seconds: float) -> None:
        assert self.process.stdin
        self.process.stdin.write(f"{seconds}\n")
        self.process.stdin.flush()

    def result(self) -> Result:
        assert self.process.stdout
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"a program ended: {self.process.communicate(timeout=30)[1][-2000:]}")
        got: Result = json.loads(line)
        return got


def measure(seconds: float, *workers: Worker) -> list[Result]:
    for worker in workers:
        worker.go(seconds)
    return [worker.result() for worker in workers]


SEATS = {
    "training": Seat(60, name="training", memory="16GiB"),
    "loop": Seat(10, vclass="background", name="loop", memory="4GiB"),
    "second": Seat(30, name="second", memory="4GiB"),
    "serving": Seat(30, name="serving", memory="4GiB"),
}
"""Their order is the order of their start."""


def peer_env(library: str, name: str, folder: str) -> dict[str, str]:
    """HAMi-core's settings for the same shares and caps."""
    core = {"training": 60, "loop": 70, "second": 30, "serving": 30}[name]
    return {
        "LD_PRELOAD": library,
        "CUDA_DEVICE_SM_LIMIT": str(core),
        "GPU_CORE_UTILIZATION_POLICY": "force",
        "CUDA_DEVICE_MEMORY_LIMIT": SEATS[name].memory.removesuffix("iB").lower(),
        "CUDA_DEVICE_MEMORY_SHARED_CACHE": f"{folder}/cache-{name}",
        "CUDA_TASK_PRIORITY": "1" if name == "loop" else "0",
        "LIBCUDA_LOG_LEVEL": "0",
    }


def workers(kind: str, node: Node, peer: str, folder: str) -> dict[str, Worker]:
    made = {}
    for name, seat in SEATS.items():
        program = "loop" if name == "second" else name
        seat.program = [sys.executable, str(Path(__file__).resolve()), "work", program]
        seat.env = peer_env(peer, name, folder) if kind == "peer" else {}
        made[name] = Worker(node.run(seat) if kind == "limited" else node.bare(seat))
    for worker in made.values():
        worker.ready()
    return made


def rates(kind: str, node: Node, w: dict[str, Worker], seconds: float) -> dict[str, list[Result]]:
    def classes(loop_class: str, core: int) -> None:
        if kind == "limited":
            node.ask(op="change", seat="loop", core=core, **{"class": loop_class})

    got = {}
    classes("background", 10)
    for name in ("training", "loop", "serving"):
        got[name] = measure(seconds, w[name])
    got["training beside loop"] = measure(seconds, w["training"], w["loop"])
    got["serving beside loop"] = measure(seconds, w["serving"], w["loop"])
    classes("in-budget", 70)
    got["loops of 70 and 30 %"] = measure(seconds, w["loop"], w["second"])
    got["training 60 % beside loop 30 %"] = measure(seconds, w["training"], w["second"])
    return got


def gpu_line() -> str:
    query = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]
    return subprocess.run(query, capture_output=True, text=True, check=True).stdout.strip()


def main() -> int:
    if sys.argv[1:2] == ["work"]:
        work(sys.argv[2])
        return 0
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--kinds", default="bare,limited")
    parser.add_argument("--peer", default="")
    options = parser.parse_args()
    print(f"{gpu_line()}\n", flush=True)
    alone: dict[str, Result] = {}
    print("| programs | kind | rates, % of alone and bare | p50, ms | p99, ms |\n|---|---|---|---|---|", flush=True)
    for kind in options.kinds.split(","):
        with tempfile.TemporaryDirectory() as folder, Node(virtual=False, real=True) as node:
            got = rates(kind, node, workers(kind, node, options.peer, folder), options.seconds)
            if kind == "limited":
                print(f"\n<!-- {json.dumps(node.ask(op='read'))} -->\n", flush=True)
        if kind == "bare":
            alone = {name: result[0] for name, result in got.items() if len(result) == 1}
        for name, results in got.items():
            first = name.split()[0].removesuffix("s") if name.startswith("loops") else name.split()[0]
            compared = [alone.get(first, {}).get("rate"), alone.get("loop", {}).get("rate")]
            parts = [f"{100 * r['rate'] / c:.1f}" if c else f"{r['rate']:.1f}/s" for r, c in zip(results, compared)]
            spread = [" / ".join(f"{r[p]:.1f}" for r in results) if "serving" in name else "" for p in ("p50", "p99")]
            print(f"| {name} | {kind} | {' / '.join(parts)} | {spread[0]} | {spread[1]} |", flush=True)
    return 0


if __name__ == "__main__":
    os.environ.setdefault("PYTHONUNBUFFERED", "1")
    sys.exit(main())
