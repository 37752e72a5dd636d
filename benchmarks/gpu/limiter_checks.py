#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The limiter's checks on a real NVIDIA GPU; says plainly when there is none.

    limiter_checks.py [HEADERS] [--seconds N]          what `make -C vcuda test-gpu` runs
    limiter_checks.py [HEADERS] [--seconds N] --fake   its driver-API part on the fake GPU, in real time

The driver-API program is gpu.c beside this file. numba, CuPy and PyTorch are checked where they are
installed. The arbiter and the library are those of `make -C vcuda`. On the fake GPU bounds are wide,
for the machine's other work shows there; what it proves is that the suite itself is sound.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib.util
import json
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "vcuda" / "test" / "run"))

from harness import BUILD, Node, Seat
from verdicts import need, total, verdict

PROGRAM = BUILD / "gpu"

FRAMEWORKS = {
    "numba": (
        "import numpy as np\nfrom numba import cuda\n@cuda.jit\ndef f(x):\n    i = cuda.grid(1)\n"
        "    if i < x.size: x[i] += 1\nd = cuda.to_device(np.zeros(1024, np.float32))\nf[4, 256](d)\n"
        "assert d.copy_to_host().sum() == 1024\n",
        "assert cuda.current_context().get_memory_info()[1] <= 2 << 30\n",
    ),
    "cupy": (
        "import cupy\nx = cupy.arange(1 << 20, dtype=cupy.float32)\nassert float((x * 2).sum()) > 0\n",
        "try:\n    cupy.zeros(4 << 30, dtype=cupy.uint8)\n    raise SystemExit('not refused')\n"
        "except cupy.cuda.memory.OutOfMemoryError:\n    pass\n",
    ),
    "torch": (
        "import torch\nx = torch.ones(1024, 1024, device='cuda')\nassert float((x @ x).sum()) > 0\n"
        "g = torch.cuda.CUDAGraph()\ny = x.clone()\ntorch.cuda.synchronize()\n"
        "with torch.cuda.graph(g):\n    y.mul_(1.0)\nfor _ in range(50): g.replay()\ntorch.cuda.synchronize()\n",
        "try:\n    torch.empty(4 << 30, dtype=torch.uint8, device='cuda')\n    raise SystemExit('not refused')\n"
        "except torch.OutOfMemoryError:\n    pass\n",
    ),
}
"""A program by each framework, and what it must see in a seat of 2 GiB."""


def has_gpu() -> bool:
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    count = ctypes.c_int()
    return driver.cuInit(0) == 0 and driver.cuDeviceGetCount(ctypes.byref(count)) == 0 and count.value > 0


class Gpu(Node):
    """An arbiter of our own on the GPU, and the seats in it."""

    def __init__(self, fake: bool) -> None:
        super().__init__(virtual=False, real=not fake)
        self.slack = 10.0 if fake else 2.0

    def seat(
        self, name: str, core: int, *program: str, limit: int = 100, vclass: str = "in-budget", memory: str = "2GiB"
    ) -> subprocess.Popen[str]:
        """Start a program in a seat; without a path it is the suite's own."""
        command = program if program[0].startswith("/") else (str(PROGRAM), *program)
        return self.run(Seat(core, limit, vclass, memory, program=command, name=name))

    def share(self, name: str, seconds: float) -> float:
        """Measure what part of the GPU a seat's work takes from now on, in per cent."""
        first = self.seats()[name]
        time.sleep(seconds)
        last = self.seats()[name]
        return 100.0 * (last["busy_ns"] - first["busy_ns"]) / (last["wall_ns"] - first["wall_ns"])


def answer(p: subprocess.Popen[str]) -> dict[str, Any]:
    """Read a program's own account, its last line."""
    out, err = p.communicate(timeout=100)
    if p.returncode:
        raise AssertionError(f"ended with {p.returncode}: {(err or out).strip()[-300:]}")
    lines = out.strip().splitlines()
    got: dict[str, Any] = json.loads(lines[-1])
    got["said"] = "; ".join(lines[:-1])
    return got


def memory_cap(gpu: Gpu, _: float) -> str:
    got = answer(gpu.seat("cap", 50, "cap"))
    need(not got["bad"] and got["total"] == 2 << 30, got["said"] or str(got))
    return f"{got['calls']} allocating calls"


def used(gpu: Gpu, seat: str) -> tuple[int, int]:
    """Return what a seat is charged and what the driver has given out, in MiB; on the fake GPU the first twice."""
    charged = gpu.seats()[seat]["memory"] >> 20
    if gpu.kind:
        return charged, charged
    query = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    return charged, int(subprocess.run(query, capture_output=True, text=True, check=True).stdout)


def charges(gpu: Gpu, _: float) -> str:
    """Compare what pieces of each allocating call are charged with what the driver took for them.

    Managed memory is charged in full; the driver takes it when it is touched.
    """
    p = gpu.seat("each", 50, "each", "6", "32", memory="8GiB")
    assert p.stdin
    assert p.stdout
    said, wrong, before = [], [], (0, 0)
    for line in p.stdout:
        time.sleep(0.2)
        now = used(gpu, "each")
        charged, taken = now[0] - before[0], now[1] - before[1]
        if line.strip() != "nothing":
            said.append(f"{line.strip()} {charged}/{taken}")
            wrong += said[-1:] if abs(charged - taken) > 4 and line != "cuMemAllocManaged\n" else []
        before = now
        p.stdin.write("\n")
        p.stdin.flush()
    need(p.wait(10) == 0, f"ended with {p.returncode}")
    need(not wrong, f"charged and taken of 192 MiB: {', '.join(said)}")
    return f"charged and taken of 192 MiB: {', '.join(said)}"


def memory_back(gpu: Gpu, _: float) -> str:
    holder = gpu.seat("held", 50, "hold", "512", memory="4GiB")
    need(holder.stdout and holder.stdout.readline() == "holding\n", "did not hold")
    gpu.seat("held", 50, "spin", "20", "100", memory="4GiB")  # keeps the seat
    time.sleep(0.5)
    before = gpu.seats()["held"]["memory"]
    start = time.monotonic()
    holder.kill()
    while gpu.seats()["held"]["memory"] > before - (512 << 20) and time.monotonic() - start < 5:
        time.sleep(0.01)
    took = time.monotonic() - start
    need(took < 1, f"the bytes of a killed process took {took:.1f} s")
    return f"{took * 1e3:.0f} ms"


def pairs(gpu: Gpu, seconds: float) -> str:
    said = []
    for cores, limits in (((40, 60), (70, 80)), ((10, 90), (100, 100)), ((30, 70), (100, 100))):
        for n, (core, limit) in enumerate(zip(cores, limits, strict=True)):
            gpu.seat(f"p{core}-{n}", core, "spin", str(seconds + 3), "200", limit=limit)
        time.sleep(1)
        names = [f"p{core}-{n}" for n, core in enumerate(cores)]
        first = gpu.seats()
        time.sleep(seconds)
        last = gpu.seats()
        got = [
            100 * (last[n]["busy_ns"] - first[n]["busy_ns"]) / (last[n]["wall_ns"] - first[n]["wall_ns"]) for n in names
        ]
        text = "/".join(f"{g:.1f}" for g in got)
        need(all(abs(g - c) <= gpu.slack for g, c in zip(got, cores, strict=True)), f"{cores}: {text}")
        said.append(text)
        for p in gpu.tenants:
            p.kill()
            p.wait()
    return ", ".join(said)


def beside_background(gpu: Gpu, seconds: float) -> str:
    training, loop = ["spin", str(seconds), "1000", "15", "5000"], ["spin", str(seconds), "200"]

    def pace(p: subprocess.Popen[str]) -> float:
        got = answer(p)
        return float(got["kernels"] / got["seconds"])

    alone = pace(gpu.seat("solo", 60, *training))
    free = pace(gpu.seat("free", 10, *loop, vclass="background"))
    both = gpu.seat("train", 60, *training), gpu.seat("loop", 10, *loop, vclass="background")
    kept, left = pace(both[0]) / alone, pace(both[1]) / free
    need(kept > 0.95 - (gpu.slack - 2) / 100, f"in-budget keeps {kept:.3f}")
    need(left >= 0.20 - (gpu.slack - 2) / 100, f"background keeps {left:.3f}")
    return f"in-budget keeps {kept:.3f}, background {left:.3f}"


def change_of_class(gpu: Gpu, _: float) -> str:
    took = []
    for name in ("a", "b"):
        gpu.seat(name, 50, "spin", "60", "200")
    time.sleep(1)
    for i in range(15):
        loser, winner = ("a", "b") if i % 2 else ("b", "a")
        start = time.monotonic()
        gpu.ask(op="change", seat=loser, **{"class": "background"})
        gpu.until_granted(winner, 2)
        took.append((time.monotonic() - start) * 1e3)
        gpu.ask(op="change", seat=loser, **{"class": "in-budget"})
        time.sleep(0.1)
    median = statistics.median(took)
    need(median <= 5.2, f"median {median:.1f} ms")
    return f"median {median:.1f} ms, most {max(took):.1f}"


def stopped_and_killed(gpu: Gpu, _: float) -> str:
    bad = gpu.seat("bad", 50, "spin", "60", "2000")
    gpu.seat("good", 50, "spin", "60", "2000")
    time.sleep(1)
    bad.send_signal(signal.SIGSTOP)
    time.sleep(0.3)
    stopped = gpu.share("good", 1.5)
    bad.send_signal(signal.SIGCONT)
    time.sleep(3)  # it is owed its request of the time before
    going_on = gpu.share("good", 1.5)
    bad.kill()
    time.sleep(0.3)
    alone = gpu.share("good", 1.5)
    text = f"the other: {stopped:.1f} % while stopped, {going_on:.1f} % afterwards, {alone:.1f} % when killed"
    need(stopped > 97 - gpu.slack and alone > 97 - gpu.slack and going_on > 50 - gpu.slack, text)
    return text


def arbiter_restarted(gpu: Gpu, _: float) -> str:
    for name, core in (("a", 30), ("b", 70)):
        gpu.seat(name, core, "spin", "60", "1000")
    time.sleep(1)
    gpu.arbiter.kill()
    gpu.arbiter.wait()
    time.sleep(1)
    gpu.start()
    time.sleep(1)
    need(set(gpu.seats()) == {"a", "b"}, f"seats after the restart: {set(gpu.seats())}")
    share = gpu.share("b", 2)
    need(share > 70 - gpu.slack, f"{share:.1f} % of 70 %")
    return f"{share:.1f} % of 70 %"


DRIVER_API = [
    memory_cap,
    charges,
    memory_back,
    pairs,
    beside_background,
    change_of_class,
    stopped_and_killed,
    arbiter_restarted,
]


def attempt(name: str, check: Callable[[Gpu, float], str], fake: bool, seconds: float) -> None:
    """Try once; on the fake GPU three times, for a busy machine may spoil one."""
    note = ""
    for _ in range(3 if fake else 1):
        gpu = Gpu(fake)
        try:
            verdict("passed", name, check(gpu, seconds))
        except (AssertionError, KeyError, RuntimeError, OSError, subprocess.TimeoutExpired) as error:
            note = f"{type(error).__name__}: {error}\n  the arbiter's log: {gpu.logged()[-1500:].strip()}"
        else:
            return
        finally:
            gpu.close()
    verdict("failed", name, note)


def framework(name: str, program: str, in_a_seat: str) -> None:
    def check(gpu: Gpu, _: float) -> str:
        p = gpu.seat(name, 50, sys.executable, "-c", program + in_a_seat)
        _, err = p.communicate(timeout=100)
        need(not p.returncode, err.strip()[-300:])
        return ""

    if importlib.util.find_spec(name) is None:
        verdict("skipped", name, "not installed")
    elif subprocess.run([sys.executable, "-c", program], capture_output=True, check=False).returncode:
        verdict("skipped", name, "does not run here without a limiter either")
    else:
        attempt(name, check, False, 0)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("headers", nargs="?", default="/usr/local/cuda/include", help="folder with cuda.h")
    parser.add_argument("--fake", action="store_true", help="on the fake GPU: only what needs no kernel to run")
    parser.add_argument("--seconds", type=float, default=10)
    options = parser.parse_args()
    if options.fake or has_gpu():
        gcc = ["gcc", "-O2", "-Wall", "-Wextra", "-Werror", f"-I{options.headers}"]
        files = [Path(__file__).with_name("gpu.c"), BUILD / "fake" / "libcuda.so.1"]
        subprocess.run([*gcc, "-o", PROGRAM, *files], check=True)
        for check in DRIVER_API:
            attempt(check.__name__.replace("_", " "), check, options.fake, options.seconds)
        for name, programs in FRAMEWORKS.items():
            if options.fake:
                verdict("skipped", name, "the fake GPU runs no kernels")
            else:
                framework(name, *programs)
    else:
        for check in DRIVER_API:
            verdict("skipped", check.__name__.replace("_", " "), "there is no NVIDIA GPU on this machine")
        for name in FRAMEWORKS:
            verdict("skipped", name, "there is no NVIDIA GPU on this machine")
    return total("vcuda", options.fake)


if __name__ == "__main__":
    sys.exit(main())
