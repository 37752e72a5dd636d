# SPDX-License-Identifier: Apache-2.0
"""PyTorch programs for sharing.py and callbacks.py, which rest until they are told to work.

    torch_programs.py training|serving|loop|callbacks|events

Each says `ready` when it is warm, works for as many seconds as each line of its input says, and answers with a line of
JSON: steps per second, and the median and the 99th percentile of what a step took, in milliseconds.
"""

from __future__ import annotations

import ctypes
import itertools
import json
import statistics
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

with suppress(ModuleNotFoundError):  # on a machine without it this file can be read, but not run
    import torch

WARM_UP = 20
PERIOD = 0.02
"""Seconds between two requests to `serving`."""
AHEAD = 8
"""How many products are launched before the first of them is waited for."""


def transformer() -> torch.nn.Module:
    """Return eight layers of the usual kind, 1,024 wide: 100 million parameters."""
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(1024, 16, 4096, batch_first=True, device="cuda", dtype=torch.bfloat16)
    return torch.nn.TransformerEncoder(layer, 8, enable_nested_tensor=False)


def training() -> Callable[[], None]:
    """Train on 16 sequences of 512 tokens, with the optimizer and a look at the loss."""
    model = transformer()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    batch = torch.randn(16, 512, 1024, device="cuda", dtype=torch.bfloat16)

    def step() -> None:
        optimizer.zero_grad()
        loss = model(batch).float().square().mean()
        loss.backward()
        optimizer.step()
        loss.item()

    return step


def serving() -> Callable[[], None]:
    """Answer requests of 4 sequences of 256 tokens."""
    model = transformer().eval()
    request = torch.randn(4, 256, 1024, device="cuda", dtype=torch.bfloat16)

    def step() -> None:
        with torch.no_grad():
            model(request).sum().item()

    return step


def loop() -> Callable[[], None]:
    """Multiply matrices, so that the GPU always has work."""
    factor = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)
    product = torch.empty_like(factor)
    ends: deque[torch.cuda.Event] = deque()

    def step() -> None:
        torch.matmul(factor, factor, out=product)
        ends.append(torch.cuda.Event())
        ends[-1].record()
        if len(ends) > AHEAD:
            ends.popleft().synchronize()

    return step


def runtime_call(runtime: str, driver: str) -> Callable[..., int]:
    """Return a function of the CUDA runtime that PyTorch has loaded, or the driver's that takes the same arguments."""
    loaded = {line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if "/libcudart.so" in line}
    call = getattr(ctypes.CDLL(loaded.pop()), runtime) if loaded else getattr(ctypes.CDLL("libcuda.so.1"), driver)
    call.restype = ctypes.c_int
    return call


def callbacks() -> Callable[[], None]:
    """Multiply matrices with a host function after each product; the next one is launched when an old one has run."""
    factor = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)
    product = torch.empty_like(factor)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    launch = runtime_call("cudaLaunchHostFunc", "cuLaunchHostFunc")
    room = threading.Semaphore(AHEAD)
    ended = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda _: room.release())

    def step() -> None:
        if not room.acquire(timeout=60):
            raise RuntimeError("no host function has run for 60 s")
        with torch.cuda.stream(stream):
            torch.matmul(factor, factor, out=product)
        code = launch(ctypes.c_void_p(stream.cuda_stream), ended, None)
        if code:
            raise RuntimeError(f"cudaLaunchHostFunc answers {code}")

    return step


def events() -> Callable[[], None]:
    """Copy to the GPU on one stream and multiply on another, each waiting for the other's events."""
    source = torch.randn(1024, 4096, dtype=torch.bfloat16).pin_memory()
    factors = [torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16) for _ in range(2)]
    product = torch.empty_like(factors[0])
    copies, products = torch.cuda.Stream(), torch.cuda.Stream()
    for stream in (copies, products):
        stream.wait_stream(torch.cuda.current_stream())
    ends: deque[torch.cuda.Event] = deque()
    turns = itertools.count()

    def step() -> None:
        factor, copied, used = factors[next(turns) % 2], torch.cuda.Event(), torch.cuda.Event()
        if len(ends) > 1:
            copies.wait_event(ends[-2])  # of the product that used the same factor
        with torch.cuda.stream(copies):
            factor[:1024].copy_(source, non_blocking=True)
            copied.record()
        products.wait_event(copied)
        with torch.cuda.stream(products):
            torch.matmul(factor, factor, out=product)
            used.record()
        ends.append(used)
        if len(ends) > AHEAD:
            ends.popleft().synchronize()

    return step


PROGRAMS = {"training": training, "serving": serving, "loop": loop, "callbacks": callbacks, "events": events}


def work(step: Callable[[], None], seconds: float, period: float) -> dict[str, float]:
    """Step for so long, each step when it is due; a late one is measured from when it was due."""
    took = []
    start = due = time.monotonic()
    while due < start + seconds:
        now = time.monotonic()
        if period:
            time.sleep(max(0.0, due - now))
        else:
            due = now
        step()
        took.append((time.monotonic() - due) * 1e3)
        due += period
    torch.cuda.synchronize()
    wall = time.monotonic() - start
    cuts = statistics.quantiles(took, n=100)
    return {"rate": len(took) / wall, "p50": cuts[49], "p99": cuts[98]}


def main() -> None:
    """Work when told to."""
    name = sys.argv[1]
    step = PROGRAMS[name]()
    for _ in range(WARM_UP):
        step()
    torch.cuda.synchronize()
    print("ready", flush=True)
    for line in sys.stdin:
        for _ in range(3):
            step()
        torch.cuda.synchronize()
        print(json.dumps(work(step, float(line), PERIOD if name == "serving" else 0.0)), flush=True)


if __name__ == "__main__":
    main()
