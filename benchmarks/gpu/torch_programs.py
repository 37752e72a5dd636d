# SPDX-License-Identifier: Apache-2.0
"""PyTorch programs for sharing.py, which rest until they are told to work.

    torch_programs.py training|serving|loop

Each says `ready` when it is warm, works for as many seconds as each line of its input says, and answers with a line of
JSON: steps per second, and the median and the 99th percentile of what a step took, in milliseconds.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress

with suppress(ModuleNotFoundError):  # on a machine without it this file can be read, but not run
    import torch

WARM_UP = 20
PERIOD = 0.02
"""Seconds between two requests to `serving`."""
AHEAD = 8
"""How many products `loop` launches before it waits for the first of them."""


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


PROGRAMS = {"training": training, "serving": serving, "loop": loop}


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
