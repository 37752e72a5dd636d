# SPDX-License-Identifier: Apache-2.0
"""What programs do with their processes that has nothing to do with a GPU."""

from __future__ import annotations

import shutil
import subprocess
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
