# SPDX-License-Identifier: Apache-2.0
"""Start an arbiter and tenants on the fake GPU, and collect what they say.

In virtual time (the default) results do not depend on how busy the machine is: the GPU's clock
moves only while every thread that lives by it waits.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("VCUDA_BUILD") or ROOT / "build")


@dataclass
class Seat:
    """A tenant's seat and the command it runs."""

    core: int
    limit: int = 100
    vclass: str = "in-budget"
    memory: str = "1GiB"
    args: Sequence[str] = ()
    program: Sequence[str] = ()
    name: str = ""
    env: dict[str, str] = field(default_factory=dict)

    def command(self) -> list[str]:
        """Join the program, by default the tenant, and its arguments."""
        return list(self.program or [str(BUILD / "fake" / "tenant")]) + list(self.args)


class Node:
    """An arbiter of its own, with a fake GPU of its own, or on the machine's if it is `real`."""

    def __init__(
        self,
        virtual: bool = True,
        rule: str = "slicekeeper",
        hold: int = 0,
        build: str = ".",
        real: bool = False,
        **fake: str,
    ) -> None:
        self.build = build
        self.kind = [] if real else ["--fake"]
        self.dir = Path(tempfile.mkdtemp(prefix="vcuda-"))
        self.rule = rule
        self.log = (self.dir / "arbiter.log").open("a")
        self.env = {k: v for k, v in os.environ.items() if not k.startswith("SLICEKEEPER_")}
        self.env["SLICEKEEPER_FAKE_WORLD"] = str(self.dir / "world")
        if virtual:
            self.env["SLICEKEEPER_FAKE_VIRTUAL"] = "1"
        self.env["SLICEKEEPER_FAKE_HOLD"] = str(hold)
        self.env.update({f"SLICEKEEPER_FAKE_{k.upper()}": v for k, v in fake.items()})
        self.arbiter: subprocess.Popen[bytes] | None = None
        self.tenants: list[subprocess.Popen[str]] = []
        self.start()

    def start(self) -> None:
        """Start the arbiter, or start it again."""
        self.arbiter = subprocess.Popen(
            [str(BUILD / self.build / "arbiter"), "serve", "--dir", str(self.dir), *self.kind, "--rule", self.rule],
            env=self.env,
            stdout=self.log,
            stderr=self.log,
        )
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            try:
                self.ask(op="read")
            except OSError:
                time.sleep(0.01)
            else:
                return
        raise RuntimeError("the arbiter does not answer: " + self.logged())

    def logged(self) -> str:
        """Return what the arbiter logged."""
        return (self.dir / "arbiter.log").read_text()

    def raw(self, line: bytes) -> bytes:
        """Send bytes to the control socket and read one line."""
        with socket.socket(socket.AF_UNIX) as s:
            s.settimeout(60)
            s.connect(str(self.dir / "control.sock"))
            s.sendall(line)
            answer = b""
            while not answer.endswith(b"\n"):
                part = s.recv(65536)
                if not part:
                    break
                answer += part
            return answer

    def ask(self, **request: Any) -> dict[str, Any]:
        """Send a request to the control socket and read the answer."""
        answer: dict[str, Any] = json.loads(self.raw(json.dumps(request).encode() + b"\n"))
        return answer

    def seats(self) -> dict[str, dict[str, Any]]:
        """Read the telemetry, by seat."""
        return {s["seat"]: s for s in self.ask(op="read")["seats"]}

    def until_granted(self, name: str, seconds: float = float("inf")) -> None:
        """Wait until a seat has had nearly all of the GPU between two readings, at most so many seconds."""
        end, before = time.monotonic() + seconds, self.seats()[name]
        while time.monotonic() < end:
            now = self.seats()[name]
            span, held = (now[f] - before[f] for f in ("wall_ns", "granted_ns"))
            if span and held / span > 0.9:
                return
            before = now

    def run(self, seat: Seat) -> subprocess.Popen[str]:
        """Start a tenant in its seat."""
        named = ["--seat", seat.name] if seat.name else []
        rights = ["--core", str(seat.core), "--limit", str(seat.limit), "--memory", seat.memory, "--class", seat.vclass]
        run = [str(BUILD / "arbiter"), "run", "--dir", str(self.dir), *self.kind, *rights, *named]
        return self._begin([*run, "--", *seat.command()], self.env | seat.env)

    def bare(self, seat: Seat) -> subprocess.Popen[str]:
        """Start the same program on the same GPU without a limiter."""
        env = self.env | ({"LD_LIBRARY_PATH": str(BUILD / "fake")} if self.kind else {}) | seat.env
        return self._begin(seat.command(), env)

    def linked(self, seat: Seat, program: str, *args: str) -> subprocess.Popen[str]:
        """Start a program with the limiter linked in, under the node's sanitizer."""
        answer = self.ask(
            op="set", seat=seat.name, gpu=0, core=seat.core, limit=seat.limit, memory=1 << 30, **{"class": seat.vclass}
        )
        env = self.env | {"LD_LIBRARY_PATH": str(BUILD / "fake"), "SLICEKEEPER_SEAT": answer["socket"]}
        return self._begin([str(BUILD / self.build / f"linked-{program}"), *args], env)

    def _begin(self, command: list[str], env: dict[str, str]) -> subprocess.Popen[str]:
        pipe = subprocess.PIPE
        p = subprocess.Popen(command, env=env, stdin=pipe, stdout=pipe, stderr=pipe, text=True)
        self.tenants.append(p)
        return p

    def close(self) -> None:
        """End everything that was started."""
        for p in self.tenants:
            if p.poll() is None:
                p.kill()
            p.communicate()
        if self.arbiter and self.arbiter.poll() is None:
            self.arbiter.terminate()
            try:
                self.arbiter.wait(10)
            except subprocess.TimeoutExpired:
                self.arbiter.kill()
                self.arbiter.wait()
        self.log.close()
        shutil.rmtree(self.dir, ignore_errors=True)

    def __enter__(self) -> Node:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def result(p: subprocess.Popen[str], timeout: float = 240) -> dict[str, Any]:
    """Read a tenant's own account, printed as its last line."""
    out, err = p.communicate(timeout=timeout)
    if p.returncode:
        raise RuntimeError(f"tenant ended with {p.returncode}: {err or out}")
    answer: dict[str, Any] = json.loads(out.strip().splitlines()[-1])
    return answer


def together(
    seats: Sequence[Seat],
    seconds: float,
    bare: bool = False,
    rule: str = "slicekeeper",
    virtual: bool = True,
    timeout: float = 300,
    threads: int = 0,
    **fake: str,
) -> list[dict[str, Any]]:
    """Run the seats side by side from one start; their shares of the GPU are added to the results.

    Time stands still until all threads have arrived: one of each seat, unless `threads` says how many.
    """
    with Node(virtual=virtual, rule=rule, hold=(threads or len(seats)) if virtual else 0, **fake) as node:
        for s in seats:
            s.args = [*s.args, "--seconds", str(seconds), "--arrive"]
        tenants = [(node.bare if bare else node.run)(s) for s in seats]
        results = [result(t, timeout) for t in tenants]
    for r in results:
        r["share"] = 100.0 * r["busy_ns"] / r["wall_ns"]
    return results
