# SPDX-License-Identifier: Apache-2.0
"""A container that works on its slice of a GPU and says what it got, and the node's arbiter as one asks it."""

from __future__ import annotations

import json
from typing import Any

from cluster.harness.install import IMAGES, NAMESPACE
from cluster.harness.kubectl import Object
from cluster.harness.site import Site, gpu_container

PROGRAM = """
import ctypes, sys, time
batch, kernel, host = int(sys.argv[1]), sys.argv[2].encode(), float(sys.argv[3])
cuda, made = ctypes.CDLL("libcuda.so.1"), [ctypes.c_void_p() for _ in range(3)]
context, module, function = map(ctypes.byref, made)
def ok(code): assert code == 0, code
ok(cuda.cuInit(0)); ok(cuda.cuDevicePrimaryCtxRetain(context, 0)); ok(cuda.cuCtxSetCurrent(made[0]))
total, place = ctypes.c_size_t(), ctypes.c_uint64()
ok(cuda.cuDeviceTotalMem_v2(ctypes.byref(total), 0))
def take(size): return cuda.cuMemAlloc_v2(ctypes.byref(place), ctypes.c_size_t(size))
print("memory", total.value, take(total.value + (1 << 21)), take(total.value // 2), flush=True)
ok(cuda.cuModuleLoadData(module, b"spin")); ok(cuda.cuModuleGetFunction(function, made[1], kernel))
began, steps = time.time(), 0
while True:
    for _ in range(batch): ok(cuda.cuLaunchKernel(made[2], 1, 1, 1, 32, 1, 1, 0, None, None, None))
    ok(cuda.cuCtxSynchronize())
    time.sleep(host)
    steps += 1
    if time.time() - began >= 0.25:
        print("steps", f"{time.time():.3f}", steps / (time.time() - began), flush=True)
        began, steps = time.time(), 0
"""
"""Says its memory, what two allocations come to (one byte too many, half of it), then steps a second, for ever."""


def worker(core: int, blocks: int, *, batch: int, kernel: str, host: float) -> Object:
    """Return a container whose steps are so many kernels of the fake driver, then so many seconds of host work."""
    return {
        **gpu_container(core=core, blocks=blocks),
        "image": IMAGES.of("nodeagent"),  # Python and glibc, as programs on GPUs have them
        "command": ["/usr/local/bin/python3", "-c", PROGRAM, str(batch), kernel, str(host)],
        "securityContext": {"runAsUser": 65532},
    }


def said(site: Site, namespace: str, name: str, what: str) -> list[list[str]]:
    """Return what a worker has said of one thing so far."""
    lines = site.kubectl("logs", name, "-c", "train", "-n", namespace).splitlines()
    return [line.split()[1:] for line in lines if line.startswith(what)]


def seats(site: Site) -> dict[str, Any]:
    """Return what the node's arbiter holds, by the seat's name."""
    ask = ("/usr/local/slicekeeper/lib/arbiter", "ask", "--dir", "/run/slicekeeper", '{"op":"read"}')
    told = json.loads(site.kubectl("exec", "daemonset/arbiter", "-n", NAMESPACE, "--", *ask))
    return {seat["seat"]: seat for seat in told["seats"]}


def seat_of(site: Site, namespace: str, name: str) -> dict[str, Any] | None:
    """Return the arbiter's seat of a pod's container."""
    text = site.kubectl(
        "exec", "daemonset/nodeagent", "-n", NAMESPACE, "--", "/usr/local/bin/python3", "-c",
        "import glob; print(*(open(f).read() for f in glob.glob('/var/lib/slicekeeper/seats/*.json')), sep='\\n')",
    )  # fmt: skip
    held = seats(site)
    for record in map(json.loads, filter(None, text.splitlines())):
        seat = f"{record['id']}-{record['nonce']}"
        if (record["namespace"], record["pod"]) == (namespace, name) and seat in held:
            found: dict[str, Any] = held[seat]
            return found
    return None
