# SPDX-License-Identifier: Apache-2.0
"""Faults: one tenant misbehaves, the others must not notice.

In real time, which goes on whatever a tenant does, all must come to their end; what share each gets then
is the busy machine's doing too, and is measured in virtual time.
"""

from __future__ import annotations

import mmap
import os
import re
import select
import shutil
import signal
import socket
import struct
import subprocess
import tempfile
import threading
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

from check import Skip, case, check, patiently
from harness import BUILD, Node, Seat, result

FAULT = str(BUILD / "fake" / "fault")
GOOD = ["--kernel-us", "2000"]
SLACK = 12.0  # points, in real time: these runs share the machine's processors with whatever else runs


def beside(kind: str, seconds: float = 3.0) -> None:
    """Run a good tenant with half the GPU beside one that does `kind`."""
    with Node(virtual=False) as node:
        bad = node.run(Seat(50, program=[FAULT, kind, str(seconds)], name="bad"))
        good = node.run(Seat(50, args=[*GOOD, "--seconds", str(seconds)], name="good"))
        check(result(good)["busy_ns"] > 0, "the other tenant got nothing")
        check(result(bad)["clean"] == 1, "the host process was changed")
        deadline = time.monotonic() + 60
        while node.seats() and time.monotonic() < deadline:
            time.sleep(0.02)
        check(not node.seats(), f"seats were left behind: {node.seats()}")
        check(node.arbiter and node.arbiter.poll() is None, "the arbiter died")


KINDS = "garbage-page", "garbage-socket", "close-all", "clear-env", "fork", "exec", "no-cleanup", "threads", "signal"
for kind in KINDS:
    case(f"faults: {kind}", lambda kind=kind: beside(kind))


@case("faults: a process that finds its seat full does not knock without end")
def turned_away() -> str:
    folder = Path(tempfile.mkdtemp(prefix="vcuda-"))
    door = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    door.bind(str(folder / "seat.sock"))
    door.listen(128)
    door.settimeout(0.1)
    env = {"LD_PRELOAD": str(BUILD / "libvcuda.so"), "SLICEKEEPER_SEAT": str(folder / "seat.sock")}
    knocks = 0
    with door, Node(virtual=False) as node:
        program = node.bare(Seat(50, args=["--seconds", "1"], env=env))
        while program.poll() is None:
            try:
                door.accept()[0].close()
                knocks += 1
            except TimeoutError:
                continue
    shutil.rmtree(folder)
    check(program.returncode, "it worked without a seat")
    # Each call of the program after the first one knocks once more, if its last one is 50 ms ago.
    check(0 < knocks < 100, f"it knocked {knocks} times")
    return f"knocked {knocks} times"


@case("faults: an arbiter in a folder too deep to name its limiter runs no program without one")
def too_deep() -> None:
    with Node() as node:
        deep = node.dir.joinpath(*["d" * 160] * 3)
        deep.mkdir(parents=True)
        shutil.copy(BUILD / "arbiter", deep)
        command = [str(deep / "arbiter"), "run", "--dir", str(node.dir), "--fake", "--core", "50", "--memory", "1GiB"]
        command += ["--", "echo", "ran"]
        run = subprocess.run(command, check=False, env=node.env, capture_output=True, text=True)
        check(run.returncode == 1 and not run.stdout, f"it ran: {run}")
        check("too long" in run.stderr, run.stderr)


def hello(door: str, acknowledges: int = 0) -> socket.socket:
    """Ask for a slot, as a new process does."""
    s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    s.settimeout(60)
    s.connect(door)
    s.send(struct.pack("=IIiI", 0x534B5643, 1, -1, acknowledges))
    return s


def parents_page() -> mmap.mmap:
    """Map a page such as a forked child has of its parent: here the test is that child."""
    memory = os.memfd_create("slicekeeper-usage")
    os.ftruncate(memory, 4096)
    page = mmap.mmap(memory, 4096)
    os.close(memory)
    return page


@case("faults: a child that hung up before its seat was shown to it comes back")
def hung_up_too_early() -> None:
    with Node(virtual=False) as node, parents_page():
        door = node.ask(op="set", seat="a", gpu=0, core=50, memory=1 << 30)["socket"]
        assert node.arbiter
        node.arbiter.send_signal(signal.SIGSTOP)
        hello(door).close()  # as after a second without an answer
        node.arbiter.send_signal(signal.SIGCONT)
        with hello(door) as s:
            check(len(s.recv(64)) == 16, "it was refused for good")


@case("faults: a child that hung up as the answer came comes back; with its pages it has its slot for good")
def hung_up_as_the_answer_came() -> None:
    with Node(virtual=False) as node, parents_page():
        door = node.ask(op="set", seat="a", gpu=0, core=50, memory=1 << 30)["socket"]
        with hello(door, acknowledges=1) as late:
            select.select([late], [], [])  # the answer is there, and is not read
        with hello(door, acknowledges=1) as first:
            check(len(first.recv(64)) == 16, "it was refused for good")
            first.send(b"\0")
            with hello(door) as second:
                check(second.recv(64) == b"", "what its first connection holds was forgotten")


POINTS = 2.0


def exactly(kind: str, seconds: float = 5.0) -> str:
    """Two good tenants beside a bad one, in virtual time: both keep what they were promised, to two points."""
    args = ["--kernel-us", "500", "--seconds", str(seconds), "--arrive"]
    with Node(hold=3) as node:
        bad = node.run(Seat(40, program=[FAULT, kind, str(seconds)], name="bad"))
        good = [node.run(Seat(30, args=args, name=name)) for name in ("a", "b")]
        got = [result(p, 240) for p in good]
        if kind == "stopped":
            bad.kill()
        bad.communicate(timeout=240)
        check(node.arbiter and node.arbiter.poll() is None, "the arbiter died")
        check(bad.returncode == {"killed": -9, "stopped": -9}.get(kind, 0), f"it ended with {bad.returncode}")
    shares = [100 * g["busy_ns"] / g["wall_ns"] for g in got]
    text = " and ".join(f"{s:.1f} %" for s in shares)
    # If it is gone after a fifth of the time, the others share what it leaves.
    want = 30 + (0.8 * 20 if kind in ("killed", "stopped") else 0)
    check(all(abs(s - want) <= POINTS for s in shares), f"the others got {text}, not {want:.0f} % each")
    return f"the others: {text}"


for kind in (*KINDS, "killed", "stopped"):
    # Sixteen threads cost much processor time in virtual time.
    case(f"faults, to two points: {kind}", lambda kind=kind: exactly(kind, 2.0 if kind == "threads" else 5.0))


@case("faults, to two points: the arbiter killed and started again")
def restarted_exactly() -> str:
    cores = {"a": 20, "b": 30, "c": 50}
    args = ["--kernel-us", "500", "--seconds", "40", "--arrive"]

    def window(node: Node, seconds: float) -> list[float]:
        """Each one's share from now on, over so many seconds of the GPU's time."""
        first = last = node.seats()
        while last["a"]["wall_ns"] - first["a"]["wall_ns"] < seconds * 1e9:
            time.sleep(0.05)
            last = node.seats()
        spans = [(last[n]["busy_ns"] - first[n]["busy_ns"], last[n]["wall_ns"] - first[n]["wall_ns"]) for n in cores]
        return [100 * busy / wall for busy, wall in spans]

    with Node(hold=3) as node:
        tenants = [node.run(Seat(core, args=args, name=name)) for name, core in cores.items()]
        time.sleep(0.5)
        assert node.arbiter
        node.arbiter.kill()
        node.arbiter.wait()
        time.sleep(0.7)
        node.start()
        check(set(node.seats()) == set(cores), f"seats after the restart: {set(node.seats())}")
        deadline = time.monotonic() + 60
        while not all(s["grants"] for s in node.seats().values()):
            check(time.monotonic() < deadline, f"not all are back: {node.seats()}")
            time.sleep(0.02)
        after = window(node, 10)
        got = [result(p, 240) for p in tenants]
    whole = [100 * g["busy_ns"] / g["wall_ns"] for g in got]
    text = ", ".join(f"{s:.1f}" for s in after)
    check(all(abs(s - c) <= POINTS for s, c in zip(after, cores.values(), strict=True)), f"afterwards {text}")
    # In between each holds itself to its request by a clock that its neighbours' work runs on as well.
    check(all(s <= c + POINTS for s, c in zip(whole, cores.values(), strict=True)), f"above the request: {whole}")
    return f"20, 30, 50 afterwards: {text}; over all: {', '.join(f'{s:.1f}' for s in whole)}"


@case("faults: a context on a GPU that is not the seat's is refused, a restored process's too")
def other_gpu() -> None:
    with Node(virtual=False, gpus="2") as node:
        answer = result(node.run(Seat(50, program=[FAULT, "other-gpu", "1"])))
    check(answer == {"refused": 1, "moved": 0}, str(answer))


def busy(node: Node, name: str) -> float:
    return float(node.seats()[name]["busy_ns"]) / 1e9


@case("faults: a tenant stopped while it holds the gate, then going on")
@patiently
def stopped() -> None:
    with Node(virtual=False) as node:
        a = node.run(Seat(50, args=[*GOOD, "--seconds", "30"], name="a"))
        b = node.run(Seat(50, args=[*GOOD, "--seconds", "30"], name="b"))
        time.sleep(1)
        a.send_signal(signal.SIGSTOP)
        time.sleep(0.3)
        before, at = busy(node, "b"), time.monotonic()
        time.sleep(1.5)
        share = 100 * (busy(node, "b") - before) / (time.monotonic() - at)
        check(share > 85, f"the other got {share:.1f} % while the first was stopped")
        a.send_signal(signal.SIGCONT)
        time.sleep(0.5)
        before, at = busy(node, "a"), time.monotonic()
        time.sleep(1.5)
        share = 100 * (busy(node, "a") - before) / (time.monotonic() - at)
        check(share > 50 - SLACK, f"after going on it got {share:.1f} %")
        b.kill()


@case("faults: what a seat used is never said to be less than before, also of a tenant that was stopped in its work")
def never_less() -> None:
    with Node(virtual=False) as node:
        a = node.run(Seat(50, args=["--kernel-us", "1000", "--batch", "15", "--host-us", "5000", "--seconds", "30"]))
        said: list[float] = []

        def listen() -> None:
            # Beside the stopping: a tenant that is stopped within the fake driver holds up the arbiter too.
            while a.poll() is None:
                said.extend(seat["busy_ns"] / 1e6 for seat in node.seats().values())
                time.sleep(0.005)

        listener = threading.Thread(target=listen)
        listener.start()
        for _ in range(12):
            time.sleep(0.15)
            a.send_signal(signal.SIGSTOP)
            time.sleep(0.1)
            a.send_signal(signal.SIGCONT)
        a.kill()
        listener.join()
    back = max(one - other for one, other in pairwise(said))
    check(back <= 0, f"{back:.0f} ms less than before")


@case("faults: a tenant killed while it holds the gate")
@patiently
def killed() -> None:
    with Node(virtual=False) as node:
        a = node.run(Seat(50, args=[*GOOD, "--seconds", "30"], name="a"))
        b = node.run(Seat(50, args=[*GOOD, "--seconds", "30"], name="b"))
        time.sleep(1)
        a.kill()
        time.sleep(0.2)
        before, at = busy(node, "b"), time.monotonic()
        time.sleep(1)
        share = 100 * (busy(node, "b") - before) / (time.monotonic() - at)
        check(share > 85, f"the other got {share:.1f} %")
        check("a" not in node.seats(), "its seat was left behind")
        b.kill()


@case("faults: the arbiter is killed; tenants limit themselves, and it takes up its seats again")
@patiently
def restarted() -> None:
    with Node(virtual=False) as node:
        a = node.run(Seat(30, args=[*GOOD, "--seconds", "6"], name="a"))
        holder = node.run(Seat(10, program=[str(BUILD / "fake" / "memory"), "hold", "700"], name="m"))
        check(holder.stdout and holder.stdout.readline() == "holding\n", "did not hold")
        time.sleep(1)
        check(node.arbiter is not None, "no arbiter")
        assert node.arbiter
        node.arbiter.kill()
        node.arbiter.wait()
        time.sleep(2)
        node.start()
        seats = node.seats()
        check(set(seats) == {"a", "m"}, f"seats after the restart: {set(seats)}")
        check(seats["m"]["memory"] == 700 << 20, "what a tenant holds was forgotten")
        answer = result(a)
        # Alone it has the whole GPU, if the machine lets it; for the two seconds without an arbiter, its request.
        share = 100 * answer["busy_ns"] / answer["wall_ns"]
        check(0 < share < 90, f"over all it got {share:.1f} %")
        second = node.run(Seat(10, program=[str(BUILD / "fake" / "memory"), "hold", "700"], name="m"))
        second.communicate(timeout=240)
        check(second.returncode == 3, "the cap was forgotten")


@case("faults: the arbiter's folder is emptied; it answers again, and who has a seat keeps it")
@patiently
def emptied() -> None:
    with Node(virtual=False) as node:
        holder = node.run(Seat(10, program=[str(BUILD / "fake" / "memory"), "hold", "700"], name="m"))
        check(holder.stdout and holder.stdout.readline() == "holding\n", "did not hold")
        before = node.seats()["m"]
        for name in ("control.sock", "lock"):
            (node.dir / name).unlink()
        for name in ("seats", "state"):
            shutil.rmtree(node.dir / name)
        deadline = time.monotonic() + 60
        while not (node.dir / "control.sock").exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        after = node.seats()["m"]
        check({key: after[key] for key in ("memory", "processes")} == {"memory": 700 << 20, "processes": 1}, f"{after}")
        check(after["wall_ns"] > before["wall_ns"], "it is another seat")
        second = node.run(Seat(10, program=[str(BUILD / "fake" / "memory"), "hold", "700"], name="m"))
        second.communicate(timeout=240)
        check(second.returncode == 3, "a process that came into the seat later had its memory twice")
        node.run(Seat(20, program=[str(BUILD / "fake" / "memory"), "hold", "100"], name="new"))
        assert node.arbiter
        node.arbiter.kill()
        node.arbiter.wait()
        node.start()
        check(node.seats()["m"]["memory"] == 700 << 20, "the next arbiter does not know the seat")
        command = [str(BUILD / "arbiter"), "serve", "--dir", str(node.dir), "--fake"]
        rival = subprocess.run(command, env=node.env, capture_output=True, text=True, check=False, timeout=240)
        check("another arbiter serves this folder" in rival.stderr, rival.stderr)


@case("faults: another arbiter counts on, also for work that never pauses")
@patiently
def counted_on() -> None:
    def used(node: Node) -> tuple[float, int]:
        told = node.ask(op="read")
        [seat] = told["seats"]
        return seat["busy_ns"] / 1e9, told["now_ns"] - seat["wall_ns"]

    with Node(virtual=False) as node:
        node.run(Seat(90, args=["--kernel-us", "2000", "--seconds", "120"], name="a"))
        for end, kept in ((signal.SIGTERM, 0.0), (signal.SIGKILL, 1.5)):
            time.sleep(0.5)
            before, since = used(node)
            time.sleep(kept)
            assert node.arbiter
            node.arbiter.send_signal(end)
            node.arbiter.wait()
            node.start()
            first = used(node)
            check(first[0] >= before, f"{first[0]} s after {before} s")
            check(first[1] == since, "the seat was set again")
            time.sleep(1)
            later = used(node)[0] - first[0]
            check(0.5 < later < 1.5, f"{later:.2f} s in a second")


@case("faults: a seat stays as long as any program that it was taken for")
def shared() -> None:
    with Node(virtual=False) as node:
        first = node.run(Seat(50, args=["--seconds", "0.3"], name="both"))
        go = node.dir / "go"
        waits = f"until [ -e {go} ]; do sleep 0.05; done; exec {BUILD}/fake/memory info"
        late = node.run(Seat(50, program=["/bin/sh", "-c", waits], name="both"))
        result(first)
        time.sleep(0.3)
        check("both" in node.seats(), "it went with its first program")
        go.touch()
        check(result(late)["free"] == 1 << 30, "the second program had no seat")
        deadline = time.monotonic() + 60
        while node.seats() and time.monotonic() < deadline:
            time.sleep(0.02)
        check(not node.seats(), "it outlived them all")


@case("control: a limit, a share or a cap of 0 is refused and changes nothing")
def nothing() -> None:
    with Node(virtual=False) as node:
        node.ask(op="set", seat="z", gpu=0, core=20, limit=40, memory=1 << 30)
        for field, word in (("limit", "limit"), ("core", "core"), ("memory", "memory")):
            answer = node.ask(op="change", seat="z", **{field: 0})
            check(not answer["ok"] and word in answer["error"], str(answer))
        check(not node.ask(op="change", seat="z", pid=1 << 40)["ok"], "a process ID that cannot be")
        seat = node.seats()["z"]
        check((seat["core"], seat["limit"], seat["memory_limit"]) == (20, 40, 1 << 30), str(seat))


@case("faults: a full folder keeps nobody from working")
def full() -> None:
    with Node(virtual=False) as node:
        state = node.dir / "state"
        state.rename(node.dir / "was")
        state.write_text("")  # nothing can be kept in a file
        answer = result(node.run(Seat(50, args=["--seconds", "0.3"], name="f")))
        check(answer["kernels"] > 0, str(answer))
        check("was not kept" in node.logged(), node.logged())
        check(node.arbiter and node.arbiter.poll() is None, "the arbiter died")


@case("faults: descriptors and memory of the arbiter do not grow with its tenants")
def leaks() -> None:
    with Node(virtual=False) as node:
        assert node.arbiter
        folder = Path(f"/proc/{node.arbiter.pid}/fd")

        def many(count: int) -> int:
            for _ in range(count):
                result(node.run(Seat(10, args=["--seconds", "0.01"])))
            deadline = time.monotonic() + 60
            while node.seats() and time.monotonic() < deadline:
                time.sleep(0.02)
            return len(list(folder.iterdir()))

        first = many(3)
        check(many(15) <= first + 1, "descriptors leak")


@case("control: a change of class or weight takes effect at once")
@patiently
def change() -> None:
    with Node(virtual=False) as node:
        a = node.run(Seat(50, args=["--kernel-us", "200", "--seconds", "120"], name="a"))
        b = node.run(Seat(50, args=["--kernel-us", "200", "--seconds", "120"], name="b"))
        time.sleep(0.7)
        answer = node.ask(op="change", seat="a", **{"class": "background"})
        check(answer["ok"], str(answer))
        time.sleep(0.1)
        before, at = busy(node, "b"), time.monotonic()
        time.sleep(1)
        share = 100 * (busy(node, "b") - before) / (time.monotonic() - at)
        check(share > 90, f"beside background it got {share:.1f} %")
        check(node.ask(op="change", seat="a", core=80, **{"class": "in-budget"})["ok"], "refused")
        check(node.ask(op="change", seat="b", core=20)["ok"], "refused")
        time.sleep(0.2)
        before, at = busy(node, "b"), time.monotonic()
        time.sleep(1.5)
        share = 100 * (busy(node, "b") - before) / (time.monotonic() - at)
        check(abs(share - 20) < SLACK, f"with a weight of 20 it got {share:.1f} %")
        a.kill()
        b.kill()


@case("control: what is not understood is refused, and the arbiter lives")
def refused() -> None:
    with Node(virtual=False) as node:
        for line in (
            b"",
            b"{}",
            b"[1]",
            b'{"op":"set","seat":"../x","gpu":0}',
            b'{"op":"set","seat":"x","gpu":9,"core":5,"memory":1}',
            b'{"op":"set","seat":"x","gpu":0,"core":50,"limit":40,"memory":1}',
            b'{"op":"set","seat":"x","gpu":0,"core":"50","memory":1}',
            b'{"op":"set","seat":"x","gpu":0,"core":50}',
            b'{"op":"fly"}',
            b'{"op":"rule"}',
            b'{"op":"rule","rule":"none"}',
        ):
            check(b'"ok":false' in node.raw(line + b"\n"), f"accepted: {line!r}")
        check(node.ask(op="read")["ok"], "the arbiter is gone")


@case("control: another rule holds at once")
def another_rule() -> str:
    args = ["--seconds", "10", "--arrive"]
    with Node(hold=2) as node:
        check(node.ask(op="read")["rule"] == "slicekeeper", "not the one that it was started with")
        check(node.ask(op="rule", rule="kubegpu")["ok"], "refused")
        check(node.ask(op="read")["rule"] == "kubegpu", "it does not say so")
        tenants = [node.run(Seat(core, args=args, name=f"s{core}")) for core in (20, 30)]
        shares = [100 * got["busy_ns"] / got["wall_ns"] for got in (result(p) for p in tenants)]
    # What is left over goes half and half by this rule, and in proportion to the requests by ours: 40 and 60.
    check(all(abs(share - 50) < 3 for share in shares), str(shares))
    return " and ".join(f"{share:.1f} %" for share in shares)


@case("audit: a process without the limiter is named within five seconds")
@patiently
def audit() -> None:
    with Node(virtual=False) as node:
        program = ["env", "-u", "LD_PRELOAD", str(BUILD / "fake" / "tenant"), "--seconds", "120"]
        p = node.run(Seat(50, program=program, name="sly"))
        start = time.monotonic()
        found: list[dict[str, Any]] = []
        while not found and time.monotonic() - start < 8:
            found = node.ask(op="read")["audit"]
            time.sleep(0.05)
        took = time.monotonic() - start
        check(found and found[0]["seat"] == "sly" and found[0]["pid"] == p.pid, str(found))
        check(took < 5, f"it took {took:.1f} s")
        check("seat sly" in node.logged(), "the log does not say so")
        p.kill()


def named(node: Node, count: int = 1) -> list[dict[str, Any]]:
    """Return the audit's findings once there are so many."""
    start, found = time.monotonic(), []
    while len(found) < count and time.monotonic() - start < 60:
        found = node.ask(op="read")["audit"]
        time.sleep(0.05)
    check(len(found) == count, str(found))
    return found


@case("audit: a process that only draws is named")
def audit_graphics() -> None:
    with subprocess.Popen(["sleep", "60"]) as painter:
        try:
            with Node(virtual=False, graphics=str(painter.pid)) as node:
                [found] = named(node)
        finally:
            painter.kill()
    check((found["pid"], found["memory"], found["seat"]) == (painter.pid, 100 << 20, None), str(found))
    check(found["how"] == "without the limiter", str(found))


@case("audit: a process of a container is named by its process ID on the node")
def audit_container() -> None:
    if os.geteuid():
        raise Skip("needs root, for process IDs of its own")
    with Node(virtual=False, context="64M") as node:
        tenant = [str(BUILD / "fake" / "tenant"), "--seconds", "120"]
        p = node.bare(Seat(50, program=["unshare", "--pid", "--fork", "--kill-child", *tenant]))
        found = named(node)[0]
        inside = Path(f"/proc/{found['pid']}/status").read_text()
        check(f"PPid:\t{p.pid}\n" in inside and re.search(r"NSpid:.*\t1\n", inside), inside)
        check(found["seat"] is None and found["memory"] > 0, str(found))


# Sits in a seat as the limiter would, and calls the driver past it.
SITS = """
import ctypes, socket, struct, sys, time
seat = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
seat.connect(sys.argv[1])
seat.send(struct.pack("IIiI", 0x534B5643, 1, -1, 0))
seat.recv(64)
cuda = ctypes.CDLL("libcuda.so.1")
context, at = ctypes.c_void_p(), ctypes.c_void_p()
assert cuda.cuInit(0) == cuda.cuCtxCreate_v2(ctypes.byref(context), 0, int(sys.argv[2])) == 0
assert cuda.cuMemAlloc_v2(ctypes.byref(at), ctypes.c_size_t(int(sys.argv[3]) << 20)) == 0
module, kernel = ctypes.c_void_p(), ctypes.c_void_p()
assert cuda.cuModuleLoadData(ctypes.byref(module), b"spin") == 0
assert cuda.cuModuleGetFunction(ctypes.byref(kernel), module, b"spin_10ms") == 0
for _ in range(2000):
    if int(sys.argv[4]):
        cuda.cuLaunchKernel(kernel, 1, 1, 1, 32, 1, 1, 0, None, None, None)
        cuda.cuCtxSynchronize()
    else:
        time.sleep(0.01)
"""


def sits(node: Node, gpu: int, mib: int, launches: bool = False) -> None:
    """Start one in the seat `sly` of GPU 1, with a cap of 1 GiB, and an honest neighbour."""
    seats = [node.ask(op="set", seat=name, gpu=1, core=50, memory=1 << 30) for name in ("sly", "good")]
    env = {
        "LD_PRELOAD": str(BUILD / "libvcuda.so"),
        "SLICEKEEPER_SEAT": seats[1]["socket"],
        "CUDA_VISIBLE_DEVICES": seats[1]["gpu"],
    }
    node.bare(Seat(50, args=["--seconds", "20", "--host-us", "1000"], env=env))
    node.bare(Seat(50, program=["python3", "-c", SITS, seats[0]["socket"], str(gpu), str(mib), str(int(launches))]))


@case("audit: a process that sits in a seat and takes more than its memory past the limiter is named")
def audit_memory() -> None:
    with Node(virtual=False, gpus="2") as node:
        sits(node, gpu=1, mib=1400)
        found = named(node)[0]
        check((found["gpu"], found["seat"], found["memory"]) == (1, "sly", 1400 << 20), str(found))
        check("beyond its seat's memory: seat sly" in node.logged(), "the log does not say so")
        top = [str(BUILD / "arbiter"), "top", "--once", "--dir", str(node.dir)]
        shown = subprocess.run(top, check=False, capture_output=True, text=True).stdout
        check("uses GPU 1 beyond its seat's memory, seat sly" in shown, shown)


@case("audit: a process that sits in a seat and launches past the limiter is named")
def audit_time() -> None:
    with Node(virtual=False, gpus="2") as node:
        sits(node, gpu=1, mib=64, launches=True)
        found = named(node)[0]
        check((found["gpu"], found["seat"], found["how"]) == (1, "sly", "beyond its seat's time"), str(found))


@case("audit: work that comes and goes in step with the audit's looks is not named")
def audit_honest_time() -> None:
    with Node(virtual=False) as node:
        for core, kernel, batch, host in ((30, 2000, 125, 250000), (30, 20000, 1, 20000), (20, 100, 1, 0)):
            args = ["--kernel-us", kernel, "--batch", batch, "--host-us", host, "--seconds", 12]
            node.run(Seat(core, args=[str(argument) for argument in args]))
        time.sleep(11)
        check(node.ask(op="read")["audit"] == [] and "audit" not in node.logged(), node.logged())


@case("audit: a process that sits in a seat of another GPU is named, and one within its slice is not")
def audit_other_gpu() -> None:
    with Node(virtual=False, gpus="2") as node:
        sits(node, gpu=0, mib=64)
        found = named(node)[0]
        check((found["gpu"], found["seat"], found["memory"]) == (0, "sly", 64 << 20), str(found))
    with Node(virtual=False, gpus="2") as node:
        sits(node, gpu=1, mib=1000)
        time.sleep(3)
        check(node.ask(op="read")["audit"] == [], node.logged())


@case("run: exit status and signals are the program's own; a bad option is refused")
def status() -> None:
    with Node(virtual=False) as node:
        p = node.run(Seat(50, program=["sh", "-c", "exit 7"]))
        p.communicate(timeout=20)
        check(p.returncode == 7, f"{p.returncode}")
    bad = subprocess.run(
        [str(BUILD / "arbiter"), "run", "--fake", "--core", "40x", "--memory", "1GiB", "true"],
        capture_output=True,
        check=False,
    )
    check(bad.returncode == 2, "an unreadable core was accepted")
