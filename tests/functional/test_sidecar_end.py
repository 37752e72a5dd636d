# SPDX-License-Identifier: Apache-2.0
"""The sidecar ends soon after SIGTERM with exit code 0: at any instant of its start, and whatever it waits for.

As in its container: by its first process, in a PID namespace, with 5 % of a CPU.
"""

from __future__ import annotations

import os
import random
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from pathlib import Path
from signal import SIGTERM

import pytest
from support.control_group import control_group, cpu_limit
from support.ports import free_port
from support.small_disk import fill_up, small_disk
from support.waiting import wait_for

from images.programs import compile_first_process

PERCENT = 5
STARTS = 8
STARTED = 5.0
"""Seconds after which Python has started with 5 % of a CPU."""

SOON = 4.5
"""Less than a connection, a name or an answer may take; on an idle machine it is 0.7 s."""

COMMAND = Path(sys.executable).parent / "slicekeeper"
NAME_SERVER = "127.63.0.53"
UNKNOWN = "http://timekeeper.slicekeeper.test:8444"


class Sidecar:
    """One that runs: as its container's first process with `first`, otherwise by itself."""

    def __init__(
        self, folder: Path, url: str, *, first: Path | None, within: str = "", spool: Path | None = None
    ) -> None:
        """Run `within`, a part of a shell script, first."""
        folder.mkdir(exist_ok=True)
        self.log = folder / "log"
        own = {"NAMESPACE": "a", "POD_NAME": "p", "POD_UID": "u", "CONTAINERS": "c", "SPOOL_DIR": str(spool or folder)}
        environ = {
            "PATH": os.environ["PATH"],
            "SLICEKEEPER_CONFIG": os.devnull,
            "SLICEKEEPER_TIMEKEEPER_CLIENT_URL": url,
            "SLICEKEEPER_TIMEKEEPER_CLIENT_TIMEOUT_SECONDS": "600",
            **{f"SLICEKEEPER_SIDECAR_{name}": value for name, value in own.items()},
        }
        self._is_first = first is not None
        unshare = "unshare --pid --fork --kill-child --mount-proc" if first else ""
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                ["unshare", "--mount", "sh", "-ec", f"{within}\nexec {unshare} {first or COMMAND} sidecar run"],
                env=environ,
                stdout=log,
                stderr=log,
            )

    @property
    def pid(self) -> int:
        """The process that gets the signals; 0 while there is none."""
        return _child(self.process.pid) if self._is_first else self.process.pid

    def __enter__(self) -> Sidecar:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait(60)

    def has_begun(self) -> bool:
        """Whether its first process has started Python."""
        return self.pid != 0 and _child(self.pid) != 0

    def end(self) -> int:
        """Send SIGTERM, and return the exit code."""
        os.kill(self.pid, SIGTERM)
        return self.process.wait(60)


def _child(pid: int) -> int:
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return int(children[0]) if children else 0


@pytest.fixture(params=["first process", "Python alone"])
def first(request: pytest.FixtureRequest, tmp_path: Path) -> Path | None:
    if os.geteuid() != 0:
        pytest.skip("namespaces and control groups need root")
    if request.param == "Python alone":
        return None
    if shutil.which("gcc") is None:
        pytest.skip("there is no gcc to build the first process with")
    compile_first_process(tmp_path / "first", str(COMMAND))
    return tmp_path / "first"


@pytest.mark.parametrize("first", ["first process"], indirect=True)
def test_sigterm_at_any_instant_of_the_start_ends_it(first: Path, tmp_path: Path) -> None:
    instants = sorted(random.uniform(0, STARTED) for _ in range(STARTS))
    url = f"http://127.0.0.1:{free_port()}"
    with ExitStack() as stack:
        sidecars = []
        for number in range(STARTS):
            group = stack.enter_context(control_group(cpu_limit(PERCENT)))
            enter = f"echo $$ > {group.folder}/cgroup.procs"
            one = Sidecar(tmp_path / str(number), url, first=first, within=enter)
            sidecars.append(stack.enter_context(one))
        for sidecar in sidecars:
            wait_for(sidecar.has_begun, "its first process")
        began = time.monotonic()
        for sidecar, instant in zip(sidecars, instants, strict=True):
            time.sleep(max(began + instant - time.monotonic(), 0))
            os.kill(sidecar.pid, SIGTERM)
        assert {
            instant: one.process.wait(60) for instant, one in zip(instants, sidecars, strict=True)
        } == dict.fromkeys(instants, 0)


@contextmanager
def refuses() -> Iterator[tuple[str, Callable[[], object]]]:
    """Give the URL of a port on which nothing listens."""
    yield f"http://127.0.0.1:{free_port()}", lambda: True


@contextmanager
def never_answers() -> Iterator[tuple[str, Callable[[], object]]]:
    """Give the URL of a server that takes a request and never answers, and whether it has one."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        taken: list[socket.socket] = []

        def has_one() -> bool:
            with suppress(BlockingIOError):
                taken.append(server.accept()[0])
            return bool(taken)

        yield f"http://127.0.0.1:{server.getsockname()[1]}", has_one
        for connection in taken:
            connection.close()


@contextmanager
def drops_packets() -> Iterator[tuple[str, Callable[[], object]]]:
    """Give the URL of a server that answers no SYN, since its queue is full, and whether somebody waits for it."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as server, ExitStack() as stack:
        address = server.getsockname()
        for _ in range(4):
            client = stack.enter_context(socket.socket())
            client.setblocking(False)
            client.connect_ex(address)
        before = _connecting(address[1])
        yield f"http://127.0.0.1:{address[1]}", lambda: _connecting(address[1]) - before


def _connecting(port: int) -> set[str]:
    """Return the local ports from which clients connect to a port without an answer yet."""
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return {row[1] for row in rows if row[2].endswith(f":{port:04X}") and row[3] == "02"}


@contextmanager
def knows_no_names() -> Iterator[tuple[str, Callable[[], object]]]:
    """Give a URL whose name a silent name server is asked for, and whether it was asked."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind((NAME_SERVER, 53))
        server.setblocking(False)

        def asked() -> bytes:
            with suppress(BlockingIOError):
                return server.recv(512)
            return b""

        yield UNKNOWN, asked


@pytest.mark.parametrize("timekeeper", [refuses, never_answers, drops_packets, knows_no_names])
def test_it_ends_soon_if_the_timekeeper_cannot_be_reached(
    first: Path | None,
    timekeeper: Callable[[], AbstractContextManager[tuple[str, Callable[[], object]]]],
    tmp_path: Path,
) -> None:
    (tmp_path / "resolv.conf").write_text(f"nameserver {NAME_SERVER}\noptions attempts:5 timeout:5\n")
    resolver = f"mount --bind {tmp_path}/resolv.conf /etc/resolv.conf"
    with timekeeper() as (url, waits), Sidecar(tmp_path / "own", url, first=first, within=resolver) as sidecar:
        wait_for(lambda: "reporting for a/p" in sidecar.log.read_text(), "its start")
        wait_for(waits, "its first report")
        began = time.monotonic()
        assert sidecar.end() == 0
        assert time.monotonic() - began < SOON


def test_a_full_disk_does_not_keep_it(first: Path | None, tmp_path: Path) -> None:
    with small_disk(1) as disk:
        fill_up(disk)
        url = f"http://127.0.0.1:{free_port()}"
        with Sidecar(tmp_path / "own", url, first=first, spool=disk) as sidecar:
            wait_for(lambda: "reports wait in memory" in sidecar.log.read_text(), "what it says of its disk")
            assert sidecar.end() == 0
