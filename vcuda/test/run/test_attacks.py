# SPDX-License-Identifier: Apache-2.0
"""Tenants that mean harm: neither the arbiter nor a neighbour dies, and no neighbour loses its share."""

from __future__ import annotations

import os
import subprocess

from check import case, check, patiently
from harness import BUILD, Node, Seat, result

ATTACK = str(BUILD / "fake" / "attack")
SECONDS = 3.0
# So much longer lives the bad one: how long a process takes to die is no matter of virtual time.
LONGER = 2.0
POINTS = 2.0
# On real futexes, which virtual time does not use.
REAL = ("requeue_bell", "ring_without_end", "knock_without_end", "never_reads")


def alive(node: Node) -> None:
    check(node.arbiter and node.arbiter.poll() is None, f"the arbiter died: {node.logged()[-300:]}")
    node.ask(op="read")  # and it answers


def withstood(kind: str) -> str:
    """Run two good tenants beside a bad one, in virtual time: none loses more than two points."""
    args = ["--kernel-us", "500", "--seconds", str(SECONDS), "--arrive"]
    with Node(hold=3) as node:
        bad = node.run(Seat(40, program=[ATTACK, kind, str(SECONDS + LONGER)], name="bad"))
        good = [node.run(Seat(30, args=args, name=name)) for name in ("a", "b")]
        got = [result(p, 120) for p in good]
        alive(node)
        bad.kill()
    shares = [100 * g["busy_ns"] / g["wall_ns"] for g in got]
    text = " and ".join(f"{s:.1f} %" for s in shares)
    check(all(s >= 30 - POINTS for s in shares), f"the others got {text}, not 30 % each")
    return f"the others: {text}"


def share_beside(program: list[str]) -> float:
    with Node(virtual=False) as node:
        other = node.run(Seat(50, program=program, name="other"))
        good = node.run(Seat(50, args=["--kernel-us", "500", "--seconds", "2"], name="good"))
        got = result(good)
        alive(node)
        other.kill()
    return 100 * got["busy_ns"] / got["wall_ns"]


def on_this_machine(kind: str) -> str:
    """Do the same in real time, held against an honest tenant: a busy machine takes its part of both."""
    honest = share_beside([str(BUILD / "fake" / "tenant"), "--kernel-us", "500", "--seconds", "3"])
    share = share_beside([ATTACK, kind, "3"])
    check(share > 0.6 * min(honest, 50), f"the neighbour got {share:.1f} %, and {honest:.1f} % beside an honest one")
    return f"the neighbour: {share:.1f} %, beside an honest one {honest:.1f} %"


LISTED = subprocess.run(
    [ATTACK, "list"],
    env=os.environ | {"LD_LIBRARY_PATH": str(BUILD / "fake")},
    capture_output=True,
    text=True,
    check=False,
).stdout.split()
for kind in LISTED:
    case(f"attacks: {kind}", lambda kind=kind: withstood(kind))
for kind in REAL:
    case(f"attacks, in real time: {kind}", patiently(lambda kind=kind: on_this_machine(kind)))
