# SPDX-License-Identifier: Apache-2.0
"""Programs that hold memory of a GPU, for killed_parents.py.

    memory_programs.py train MIB SECONDS     train by PyTorch with a DataLoader; each of its workers then works on an
                                             item for so long, or waits for the next one if that is 0
    memory_programs.py hold MIB SECONDS      the same by the driver API alone, with workers of the standard library
    memory_programs.py allocate MIB          at each line, allocate until that much is held or the driver refuses, say
                                             how many MiB that was, and free them

The first line of the first two says the process IDs of their workers. Workers without work look every
PATIENCE seconds whether their parent is alive, as PyTorch's do.
"""

from __future__ import annotations

import ctypes
import json
import multiprocessing
import os
import sys
import time
from collections.abc import Iterator
from contextlib import suppress

with suppress(ModuleNotFoundError):  # on a machine without it this file can be read, and used without `train`
    import torch

WORKERS = 4
PATIENCE = 5
PIECE = 64
"""MiB of one allocation of `allocate`."""


class Driver:
    """The CUDA driver, with the primary context of the first GPU."""

    def __init__(self) -> None:
        self._cuda = ctypes.CDLL("libcuda.so.1")
        context, device = ctypes.c_void_p(), ctypes.c_int()
        self._must(self._cuda.cuInit(0))
        self._must(self._cuda.cuDeviceGet(ctypes.byref(device), 0))
        self._must(self._cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device))
        self._must(self._cuda.cuCtxSetCurrent(context))

    def _must(self, code: int) -> None:
        if code:
            raise RuntimeError(f"the CUDA driver answers {code}")

    def allocate(self, mib: int) -> ctypes.c_uint64 | None:
        """Return an address, or nothing if the driver has no such memory."""
        address = ctypes.c_uint64()
        code = self._cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(mib << 20))
        if code == 2:
            return None
        self._must(code)
        return address

    def free(self, address: ctypes.c_uint64) -> None:
        """Free what was allocated."""
        self._must(self._cuda.cuMemFree_v2(address))


def say_ready() -> None:
    workers = [child.pid for child in multiprocessing.active_children()]
    print(json.dumps({"workers": workers}), flush=True)


class Items:
    """A data set whose items take no time until the loader has given one to each worker, and then so many seconds."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.quick = 2

    def __len__(self) -> int:
        return 1 << 20

    def __getitem__(self, index: int) -> torch.Tensor:
        self.quick -= 1
        if self.quick < 0:
            time.sleep(self.seconds)
        return torch.full((1024,), float(index % 7))


def train(mib: int, seconds: float) -> None:
    """Hold the memory, train on a few batches, and say so."""
    held = torch.empty(mib << 20, dtype=torch.uint8, device="cuda")
    model = torch.nn.Linear(1024, 1024, device="cuda")
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    # CUDA is in use when the workers are forked, as in most programs: they inherit its file descriptors.
    loader = torch.utils.data.DataLoader(
        Items(seconds), batch_size=1, num_workers=WORKERS, pin_memory=True, multiprocessing_context="fork"
    )
    batches: Iterator[torch.Tensor] = iter(loader)
    for _ in range(WORKERS):
        optimizer.zero_grad()
        model(next(batches).cuda(non_blocking=True)).square().mean().backward()
        optimizer.step()
    torch.cuda.synchronize()
    say_ready()
    sys.stdin.readline()
    print(held.numel())


def work_or_wait(parent: int, seconds: float) -> None:
    """Be a worker: work for so long, then end once the parent has gone."""
    time.sleep(seconds)
    while os.getppid() == parent:
        time.sleep(PATIENCE)


def hold(mib: int, seconds: float) -> None:
    """Hold the memory and say so."""
    address = Driver().allocate(mib)
    if address is None:
        raise RuntimeError(f"there are no {mib} MiB")
    context = multiprocessing.get_context("fork")
    for _ in range(WORKERS):
        context.Process(target=work_or_wait, args=(os.getpid(), seconds), daemon=True).start()
    say_ready()
    sys.stdin.readline()


def allocate(most: int) -> None:
    """Allocate what there is whenever a line comes in."""
    driver = Driver()
    print("ready", flush=True)
    for _ in sys.stdin:
        held = []
        while len(held) * PIECE < most and (address := driver.allocate(PIECE)) is not None:
            held.append(address)
        for address in held:
            driver.free(address)
        print(json.dumps({"mib": len(held) * PIECE}), flush=True)


def main() -> None:
    """Be one of the programs."""
    name, mib, *rest = sys.argv[1:]
    if name == "allocate":
        allocate(int(mib))
    else:
        {"train": train, "hold": hold}[name](int(mib), float(rest[0]))


if __name__ == "__main__":
    main()
