# SPDX-License-Identifier: Apache-2.0
"""The fake GPU itself, if no other test would notice that it is not as CUDA documents it."""

from __future__ import annotations

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
