# SPDX-License-Identifier: Apache-2.0
"""TLS between the parts: clients verify CA and host, both sides follow files that change, plain text gets nothing."""

from __future__ import annotations

import http.client
import os
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.tls_server import LIFE, NOW, TlsServer

from certificates.authority import KeyPair, make_ca, sign_server
from slicekeeper.config.settings import TimekeeperClientSettings, TlsSettings
from slicekeeper.errors import Unavailable
from slicekeeper.net.timekeeper_client import TimekeeperClient
from slicekeeper.net.tls import ReloadingContext

EMPTY = b'{"items": [], "asOf": "2026-01-01T00:00:00Z", "nextCursor": null}'


class Server:
    """A server with one context, as ours are; it shows what the files say."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ca = make_ca(NOW, LIFE)
        self.show(self.ca)
        self.trust(self.ca)
        tls = TlsSettings(certificate_file=str(folder / "tls.crt"), key_file=str(folder / "tls.key"))
        self.context = ReloadingContext(tls).context
        self.http = TlsServer(self.context, EMPTY, lambda *_: None)

    def show(self, ca: KeyPair, *hosts: str) -> None:
        """Have the server's certificate signed by a CA, for loopback or for other hosts."""
        pair = sign_server(ca, hosts or ("localhost", "127.0.0.1"), NOW, LIFE)
        self._write("tls.key", pair.key)
        self._write("tls.crt", pair.certificate)

    def trust(self, *authorities: KeyPair) -> None:
        self._write("ca.crt", b"".join(ca.certificate for ca in authorities))

    def _write(self, name: str, data: bytes) -> None:
        fresh = self.folder / f"{name}.new"
        fresh.write_bytes(data)
        fresh.rename(self.folder / name)

    def client(self, host: str = "localhost") -> TimekeeperClient:
        url = f"https://{host}:{self.http.port}"
        return TimekeeperClient(TimekeeperClientSettings(url=url, ca_file=str(self.folder / "ca.crt")))


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    server = Server(tmp_path)
    yield server
    server.http.stop()


def test_a_server_of_the_trusted_ca_is_spoken_to(server: Server) -> None:
    assert list(server.client().workloads()) == []
    assert list(server.client("127.0.0.1").workloads()) == []


def test_a_server_of_another_ca_is_not(server: Server) -> None:
    server.show(make_ca(NOW, LIFE))
    with pytest.raises(Unavailable, match="unable to get local issuer certificate"):
        list(server.client().workloads())


def test_a_server_by_another_name_is_not(server: Server) -> None:
    server.show(server.ca, "webhook.slicekeeper-system.svc")
    with pytest.raises(Unavailable, match="Hostname mismatch"):
        list(server.client().workloads())


def test_without_the_ca_file_nobody_is_spoken_to(server: Server) -> None:
    (server.folder / "ca.crt").unlink()
    with pytest.raises(Unavailable):
        list(server.client().workloads())


def test_plain_text_gets_no_answer(server: Server) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", server.http.port, timeout=60)
    connection.request("GET", "/")
    with pytest.raises((OSError, http.client.HTTPException)):
        connection.getresponse()
    connection.close()


def test_one_client_and_one_server_live_through_a_rotation(server: Server) -> None:
    client, new = server.client(), make_ca(NOW, LIFE)
    assert list(client.workloads()) == []
    server.trust(new, server.ca)
    assert list(client.workloads()) == []
    server.show(new)
    assert list(client.workloads()) == []
    server.trust(new)
    assert list(client.workloads()) == []
    server.show(server.ca)
    with pytest.raises(Unavailable, match="local issuer certificate"):
        list(client.workloads())


def test_a_client_that_did_not_know_the_new_ca_takes_it_up_from_its_file(server: Server) -> None:
    client, new = server.client(), make_ca(NOW, LIFE)
    server.show(new)
    with pytest.raises(Unavailable, match="local issuer certificate"):
        list(client.workloads())
    server.trust(new, server.ca)
    assert list(client.workloads()) == []


def test_a_certificate_without_its_key_leaves_the_old_one(server: Server) -> None:
    before = ssl.get_server_certificate(("127.0.0.1", server.http.port))
    other = sign_server(server.ca, ("localhost",), NOW, LIFE)
    (server.folder / "tls.crt").write_bytes(other.certificate)
    os.utime(server.folder / "tls.crt", ns=(1, 1))
    assert ssl.get_server_certificate(("127.0.0.1", server.http.port)) == before
    assert list(server.client().workloads()) == []
