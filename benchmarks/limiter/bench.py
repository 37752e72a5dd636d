#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measure the limiter on the fake GPU; every table is printed as Markdown.

    bench.py launch [--peer PATH] [--real]   what a launch costs, bare, limited, and under a peer's library
    bench.py shares [--peer PATH]   shares and ceilings in real time, also under a peer's library
    bench.py pair [--seconds N]     in-budget beside background: the fixed pair
    bench.py sweep [--seconds N]    the pair over duty cycles and kernel lengths, unlimited beside it
    bench.py rules [--seconds N]    our rule, KubeGPU's and Gemini's on the same tenants
    bench.py pauses [--seconds N]   seats that pause, beside what an ideal scheduler gives them
    bench.py mixes [--rounds N] [--seed N]   random tenants, most of which pause: how many get what the ideal gives them
    bench.py races [--rounds N]     sixteen processes against a memory cap
    bench.py react [--rounds N]     how soon a change of class takes effect

All but launch, shares and react run in the fake GPU's virtual time, so the machine's load does not show.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2] / "vcuda"
sys.path[:0] = [str(ROOT / "test" / "run"), str(ROOT / "src")]

import headers  # noqa: E402
from harness import BUILD, Node, Seat, result, together  # noqa: E402
from ideal import Work, ideal  # noqa: E402

Row = list[str]


def table(head: Row, rows: list[Row]) -> None:
    print("| " + " | ".join(head) + " |")
    print("|" + "---|" * len(head))
    for row in rows:
        print("| " + " | ".join(row) + " |", flush=True)


def kernels(us: int | str, *more: str) -> Row:
    return ["--kernel-us", str(us), *more]


def training(duty: int = 75) -> Row:
    """Steps of 15 kernels of 1 ms, then so much host work that the duty cycle comes out."""
    host = round(15000 * (100 - duty) / duty)
    return kernels(1000, "--batch", "15", "--sync", "--host-us", str(host))


def peer_env(library: str, core: int, folder: str) -> dict[str, str]:
    """Preload another limiter, with HAMi-core's settings for so much of the GPU's time and 1 GiB of its memory."""
    return {
        "LD_PRELOAD": library,
        "CUDA_REDIRECT": library,
        "CUDA_DEVICE_SM_LIMIT": str(core),
        "GPU_CORE_UTILIZATION_POLICY": "force",
        "CUDA_DEVICE_MEMORY_LIMIT": "1g",
        "CUDA_DEVICE_MEMORY_SHARED_CACHE": f"{folder}/cache-{core}",
        "LIBCUDA_LOG_LEVEL": "0",
    }


def launch(options: argparse.Namespace) -> None:
    program = BUILD / "fake" / "launch"
    files = [Path(__file__).with_name("launch.c"), BUILD / "fake" / "libcuda.so.1"]
    subprocess.run(["gcc", "-O2", "-pthread", f"-I{headers.fetch('13')}", "-o", str(program), *files], check=True)
    kinds = ["bare", "limited", *(["peer"] if options.peer else [])]
    got: dict[str, list[dict[str, float]]] = {k: [] for k in kinds}
    with tempfile.TemporaryDirectory() as folder, Node(virtual=False, real=options.real) as node:
        for _ in range(options.rounds or 5):
            for kind in kinds:
                seat = Seat(50, program=[str(program)])
                if kind == "peer":
                    seat.env = peer_env(options.peer, 50, folder)
                got[kind].append(result(node.run(seat) if kind == "limited" else node.bare(seat)))
    bare = {f: min(r[f] for r in got["bare"]) for f in ("open_ns", "fenced_ns")}
    rows = []
    for kind in kinds:
        open_ns, fenced = (min(r[f] for r in got[kind]) for f in ("open_ns", "fenced_ns"))
        more = fenced - bare["fenced_ns"]
        rows.append(
            [
                kind,
                f"{open_ns:.1f}",
                f"{open_ns - bare['open_ns']:+.1f}",
                f"{fenced:.1f}",
                f"{more:+.1f}",
                f"{more / 40:.2f} %",
                *(f"{min(r[f] for r in got[kind]):.1f}" for f in ("info_ns", "wait_ns")),
            ]
        )
    table(
        [
            "library",
            "open gate, ns",
            "more",
            "with fences, ns",
            "more",
            "of a launch of 4 us",
            "`cuMemGetInfo`, ns",
            "`cuStreamSynchronize`, idle, ns",
        ],
        rows,
    )


CEILINGS = {
    "20 alone": [(20, 1000)],
    "20/20/20, kernels of 0.3, 3 and 30 ms": [(20, 300), (20, 3000), (20, 30000)],
    "40/60, kernels of 1 ms": [(40, 1000), (60, 1000)],
    "30/70, 50 ms beside 1 ms": [(30, 50000), (70, 1000)],
}


def shares(options: argparse.Namespace) -> None:
    """Seats whose request is their ceiling, for a peer may know ceilings only."""
    rows = []
    for name, seats in CEILINGS.items():
        for kind in ["limited", *(["peer"] if options.peer else [])]:
            peer = kind == "peer"
            with tempfile.TemporaryDirectory() as folder:
                chosen = [
                    Seat(core, core, args=kernels(us), env=peer_env(options.peer, core, folder) if peer else {})
                    for core, us in seats
                ]
                got = together(chosen, options.seconds, bare=peer, virtual=False)
            points = [r["share"] for r in got]
            off = max(abs(p - core) for p, (core, _) in zip(points, seats, strict=True))
            rows.append([name, kind, " / ".join(f"{p:.1f}" for p in points), f"{off:.1f}"])
    table(["seats, % of the GPU", "library", "shares, % of the GPU", "points off"], rows)


def speeds(duty: int, us: int, seconds: float) -> tuple[float, float, float, float]:
    """Kept speed of the in-budget and the background tenant, limited and unlimited.

    Steps end with a synchronisation; the background's kernels do not, so its speed is by what the GPU ran of it.
    """

    def pace(r: dict[str, float], what: str) -> float:
        return r[what] / r["wall_ns"]

    def pair() -> list[Seat]:
        return [Seat(60, args=training(duty)), Seat(10, vclass="background", args=kernels(us))]

    alone = pace(together([Seat(60, args=training(duty))], seconds, bare=True)[0], "steps")
    loop = pace(together([Seat(10, args=kernels(us))], seconds, bare=True)[0], "busy_ns")
    limited, free = together(pair(), seconds), together(pair(), seconds, bare=True)
    return (
        pace(limited[0], "steps") / alone,
        pace(limited[1], "busy_ns") / loop,
        pace(free[0], "steps") / alone,
        pace(free[1], "busy_ns") / loop,
    )


HEAD = [
    "in-budget duty",
    "background kernel",
    "in-budget keeps",
    "background keeps",
    "in-budget, unlimited",
    "background, unlimited",
]


def pair_row(duty: int, us: int, seconds: float) -> Row:
    kept = speeds(duty, us, seconds)
    return [f"{duty} %", f"{us / 1000:g} ms", *(f"{100 * k:.1f} %" for k in kept)]


def pair(options: argparse.Namespace) -> None:
    table(HEAD, [pair_row(75, 200, options.seconds)])


def sweep(options: argparse.Namespace) -> None:
    table(
        HEAD,
        [pair_row(duty, us, options.seconds) for duty in (25, 50, 75, 90, 100) for us in (50, 200, 1000, 5000, 10000)],
    )


MIXES = {
    "40/60, both hungry": ([(40, 70, 200), (60, 80, 200)], [40, 60]),
    "10/90": ([(10, 100, 200), (90, 100, 200)], [10, 90]),
    "30/70, 50 ms beside 1 ms": ([(30, 100, 50000), (70, 100, 1000)], [30, 70]),
    "20/30, the rest elastic": ([(20, 100, 200), (30, 100, 200)], [40, 60]),
    "10/20/30/40": ([(10, 100, 100), (20, 100, 2000), (30, 100, 300), (40, 100, 700)], [10, 20, 30, 40]),
}


def rules(options: argparse.Namespace) -> None:
    rows = []
    for name, (seats, want) in MIXES.items():
        for rule in ("slicekeeper", "kubegpu", "gemini"):
            got = together([Seat(c, lim, args=kernels(us)) for c, lim, us in seats], options.seconds, rule=rule)
            shares = [r["share"] for r in got]
            off = max(abs(s - w) for s, w in zip(shares, want, strict=True))
            rows.append([name, rule, " / ".join(f"{s:.1f}" for s in shares), f"{off:.1f}", f"{sum(shares):.1f}"])
    for rule in ("slicekeeper", "kubegpu", "gemini"):
        alone = together([Seat(60, args=training())], options.seconds)[0]
        got = together(
            [Seat(60, args=training()), Seat(10, vclass="background", args=kernels(200))], options.seconds, rule=rule
        )
        kept = got[0]["steps"] / alone["steps"] * alone["wall_ns"] / got[0]["wall_ns"]
        rows.append(
            [
                "training beside background",
                rule,
                f"training keeps {100 * kept:.1f} %",
                "",
                f"{sum(r['share'] for r in got):.1f}",
            ]
        )
    table(["tenants", "rule", "shares, % of the GPU", "points off", "busy, %"], rows)


PAUSES = [
    [Work(60, 3000, 1, 1300), Work(40, 5000)],
    [Work(50, 1000, 15, 5000), Work(30, 30000)],
    [Work(70, 3000, 1, 5600), Work(30, 10000)],
    [Work(70, 1000, 10, 30000), Work(30, 60000)],
    [Work(40, 100, 1, 1000), Work(60, 1000)],
    [Work(50, 23, 10, 450), Work(50, 100)],
    [Work(60, 23, 10, 453), Work(30, 136), Work(10, 450)],
    [Work(30, 200, 1, 200), Work(30, 300, 1, 250), Work(40, 50)],
    [Work(50, 2000, 10, 7000), Work(50, 40000, 2, 30000)],
    [Work(40, 1000, 5, 5000), Work(30, 20000, 1, 10000), Work(30, 100000, 1, 50000)],
]


def described(work: Work) -> str:
    count = f"{work.batch} × " if work.batch > 1 else ""
    rest = f" + {work.host_us / 1000:g}" if work.host_us else ""
    return f"{work.core} %: {count}{work.us / 1000:g}{rest}"


def played(mix: list[Work], seconds: float) -> list[float]:
    """The share of the GPU that each tenant gets under the arbiter."""
    work = [(w.core, kernels(int(w.us), "--batch", str(w.batch), "--host-us", str(int(w.host_us)))) for w in mix]
    return [r["share"] for r in together([Seat(core, args=args) for core, args in work], seconds)]


def pauses(options: argparse.Namespace) -> None:
    def cells(shares: list[float]) -> Row:
        return [" / ".join(f"{s:.1f}" for s in shares), f"{sum(shares):.1f}"]

    rows = []
    for mix in PAUSES:
        ours = played(mix, options.seconds)
        busy, patient = (ideal(mix, options.seconds, patient) for patient in (False, True))
        rows.append(["; ".join(map(described, mix)), *cells(ours), *cells(busy), *cells(patient)])
    table(
        [
            "seats: request, kernels + pause, ms",
            "shares, %",
            "busy",
            "ideal that never idles",
            "busy",
            "ideal that waits for who is owed",
            "busy",
        ],
        rows,
    )


def any_work(chance: random.Random, core: int, rests: bool) -> Work:
    """Kernels of 10 us to 100 ms, evenly on a scale of lengths; pauses of up to three times their work."""
    us = round(10 ** chance.uniform(1, 5))
    batch = 1 + chance.randrange(20) if us < 20000 and chance.random() < 0.7 else 1
    host = round(us * batch * 10 ** chance.uniform(-1.5, 0.5)) if rests else 0
    return Work(core, us, batch, host)


def any_mix(chance: random.Random) -> list[Work]:
    """Two to four tenants whose requests make up the whole GPU; in a fifth of the mixes no tenant pauses."""
    parts = chance.choice([2, 2, 3, 4])
    cuts = sorted(chance.sample(range(1, 20), parts - 1))
    cores = [5 * (b - a) for a, b in zip([0, *cuts], [*cuts, 20], strict=True)]
    resting = chance.choice([0, 1, 1, parts, parts])
    return [any_work(chance, core, i < resting) for i, core in enumerate(cores)]


def misses(mix: list[Work], got: list[float]) -> bool:
    """Whether a tenant lacks more than two points of what it requests and would use, or the GPU idles for over 3 %."""
    want = [min(w.core, 100 * w.us * w.batch / (w.us * w.batch + w.host_us)) for w in mix]
    busy = min(97.0, sum(want))
    return any(w - g > 2 for w, g in zip(want, got, strict=True)) or sum(got) < busy


def mixes(options: argparse.Namespace) -> None:
    rows, counts = [], {"gets it": 0, "misses it, and so does the ideal": 0, "misses it": 0}
    rounds = options.rounds or 60
    for number in range(options.seed, options.seed + rounds):
        mix = any_mix(random.Random(number))
        ours = played(mix, options.seconds)
        best = [ideal(mix, options.seconds, patient) for patient in (False, True)]
        verdict = "misses it" if misses(mix, ours) else "gets it"
        if misses(mix, ours) and all(misses(mix, one) for one in best):
            verdict = "misses it, and so does the ideal"
        counts[verdict] += 1
        if verdict != "gets it":
            shares = [" / ".join(f"{s:.1f}" for s in one) for one in (ours, *best)]
            rows.append([str(number), "; ".join(map(described, mix)), *shares, verdict])
    table(
        [
            "seed",
            "seats: request, kernels + pause, ms",
            "shares, %",
            "ideal that never idles",
            "ideal that waits for who is owed",
            "the arbiter",
        ],
        rows,
    )
    print("\n" + ", ".join(f"{n} of {rounds} {what}" for what, n in counts.items()))


def races(options: argparse.Namespace) -> None:
    rounds = options.rounds or 10000
    memory = str(BUILD / "fake" / "memory")
    with Node(virtual=False) as node:
        start = time.monotonic()
        got = result(node.run(Seat(50, program=[memory, "race", str(rounds), "16", "1024"], name="r")), 900)
        took = time.monotonic() - start
        peak = node.seats()["r"]["memory_peak"]
    table(
        ["rounds", "granted", "refused", "over the cap", "peak of 1,073,741,824", "seconds"],
        [[str(rounds), str(got["granted"]), str(got["refused"]), str(got["over"]), f"{peak:,}", f"{took:.1f}"]],
    )


def react(options: argparse.Namespace) -> None:
    """Two hungry tenants; one turns background; when has it left the GPU? In real time."""
    took = []
    with Node(virtual=False) as node:
        for name in ("a", "b"):
            node.run(Seat(50, args=kernels(200, "--seconds", "120"), name=name))
        time.sleep(1)
        for i in range(options.rounds or 30):
            loser, winner = ("a", "b") if i % 2 else ("b", "a")
            start = time.monotonic()
            node.ask(op="change", seat=loser, **{"class": "background"})
            node.until_granted(winner)
            took.append((time.monotonic() - start) * 1e3)
            node.ask(op="change", seat=loser, **{"class": "in-budget"})
            time.sleep(0.05)
    table(
        ["changes", "median, ms", "90th percentile, ms", "maximum, ms"],
        [
            [
                str(len(took)),
                f"{statistics.median(took):.2f}",
                f"{sorted(took)[int(len(took) * 0.9)]:.2f}",
                f"{max(took):.2f}",
            ]
        ],
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "what", choices=["launch", "shares", "pair", "sweep", "rules", "pauses", "mixes", "races", "react"]
    )
    parser.add_argument("--peer", help="another limiter's library, to be preloaded in the same run")
    parser.add_argument("--real", action="store_true", help="launch on the machine's GPU, not the fake one")
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--rounds", type=int, default=0)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    if "VCUDA_BUILD" not in os.environ:
        subprocess.run(["make", "-s", "-C", str(ROOT)], check=True, stdout=subprocess.DEVNULL)
    globals()[options.what](options)


if __name__ == "__main__":
    os.environ.pop("LD_PRELOAD", None)
    main()
