# SPDX-License-Identifier: Apache-2.0
"""What NVML shows in a seat, and how the cap works if NVML says little."""

from __future__ import annotations

import sys
from pathlib import Path

from check import case, check
from harness import BUILD, Node, Seat, result

PROGRAM = [sys.executable, str(Path(__file__).with_name("nvml_program.py"))]


def look(**fake: str) -> dict[str, object]:
    with Node(virtual=False, **fake) as node:
        other = node.run(Seat(40, program=[str(BUILD / "fake" / "memory"), "hold", "200"], name="other"))
        check(other.stdout and other.stdout.readline() == "holding\n", "did not hold")
        rival = node.run(Seat(40, args=["--kernel-us", "2000", "--seconds", "30"], name="rival"))
        p = node.run(Seat(20, program=[*PROGRAM, "0.5"], name="s"))
        answer = result(p) | {"pid": p.pid}
        rival.kill()
    return answer


@case("nvml: a program sees the slice's own processes and use")
def own() -> None:
    answer = look()
    check(answer["processes"] == [[answer["pid"], 100 << 20]], str(answer))
    check(answer["too_small"] == [7, 1], f"a query for the count: {answer}")
    check(answer["gpu"] == 0, f"another seat's work is shown: {answer}")


@case("nvml: where no process's memory is known, it is what is charged, and nothing is refused")
def unknown() -> None:
    answer = look(nvml="unknown")
    check(answer["taken"] == 0, f"refused: {answer}")
    check(answer["processes"] == [[answer["pid"], 100 << 20]], str(answer))


for kind in ("unknown", "bare", "silent"):

    def works(kind: str = kind) -> None:
        """Give a program its whole slice, and no more, whatever NVML leaves out."""
        with Node(virtual=False, nvml=kind) as node:
            answer = result(node.run(Seat(50, program=[str(BUILD / "fake" / "memory"), "calls"], name="c")))
            check(answer["bad"] == 0, str(answer))
            p = node.run(Seat(50, program=[str(BUILD / "fake" / "accounting"), "all"], name="a"))
            out, err = p.communicate(timeout=240)
            check(p.returncode == 0 and '"bad": 0' in out, f"{out} {err}")

    case(f"nvml: a driver whose figures are {kind}", works)
