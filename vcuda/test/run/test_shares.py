# SPDX-License-Identifier: Apache-2.0
"""Shares of the GPU, in virtual time: what each tenant gets against what it was promised."""

from __future__ import annotations

import os
from dataclasses import dataclass

from check import case, check
from harness import Seat, together

SECONDS = float(os.environ.get("VCUDA_SHARE_SECONDS", "10"))
POINTS = 2.0
BUSY = 97.0


@dataclass
class Mix:
    """A case: the seats, and the shares they should get in points of the GPU."""

    name: str
    seats: list[Seat]
    expect: list[float]
    busy: float = BUSY


def k(us: int | str, *more: str) -> list[str]:
    return ["--kernel-us", str(us), *more]


MIXES = [
    Mix("the slides' pair: requests 0.4/0.6, limits 0.7/0.8", [Seat(40, 70), Seat(60, 80)], [40, 60]),
    Mix("10 and 90", [Seat(10), Seat(90)], [10, 90]),
    Mix("30 and 70", [Seat(30), Seat(70)], [30, 70]),
    Mix("a ceiling alone", [Seat(40, 70)], [70], busy=68),
    Mix("10 us, synchronous, beside 50 ms", [Seat(30, args=k(10, "--sync")), Seat(70, args=k(50000))],
        [30, 70]),
    Mix("50 ms synchronous beside 10 ms", [Seat(30, args=k(50000, "--sync")), Seat(70, args=k(10000))],
        [30, 70]),
    Mix("graphs of 20 kernels beside single ones",
        [Seat(50, args=k(100, "--graph", "--batch", "20")), Seat(50, args=k(200))], [50, 50]),
    Mix("long graphs beside short kernels",
        [Seat(20, args=k(1000, "--graph", "--batch", "40")), Seat(80, args=k(50))], [20, 80]),
    Mix("three, mixed kernels on four streams",
        [Seat(20, args=k("10,5000", "--streams", "4")), Seat(30, args=k(700, "--sync")),
         Seat(50, args=k("20,300", "--streams", "2"))], [20, 30, 50]),
    Mix("five, all kinds",
        [Seat(10, args=k(10, "--sync")), Seat(15, args=k(20000)), Seat(20, args=k(50, "--graph", "--batch", "9")),
         Seat(25, args=k(3000, "--sync")), Seat(30, args=k(120))], [10, 15, 20, 25, 30]),
    Mix("eight alike", [Seat(12, args=k(100 * (i + 1))) for i in range(8)], [12.5] * 8),
    Mix("eight unlike",
        [Seat(c, args=k(us, *more)) for c, us, more in
         [(5, 10, ["--sync"]), (5, 50000, []), (10, 200, []), (10, 1000, ["--sync"]), (15, 30, []),
          (15, 10000, ["--sync"]), (20, 500, ["--graph", "--batch", "4"]), (20, 5000, [])]],
        [5, 5, 10, 10, 15, 15, 20, 20]),
    Mix("elastic: requests of 20 and 30 share what is left 2:3", [Seat(20), Seat(30)], [40, 60]),
    Mix("elastic under a ceiling", [Seat(20, 30), Seat(30)], [30, 70]),
]  # fmt: skip


def run(mix: Mix) -> None:
    results = together(mix.seats, SECONDS)
    shares = [r["share"] for r in results]
    text = ", ".join(f"{s:.1f}" for s in shares)
    worst = max(abs(s - e) for s, e in zip(shares, mix.expect, strict=True))
    check(worst <= POINTS, f"shares {text}: {worst:.2f} points off")
    check(sum(shares) >= mix.busy, f"busy {sum(shares):.1f} %")
    for seat, share in zip(mix.seats, shares, strict=True):
        check(share <= seat.limit + POINTS, f"{share:.1f} % is above the ceiling of {seat.limit} %")


for mix in MIXES:
    case(f"shares: {mix.name}", lambda mix=mix: run(mix))


@case("shares: in-budget beside background, the fixed pair")
def pair() -> None:
    training = ["--kernel-us", "1000", "--batch", "15", "--host-us", "5000"]
    alone = together([Seat(60, args=training)], SECONDS)[0]
    loop = together([Seat(10, vclass="background", args=k(200))], SECONDS)[0]
    first, second = together(
        [Seat(60, args=training), Seat(10, vclass="background", args=k(200))], SECONDS)  # fmt: skip
    kept = first["steps"] / alone["steps"] * alone["wall_ns"] / first["wall_ns"]
    left = second["kernels"] / loop["kernels"] * loop["wall_ns"] / second["wall_ns"]
    check(kept > 0.95, f"in-budget keeps {kept:.3f} of its speed")
    check(left >= 0.20, f"background keeps {left:.3f} of its own")


@case("shares: background beside an in-budget seat that never pauses is not starved")
def floor() -> None:
    first, second = together(
        [Seat(50, args=k(500)), Seat(10, vclass="background", args=k(20000))], SECONDS)  # fmt: skip
    check(first["share"] >= 97, f"in-budget {first['share']:.1f} %")
    check(second["kernels"] > 0, "background ran nothing")
