# SPDX-License-Identifier: Apache-2.0
"""What programs do with their processes that has nothing to do with a GPU."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

from check import Skip, case, check
from harness import BUILD, ROOT, Node, Seat, result

HOST = str(BUILD / "fake" / "host")


def comes_back(what: str) -> None:
    with Node(virtual=False) as node:
        answer = result(node.run(Seat(50, program=[HOST, what])), 100)
    check(answer["bad"] == 0, str(answer))


case("host: children forked in the middle of calls hold no lock", lambda: comes_back("forks"))
case("host: children forked while the seat is taken hold no lock", lambda: comes_back("starts"))
case("host: a thread cancelled in a driver's call leaves no lock taken", lambda: comes_back("cancels"))
case("host: a stack of 16 KiB is enough", lambda: comes_back("stacks"))
case("host: no descriptor is lost while no thread can be made", lambda: comes_back("threadless"))
case("host: missing arguments are the driver's to refuse", lambda: comes_back("nulls"))


def answers(start: Callable[[Seat], subprocess.Popen[str]], calls: list[str]) -> dict[str, str]:
    """Make the calls, and return what came back. A program that crashes is started again for what is left."""
    found: dict[str, str] = {}
    while rest := [call for call in calls if call not in found]:
        out, err = start(Seat(50, program=[str(BUILD / "fake" / "zeros")])).communicate("\n".join(rest), timeout=100)
        came = dict(line.rsplit(" ", 1) for line in out.splitlines())
        check(came, f"{rest[0]}: {err}")
        found |= came
        if list(came.values())[-1] != "crash":
            break
    return found


ENDLESS = re.compile("cuLaunchHostFunc|cuStreamAddCallback|cuStreamWaitValue|cuStreamBatchMemOp")
"""What is missing in these is missed by another thread, at some time."""
REFUSED = "2", "101"
"""The limiter asks first if there is memory, and if it is the seat's GPU."""


def pointers(name: str) -> range:
    """Return which arguments may be pointers to zeros. Not a launch's stream: zeros are a stream that never ends."""
    if ENDLESS.match(name):
        return range(0)
    return range(1) if re.match("cuLaunch|cuGraphLaunch|cuGraphUpload", name) else range(7)


@case("host: every hooked call answers as the driver does to zeros and to missing arguments")
def zeros() -> str:
    names = re.findall(r"cu\w+", (BUILD / "limiter" / "libvcuda.map").read_text())
    calls = [f"{name} {number}" for name in names for number in pointers(name)]
    with Node(virtual=False) as node:
        first = answers(node.bare, calls)
        sound = [call for call in calls if first[call] != "crash"]
        right, got = answers(node.bare, sound), answers(node.run, sound)
    differ = [
        call for call in sound if got.get(call) != right[call] and (right[call] == "0" or got.get(call) not in REFUSED)
    ]
    check(not differ, f"{len(differ)} answers differ: {[(call, right[call], got.get(call)) for call in differ[:12]]}")
    return f"{len(got)} calls"


@case("host: children of a program without a seat hold no lock")
def seatless() -> None:
    with Node(virtual=False) as node:
        strays = Seat(50, program=[HOST, "strays"], env={"LD_PRELOAD": str(BUILD / "libvcuda.so")})
        answer = result(node.bare(strays), 100)
    check(answer["bad"] == 0, str(answer))


@case("host: 16,000 mappings, made and taken away")
def unmaps() -> str:
    with Node(virtual=False) as node:
        p = node.run(Seat(50, program=[HOST, "unmaps", "16000"]))
        out, err = p.communicate(timeout=100)
    check(p.returncode == 0, err)
    return out.splitlines()[0]


@case("host: programs under AddressSanitizer run")
def sanitized() -> None:
    if not shutil.which("gcc"):
        raise Skip("there is no gcc")
    with Node(virtual=False) as node:
        program = str(Path(node.dir) / "sanitized")
        # Linked with the sanitizer inside; a shared one must know that ours comes before it.
        for how, options in ((["-static-libasan"], ""), ([], "verify_asan_link_order=0:")):
            gcc = ["gcc", "-fsanitize=address", *how, f"-I{headers()}", f"-I{ROOT / 'include'}", "-o", program]
            files = [ROOT / "test" / "run" / "memory.c", BUILD / "fake" / "libcuda.so.1"]
            subprocess.run([*gcc, *files, "-ldl", "-pthread"], check=True, capture_output=True)
            seat = Seat(50, program=[program, "calls"], env={"ASAN_OPTIONS": f"{options}detect_leaks=0"})
            answer = result(node.run(seat))
            check(answer["bad"] == 0, str(answer))


def headers() -> str:
    return subprocess.run(
        ["python3", str(ROOT / "src" / "headers.py"), "13"], check=True, capture_output=True, text=True
    ).stdout.strip()
