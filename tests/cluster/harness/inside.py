# SPDX-License-Identifier: Apache-2.0
"""The first process inside a cluster's namespaces: starts the programs, obeys the control socket, reaps.

When it ends, for whatever reason, the kernel ends everything that the cluster ever started. It ends by itself when
its standard input closes, which is how the death of a test run reaches it.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import socketserver
import ssl
import subprocess
import sys
import threading
import time
import traceback
import urllib.request
from pathlib import Path
from typing import Any

from cluster.harness import control_groups, namespaces
from cluster.harness.binaries import Binaries
from cluster.harness.programs import Program, Programs

READY_SECONDS = 90.0
COPY_BYTES = 1 << 16


class Node:
    """The running programs."""

    def __init__(self, folder: Path, binaries: Binaries) -> None:
        self._folder = folder
        self._environ = {"PATH": binaries.path, "HOME": str(folder), "LANG": "C.UTF-8"}
        self._programs = Programs(folder, binaries)
        self._known = {p.name: p for p in (*self._programs.control_plane(), *self._programs.node())}
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._own: set[int] = set()
        self._lock = threading.RLock()

    def start_all(self) -> None:
        """Start every program as early as what it needs is there."""
        for name in ("etcd", "containerd"):
            self.start(name)
        self.wait("etcd")
        self.start("kube-apiserver")
        self.wait("containerd")
        self.wait("kube-apiserver")
        later = ("kube-controller-manager", "kube-scheduler", "kube-proxy", "coredns", "kubelet")
        for name in later:
            self.start(name)
        for name in later:
            self.wait(name)

    def start(self, name: str) -> None:
        """Start one program; its output goes to the end of its log."""
        program = self._known[name]
        with self._lock, (self._folder / "logs" / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                program.command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self._environ, cwd="/"
            )
            self._running[name] = process
            self._own.add(process.pid)

    def kill(self, name: str, number: int) -> None:
        """Send a signal to one program; with SIGKILL or SIGTERM wait until it has ended."""
        process = self._running[name]
        process.send_signal(number)
        if number in (signal.SIGKILL, signal.SIGTERM):
            process.wait(60)

    def wait(self, name: str) -> None:
        """Wait until a program is up; raise RuntimeError with the end of its log where it is not."""
        program = self._known[name]
        end = time.monotonic() + READY_SECONDS
        while not _up(program):
            ended = self._running[name].poll()
            if ended is not None or time.monotonic() > end:
                log = (self._folder / "logs" / f"{name}.log").read_text(errors="replace")[-3000:]
                raise RuntimeError(f"{name} {'ended' if ended is not None else 'is not up'}:\n{log}")
            time.sleep(0.1)

    def run(self, command: list[str], timeout: float) -> dict[str, Any]:
        """Run a command inside to its end."""
        with self._lock:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=self._environ
            )
            self._own.add(process.pid)
        try:
            out, err = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            out, err = process.communicate()
        return {"code": process.returncode, "out": out.decode(errors="replace"), "err": err.decode(errors="replace")}

    def reboot(self) -> None:
        """Do to the node what a reboot does: all its processes end, what lies in memory is gone, its disk stays.

        The control plane goes on: it represents one that runs elsewhere.
        """
        elsewhere = {self._running[program.name].pid for program in self._programs.control_plane()}
        node = [program.name for program in self._programs.node()]
        with self._lock:
            self._end_all_but({1, *elsewhere})
            for name in node:
                self._running[name].wait(60)
            namespaces.lose_memory()
            control_groups.remove(self._folder)
            control_groups.make(self._folder)
        for name in node:
            self.start(name)
            self.wait(name)

    def _end_all_but(self, kept: set[int]) -> None:
        end = time.monotonic() + READY_SECONDS
        while going := [pid for pid in _living() if pid not in kept]:
            if time.monotonic() > end:
                raise RuntimeError(f"processes {going} do not end")
            for pid in going:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.05)

    def reap(self) -> None:
        """Take the exit of every orphan that the kernel handed to us; our own programs' stay for their waiters."""
        while True:
            time.sleep(0.2)
            with self._lock:
                for entry in Path("/proc").iterdir():
                    if entry.name.isdecimal() and int(entry.name) not in self._own and _is_our_zombie(entry):
                        os.waitpid(int(entry.name), os.WNOHANG)


def _is_our_zombie(entry: Path) -> bool:
    return _state(entry) == ("Z", "1")


def _state(entry: Path) -> tuple[str, str]:
    """Return the state of a process and its parent, empty if it is gone."""
    try:
        state, parent = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
    except (OSError, ValueError):
        return "", ""
    return state, parent


def _living() -> list[int]:
    entries = [entry for entry in Path("/proc").iterdir() if entry.name.isdecimal()]
    return [int(entry.name) for entry in entries if _state(entry)[0] not in ("", "Z", "X")]


def _up(program: Program) -> bool:
    if program.health.startswith("/"):
        return Path(program.health).exists()
    if not program.health:
        return True
    context = ssl._create_unverified_context()
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context))
    try:
        with opener.open(program.health, timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


class Control(socketserver.StreamRequestHandler):
    """One request, one JSON line: `{"op": "start" | "kill" | "wait" | "run" | "reboot", …}`."""

    node: Node

    def handle(self) -> None:
        try:
            asked = json.loads(self.rfile.readline())
            answer = self._do(asked) or {}
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        self.wfile.write(json.dumps(answer).encode() + b"\n")

    def _do(self, asked: dict[str, Any]) -> dict[str, Any] | None:
        match asked["op"]:
            case "run":
                return self.node.run(asked["command"], asked["timeout"])
            case "kill":
                self.node.kill(asked["name"], asked["signal"])
            case "start":
                self.node.start(asked["name"])
            case "wait":
                self.node.wait(asked["name"])
            case "reboot":
                self.node.reboot()
            case other:
                raise ValueError(f"unknown op {other}")
        return None


class _Server(socketserver.ThreadingUnixStreamServer):
    daemon_threads = True
    request_queue_size = 64


def forward(listener: socket.socket, target: tuple[str, int]) -> None:
    """Hand every connection that the host's loopback accepts on to the API server in here."""
    while True:
        outer, _ = listener.accept()
        try:
            inner = socket.create_connection(target, timeout=10)
            inner.settimeout(None)
        except OSError:
            outer.close()
            continue
        for source, sink in ((outer, inner), (inner, outer)):
            source.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=_copy, args=(source, sink), daemon=True).start()


def _copy(source: socket.socket, sink: socket.socket) -> None:
    try:
        while data := source.recv(COPY_BYTES):
            sink.sendall(data)
        sink.shutdown(socket.SHUT_WR)
    except OSError:
        for end in (source, sink):
            end.close()


def main() -> None:
    """Run until standard input closes: `inside FOLDER LISTENER_FD BINARIES_JSON [stay]`."""
    folder = Path(sys.argv[1])
    listener = socket.socket(fileno=int(sys.argv[2]))
    binaries = Binaries(**{name: Path(path) for name, path in json.loads(sys.argv[3]).items()})
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        namespaces.prepare(folder)
        node = Node(folder, binaries)
        threading.Thread(target=node.reap, daemon=True).start()
        node.start_all()
        Control.node = node
        server = _Server(str(folder / "control"), Control)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        threading.Thread(target=forward, args=(listener, ("127.0.0.1", 6443)), daemon=True).start()
        answer: dict[str, str] = {}
    except Exception:
        answer = {"error": traceback.format_exc()}
    print(json.dumps(answer), flush=True)
    if answer:
        sys.exit(1)
    if "stay" in sys.argv[4:]:
        signal.pause()
    sys.stdin.buffer.read()


if __name__ == "__main__":
    main()
