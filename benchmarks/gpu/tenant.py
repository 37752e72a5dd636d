# SPDX-License-Identifier: Apache-2.0
"""A container's program for agent_checks.py: kernels without an end, counted, and a try of its memory cap.

    tenant.py torch|driver

`torch` multiplies matrices with PyTorch; `driver` spins by the driver API alone, which the fake GPU runs too. It says
`ready`, waits for a line on its standard input, and then prints `k INSTANT COUNT` about 20 times a second: nanoseconds
of the monotonic clock, and how many kernels are done. The line `memory` is answered by one of JSON.
"""

from __future__ import annotations

import ctypes
import json
import select
import sys
import time
from collections.abc import Callable
from typing import Any

SLACK = 512 << 20
"""So much more than is free must be refused, and so much less be granted."""
HELD = 256 << 20
"""What the driver's own program allocates."""
KERNEL_NS = 1_000_000
BATCH = 10
SAY_NS = 50_000_000

PTX = b"""
.version 6.0
.target sm_52
.address_size 64
.visible .entry spin(.param .u64 ns)
{
.reg .u64 %a, %b, %n;
.reg .pred %p;
ld.param.u64 %n, [ns];
mov.u64 %a, %globaltimer;
again:
mov.u64 %b, %globaltimer;
sub.u64 %b, %b, %a;
setp.lt.u64 %p, %b, %n;
@%p bra again;
ret;
}
"""


class Torch:
    """Products of matrices, in single precision: they leave the GPU's clock alone more than others do."""

    def __init__(self) -> None:
        import torch  # noqa: PLC0415 - seconds, and only for this kind

        self._torch = torch
        self._a = torch.randn(2048, 2048, device="cuda")
        self._out = torch.empty_like(self._a)
        self.launch()()

    def launch(self) -> Callable[[], None]:
        """Launch a batch; return what waits for its end."""
        for _ in range(BATCH):
            self._torch.mm(self._a, self._a, out=self._out)
        event = self._torch.cuda.Event()
        event.record()
        return event.synchronize

    def memory(self) -> tuple[int, int]:
        """Return how much memory is free, and all."""
        free, total = self._torch.cuda.mem_get_info()
        return free, total

    def take(self, size: int) -> str:
        """Allocate, and give back; return what kept it from that."""
        try:
            piece = self._torch.empty(size, dtype=self._torch.uint8, device="cuda")
        except self._torch.OutOfMemoryError as error:
            return type(error).__name__
        del piece
        self._torch.cuda.empty_cache()
        return ""


class Driver:
    """Kernels that take a given time by the GPU's own timer."""

    def __init__(self) -> None:
        self._cuda = ctypes.CDLL("libcuda.so.1")
        device, context, module = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_void_p()
        self._spin = ctypes.c_void_p()
        self._call("cuInit", 0)
        self._call("cuDeviceGet", ctypes.byref(device), 0)
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self._call("cuCtxSetCurrent", context)
        self._call("cuMemAlloc_v2", ctypes.byref(ctypes.c_void_p()), ctypes.c_size_t(HELD))
        self._call("cuModuleLoadData", ctypes.byref(module), PTX)
        self._call("cuModuleGetFunction", ctypes.byref(self._spin), module, b"spin")
        self._ns = ctypes.c_uint64(KERNEL_NS)
        self._params = (ctypes.c_void_p * 1)(ctypes.cast(ctypes.byref(self._ns), ctypes.c_void_p))
        self._events = [ctypes.c_void_p() for _ in range(4)]
        for event in self._events:
            self._call("cuEventCreate", ctypes.byref(event), 2)  # without timing
        self.launch()()

    def _call(self, name: str, *arguments: Any) -> None:
        result = getattr(self._cuda, name)(*arguments)
        if result:
            raise SystemExit(f"{name} failed with {result}")

    def launch(self) -> Callable[[], None]:
        """Launch a batch; return what waits for its end."""
        shape, stream = [1, 1, 1, 1, 1, 1, 0], ctypes.c_void_p()
        for _ in range(BATCH):
            self._call("cuLaunchKernel", self._spin, *shape, stream, self._params, None)
        event = self._events.pop(0)
        self._events.append(event)
        self._call("cuEventRecord", event, stream)
        return lambda: self._call("cuEventSynchronize", event)

    def memory(self) -> tuple[int, int]:
        """Return how much memory is free, and all."""
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self._call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        return free.value, total.value

    def take(self, size: int) -> str:
        """Allocate, and give back; return what kept it from that."""
        piece = ctypes.c_void_p()
        result = self._cuda.cuMemAlloc_v2(ctypes.byref(piece), ctypes.c_size_t(size))
        if result:
            return "CUDA_ERROR_OUT_OF_MEMORY" if result == 2 else f"CUDA error {result}"
        self._call("cuMemFree_v2", piece)
        return ""


def asked(wait: float) -> str:
    """Return the next line of the standard input, empty if there is none within so many seconds."""
    if not select.select([sys.stdin], [], [], wait)[0]:
        return ""
    line = sys.stdin.readline()
    if not line:
        raise SystemExit  # whoever started this is gone
    return line.strip()


def tried(work: Torch | Driver) -> dict[str, Any]:
    """Try the memory cap on both sides of it."""
    free, total = work.memory()
    return {"free": free, "total": total, "above": work.take(free + SLACK), "below": work.take(free - SLACK)}


def main() -> None:
    """Work until the standard input ends."""
    work = Torch() if sys.argv[1] == "torch" else Driver()
    print("ready", flush=True)
    sys.stdin.readline()
    count, said, pending = 0, 0, work.launch()
    while True:
        after = work.launch()
        pending()
        count, pending, now = count + BATCH, after, time.monotonic_ns()
        if now - said < SAY_NS:
            continue
        said = now
        print("k", now, count, flush=True)
        if asked(0) == "memory":
            print(json.dumps(tried(work)), flush=True)


if __name__ == "__main__":
    main()
