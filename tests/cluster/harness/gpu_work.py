# SPDX-License-Identifier: Apache-2.0
"""Containers that work on their slices of a GPU and say what they got, and the node's arbiter as one asks it.

`PYTHONPATH=tests KUBECONFIG=… python -m cluster.harness.gpu_work | kubectl apply -f -` has two namespaces share a GPU.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, Final

import yaml
from cluster.harness import hostile_container
from cluster.harness.cluster import Cluster
from cluster.harness.install import IMAGES, NAMESPACE
from cluster.harness.kubectl import Object, Refused
from cluster.harness.site import Site, gpu_container, playground, pod

from slicekeeper import names
from slicekeeper.gpu import inventory

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
"""Prints its memory and the results of two allocations (one byte too many, half of it), then its steps per second."""


def worker(core: int, blocks: int, *, batch: int, kernel: str, host: float) -> Object:
    """Return a container whose steps are so many kernels of the fake driver, then so many seconds of host work.

    Its root file system is read-only, that of `attacker` is not.
    """
    return _python(core, blocks, 65532, PROGRAM, str(batch), kernel, str(host), read_only=True)


def attacker(core: int, blocks: int) -> Object:
    """Return a container that tries, as root, what `hostile_container` does."""
    return _python(core, blocks, 0, Path(hostile_container.__file__).read_text())


def _python(core: int, blocks: int, user: int, program: str, *arguments: str, read_only: bool = False) -> Object:
    return {
        **gpu_container(core=core, blocks=blocks),
        "image": IMAGES.of("nodeagent"),  # Python and glibc, as programs on GPUs have them
        "command": ["/usr/local/bin/python3", "-c", program, *arguments],
        "securityContext": {"runAsUser": user, "readOnlyRootFilesystem": read_only},
    }


BATCH: Final = {"train": 15, "greedy": 20}
"""Kernels of 1 ms in a step."""
TRAIN: Final = worker(50, 16, batch=BATCH["train"], kernel="spin_1ms", host=0.005)
"""Steps as training does."""
GREEDY: Final = worker(40, 32, batch=BATCH["greedy"], kernel="spin_1ms", host=0)
"""Launches without an end."""


def one_gpu(site: Site) -> dict[str, str]:
    """Return the annotation that puts pods on the node's first GPU, of whatever namespace they are."""
    [node] = site.kubectl.list("nodes")
    return {names.GPU_UUID: inventory.of_node(node)[0].uuid}


def said(site: Site, namespace: str, name: str, what: str) -> list[list[str]]:
    """Return what a worker has said of one thing so far."""
    lines = site.kubectl("logs", name, "-c", "train", "-n", namespace).splitlines()
    return [line.split()[1:] for line in lines if line.startswith(what)]


def seats(site: Site) -> dict[str, Any]:
    """Return what the node's arbiter holds, by the seat's name."""
    ask = ("/usr/local/slicekeeper/lib/arbiter", "ask", "--dir", "/run/slicekeeper", '{"op":"read"}')
    told = json.loads(site.kubectl("exec", "daemonset/arbiter", "-n", NAMESPACE, "--", *ask))
    uuids = {gpu["gpu"]: gpu["uuid"] for gpu in told["gpus"]}
    return {seat["seat"]: {**seat, "uuid": uuids[seat["gpu"]]} for seat in told["seats"]}


def seat_of(site: Site, namespace: str, name: str) -> dict[str, Any] | None:
    """Return the arbiter's seat of a pod's container."""
    text = site.kubectl(
        "exec",
        "daemonset/nodeagent",
        "-n",
        NAMESPACE,
        "--",
        "/usr/local/bin/python3",
        "-c",
        "import glob; print(*(open(f).read() for f in glob.glob('/var/lib/slicekeeper/seats/*.json')), sep='\\n')",
    )
    held = seats(site)
    for record in map(json.loads, filter(None, text.splitlines())):
        seat = f"{record['id']}-{record['nonce']}"
        if (record["namespace"], record["pod"]) == (namespace, name) and seat in held:
            found: dict[str, Any] = held[seat]
            return found
    return None


def policy(site: Site, namespace: str, name: str) -> tuple[Any, ...]:
    """Return what the arbiter holds for a pod's container, and its number of processes; nothing while it cannot say."""
    try:
        seat = seat_of(site, namespace, name)
    except Refused:
        return ()
    return () if seat is None else tuple(seat[key] for key in ("core", "limit", "memory_limit", "class", "processes"))


_KILL = """
import json, os, signal, socket, time
def read():
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(1)
        connection.connect("/run/slicekeeper/control.sock")
        connection.sendall(b'{"op":"read"}\\n')
        told = json.loads(connection.makefile().readline())
    keys = ("seat", "core", "limit", "memory_limit", "class", "processes")
    return told["pid"], sorted(tuple(seat[key] for key in keys) for seat in told["seats"])
pid, before = read()
began = time.monotonic()
os.kill(pid, signal.SIGKILL)
while time.monotonic() < began + 60:
    try:
        now, held = read()
    except (OSError, ValueError):
        continue
    if now != pid and held == before:
        break
    time.sleep(0.01)
print(time.monotonic() - began)
"""


def kill_arbiter(cluster: Cluster) -> float:
    """Kill the arbiter's process; return the seconds until another one holds all seats with all their processes."""
    return float(cluster.run(sys.executable, "-c", _KILL))


def main() -> None:
    """Print two namespaces with a pod each, which share the cluster's first GPU."""
    with playground() as (site, _):
        here = one_gpu(site)
    objects = []
    for namespace, name, container in (("lab", "train", TRAIN), ("guest", "greedy", GREEDY)):
        made = pod(name, container, annotations=here)
        made["metadata"]["namespace"] = namespace
        objects += [{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}, made]
    print(yaml.safe_dump_all(objects, sort_keys=False), end="")


if __name__ == "__main__":
    main()
