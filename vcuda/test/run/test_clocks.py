# SPDX-License-Identifier: Apache-2.0
"""Time namespaces shift a container's clock against the arbiter's and its neighbours'. Nothing may depend on that."""

from __future__ import annotations

import subprocess
import time

from check import Skip, case, check, patiently
from harness import BUILD, Node, Seat, result

SECONDS = "4"
TENANT = [str(BUILD / "fake" / "tenant"), "--kernel-us", "1000", "--seconds", SECONDS]
DRIFT = {"ahead": 1000, "behind": -100, "a little ahead": 1}  # seconds


def shifted(how: str, program: list[str]) -> list[str]:
    """Return the command that runs a program in a time namespace."""
    command = ["unshare", "-rT", "--monotonic", str(DRIFT[how]), "--fork"]
    if subprocess.run([*command, "true"], capture_output=True, check=False).returncode:
        raise Skip("no time namespace can be made here")
    return [*command, *program]


def busy(node: Node, seconds: float) -> dict[str, float]:
    """Return what part of the GPU's time each seat says that it used, per cent, in the next seconds."""
    before = node.seats()
    time.sleep(seconds)
    after = node.seats()
    return {
        name: 100 * (s["busy_ns"] - before[name]["busy_ns"]) / (s["wall_ns"] - before[name]["wall_ns"])
        for name, s in after.items()
        if name in before
    }


def shares(how: str) -> str:
    """Run eight processes of a seat of 10 %, and background, in a time namespace beside a seat of 90 %."""
    with Node(virtual=False) as node:
        many = [Seat(10, limit=10, name="many", program=shifted(how, TENANT)) for _ in range(8)]
        spare = Seat(1, name="spare", vclass="background", program=shifted(how, TENANT))
        other = Seat(90, name="other", program=TENANT)
        runs = {seat.name: [] for seat in (many[0], spare, other)}
        for seat in [*many, spare, other]:
            runs[seat.name].append(node.run(seat))
        got = {name: sum(share(result(p)) for p in programs) for name, programs in runs.items()}
    note = ", ".join(f"{name}: {part:.1f} %" for name, part in got.items())
    check(0.1 < got["many"] < 12 and got["spare"] < 5, note)
    check(got["other"] > 4 * got["many"], note)
    return note


def share(got: dict[str, float]) -> float:
    return 100 * got["busy_ns"] / got["wall_ns"]


for how in DRIFT:
    case(f"clocks: a time namespace {how} changes no share", patiently(lambda how=how: shares(how)))


@case("clocks: a seat in two time namespaces is charged for the union of its work")
@patiently
def two_namespaces() -> str:
    with Node(virtual=False) as node:
        short = ["--host-us", "3000"]
        programs = [TENANT + short, shifted("ahead", TENANT + short), shifted("behind", TENANT + short)]
        runs = [node.run(Seat(50, name="mixed", program=program)) for program in programs]
        time.sleep(1)
        said = busy(node, 2)["mixed"]
        got = sum(share(result(p)) for p in runs)
    note = f"the GPU worked for {got:.1f} %, and the seat says {said:.1f}"
    check(got - 20 < said < got + 20, note)
    return note


def alone(how: str) -> str:
    """Kill the arbiter: the process limits itself, whatever its clock says."""
    with Node(virtual=False) as node:
        p = node.run(Seat(30, program=shifted(how, [*TENANT, "--start-after-ms", "1000"])))
        time.sleep(0.8)
        assert node.arbiter
        node.arbiter.kill()
        got = share(result(p))
    check(got < 60, f"{got:.1f} % of the GPU without an arbiter, with a request of 30")
    return f"{got:.1f} %"


for how in ("ahead", "behind"):
    case(f"clocks: without an arbiter a process {how} keeps to its request", patiently(lambda how=how: alone(how)))


@case("clocks: what an arbiter kept before the machine's last start is not counted on")
def restarted_machine() -> None:
    with Node(virtual=False) as node:
        node.ask(op="set", seat="a", gpu=0, core=40, memory=1 << 30)
        since = []
        for boot in (b"", b"\1\0\0\0"):
            time.sleep(0.2)
            assert node.arbiter
            node.arbiter.terminate()
            node.arbiter.wait()
            kept = node.dir / "state" / "a.held"
            record = kept.read_bytes()
            kept.write_bytes(record[:4] + (boot or record[4:8]) + record[8:])
            node.start()
            told = node.ask(op="read")
            since.append(told["now_ns"] - told["seats"][0]["wall_ns"])
        check(since[0] == int.from_bytes(record[8:16], "little"), "the same machine's seat was set again")
        check(since[1] > since[0], "a seat goes on from a time before the machine's last start")
