# SPDX-License-Identifier: Apache-2.0
"""The forwarder as a process: what the API server gets while there is a timekeeper, and while there is none."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from support import client_certificates
from support.ports import free_port
from support.quiet_handler import QuietHandler
from support.timekeeper_process import COMMAND
from support.waiting import wait_for

from certificates.authority import KeyPair, make_ca, sign_server
from slicekeeper import names
from timekeeper.api.schemas.discovery import DOCUMENTS

HOUR = timedelta(hours=1)
NOW = datetime.now(UTC)
LIMIT, ALL = 4, 8


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_: Any) -> None:
        """Say nothing: clients hang up."""


class Timekeeper:
    """A server that says who its client is by the client's certificate, and counts connections."""

    def __init__(self, port: int, context: ssl.SSLContext) -> None:
        self.connections = 0
        self._open: set[ssl.SSLSocket] = set()
        outer = self

        class Handler(QuietHandler):
            protocol_version = "HTTP/1.1"
            request: ssl.SSLSocket

            def setup(self) -> None:
                outer.connections += 1
                self.request = context.wrap_socket(self.request, server_side=True)
                outer._open.add(self.request)
                super().setup()

            def finish(self) -> None:
                super().finish()
                self.request.close()
                outer._open.discard(self.request)

            def do_GET(self) -> None:
                subject = dict(part[0] for part in (self.request.getpeercert() or {}).get("subject", ()))
                self.send(json.dumps({"client": subject.get("commonName"), "path": self.path}).encode())

            def do_POST(self) -> None:
                self.send(self.rfile.read(int(self.headers["Content-Length"])))

        self._http = _Server(("127.0.0.1", port), Handler)
        threading.Thread(target=self._http.serve_forever, args=(0.01,), daemon=True).start()

    def stop(self) -> None:
        """End as a killed process does: nothing listens, and every connection is gone."""
        self._http.shutdown()
        self._http.server_close()
        for one in list(self._open):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        wait_for(lambda: not self._open, "the end of all connections")


class Site:
    """A forwarder's process, the port of its timekeeper, and clients with the API server's certificate."""

    def __init__(self, folder: Path) -> None:
        self.ca = make_ca(NOW, HOUR)
        pair = sign_server(self.ca, ("localhost", "127.0.0.1"), NOW, HOUR)
        (folder / "tls.crt").write_bytes(pair.certificate)
        (folder / "tls.key").write_bytes(pair.key)
        self.server_context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.server_context.load_cert_chain(folder / "tls.crt", folder / "tls.key")
        self.server_context.verify_mode = ssl.CERT_OPTIONAL
        self.server_context.load_verify_locations(cadata=self.ca.certificate.decode())
        shown: KeyPair = client_certificates.sign_client(self.ca, "front-proxy")
        self.client_context = client_certificates.context(folder, self.ca, shown)
        self.port, self.upstream = free_port(), free_port()
        settings = {
            "timekeeperClient": {"url": f"https://127.0.0.1:{self.upstream}"},
            "timekeeper": {
                "forwarderBind": f"127.0.0.1:{self.port}",
                "tls": {"certificateFile": str(folder / "tls.crt"), "keyFile": str(folder / "tls.key")},
            },
            "serving": {"connections": ALL, "connectionsPerAddress": LIMIT, "requestSeconds": 2},
        }
        config = folder / "config.yaml"
        config.write_text(json.dumps(settings))
        with (folder / "log").open("wb") as log:
            self.process = subprocess.Popen([str(COMMAND), "--config", str(config), "forwarder"], stderr=log)
        wait_for(self.listens, "a forwarder")

    def listens(self) -> bool:
        try:
            socket.create_connection(("127.0.0.1", self.port), 5).close()
        except OSError:
            return False
        return True

    def timekeeper(self) -> Timekeeper:
        return Timekeeper(self.upstream, self.server_context)

    def connection(self) -> http.client.HTTPSConnection:
        return http.client.HTTPSConnection("127.0.0.1", self.port, timeout=20, context=self.client_context)

    def ask(self, method: str, path: str, body: bytes | None = None) -> tuple[int, Any]:
        connection = self.connection()
        try:
            connection.request(method, path, body)
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read())
        finally:
            connection.close()


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    made = Site(tmp_path)
    yield made
    made.process.kill()
    made.process.wait()
    assert "Traceback" not in (tmp_path / "log").read_text()


def test_the_timekeeper_sees_the_api_servers_certificate(site: Site) -> None:
    timekeeper = site.timekeeper()
    try:
        path = f"/apis/{names.API}/budgets"
        assert site.ask("GET", path) == (200, {"client": "front-proxy", "path": path})
        body = json.dumps("x" * 3_000_000).encode()
        assert site.ask("POST", path, body) == (200, json.loads(body))
    finally:
        timekeeper.stop()


@pytest.mark.parametrize("path", DOCUMENTS)
def test_discovery_is_answered_without_a_timekeeper(site: Site, path: str) -> None:
    status, found = site.ask("GET", path)
    assert status == 200
    assert found.get("kind", "APIResourceList") == "APIResourceList"
    for resource in found.get("resources", []):
        assert "/" in resource["name"], "kubectl would offer it as a kind"


def test_our_routes_get_503_without_a_timekeeper(site: Site) -> None:
    body = b"x" * 1_000_000
    for method, path in (("GET", f"/apis/{names.API}/budgets"), ("POST", f"/apis/{names.API}/budgets/a/grants")):
        status, problem = site.ask(method, path, body if method == "POST" else None)
        assert (status, problem["code"]) == (503, "timekeeper-away")


@pytest.mark.parametrize("path", ["/apis", "/api", "/", "/openapi/v4"])
def test_what_is_not_ours_is_not_found_as_the_api_server_expects_it(site: Site, path: str) -> None:
    assert site.ask("GET", path)[0] == 404


def test_a_client_gets_the_timekeeper_as_soon_as_it_is_back(site: Site) -> None:
    connection = site.connection()

    def answered() -> int:
        connection.request("GET", f"/apis/{names.API}/budgets")  # connects again if it was closed
        answer = connection.getresponse()
        answer.read()
        return answer.status

    for _ in range(3):
        assert answered() == 503
        timekeeper = site.timekeeper()
        assert answered() == 200
        assert answered() == 200
        timekeeper.stop()
        connection.close()


def test_a_probe_does_not_reach_the_timekeeper(site: Site) -> None:
    timekeeper = site.timekeeper()
    try:
        for _ in range(3):
            assert site.listens()
        assert site.ask("GET", "/")[0] == 200
        assert timekeeper.connections == 1
    finally:
        timekeeper.stop()


def silent(site: Site, address: str) -> socket.socket:
    return socket.create_connection(("127.0.0.1", site.port), 20, source_address=(address, 0))


def is_open(client: socket.socket) -> bool:
    client.setblocking(False)
    try:
        return client.recv(1) != b""
    except BlockingIOError:
        return True
    except OSError:
        return False


def test_silent_clients_of_the_same_address_keep_no_place_from_one_that_works(site: Site) -> None:
    clients = [silent(site, "127.0.0.1") for _ in range(LIMIT)]
    assert site.ask("GET", f"/apis/{names.API}")[0] == 200
    wait_for(lambda: not any(map(is_open, clients)), "the end of silent connections", 20)
    for one in clients:
        one.close()


def test_many_addresses_together_do_not_keep_the_api_server_out(site: Site) -> None:
    crowd = [silent(site, f"127.0.1.{number}") for number in range(1, ALL)]
    first = silent(site, "127.0.0.1")
    timekeeper = site.timekeeper()
    try:
        connection = site.connection()
        connection.request("GET", "/")
        assert connection.getresponse().read()
        crowd += [silent(site, f"127.0.2.{number}") for number in range(1, 2 * ALL)]
        wait_for(lambda: sum(map(is_open, (*crowd, first))) < ALL, "the end of silent connections", 20)
        connection.request("GET", "/")
        assert connection.getresponse().read(), "a silent connection goes before one that has been used"
        connection.close()
    finally:
        timekeeper.stop()
        for one in (*crowd, first):
            one.close()


def test_it_ends_at_once_with_connections_open(site: Site) -> None:
    timekeeper = site.timekeeper()
    try:
        connection = site.connection()
        connection.request("GET", "/")
        assert connection.getresponse().read()
        begun = time.monotonic()
        site.process.terminate()
        assert site.process.wait(20) == 0
        assert time.monotonic() - begun < 10
        connection.close()
    finally:
        timekeeper.stop()
