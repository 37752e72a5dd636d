# SPDX-License-Identifier: Apache-2.0
"""The memory cap: every allocating call, races, deaths."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time

from check import case, check, patiently
from harness import BUILD, Node, Seat, result

ROUNDS = os.environ.get("VCUDA_RACES", "10000")
ACCOUNTING = str(BUILD / "fake" / "accounting")
MEMORY = [str(BUILD / "fake" / "memory")]


def held(node: Node, name: str) -> int:
    return int(node.seats()[name]["memory"])


def wait_for(what: str, test: object, seconds: float = 60) -> float:
    start = time.monotonic()
    while time.monotonic() - start < seconds:
        if test():  # type: ignore[operator]
            return time.monotonic() - start
        time.sleep(0.005)
    raise AssertionError(f"{what} did not come true within {seconds} s")


@case("memory: every allocating call is refused above the cap and gives back what it took")
def calls() -> None:
    with Node(virtual=False) as node:
        answer = result(node.run(Seat(50, program=[*MEMORY, "calls"])))
    check(answer["bad"] == 0, f"{answer['bad']} calls misbehave")
    check(answer["total"] == answer["free"] == 1 << 30, f"not empty at the end: {answer}")


def to_the_byte(what: str) -> str:
    with Node(virtual=False) as node:
        p = node.run(Seat(50, program=[ACCOUNTING, what], name="a"))
        out, err = p.communicate(timeout=240)
        check(p.returncode == 0, f"ended with {p.returncode}: {err or out}")
        answer = json.loads(out.strip().splitlines()[-1])
    check(answer["bad"] == 0, out)
    check(answer["peak"] <= answer["cap"] == 1 << 30, f"over the cap: {answer}")
    return f"the driver's own peak: {answer['peak']} of {answer['cap']}"


case("memory: graph nodes, pools, virtual memory, sparse arrays and IPC, to the byte", lambda: to_the_byte("all"))
case(
    "memory: what lives on after its exporter was killed is charged until its last importer lets go",
    lambda: to_the_byte("killed"),
)


def by_way(name: str, **fake: str) -> str:
    """Try one way over the cap, or one that must be granted, on a GPU of its own."""
    with Node(virtual=False, **fake) as node:
        p = node.run(Seat(50, program=[str(BUILD / "fake" / "ways"), name], name="w"))
        out, err = p.communicate(timeout=240)
        check(p.returncode == 0, f"{name} ended with {p.returncode}: {err or out}")
        answer = json.loads(out.strip().splitlines()[-1])
    check(answer["peak"] <= answer["cap"] == 1 << 30, f"{name}: over the cap: {answer}")
    if name.startswith("fits"):
        check(answer["granted"] == answer["tried"], f"{name}: refused what fits: {answer} {out}")
    return f"{answer['granted']} of {answer['tried']} granted, peak {answer['peak'] >> 20} MiB"


# The documents leave open when memory is taken, and how much a context takes: try each.
DRIVERS: dict[str, dict[str, str]] = {"": {}, ", lazily": {"lazy": "1"}, ", contexts of 120 MiB": {"context": "120M"}}
LISTED = subprocess.run(
    [str(BUILD / "fake" / "ways"), "list"],
    env=os.environ | {"LD_LIBRARY_PATH": str(BUILD / "fake")},
    capture_output=True,
    text=True,
    check=False,
).stdout.split()
for way in LISTED:
    for words, fake in DRIVERS.items():
        case(f"memory, way by way{words}: {way}", lambda way=way, fake=fake: by_way(way, **fake))


# Drivers with other figures, GPUs or memory.
OTHERS = {
    "a pool's figures fail now and then": ("pool_by_threads", {"fault": "cuMemPoolGetAttribute:3:999"}),
    "a freeing call fails now and then": ("freed_by_many_threads", {"fault": "cuMemFree_v2:3:999"}),
    "no event can be made": ("freed_in_stream_order", {"fault": "cuEventCreate:1:2"}),
    "there is another GPU": ("memory_of_another_gpu", {"gpus": "2"}),
    "the GPU shares the host's memory": ("location_changed_meanwhile", {"integrated": "1"}),
}
for words, (way, fake) in OTHERS.items():
    case(f"memory: {words}: {way}", lambda way=way, fake=fake: by_way(way, **fake))
# Calls that have had their effect and are late to return: what one thread's call ended another thread may have again.
LATE = [
    "contexts_by_threads",
    "fits_attached_by_threads",
    "fits_freed_in_stream_order_by_threads",
    "fits_green_contexts_by_threads",
    "fits_libraries_beside_contexts",
    "fits_limits_by_threads",
    "fits_pool_of_many_threads",
    "fits_pools_by_threads",
    "fits_primary_context_with_memory",
    "fits_tiles_beside_arrays",
    "graph_changed_while_it_is_launched",
    "graph_trimmed_meanwhile",
    "libraries_beside_contexts",
    "pool_made_again_meanwhile",
    "primary_context_reset_meanwhile",
    "released_while_it_is_mapped",
]
for way in LATE:
    case(f"memory: a late driver: {way}", lambda way=way: by_way(way, late="200"))
for way in ("depth_of_launching_kernels", "depth_when_full", "fits_limits_back"):
    case(f"memory: kernels wait for kernels: {way}", lambda way=way: by_way(way, capability="8"))


@case("memory: an import that outlives its exporter is seen within a second")
def orphan() -> None:
    with Node(virtual=False) as node:
        p = node.run(Seat(50, program=[ACCOUNTING, "orphan", "300"], name="o"))
        check(p.stdout and p.stdout.readline() == "holding\n", "did not hold")
        wait_for("the overhead was seen", lambda: held(node, "o") + node.seats()["o"]["memory_overhead"] == 300 << 20)
        second = node.run(Seat(50, program=[*MEMORY, "hold", "800"], name="o"))
        second.communicate(timeout=240)
        check(second.returncode == 3, "it was not counted")


@case("memory: 16 processes race against 1 GiB")
def race() -> str:
    with Node(virtual=False) as node:
        racers = node.run(Seat(50, program=[*MEMORY, "race", ROUNDS, "16", "1024"], name="r"))
        wait_for("the seat was taken", lambda: "r" in node.seats())
        # Set without a process ID, the seat outlives its program and can still be asked.
        node.ask(op="set", seat="r", gpu=0, core=50, limit=100, memory=1 << 30, **{"class": "in-budget"})
        answer = result(racers, 400)
        peak = node.seats()["r"]["memory_peak"]
        wait_for("zero bytes at the end", lambda: held(node, "r") == 0)
    check(answer["over"] == 0 and peak <= 1 << 30, f"over the cap: {answer}, peak {peak}")
    check(answer["wrong"] == answer["bad"] == answer["left"] == 0, str(answer))
    check(answer["refused"] > 0, "the race never met the cap")
    return f"{ROUNDS} rounds, {answer['granted']} granted, {answer['refused']} refused, peak {peak}"


@case("memory: a killed process gives its bytes back at once")
@patiently
def killed() -> None:
    with Node(virtual=False) as node:
        node.ask(op="set", seat="k", gpu=0, core=50, limit=100, memory=1 << 30, **{"class": "in-budget"})
        holder = node.run(Seat(50, program=[*MEMORY, "hold", "900"], name="k"))
        check(holder.stdout and holder.stdout.readline() == "holding\n", "did not hold")
        check(held(node, "k") == 900 << 20, f"{held(node, 'k')} bytes held")
        keeper = node.run(Seat(50, program=[*MEMORY, "hold", "50"], name="k"))
        check(keeper.stdout and keeper.stdout.readline() == "holding\n", "no room for another")
        holder.send_signal(signal.SIGKILL)
        took = wait_for("the bytes came back", lambda: held(node, "k") == 50 << 20)
        check(took < 1.0, f"they took {took:.2f} s")


@case("memory: killed in the middle of allocating, forty times, nothing is lost")
def killed_often() -> None:
    with Node(virtual=False) as node:
        keeper = node.run(Seat(50, program=[*MEMORY, "hold", "2"], name="k"))
        check(keeper.stdout and keeper.stdout.readline() == "holding\n", "no seat")
        for i in range(40):
            looper = node.run(Seat(50, program=[*MEMORY, "loop"], name="k"))
            time.sleep(0.03 + 0.003 * (i % 10))
            looper.send_signal(signal.SIGKILL)
            looper.wait()
        wait_for("all bytes came back", lambda: held(node, "k") == 2 << 20)


@case("memory: the driver shows the slice")
def info() -> None:
    with Node(virtual=False) as node:
        answer = result(node.run(Seat(50, memory="256MiB", program=[*MEMORY, "info"])))
    check(set(answer.values()) == {256 << 20}, str(answer))


@case("memory: what a context takes counts from its first moment")
def context() -> None:
    with Node(virtual=False, context="300M") as node:
        holder = node.run(Seat(50, program=[*MEMORY, "hold", "100"], name="o"))
        check(holder.stdout and holder.stdout.readline() == "holding\n", "did not hold")
        check(held(node, "o") == 400 << 20, f"{held(node, 'o') >> 20} MiB are charged")
        time.sleep(2)
        check(node.seats()["o"]["memory_overhead"] == 0, "it is counted twice")


@case("memory: without a seat there is none")
def seatless() -> None:
    with Node(virtual=False) as node:
        p = node.bare(Seat(50, program=[*MEMORY, "info"], env={"LD_PRELOAD": str(BUILD / "libvcuda.so")}))
        _, err = p.communicate(timeout=240)
    check(p.returncode == 3 and "802" in err, f"ended with {p.returncode}: {err}")


@case("memory: integrated GPUs charge pinned memory")
def integrated() -> None:
    with Node(virtual=False, integrated="1") as node:
        answer = result(node.run(Seat(50, program=[*MEMORY, "calls"])))
    check(answer["bad"] == 0, str(answer))
