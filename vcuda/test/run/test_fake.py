# SPDX-License-Identifier: Apache-2.0
"""The fake GPU itself, if no other test would notice that it is not as CUDA documents it."""

from __future__ import annotations

import os
import subprocess

from check import case, check
from harness import BUILD, Node, Seat

LOOP = 10  # the kernel that counts takes so many microseconds
GRAPHS = {
    "child": 100, "if": 1100, "if-not": 1000, "else": 1200, "while": 1000 + 7 * (100 + LOOP), "while-not": 1000,
    "switch": 1400, "switch-none": 1000, "nested": 3 * (200 + LOOP), "across": 1200,
}  # fmt: skip
NOT_SUPPORTED = 801


@case("fake: conditional nodes, clones and nodes of another context take their time; with a limiter too")
def graphs() -> None:
    with Node() as node:
        for start in (node.bare, node.run):
            out, err = start(Seat(100, program=[str(BUILD / "fake" / "graphs")])).communicate(timeout=240)
            said = dict(line.split(" ", 1) for line in out.splitlines())
            check(said.pop("refused", "") == " ".join([str(NOT_SUPPORTED)] * 3), f"{out}{err}")
            check({name: int(us) for name, us in said.items()} == GRAPHS, f"{said} and not {GRAPHS}")


DOCUMENTS = str(BUILD / "fake" / "documents")
SIDE_BY_SIDE = {
    "time_a_running_kernel_is_not_preempted",
    "time_an_allocation_comes_between",
    "time_the_legacy_stream_waits_for_blocking_ones_only",
}
"""With a limiter, a kernel that was never seen before runs alone."""


def as_documented(name: str, limited: bool, **fake: str) -> None:
    """Try what NVIDIA's documents say, bare or in a seat with room for it."""
    with Node(virtual=name.startswith("time"), **fake) as node:
        p = (node.run if limited else node.bare)(Seat(100, memory="4GiB", program=[DOCUMENTS, name], name="d"))
        out, err = p.communicate(timeout=240)
        check(p.returncode == 0, f"ended with {p.returncode}: {out}{err}")


for name in subprocess.run(
    [DOCUMENTS, "list"],
    env=os.environ | {"LD_LIBRARY_PATH": str(BUILD / "fake")},
    capture_output=True,
    text=True,
    check=False,
).stdout.split():
    words = name.replace("_", " ")
    gpus = {"gpus": "2"} if name.startswith("two") else {}
    case(f"fake: {words}", lambda name=name, gpus=gpus: as_documented(name, False, **gpus))
    if not gpus and name not in SIDE_BY_SIDE:
        case(f"fake: with a limiter too, {words}", lambda name=name: as_documented(name, True))
