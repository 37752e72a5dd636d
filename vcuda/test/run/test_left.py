# SPDX-License-Identifier: Apache-2.0
"""Memory that outlives who made it is its seat's, and the seat is named for it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from check import case, check, patiently
from harness import BUILD, Node, Seat

CHILDREN = str(BUILD / "fake" / "children")
CAP, PIECE = 1 << 30, 900 << 20


WORKERS = "workers_of_killed_parents"


def begin(node: Node, name: str, way: str) -> tuple[subprocess.Popen[str], dict[str, int]]:
    """Go a way in a seat that outlives its program; returns what the driver held then."""
    node.ask(op="set", seat=name, gpu=0, core=20, limit=100, memory=CAP, cgroup="the-pod", **{"class": "in-budget"})
    p = node.run(Seat(20, program=[CHILDREN, way], name=name))
    line = p.stdout.readline() if p.stdout else ""
    if not line:
        raise AssertionError(p.communicate(timeout=240)[1])
    return p, json.loads(line)


def end(p: subprocess.Popen[str]) -> dict[str, int]:
    """Let go of what was left; returns what came of it."""
    out, err = p.communicate("\n", timeout=240)
    check(p.returncode == 0, f"ended with {p.returncode}: {err}")
    answer: dict[str, int] = json.loads(out.splitlines()[-1])
    return answer


def until(what: str, test: Callable[[], object], seconds: float = 15) -> None:
    limit = time.monotonic() + seconds
    while not test():
        check(time.monotonic() < limit, f"{what} did not come true within {seconds} s")
        time.sleep(0.05)


def audit(node: Node) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = node.ask(op="read")["audit"]
    return found


def left(way: str, **fake: str) -> str:
    with Node(virtual=False, **fake) as node:
        p, first = begin(node, "c", way)
        check(first["peak"] <= CAP, f"the driver held {first['peak'] >> 20} MiB: {first}")
        if way.startswith("fits"):
            check(first["granted"] == first["of"], f"refused what fits: {first}")
        else:
            check(first["granted"] == 1 and first["held"] == PIECE, str(first))
        if not way.startswith("fits") and way != "descriptors_of_ones_own":  # which are the process's own charge
            until("it is named", lambda: audit(node))
            named = [(f["seat"], f["how"], f["memory"], f["pid"]) for f in audit(node)]
            check(named == [("c", "by no process that lives", PIECE, 0)], f"named: {named}")
            check(node.seats()["c"]["memory_left"] == PIECE, str(node.seats()))
            check(f"seat c: {PIECE} bytes on GPU 0 are of processes that have ended" in node.logged(), node.logged())
        last = end(p)
        check(last["held"] == 0 and last["tries"] < 100, f"{first} {last} {node.seats()}")
        until("it is named no more", lambda: not audit(node))
    return f"{first['granted']} of {first['of']} granted; once let go of, {last['tries']} tries until all was free"


@case("left behind: an arbiter that is started again knows of it")
def restarted() -> None:
    with Node(virtual=False) as node:
        p, _ = begin(node, "c", WORKERS)
        until("it is named", lambda: audit(node))
        assert node.arbiter
        node.arbiter.kill()
        node.arbiter.wait()
        node.start()
        for _ in range(30):
            check(node.seats()["c"]["memory_overhead"] == PIECE, f"forgotten: {node.seats()}")
            time.sleep(0.1)
        check(audit(node), "not named again")
        check(end(p)["held"] == 0, "not freed")


@case("left behind: by a process that ended while there was no arbiter")
def meanwhile() -> None:
    with Node(virtual=False) as node:
        node.ask(op="set", seat="c", gpu=0, core=20, limit=100, memory=CAP, **{"class": "in-budget"})
        p = node.run(Seat(20, program=[CHILDREN, "a_parent_that_is_killed_later"], name="c"))
        assert p.stdout
        parent = int(p.stdout.readline())
        until("the charge is kept", lambda: node.seats()["c"]["memory"] == PIECE)
        time.sleep(1.5)
        assert node.arbiter
        node.arbiter.kill()
        node.arbiter.wait()
        os.kill(parent, signal.SIGKILL)
        node.start()
        until("it is named", lambda: audit(node))
        check(node.seats()["c"]["memory_left"] == PIECE, str(node.seats()))
        end(p)


@case("left behind: a neighbour pays for none of it, and has room")
def neighbour() -> None:
    with Node(virtual=False) as node:
        p, _ = begin(node, "c", WORKERS)
        until("it is named", lambda: audit(node))
        for way in ("fits_children_one_after_the_other", "fits_children_whose_descriptors_are_closed"):
            other, first = begin(node, "n", way)
            check(first["granted"] == first["of"], f"the neighbour was refused: {first}")
            until("the neighbour is charged nothing", lambda: node.seats()["n"]["memory_overhead"] == 0)
            other.communicate("\n", timeout=240)
        check(node.seats()["c"]["memory_left"] == PIECE, str(node.seats()))
        end(p)


@case("left behind: a seat that is gone leaves its memory to no other seat")
def dropped() -> None:
    with Node(virtual=False) as node:
        begin(node, "c", WORKERS)
        until("it is named", lambda: audit(node))
        node.ask(op="drop", seat="c")
        time.sleep(3)
        other, first = begin(node, "n", "fits_children_one_after_the_other")
        check(first["granted"] == first["of"], f"the other was refused: {first}")
        check(not audit(node), str(audit(node)))
        other.communicate("\n", timeout=240)


for way in subprocess.run(
    [CHILDREN, "list"],
    env=os.environ | {"LD_LIBRARY_PATH": str(BUILD / "fake")},
    capture_output=True,
    text=True,
    check=False,
).stdout.split():
    words = way.replace("_", " ")
    if way.startswith("a_parent"):
        continue
    body = partial(left, way)
    case(f"left behind: {words}", patiently(body) if "lie" in way else body)
    if "workers" in way:
        case(f"left behind, the dead are not listed: {words}", lambda way=way: left(way, dead="hidden"))
