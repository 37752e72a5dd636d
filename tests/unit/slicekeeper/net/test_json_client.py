# SPDX-License-Identifier: Apache-2.0
"""The JSON client on a network that delivers nothing for a while."""

import socket
import threading
import traceback

import pytest

from slicekeeper.errors import SettingsError, Unavailable
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


@pytest.mark.parametrize("key", ["a\nb", "→"])
def test_a_header_that_cannot_be_sent_is_refused_by_its_name(key):
    with pytest.raises(SettingsError, match="POST /x: .*one line"):
        JsonClient("http://127.0.0.1:9").request("POST", "/x", headers={"Idempotency-Key": key})


def test_a_file_that_holds_more_than_a_token_is_not_shown(tmp_path):
    (tmp_path / "notes").write_text("secret\nmore\n")
    with pytest.raises(SettingsError) as caught:
        JsonClient("http://127.0.0.1:9", token_file=str(tmp_path / "notes")).request("GET", "/x")
    assert "secret" not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize("url", ["localhost:80", "http://", "http://[::1", "http://127.0.0.1:99999", "ftp://host"])
def test_a_url_without_scheme_or_host_is_refused_at_once(url):
    with pytest.raises(SettingsError, match="server URL is .*: use one such as http://127.0.0.1:8444"):
        JsonClient(url)
