# SPDX-License-Identifier: Apache-2.0
"""The benchmark's comparison with a peer, with a stub in the peer's place."""

from __future__ import annotations

import os
import subprocess
import sys

from check import case, check, patiently
from harness import BUILD, ROOT

sys.path.insert(0, str(ROOT / "src"))

import headers

BENCH = ROOT.parent / "benchmarks" / "limiter" / "bench.py"


@case("benchmark: launch --peer prints the peer beside the limiter")
def peer() -> str:
    mark = BUILD / "peer-mark"
    mark.unlink(missing_ok=True)
    out = subprocess.run(
        [sys.executable, str(BENCH), "launch", "--rounds", "1", "--peer", str(BUILD / "fake" / "libpeer.so")],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        env=os.environ | {"PEER_MARK": str(mark)},
    )
    check(out.returncode == 0, out.stderr[-400:])
    rows = {cells[0]: cells for line in out.stdout.splitlines()[2:] if (cells := line.strip("| ").split(" | "))}
    check(list(rows) == ["bare", "limited", "peer"], out.stdout)
    check(all(float(cells[1]) > 0 for cells in rows.values()), out.stdout)
    check(mark.exists() and int(mark.read_text()) > 100000, "no launch went through the peer's library")
    return f"open gate: limited {rows['limited'][2]} ns, stub {rows['peer'][2]} ns"


def gpu_suite() -> str:
    suite = ROOT.parent / "benchmarks" / "gpu" / "limiter_checks.py"
    out = subprocess.run(
        [sys.executable, str(suite), str(headers.fetch("13")), "--fake", "--seconds", "2"],
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )
    failed = [line for line in out.stdout.splitlines() if line.startswith("failed")]
    check(out.returncode == 0 and not failed, f"{failed}{out.stderr[-300:]}")
    return out.stdout.strip().splitlines()[-1]


case("GPU suite: its driver-API part holds on the fake GPU", patiently(gpu_suite))
