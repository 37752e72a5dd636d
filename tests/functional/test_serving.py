# SPDX-License-Identifier: Apache-2.0
"""The way in which every part serves, attacked: with TLS and without, by an event loop's application and by Flask's.

Limits are short here. Whoever draws out a handshake, a head, a body or the reading of an answer, or opens more
connections than there are places, is disconnected, and does not keep other clients waiting.
"""

import contextlib
import json
import os
import resource
import socket
import ssl
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from support.ports import free_port
from support.waiting import wait_for

from certificates.authority import make_ca, sign_server

PROGRAM = """
import json, sys
from slicekeeper import (log)
from slicekeeper.net import (probes)
from slicekeeper.config.settings import (ServingSettings, TlsSettings)
from slicekeeper.net.serving.bodies import (Bodies, BodyRefused)
from slicekeeper.net.serving.process import (serve)
from slicekeeper.net.serving.wsgi import (WsgiBridge)

given = json.loads(sys.argv[1])
log.configure("info", "json")
LARGE = b"x" * (8 << 20)
bodies = Bodies(1 << 20)

async def loop_app(scope, receive, send):
    status, answer = 200, b"ok"
    if scope["path"] == "/large":
        answer = LARGE
    try:
        async with bodies.received(scope, receive) as body:
            if scope["method"] == "POST":
                answer = str(len(body)).encode()
    except BodyRefused as error:
        status, answer = error.status, error.code.encode()
    length = str(len(answer)).encode()
    await send({"type": "http.response.start", "status": status, "headers": [(b"content-length", length)]})
    await send({"type": "http.response.body", "body": answer})

def flask_app():
    import flask
    app = flask.Flask("attacked")
    app.config["MAX_CONTENT_LENGTH"] = 1 << 20
    app.add_url_rule("/", "ok", lambda: "ok")
    app.add_url_rule("/large", "large", lambda: LARGE)
    app.add_url_rule("/", "post", lambda: str(len(flask.request.get_data())), methods=["POST"])
    return app

limits = ServingSettings(**given["limits"])
tls = TlsSettings(certificate_file=given["folder"] + "/tls.crt", key_file=given["folder"] + "/tls.key")
bind = f"127.0.0.1:{given['port']}"
if given["kind"] == "background":
    import threading
    probes.listen(bind, flask_app(), limits)
    threading.Event().wait()
make = (lambda: loop_app) if given["kind"] == "loop" else lambda: WsgiBridge(
    flask_app(), threads=4, max_body_bytes=1 << 20
)
serve(make, bind=bind, tls=tls if given["tls"] else None, limits=limits)
"""

GET = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
POST = b"POST / HTTP/1.1\r\nHost: x\r\n"
KINDS = [("loop", True), ("loop", False), ("flask", True), ("flask", False), ("background", False)]
each_kind = pytest.mark.parametrize(("kind", "tls"), KINDS, ids=["loop, TLS", "loop", "Flask, TLS", "Flask", "probes"])


class Server:
    """One server as a process, and connections to it."""

    def __init__(self, folder: Path, kind: str, tls: bool, files: int = 0, **limits: Any) -> None:
        self.tls, self.folder = tls, folder
        self.request_seconds = limits.get("request_seconds", 0.0)
        now, hour = datetime.now(UTC), timedelta(hours=1)
        ca = make_ca(now, hour)
        pair = sign_server(ca, ("127.0.0.1",), now, hour)
        for name, data in {"ca.crt": ca.certificate, "tls.crt": pair.certificate, "tls.key": pair.key}.items():
            (folder / name).write_bytes(data)
        self.context = ssl.create_default_context(cafile=str(folder / "ca.crt"))
        self.port = free_port()
        given = {"kind": kind, "tls": tls, "port": self.port, "folder": str(folder), "limits": limits}

        with (folder / "log").open("wb") as log:
            self.process = subprocess.Popen([sys.executable, "-c", PROGRAM, json.dumps(given)], stderr=log)
        if files:
            resource.prlimit(self.process.pid, resource.RLIMIT_NOFILE, (files, files))
        self.opened = contextlib.ExitStack()
        self.kind = kind

    def __enter__(self) -> "Server":
        wait_for(self.answers, "an answer")
        return self

    def __exit__(self, *_: object) -> None:
        self.opened.close()
        self.process.terminate()
        status = self.process.wait(60)
        assert status == 0 or self.kind == "background"

    def plain(self, address: str = "127.0.0.1", receives: int = 0) -> socket.socket:
        raw = self.opened.enter_context(socket.socket())
        raw.settimeout(60)
        if receives:
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receives)
        if address != "127.0.0.1":
            raw.bind((address, 0))
        raw.connect(("127.0.0.1", self.port))
        return raw

    def connect(self, address: str = "127.0.0.1", receives: int = 0) -> socket.socket:
        """Connect from an address; `receives`: bytes that the system takes before they are read."""
        raw = self.plain(address, receives)
        if not self.tls:
            return raw
        return self.opened.enter_context(self.context.wrap_socket(raw, server_hostname="127.0.0.1"))

    def answers(self) -> bool:
        assert self.process.poll() is None, (self.folder / "log").read_text()
        with contextlib.suppress(OSError):
            return ask(self.connect("127.0.0.9"), GET)[0] == 200
        return False


def ask(stream: socket.socket, request: bytes) -> tuple[int, bytes]:
    stream.sendall(request)
    return answer(stream)


def asked(server: Server, request: bytes, *wanted: int) -> tuple[int, bytes]:
    """Ask on a connection of its own, and again if this busy machine kept the client from sending in time."""
    for _ in range(5):
        begun, found = time.monotonic(), (0, b"")
        with contextlib.suppress(OSError):
            found = ask(server.connect(), request)
        if found[0] in wanted or time.monotonic() - begun < server.request_seconds:
            break
    return found


def answer(stream: socket.socket) -> tuple[int, bytes]:
    """Return the status, 0 without any, and the body."""
    import http.client

    response = http.client.HTTPResponse(stream)
    try:
        response.begin()
        return response.status, response.read()
    except (http.client.HTTPException, OSError):
        return 0, b""


def gone(stream: socket.socket) -> bool:
    """Whether the server has closed a connection by now or does so soon."""
    try:
        while stream.recv(1 << 16):
            pass
    except TimeoutError:
        return False
    except OSError:
        pass
    return True


@contextlib.contextmanager
def dripping(streams: list[socket.socket], first: bytes, each: bytes, pause: float = 0.4) -> Iterator[None]:
    """Send a byte on each connection every now and then."""
    stop = threading.Event()

    def work() -> None:
        for stream in streams:
            with contextlib.suppress(OSError):
                stream.sendall(first)
        while not stop.wait(pause):
            for stream in streams:
                with contextlib.suppress(OSError):
                    stream.sendall(each)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


@each_kind
@pytest.mark.parametrize("stage", ["handshake", "head", "body", "chunks"])
def test_a_byte_every_now_and_then_keeps_no_place_and_nobody_waiting(
    tmp_path: Path, kind: str, tls: bool, stage: str
) -> None:
    first, each = {
        "handshake": (b"\x16\x03\x01\x02", b"\x00"),
        "head": (b"GET / HTTP/1.1\r\nHost: ", b"x"),
        "body": (POST + b"Content-Length: 1000\r\n\r\n", b"x"),
        "chunks": (POST + b"Transfer-Encoding: chunked\r\n\r\n", b"1\r\nx\r\n"),
    }[stage]
    with Server(tmp_path, kind, tls, request_seconds=5.0 if tls else 1.5) as server:
        slow = [server.plain() if stage == "handshake" else server.connect() for _ in range(40)]
        with dripping(slow, first, each):
            for _ in range(20):
                assert asked(server, GET, 200) == (200, b"ok")
            assert all(gone(stream) for stream in slow)
        assert asked(server, GET, 200) == (200, b"ok")


@each_kind
def test_a_body_that_does_not_come_is_answered_by_408(tmp_path: Path, kind: str, tls: bool) -> None:
    with Server(tmp_path, kind, tls, request_seconds=0.5) as server:
        for part in (POST + b"Content-Length: 10\r\n\r\nx", b"GET / HTT"):
            assert asked(server, part, 408)[0] == 408


@each_kind
def test_idle_connections_give_way_and_a_client_at_work_keeps_its_place(tmp_path: Path, kind: str, tls: bool) -> None:
    with Server(tmp_path, kind, tls, connections=20, connections_per_address=12) as server:
        working = server.connect("127.0.0.2")
        assert ask(working, GET)[0] == 200
        crowd = []
        for _ in range(60):
            with contextlib.suppress(OSError):
                crowd.append(server.connect("127.0.0.3"))
            assert ask(working, GET) == (200, b"ok")
        for stream in crowd:
            stream.settimeout(0.2)
        wait_for(lambda: sum(not gone(stream) for stream in crowd) <= 12, "the end of most connections")
        # From many addresses, one connection each.
        many = []
        for number in range(10, 60):
            with contextlib.suppress(OSError):
                many.append(server.connect(f"127.0.0.{number}"))
            assert ask(server.connect("127.0.0.4"), GET) == (200, b"ok")
        assert ask(working, GET) == (200, b"ok")


@each_kind
@pytest.mark.parametrize("how", ["length", "chunks"])
def test_a_refusal_for_size_reaches_a_client_that_sends_everything_first(
    tmp_path: Path, kind: str, tls: bool, how: str
) -> None:
    """Without a reset on the way, which would make the client lose the answer."""
    piece = b"0" * (1 << 20)
    with Server(tmp_path, kind, tls) as server:
        for _ in range(3):
            stream = server.connect()
            if how == "length":
                stream.sendall(POST + b"Content-Length: %d\r\n\r\n" % (8 << 20))
                for _ in range(8):
                    stream.sendall(piece)
            else:
                stream.sendall(POST + b"Transfer-Encoding: chunked\r\n\r\n")
                for _ in range(8):
                    stream.sendall(b"%x\r\n%s\r\n" % (len(piece), piece))
                stream.sendall(b"0\r\n\r\n")
            assert answer(stream)[0] == 413
        assert ask(server.connect(), POST + b"Content-Length: 1048576\r\n\r\n" + piece) == (200, b"1048576")


@each_kind
def test_requests_that_are_none_are_answered_and_leave_no_trace_of_ours(tmp_path: Path, kind: str, tls: bool) -> None:
    with Server(tmp_path, kind, tls, request_seconds=5.0 if tls else 1.5) as server:
        for head, statuses in {
            b"Content-Length: " + b"9" * 5000: {400, 413},
            b"Content-Length: " + b"9" * 4000: {413},
            b"Content-Length: " + b"0" * 5000: {200, 400},
            b"Content-Length: 99999999999999999999": {413},
            b"Content-Length: -1": {400},
            b"Content-Length: 1e3": {400},
            b"Content-Length: \xb2": {400},
            b"Transfer-Encoding: chunked\r\n\r\n" + b"f" * 5000: {400, 408, 413},
            b"Transfer-Encoding: chunked\r\n\r\nffffffffffffffffffff\r\nx": {400, 408, 413},
            b"\r\n".join(b"X-%d: %s" % (n, b"x" * 8000) for n in range(20)): {431},
            b"X: " + b"x" * 100_000: {431},
        }.items():
            assert asked(server, POST + head + b"\r\n\r\n", *statuses)[0] in statuses, head[:60]
        for line in (b"GET /" + b"x" * 100_000 + b" HTTP/1.1\r\n\r\n", b"\x00\xff" * 500, b"GET / HTTP/9.9\r\n\r\n"):
            assert 400 <= asked(server, line, *range(400, 510))[0] < 510
        for upgrade in (b"websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: " + b"A" * 22 + b"==", b"h2c"):
            head = b"GET / HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: " + upgrade + b"\r\n\r\n"
            assert asked(server, head, 200, 405)[0] in (200, 405)  # never another protocol
        if tls:
            server.plain().sendall(GET)
        assert asked(server, GET, 200) == (200, b"ok")
    assert "Traceback" not in (tmp_path / "log").read_text()


@each_kind
def test_whoever_leaves_answers_unread_keeps_nobody_waiting(tmp_path: Path, kind: str, tls: bool) -> None:
    with Server(tmp_path, kind, tls) as server:
        for _ in range(12):
            server.connect().sendall(b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n")
        for _ in range(5):
            assert ask(server.connect(), GET) == (200, b"ok")
        status, body = ask(server.connect(), b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n")
        assert (status, len(body)) == (200, 8 << 20)


@each_kind
@pytest.mark.parametrize("requests", [b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n", GET * 3000], ids=["large", "many"])
def test_whoever_reads_answers_a_little_at_a_time_keeps_no_place_from_others(
    tmp_path: Path, kind: str, tls: bool, requests: bytes
) -> None:
    """From several addresses, because one cannot have all places; what is read now and then keeps an answer alive."""
    with Server(tmp_path, kind, tls, connections=20, connections_per_address=12) as server:
        crowd = []
        for number in range(24):
            with contextlib.suppress(OSError):
                reader = server.connect(f"127.0.0.{20 + number % 3}", receives=4096)
                reader.settimeout(0.2)
                crowd.append(reader)
                reader.sendall(requests)
        for _ in range(5):
            assert ask(server.connect("127.0.0.4"), GET) == (200, b"ok")
            for reader in crowd:
                with contextlib.suppress(OSError):
                    reader.recv(2000)


@each_kind
def test_connections_cut_off_at_any_place_harm_nobody(tmp_path: Path, kind: str, tls: bool) -> None:
    whole = POST + b"Content-Length: 10\r\n\r\n0123456789"
    with Server(tmp_path, kind, tls) as server:
        for end in range(0, len(whole), 3):
            stream = server.plain() if end % 2 else server.connect()
            # A reset in place of an orderly end.
            stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            stream.sendall(whole[:end])
            stream.close()
        assert ask(server.connect(), whole) == (200, b"10")
    assert "Traceback" not in (tmp_path / "log").read_text()


@each_kind
def test_several_requests_at_once_are_answered_in_their_order(tmp_path: Path, kind: str, tls: bool) -> None:
    with Server(tmp_path, kind, tls) as server:
        stream = server.connect()
        stream.sendall(GET + POST + b"Content-Length: 3\r\n\r\nabc" + GET)
        assert [answer_of(stream) for _ in range(3)] == [b"ok", b"3", b"ok"]


def answer_of(stream: socket.socket) -> bytes:
    """Return one body, reading not a byte more."""
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        head += stream.recv(1)
    length = next(int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
    body = b""
    while len(body) < length:
        body += stream.recv(length - len(body))
    return body


@each_kind
def test_without_descriptors_it_says_so_once_and_recovers(tmp_path: Path, kind: str, tls: bool) -> None:
    """The limits leave room for them; here something else in the process has taken them."""
    with Server(tmp_path, kind, tls, files=256) as server:
        pids = [server.process.pid, *children(server.process.pid)]
        for pid in pids:
            resource.prlimit(pid, resource.RLIMIT_NOFILE, (24, 256))
        crowd = []
        for _ in range(60):
            with contextlib.suppress(OSError):
                crowd.append(server.plain())
        wait_for(lambda: "no connection can be accepted" in (tmp_path / "log").read_text(), "its log of that")
        time.sleep(2.5)  # it tries again meanwhile
        for stream in crowd:
            stream.close()
        wait_for(server.answers, "an answer")
        said = [line for line in (tmp_path / "log").read_text().splitlines() if "no connection can be accepted" in line]
        assert len(said) == 1
        assert len((tmp_path / "log").read_text().splitlines()) < 20


def children(pid: int) -> list[int]:
    found = []
    for file in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            if int(file.read_text().rpartition(")")[2].split()[1]) == pid:
                found.append(int(file.parent.name))
    return found


@each_kind
def test_many_connections_with_few_descriptors_leave_some(tmp_path: Path, kind: str, tls: bool) -> None:
    with Server(tmp_path, kind, tls, files=100) as server:
        for _ in range(150):
            with contextlib.suppress(OSError):
                server.plain()
        wait_for(server.answers, "an answer")
        assert "no connection can be accepted" not in (tmp_path / "log").read_text()


@pytest.mark.parametrize(("kind", "tls"), [case for case in KINDS if case[0] != "background"])
def test_what_has_begun_is_finished_and_what_is_idle_closed_at_the_end(tmp_path: Path, kind: str, tls: bool) -> None:
    with Server(tmp_path, kind, tls) as server:
        idle, begun = server.connect(), server.connect()
        assert ask(idle, GET)[0] == 200
        begun.sendall(POST + b"Content-Length: 10\r\n\r\n01234")
        assert server.answers()
        os.kill(server.process.pid, 15)
        assert gone(idle)
        begun.sendall(b"56789")
        assert answer(begun) == (200, b"10")


STOPPED_EARLY = """
import os, signal, sys, time
from slicekeeper import (log)
from slicekeeper.config.settings import (ServingSettings)
from slicekeeper.net.serving import (process)

log.configure("info", "json")
boot = process.Worker.init_process

def stopped_while_it_boots(worker):
    os.kill(os.getppid(), signal.SIGTERM)
    time.sleep(1)  # until the master has informed its workers; this one still has the master's handlers
    boot(worker)

process.Worker.init_process = stopped_while_it_boots
process.serve(lambda: None, bind="127.0.0.1:0", limits=ServingSettings())
"""


def test_a_worker_that_is_stopped_right_after_the_fork_stops() -> None:
    command = [sys.executable, "-c", STOPPED_EARLY]
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert "Worker exiting" in done.stderr
    assert "SIGKILL" not in done.stderr
