# SPDX-License-Identifier: Apache-2.0
"""The ASGI server as a process, with short limits: whoever opens a connection and says nothing is shown out."""

import contextlib
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from certificates.authority import make_ca, sign_server

PROGRAM = """
import sys
from slicekeeper import asgi
from slicekeeper.settings import TlsSettings

async def app(scope, receive, send):
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"ok"})

asgi.HANDSHAKE_SECONDS = 1.0
port, folder = sys.argv[1:]
tls = TlsSettings(certificate_file=f"{folder}/tls.crt", key_file=f"{folder}/tls.key")
asgi.serve(lambda: app, bind=f"127.0.0.1:{port}", tls=tls, keepalive=1)
"""

Opened = Callable[[], socket.socket]


@pytest.fixture
def connect(tmp_path: Path) -> Iterator[Opened]:
    """Give TCP connections to a server."""
    now, hour = datetime.now(UTC), timedelta(hours=1)
    ca = make_ca(now, hour)
    pair = sign_server(ca, ("127.0.0.1",), now, hour)
    for name, data in {"ca.crt": ca.certificate, "tls.crt": pair.certificate, "tls.key": pair.key}.items():
        (tmp_path / name).write_bytes(data)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = int(listener.getsockname()[1])
    server = subprocess.Popen([sys.executable, "-c", PROGRAM, str(port), str(tmp_path)])
    opened = contextlib.ExitStack()

    def connect() -> socket.socket:
        return opened.enter_context(socket.create_connection(("127.0.0.1", port), 60))

    end = time.monotonic() + 60
    while True:
        assert server.poll() is None
        assert time.monotonic() < end
        try:
            connect().close()
            break
        except ConnectionRefusedError:
            time.sleep(0.1)
    with opened:
        yield connect
    server.terminate()
    assert server.wait(30) == 0


def test_whoever_falls_silent_is_shown_out_and_keeps_nobody_waiting(connect: Opened, tmp_path: Path) -> None:
    context = ssl.create_default_context(cafile=str(tmp_path / "ca.crt"))

    opened = contextlib.ExitStack()

    def tls() -> ssl.SSLSocket:
        return opened.enter_context(context.wrap_socket(connect(), server_hostname="127.0.0.1"))

    with opened:
        nothing, half_a_handshake, no_request, half_a_head, idle = connect(), connect(), tls(), tls(), tls()
        half_a_handshake.sendall(b"\x16\x03")
        half_a_head.sendall(b"GET / HTTP/1.1\r\nHost:")
        idle.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        assert idle.recv(1024).startswith(b"HTTP/1.1 200")
        for silent in (nothing, half_a_handshake, no_request, half_a_head, idle):
            with contextlib.suppress(ConnectionResetError):
                while silent.recv(1024):
                    pass
        after = tls()
        after.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        assert after.recv(1024).startswith(b"HTTP/1.1 200")
