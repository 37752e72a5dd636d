# SPDX-License-Identifier: Apache-2.0
"""The JSON client on a network that delivers nothing for a while."""

import socket
import threading

import pytest

from slicekeeper.errors import Unavailable
from slicekeeper.net.json_client import JsonClient

BODY = {"annotation": "x" * 200_000}
"""More than the other side's buffers take while it does not read."""


@pytest.fixture
def stalled():
    """A server that accepts, and reads nothing until it is let; it returns all that reached it by then."""
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    listener.bind(("127.0.0.1", 0))
    listener.listen()
    let, got = threading.Event(), []

    def serve():
        connection, _ = listener.accept()
        let.wait(30)
        connection.settimeout(5)
        try:
            while data := connection.recv(65_536):
                got.append(data)
        except OSError:
            pass
        connection.close()

    thread = threading.Thread(target=serve)
    thread.start()

    def received():
        let.set()
        thread.join(30)
        return b"".join(got)

    yield f"http://127.0.0.1:{listener.getsockname()[1]}", received
    let.set()
    thread.join(30)
    listener.close()


@pytest.mark.parametrize(("delivery_seconds", "arrives"), [(0.0, True), (0.5, False)])
def test_what_was_not_delivered_in_time_never_arrives(stalled, delivery_seconds, arrives):
    url, received = stalled
    client = JsonClient(url, timeout=1.0, delivery_seconds=delivery_seconds)
    with pytest.raises(Unavailable):
        client.json("POST", "/binding", body=BODY)
    client.close()
    threading.Event().wait(1.0)
    assert received().endswith(b'x"}') is arrives
