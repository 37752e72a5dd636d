# SPDX-License-Identifier: Apache-2.0
"""Tenants that do anything, by chance, in virtual time: the same seed has them do like things.

VCUDA_RANDOM=N runs N rounds of each kind in place of 3 (about two minutes in all), from other seeds with
VCUDA_SEED.
"""

from __future__ import annotations

import os
import random

from check import case, check
from harness import BUILD, Seat, together

ROUNDS = int(os.environ.get("VCUDA_RANDOM", "3"))
FIRST = int(os.environ.get("VCUDA_SEED", "1"))
SECONDS = 20.0
MIXED = str(BUILD / "fake" / "mixed")
# The end of the measurement cuts a launch off anywhere; the longest ones take 0.5 % of it.
POINTS, ABOVE, BUSY = 2.0, 1.0, 97.0


def mixed(core: int, seed: int, *more: str, limit: int = 100, vclass: str = "in-budget") -> Seat:
    return Seat(core, limit, vclass, program=[MIXED], args=["--seed", str(seed), *more])


def split(chance: random.Random, parts: int) -> list[int]:
    """Choose requests that add up to 100."""
    cuts = sorted(chance.sample(range(1, 20), parts - 1))
    return [5 * (b - a) for a, b in zip([0, *cuts], [*cuts, 20], strict=True)]


def hungry(seed: int) -> str:
    chance = random.Random(seed)
    requests = split(chance, chance.choice([2, 2, 3, 4]))
    got = together([mixed(core, chance.randrange(10**6)) for core in requests], SECONDS)
    shares = [r["share"] for r in got]
    text = ", ".join(f"{s:.1f} of {c}" for s, c in zip(shares, requests, strict=True))
    check(all(abs(s - c) <= POINTS for s, c in zip(shares, requests, strict=True)), text)
    check(sum(shares) >= BUSY, f"busy {sum(shares):.1f} %: {text}")
    return text


def ceilings(seed: int) -> str:
    chance = random.Random(seed)
    limits = [chance.randrange(10, 45), chance.randrange(10, 45)]
    got = together([mixed(c, chance.randrange(10**6), limit=c) for c in limits], SECONDS)
    shares = [r["share"] for r in got]
    text = ", ".join(f"{s:.1f} of {c}" for s, c in zip(shares, limits, strict=True))
    check(all(c - POINTS <= s <= c + ABOVE for s, c in zip(shares, limits, strict=True)), text)
    return text


def pauses(seed: int) -> str:
    """Let one rest now and then: the other, who never does, has at least its request, and the GPU is used.

    Not all of it: launches longer than a short pause leave that to the seat that is owed time.
    """
    chance = random.Random(seed)
    core = chance.randrange(20, 60)
    got = together(
        [mixed(core, chance.randrange(10**6), "--pauses"), mixed(100 - core, chance.randrange(10**6))], SECONDS
    )
    shares = [r["share"] for r in got]
    text = f"{shares[0]:.1f} of {core} with pauses, {shares[1]:.1f}"
    check(shares[1] >= 100 - core - POINTS and sum(shares) >= BUSY - 4, text)
    return text


def background(seed: int) -> str:
    chance = random.Random(seed)
    batch, us = chance.randrange(5, 40), chance.choice([100, 300, 1000, 2000])
    work = ["--kernel-us", str(us), "--batch", str(batch), "--host-us", str(batch * us // chance.randrange(2, 8))]
    alone = together([Seat(60, args=work)], SECONDS)[0]
    first, second = together([Seat(60, args=work), mixed(10, chance.randrange(10**6), vclass="background")], SECONDS)
    kept = first["steps"] / alone["steps"] * alone["wall_ns"] / first["wall_ns"]
    check(kept > 0.95, f"in-budget keeps {kept:.3f}")
    return f"in-budget keeps {kept:.3f}, background has {second['share']:.1f} %"


for kind in (hungry, ceilings, pauses, background):
    for seed in range(FIRST, FIRST + ROUNDS):
        case(f"random: {kind.__name__}, seed {seed}", lambda kind=kind, seed=seed: kind(seed))
