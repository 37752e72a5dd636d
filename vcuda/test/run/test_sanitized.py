# SPDX-License-Identifier: Apache-2.0
"""The arbiter and the limiter under sanitizers, and both sockets under a bounded storm of noise."""

from __future__ import annotations

import random
import socket
import subprocess
import time

from check import case, check
from harness import Node, Seat

STORM_SECONDS = 6.0
COMPLAINTS = ("Sanitizer", "runtime error", "data race")


def clean(what: str, text: str) -> None:
    lines = [line for line in text.splitlines() if any(c in line for c in COMPLAINTS)]
    check(not lines, f"{what}: {lines[:3]}")


def stop(node: Node) -> None:
    assert node.arbiter
    node.arbiter.terminate()
    node.arbiter.wait(20)
    clean("arbiter", node.logged())
    check(node.arbiter.returncode == 0, f"the arbiter ended with {node.arbiter.returncode}")


def programs(build: str) -> None:
    with Node(virtual=False, build=build) as node:
        runs = [
            ("memory", ["calls"]),
            ("accounting", ["all"]),
            ("memory", ["race", "300", "16", "1024"]),
            ("fault", ["threads", "1.5"]),
            ("fault", ["fork", "0.5"]),
            ("tenant", ["--seconds", "1", "--graph", "--batch", "5"]),
            ("tenant", ["--seconds", "1", "--sync", "--kernel-us", "50"]),
        ]
        rival = node.run(Seat(50, args=["--seconds", "60"], name="rival"))
        for i, (program, args) in enumerate(runs):
            p = node.linked(Seat(50, name=f"s{i}"), program, *args)
            out, err = p.communicate(timeout=120)
            clean(f"{program} {args}", err)
            check(p.returncode == 0, f"{program} {args} ended with {p.returncode}: {(out + err)[-300:]}")
        rival.kill()
        stop(node)


case("sanitizers: address, undefined behaviour and leaks", lambda: programs("asan"))
case("sanitizers: threads", lambda: programs("tsan"))


def noise(source: random.Random, seeds: list[bytes]) -> bytes:
    data = bytearray(source.choice(seeds) if source.random() < 0.7 else source.randbytes(source.randrange(1, 6000)))
    for _ in range(source.randrange(0, 8)):
        data[source.randrange(len(data))] = source.randrange(256)
    return bytes(data)


@case("fuzz: the seats' and the control socket, against a sanitized arbiter")
def storm() -> str:
    source, sent = random.Random(20), 0
    good = (0x534B5643).to_bytes(4, "little") + (1).to_bytes(4, "little")
    hello = [good + (n & 0xFFFFFFFF).to_bytes(4, "little") + bytes(4) for n in (-1, 0, 5, 255, 256, 1 << 30)]
    lines = [
        b'{"op":"read"}\n',
        b'{"op":"drop","seat":"f"}\n',
        b'{"op":"change","seat":"f","core":9}\n',
        b'{"op":"set","seat":"f","gpu":0,"core":40,"limit":70,"memory":99999,"class":"background"}\n',
    ]
    with Node(virtual=False, build="asan") as node:
        end = time.monotonic() + STORM_SECONDS
        while time.monotonic() < end:
            node.ask(op="set", seat="f", gpu=0, core=40, memory=1 << 30, **{"class": "in-budget"})
            for path, kind, seeds in (
                ("control.sock", socket.SOCK_STREAM, lines),
                ("seats/f/seat.sock", socket.SOCK_SEQPACKET, hello),
            ):
                with socket.socket(socket.AF_UNIX, kind) as s:
                    s.settimeout(0.005)
                    try:
                        s.connect(str(node.dir / path))
                        for _ in range(source.randrange(1, 5)):
                            s.send(noise(source, seeds))
                            sent += 1
                        s.recv(4096)
                    except (OSError, subprocess.SubprocessError):
                        pass
        check(node.ask(op="read")["ok"], "the arbiter no longer answers")
        stop(node)
    return f"{sent} messages"


@case("fuzz: look-ups by name, version and flags, with the limiter under sanitizers")
def fuzz_lookups() -> str:
    with Node(virtual=False, build="asan") as node:
        notes = []
        for seed in ("1", "2"):
            p = node.linked(Seat(50, name=f"z{seed}"), "fuzz", "3", seed)
            out, err = p.communicate(timeout=240)
            clean(f"seed {seed}", err)
            check(p.returncode == 0, f"seed {seed} ended with {p.returncode}: {err[-300:]}")
            notes.append(out.strip())
        stop(node)
    return "; ".join(notes)
