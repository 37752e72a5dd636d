# SPDX-License-Identifier: Apache-2.0
"""Shares of the GPU, in virtual time: what each tenant gets against what it was promised."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace

from check import case, check
from harness import BUILD, Seat, together

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
    Mix("one long kernel after seven short ones, synchronous, under a ceiling",
        [Seat(20, 20, args=k("20,20,20,20,20,20,20,5000", "--sync"))], [20], busy=18),
    Mix("20 us and 40 ms in turn beside short ones", [Seat(20, args=k("20,40000")), Seat(80)], [20, 80]),
    Mix("the same on four streams", [Seat(20, args=k("20,40000", "--streams", "4")), Seat(80)], [20, 80]),
    Mix("request = ceiling, kernels of 0.3, 3 and 30 ms",
        [Seat(20, 20, args=k(300)), Seat(20, 20, args=k(3000)), Seat(20, 20, args=k(30000))], [20, 20, 20], busy=58),
    Mix("bursts of 100 ms with pauses of 200 ms beside a hungry one",
        [Seat(30, args=k(1000, "--batch", "100", "--host-us", "200000")), Seat(70)], [30, 70]),
    Mix("an idle stream synchronised all the time", [Seat(20, args=k(2000, "--idle-sync")), Seat(80)], [20, 80]),
    Mix("graphs on another context's stream, under a ceiling",
        [Seat(20, 20, args=k(500, "--graph", "--batch", "8", "--other-context"))], [20], busy=18),
    Mix("kernels on another context's streams",
        [Seat(40, args=k(300, "--other-context", "--streams", "3")), Seat(60)], [40, 60]),
    Mix("narrow kernels side by side: charged for the union", [Seat(30, 30, args=k("400_w20", "--streams", "5"))],
        [30], busy=28),
    Mix("a stream held by the host holds no gate",
        [Seat(50, args=k(500, "--batch", "3", "--hold-us", "20000")), Seat(50)], [7, 93]),
    Mix("a context held by another context's stream holds no gate",
        [Seat(50, args=k(500, "--batch", "3", "--hold-us", "20000", "--context-wait")), Seat(50)], [7, 93]),
    Mix("elastic: requests of 20 and 30 share what is left 2:3", [Seat(20), Seat(30)], [40, 60]),
    Mix("elastic under a ceiling", [Seat(20, 30), Seat(30)], [30, 70]),
]  # fmt: skip


def run(mix: Mix, **fake: str) -> None:
    results = together([replace(seat) for seat in mix.seats], SECONDS, **fake)
    shares = [r["share"] for r in results]
    text = ", ".join(f"{s:.1f}" for s in shares)
    worst = max(abs(s - e) for s, e in zip(shares, mix.expect, strict=True))
    check(worst <= POINTS, f"shares {text}: {worst:.2f} points off")
    check(sum(shares) >= mix.busy, f"busy {sum(shares):.1f} %")
    for seat, share in zip(mix.seats, shares, strict=True):
        check(share <= seat.limit + POINTS, f"{share:.1f} % is above the ceiling of {seat.limit} %")


for mix in MIXES:
    case(f"shares: {mix.name}", lambda mix=mix: run(mix))


# What the driver may answer if its documents leave it open, and if it refuses what we ask of it.
for how in ("strict", "done"):
    for mix in (MIXES[0], MIXES[8], MIXES[20], MIXES[21]):
        case(f"shares, events {how}: {mix.name}", lambda mix=mix, how=how: run(mix, events=how))
for fault in ("cuEventRecord:7:400", "cuEventQuery:5:999", "cuEventCreate:2:2", "cuStreamGetCtx:2:201"):
    for mix in (MIXES[0], MIXES[8]):
        case(f"shares, {fault} fails: {mix.name}", lambda mix=mix, fault=fault: run(mix, fault=fault))


@case("shares: processes of one seat are charged for their union")
def processes() -> None:
    # In turn on the GPU, each waits for the other as well: the sum of what they see is twice the union.
    seat = Seat(30, 30, args=k(300, "--processes", "2"))
    (got,) = together([seat], SECONDS, threads=2)
    check(28 <= got["share"] <= 31, f"{got['share']:.1f} %")


@case("shares: one function's calls, long and short, each waited for with an event behind it")
def unlike() -> str:
    # How long a call takes is no guide to the next one: what counts is when the program's wait is over.
    work = k("5000,50,50,50,50,50,50,50", "--one-function", "--tie", "--sync")
    (got,) = together([Seat(44, 44, args=work)], SECONDS)
    note = f"{got['share']:.1f} of 44"
    check(abs(got["share"] - 44) <= 0.5, note)
    return note


def many(us: int, processes: int, owed: float, busy: float) -> str:
    """Run several processes of one seat with kernels of `us` beside a seat that pauses for 5 ms in 20."""
    training = Seat(50, args=k(1000, "--batch", "15", "--host-us", "5000"))
    loops = Seat(30, args=k(us, "--processes", str(processes)))
    good, last = together([training, loops], 5.0, threads=processes + 1)
    # Of several processes the account is the whole GPU's, of one its own.
    rest = last["share"] - (good["share"] if processes > 1 else 0)
    note = f"{good['share']:.1f} of 50, {rest:.1f} of 30"
    check(good["share"] >= 50 - 1 and rest >= owed and good["share"] + rest >= busy, note)
    return note


# Kernels of 30 ms are longer than any pause: those are left to the seat that is owed, and the GPU idles.
for us, processes, owed, busy in (
    (3000, 2, 40, 94), (3000, 8, 40, 94), (10000, 2, 40, 94), (10000, 8, 40, 94),
    (30000, 1, 30, 87), (30000, 2, 30, 80), (30000, 8, 30, 80),
):  # fmt: skip
    case(
        f"shares: {processes} processes with kernels of {us // 1000} ms beside a seat that pauses",
        lambda us=us, processes=processes, owed=owed, busy=busy: many(us, processes, owed, busy),
    )


@case("shares: eight processes with kernels of 100 ms have their seat's request and no more")
def patient() -> str:
    # Each waits for its turn, and at the gate, for longer than a launch waits for others of its process.
    hungry, _ = together([Seat(70), Seat(30, args=k(100_000, "--processes", "8"))], SECONDS, threads=9)
    note = f"{hungry['share']:.1f} of 70"
    check(abs(hungry["share"] - 70) <= 1, note)
    return note


@case("shares: lengths over three orders of magnitude, in two processes of each seat, leave no gaps")
def any_lengths() -> str:
    one, two = together([Seat(75, args=["--pareto"]), Seat(25, args=["--pareto", "--processes", "2"])], 5.0, threads=3)
    both = [Seat(core, args=["--pareto", "--processes", "2"]) for core in (25, 75)]
    busy = min(got["share"] for got in together(both, 5.0, threads=4))
    note = f"{one['share']:.1f} of 75, busy {two['share']:.1f} and {busy:.1f} %"
    check(one["share"] >= 73 and two["share"] >= 97 and busy >= 97, note)
    return note


# Its own work, the other seat's, its request, and what it has at least. The GPU idles for 0.1 ms at each pause.
PAUSES = {
    "0.4 ms after 1 ms, beside 0.2 ms": (k(100, "--batch", "10", "--host-us", "428"), k(200, "--sync"), 45, 41),
    "0.5 ms after 3 ms, beside 0.03 ms": (k(3000, "--host-us", "529"), k("30,20", "--sync"), 75, 71),
    "1.8 ms after 10 ms, beside 0.03 ms": (k(30, "--batch", "333", "--host-us", "1762"), k(30, "--streams", "3"), 75,
                                           73),
    "18 ms after 10 ms, beside 10 ms": (k(300, "--batch", "33", "--host-us", "18385"), k(10000), 30, 28),
    "30 ms after 30 ms, beside 1 ms": (k(3000, "--batch", "10", "--host-us", "30000"), k(1000, "--streams", "3"), 45,
                                       43),
}  # fmt: skip


def resting(own: list[str], other: list[str], core: int, least: float) -> str:
    got, beside = together([Seat(core, args=own), Seat(100 - core, args=other)], 5.0)
    note = f"{got['share']:.1f} of {core}, {beside['share']:.1f} of {100 - core}"
    check(got["share"] >= least and beside["share"] >= 100 - core - POINTS, note)
    return note


for name, pause in PAUSES.items():
    case(f"shares: a seat that pauses has its request: {name}", lambda pause=pause: resting(*pause))


# Seats, what the first one has at least, and how busy the GPU is: each pause idles it for little.
SHORT_PAUSES = {
    "0.45 ms after 0.23 ms, beside 0.1 ms": (
        [Seat(50, args=k(23, "--batch", "10", "--host-us", "450")), Seat(50, args=k(100, "--sync"))], 29, 96),
    "0.45 ms after 0.23 ms, beside 0.14 and 0.45 ms": (
        [Seat(60, args=k(23, "--batch", "10", "--host-us", "453")), Seat(30, args=k(136, "--sync")),
         Seat(10, args=k(450, "--batch", "11", "--sync"))], 28, 96),
    "0.3 ms after 0.5 ms, beside 0.1 ms": (
        [Seat(40, args=k(500, "--host-us", "300")), Seat(60, args=k(100))], 38, 97),
    "0.45 ms after 0.23 ms, beside 0.1 ms that nobody waits for": (
        [Seat(50, args=k(23, "--batch", "10", "--host-us", "450")), Seat(50, args=k(100))], 29, 97),
    "0.2 and 0.25 ms after 0.2 and 0.3 ms, beside 0.05 ms": (
        [Seat(30, args=k(200, "--host-us", "200")), Seat(30, args=k(300, "--host-us", "250")), Seat(40, args=k(50))],
        28, 96),
    "1 ms after 0.1 ms, beside 1 ms": ([Seat(40, args=k(100, "--host-us", "1000")), Seat(60, args=k(1000))], 8, 97),
}  # fmt: skip


def brief(seats: list[Seat], least: float, busy: float) -> str:
    shares = [r["share"] for r in together([replace(seat) for seat in seats], 2.0)]
    note = f"{', '.join(f'{s:.1f}' for s in shares)}: busy {sum(shares):.1f} %"
    check(shares[0] >= least and sum(shares) >= busy, note)
    return note


for name, mix in SHORT_PAUSES.items():
    case(f"shares: short pauses leave the GPU to others: {name}", lambda mix=mix: brief(*mix))


# Work, a host function behind it, and so on: the seat's request, and what the others have at least.
CALLBACKS = {
    "100 ms behind 1 ms": (10, k(1000, "--callback-us", "100000"), 97),
    "3 ms behind 2 ms": (50, k(2000, "--callback-us", "3000"), 58),
    "30 ms behind 10 ms": (30, k(10000, "--callback-us", "30000"), 73),
    "0.1 ms behind 0.3 ms, on two streams": (50, k(300, "--callback-us", "100", "--streams", "2"), 48),
}


def callbacks(core: int, work: list[str], least: float) -> str:
    first, second = together([Seat(core, args=work), Seat(100 - core)], 3.0)
    busy = first["share"] + second["share"]
    note = f"{first['share']:.1f} of {core}, {second['share']:.1f} of {100 - core}"
    check(second["share"] >= least and busy >= 98, note)
    return note


for name, work in CALLBACKS.items():
    case(f"shares: host functions of {name} hold no gate", lambda work=work: callbacks(*work))


@case("shares: a seat that wants little of its request leaves the rest to long kernels")
def modest() -> str:
    inference = Seat(70, args=k(1000, "--batch", "10", "--host-us", "30000"))
    first, second = together([inference, Seat(30, args=k(60_000))], SECONDS)
    note = f"{first['share']:.1f} of 70, {second['share']:.1f} of 30"
    check(first["share"] >= 10 and first["share"] + second["share"] >= BUSY, note)
    return note


@case("shares: in-budget beside background, the fixed pair")
def pair() -> None:
    training = ["--kernel-us", "1000", "--batch", "15", "--host-us", "5000"]
    alone = together([Seat(60, args=training)], SECONDS)[0]
    loop = together([Seat(10, vclass="background", args=k(200))], SECONDS)[0]
    first, second = together([Seat(60, args=training), Seat(10, vclass="background", args=k(200))], SECONDS)
    kept = first["steps"] / alone["steps"] * alone["wall_ns"] / first["wall_ns"]
    left = second["kernels"] / loop["kernels"] * loop["wall_ns"] / second["wall_ns"]
    check(kept > 0.95, f"in-budget keeps {kept:.3f} of its speed")
    check(left >= 0.20, f"background keeps {left:.3f} of its own")


FRAMEWORK = [str(BUILD / "fake" / "framework")]

# Who sits beside a program with many launches of many functions, and what part of its speed that keeps.
NEIGHBOURS = {
    "no neighbour": ([], 0.99),
    "a seat that rests": ([Seat(40, args=k(10, "--host-us", "2000000"))], 0.98),
    "background": ([Seat(10, vclass="background", args=k(200))], 0.95),
    "another one with half of the GPU": ([Seat(50, program=FRAMEWORK)], 0.48),
}


def framework(neighbours: list[Seat], least: float) -> str:
    """Compare its steps with what they are without a limiter."""
    bare = together([Seat(50, program=FRAMEWORK)], 1.0, bare=True)[0]
    got = together([Seat(50, program=FRAMEWORK), *map(replace, neighbours)], 2.0)[0]
    kept = got["steps"] / got["wall_ns"] / bare["steps"] * bare["wall_ns"]
    check(kept >= least, f"keeps {kept:.3f} of its speed")
    return f"keeps {kept:.3f}"


for name, (neighbours, least) in NEIGHBOURS.items():
    case(f"shares: a framework's steps beside {name}", lambda n=neighbours, x=least: framework(n, x))


# The work of the in-budget seat, its part of the time, and what background has at least.
GAPS = {
    "0.45 ms, kernels of 0.1 ms": (k(23, "--batch", "10", "--host-us", "450"), 23 / 68, k(100), 50),
    "0.45 ms, kernels of 0.03 ms": (k(23, "--batch", "10", "--host-us", "450"), 23 / 68, k(30), 50),
    "1 ms, kernels of 0.3 ms": (k(200, "--batch", "10", "--host-us", "1000"), 2 / 3, k(300), 28),
}


def gaps(work: list[str], part: float, loop: list[str], least: float) -> str:
    first, second = together([Seat(50, args=work), Seat(10, vclass="background", args=loop)], 3.0)
    kept = first["share"] / 100 / part
    note = f"in-budget keeps {kept:.3f}, background has {second['share']:.1f} %"
    check(kept > 0.95 and second["share"] >= least, note)
    return note


for name, gap in GAPS.items():
    case(f"shares: background uses pauses of {name}", lambda gap=gap: gaps(*gap))


@case("shares: background beside an in-budget seat that never pauses is not starved")
def floor() -> None:
    first, second = together([Seat(50, args=k(500)), Seat(10, vclass="background", args=k(20000))], SECONDS)
    check(first["share"] >= 97, f"in-budget {first['share']:.1f} %")
    check(second["kernels"] > 0, "background ran nothing")
