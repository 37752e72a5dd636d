# SPDX-License-Identifier: Apache-2.0
"""Who asks by way of the API server: the real application behind the real server, with TLS on loopback.

What the headers say counts on a connection that showed the API server's own certificate. Without it, with another
CA's, another name's, or one that has expired, no client becomes another user.
"""

from __future__ import annotations

import http.client
import json
import socket
import ssl
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from support.client_certificates import HOUR, context, sign_client
from support.manual_clock import ManualClock
from support.timekeeper_service import serving

from certificates.authority import KeyPair, make_ca, sign_server
from slicekeeper import names
from slicekeeper.config.settings import ServingSettings, TlsSettings
from slicekeeper.errors import NotFound, Unavailable
from slicekeeper.kube.client import TOKEN_REVIEWS
from slicekeeper.net.serving.background import BackgroundServer
from slicekeeper.net.serving.wsgi import WsgiBridge
from slicekeeper.net.tls import ClientCas, ClientCertificate, ReloadingContext
from timekeeper.api import front_proxy
from timekeeper.api.app import routed
from timekeeper.api.front_proxy import FrontProxy
from timekeeper.api.identity import Identity, _Cache
from timekeeper.api.problems import Problem
from timekeeper.store.db.engine import make_engine
from timekeeper.store.db.migrate import upgrade

NOW = datetime.now(UTC)
DAY = timedelta(days=1)
API = f"/apis/{names.API}"
TEAM = f"{API}/budgets/team"
JANE = [("X-Remote-User", "jane"), ("X-Remote-Group", "team"), ("X-Remote-Group", "system:authenticated")]
ADMIN = [("X-Remote-User", "admin"), ("X-Remote-Group", "system:masters")]
NAME = "front-proxy-client"


def told(ca: KeyPair | str, *allowed: str, users: str = "") -> dict[str, str]:
    """Return what kube-apiserver writes into its ConfigMap."""
    return {
        "client-ca-file": users,
        "requestheader-client-ca-file": ca if isinstance(ca, str) else ca.certificate.decode(),
        "requestheader-allowed-names": json.dumps(allowed or [NAME]),
        "requestheader-username-headers": '["X-Remote-User"]',
        "requestheader-group-headers": '["X-Remote-Group"]',
        "requestheader-uid-headers": '["X-Remote-Uid"]',
        "requestheader-extra-headers-prefix": '["X-Remote-Extra-"]',
    }


class ApiServer:
    """Tells by which certificate it is known, allows everything, and keeps what it was asked."""

    def __init__(self, data: dict[str, str]) -> None:
        self.data: dict[str, str] | Exception = data
        self.reviews: list[dict[str, Any]] = []

    def get(self, _resource: object, name: str, namespace: str) -> dict[str, Any]:
        assert (name, namespace) == ("extension-apiserver-authentication", "kube-system")
        if isinstance(self.data, Exception):
            raise self.data
        return {"data": self.data}

    def create(self, resource: object, body: dict[str, Any]) -> dict[str, Any]:
        if resource == TOKEN_REVIEWS:
            valid = body["spec"]["token"] == "bobs"
            user = {"username": "bob", "groups": ["others"]}
            return {"status": {"authenticated": valid, "audiences": ["timekeeper"], "user": user}}
        self.reviews.append(body["spec"])
        return {"status": {"allowed": True}}


class _Forgetful(_Cache[Any, Any]):
    """Checks every right again, so that each test sees whose right it is."""

    def put(self, *_: object) -> None:
        pass


class TlsServer(BackgroundServer):
    """Our server with a context of TLS, as the process has it, in a thread."""

    def __init__(self, app: Any, tls: ssl.SSLContext) -> None:
        self.tls = tls
        super().__init__("127.0.0.1:0", app, ServingSettings())


class World:
    """A timekeeper that a cluster's API server offers."""

    def __init__(self, folder: Path, service: Any) -> None:
        self.folder = folder
        self.ca, self.server_ca = make_ca(NOW, DAY), make_ca(NOW, DAY)
        self.api = ApiServer(told(self.ca))
        client: Any = self.api
        self.clients = ClientCas()
        self.proxy = FrontProxy(client, self.clients)
        identity = Identity(client, "timekeeper", str(folder / "token"))
        identity._rights = _Forgetful(0)
        app = routed(replace(service, identity=identity, front_proxy=self.proxy))
        pair = sign_server(self.server_ca, ("127.0.0.1",), NOW, DAY)
        files = [folder / "tls.crt", folder / "tls.key"]
        for file, data in zip(files, (pair.certificate, pair.key), strict=True):
            file.write_bytes(data)
        tls = ReloadingContext(TlsSettings(certificate_file=str(files[0]), key_file=str(files[1])), self.clients)
        self.server = TlsServer(WsgiBridge(app, threads=2), tls.context)

    def connect(self, shows: KeyPair | None) -> http.client.HTTPSConnection:
        made = context(self.folder, self.server_ca, shows)
        return http.client.HTTPSConnection("127.0.0.1", self.server.port, timeout=60, context=made)

    def ask(
        self,
        headers: list[tuple[str, str]],
        shows: KeyPair | None,
        path: str = TEAM,
        method: str = "GET",
        body: object = None,
        on: http.client.HTTPSConnection | None = None,
    ) -> tuple[int, dict[str, Any]]:
        connection = on or self.connect(shows)
        try:
            connection.putrequest(method, path)
            data = b"" if body is None else json.dumps(body).encode()
            sent = [*headers, ("Content-Type", "application/json"), ("Content-Length", str(len(data)))]
            for name, value in sent:
                connection.putheader(name, value.encode())
            connection.endheaders(data)
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read())
        finally:
            if on is None:
                connection.close()

    def front(self, *called: str, life: timedelta = HOUR) -> KeyPair:
        return sign_client(self.ca, *(called or (NAME,)), life=life)

    def who(self) -> list[str]:
        """Return who was asked for since the last time."""
        found = [spec["user"] for spec in self.api.reviews]
        self.api.reviews.clear()
        return found


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder, clock = tmp_path_factory.mktemp("front-proxy"), ManualClock(int(time.time() * 1000))
    url = f"sqlite:///{folder}/db.sqlite"
    engine = make_engine(url)
    upgrade(engine)
    engine.dispose()
    with serving(folder, url, clock) as (service, _):
        world = World(folder, service)
        try:
            yield world
        finally:
            world.server.close()


@pytest.fixture
def world(served: World) -> World:
    """The server as it starts: it knows nothing of the API server yet."""
    served.api.data = told(served.ca)
    served.proxy._trust, served.clients.trusted = None, frozenset()
    served.api.reviews.clear()
    return served


@pytest.fixture
def known(world: World) -> World:
    assert world.proxy.look()
    return world


def test_the_api_server_says_who_asks_and_rights_are_asked_for_them(known: World) -> None:
    extra = [
        ("X-Remote-Extra-Example.com%2fscopes", "read"),
        ("X-Remote-Extra-Example.com%2fscopes", "write, too"),
        ("X-Remote-Uid", "42"),
    ]
    status, body = known.ask([*JANE, *extra], known.front())
    assert (status, body["namespace"]) == (200, "team")
    [spec] = known.api.reviews
    assert (spec["user"], spec["groups"], spec["uid"]) == ("jane", ["team", "system:authenticated"], "42")
    assert spec["extra"] == {"example.com/scopes": ["read", "write, too"]}
    attributes = {"group": names.GROUP, "resource": "gpubudgets", "verb": "get", "namespace": "team"}
    assert spec["resourceAttributes"] == attributes


def test_a_grant_is_booked_in_the_users_own_name(known: World) -> None:
    body, once = {"amountMs": 1000, "reason": "r"}, ("Idempotency-Key", "k")
    user = [("X-Remote-User", "jüne@example.com"), once]
    status, told_back = known.ask(user, known.front(), f"{TEAM}/grants", "POST", body)
    assert (status, told_back["namespace"]) == (201, "team")
    _, audit = known.ask(ADMIN, known.front(), f"{API}/audit")
    assert [entry["actor"] for entry in audit["items"]][-1] == "jüne@example.com"


def test_headers_without_a_certificate_count_for_nothing(known: World) -> None:
    status, body = known.ask(ADMIN, None)
    assert (status, body["code"]) == (401, "unauthenticated")
    assert known.who() == []
    assert known.ask([*ADMIN, ("Authorization", "Bearer bobs")], None)[0] == 200
    assert known.who() == ["bob"]


@pytest.mark.parametrize("life", [HOUR, -HOUR], ids=["another CA's", "expired"])
def test_a_certificate_that_is_not_valid_gets_no_connection(known: World, life: timedelta) -> None:
    shows = sign_client(make_ca(NOW, DAY), NAME) if life > timedelta() else known.front(life=life)
    with pytest.raises((OSError, http.client.HTTPException)):
        known.ask(ADMIN, shows)
    assert known.who() == []


def test_a_servers_certificate_of_the_same_ca_gets_no_connection(known: World) -> None:
    with pytest.raises((OSError, http.client.HTTPException)):
        known.ask(ADMIN, sign_server(known.ca, (NAME,), NOW, DAY))


@pytest.mark.parametrize("called", [("system:node:n",), ("",), (NAME, "other"), (f"{NAME}.evil",), (NAME.upper(),)])
def test_a_name_that_is_not_allowed_is_refused_whatever_token_comes_with_it(
    known: World, called: tuple[str, ...]
) -> None:
    if called == ("",):
        called = ("\u200b",)  # X.509 has no empty name
    for token in ([], [("Authorization", "Bearer operator-token")], [("Authorization", "Bearer bobs")]):
        status, body = known.ask([*ADMIN, *token], known.front(*called))
        assert (status, body["code"]) == (401, "unauthenticated")
    assert known.who() == []


def test_users_pass_no_headers_of_their_own_by_another_spelling(known: World) -> None:
    smuggled = [
        ("X_Remote_User", "admin"),
        ("X_Remote_Group", "system:masters"),
        ("X-Remote-Users", "admin"),
        ("X_Remote_Extra_Scopes", "all"),
        ("Authorization", "Bearer operator-token"),
    ]
    group = ("X-Remote-Group", "a,system:masters")
    status, _ = known.ask([*smuggled, *JANE, group], known.front())
    [spec] = known.api.reviews
    assert (status, spec["user"], spec["extra"]) == (200, "jane", {})
    assert spec["groups"] == ["team", "system:authenticated", "a,system:masters"]


def test_the_api_server_that_names_nobody_is_nobody(known: World) -> None:
    for headers in ([], [("X-Remote-Group", "system:masters")], [("X-Remote-User", " ")]):
        assert known.ask(headers, known.front())[0] == 401


def test_nobody_reports_for_a_pod_by_way_of_the_api_server(known: World) -> None:
    pod = [
        *JANE,
        ("X-Remote-Extra-Authentication.kubernetes.io%2fpod-uid", "uid-1"),
        ("X-Remote-Extra-Authentication.kubernetes.io%2fpod-name", "p"),
    ]
    assert known.ask(pod, known.front(), f"{API}/reports", "POST", {"reports": []})[0] == 404
    status, body = known.ask(pod, known.front(), "/api/v1/reports", "POST", {"reports": []})
    assert (status, body["code"]) == (403, "token-not-bound")


def test_until_it_is_known_whom_to_believe_nobody_is_and_tokens_go_on(world: World) -> None:
    bob = [("Authorization", "Bearer bobs")]
    for wrong in (
        NotFound("no", 404),
        Unavailable("away"),
        {},
        told("no certificate"),
        told(world.ca) | {"requestheader-username-headers": "{"},
    ):
        world.api.data = wrong  # type: ignore[assignment]
        assert not world.proxy.look()
        with pytest.raises((OSError, http.client.HTTPException)):
            world.ask(ADMIN, world.front())
        assert world.ask(bob, None)[0] == 200
    assert set(world.who()) <= {"bob"}


def test_a_ca_that_was_replaced_counts_no_longer_not_even_on_open_connections(known: World) -> None:
    before, fresh = known.front(), make_ca(NOW, DAY)
    open_one = known.connect(before)
    assert known.ask(JANE, None, on=open_one)[0] == 200
    both = known.ca.certificate + fresh.certificate
    known.api.data = told(both.decode())
    assert known.proxy.look()
    assert known.ask(JANE, None, on=open_one)[0] == 200, "the old one is still trusted"
    known.api.data = told(fresh)
    assert known.proxy.look()
    status, _ = known.ask(ADMIN, None, on=open_one)
    assert status == 401
    assert open_one.sock is None, "the API server must come again"
    with pytest.raises((OSError, http.client.HTTPException)):
        known.ask(ADMIN, before)
    assert known.ask(JANE, sign_client(fresh, NAME))[0] == 200
    open_one.close()


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_a_session_that_is_resumed_brings_no_old_certificate_back(known: World, version: ssl.TLSVersion) -> None:
    made = context(known.folder, known.server_ca, known.front())
    made.maximum_version = version

    def ask(session: ssl.SSLSession | None) -> tuple[bytes, ssl.SSLSession | None]:
        with (
            socket.create_connection(("127.0.0.1", known.server.port), 20) as raw,
            made.wrap_socket(raw, session=session) as connection,
        ):
            head = f"GET {TEAM} HTTP/1.1\r\nHost: x\r\nX-Remote-User: admin\r\n\r\n"
            connection.sendall(head.encode())
            return connection.recv(12), connection.session

    status, session = ask(None)
    assert status == b"HTTP/1.1 200"
    known.api.data = told(make_ca(NOW, DAY))
    assert known.proxy.look()
    with suppress(OSError):  # of a handshake like any other, which the old certificate does not pass
        assert ask(session)[0] in (b"HTTP/1.1 401", b"")


def test_what_was_known_stays_while_the_api_server_says_nothing(known: World) -> None:
    known.api.data = Unavailable("away")
    assert not known.proxy.look()
    assert known.ask(JANE, known.front())[0] == 200


def test_a_certificate_that_expires_on_an_open_connection_counts_no_longer(known: World) -> None:
    headers = [(b"x-remote-user", b"jane")]
    shown = ClientCertificate((NAME,), time.time() + 60, known.clients.trusted)
    assert known.proxy.caller(shown, headers).name == "jane"
    with pytest.raises(Problem, match="expired"):
        known.proxy.caller(replace(shown, not_after=time.time() - 1), headers)
    with pytest.raises(Problem, match="UTF-8"):
        known.proxy.caller(shown, [(b"x-remote-user", b"\xff")])


def test_an_api_server_that_would_believe_any_user_is_not_believed() -> None:
    front, users = (make_ca(NOW, DAY).certificate.decode() for _ in range(2))
    any_name = {"requestheader-allowed-names": "[]"}
    assert front_proxy.read(told(front, users=users) | any_name).names == frozenset()
    with pytest.raises(ValueError, match="any user could impersonate any other"):
        front_proxy.read(told(front, users=users + front) | any_name)
    with pytest.raises(ValueError, match="no front proxy"):
        front_proxy.read({"client-ca-file": users})


def test_discovery_answers_what_kubernetes_asks_and_offers_nothing_to_delete(world: World) -> None:
    connection = world.connect(None)
    for path in (API, "/openapi/v2", "/openapi/v3"):
        connection.request("GET", path)
        answer = connection.getresponse()
        found = json.loads(answer.read())
        assert answer.status == 200
        if path == API:
            assert (found["kind"], found["groupVersion"]) == ("APIResourceList", names.API)
            assert found["resources"]
            verbs = {verb for resource in found["resources"] for verb in resource["verbs"]}
            assert not verbs & {"list", "watch", "delete", "deletecollection"}
    connection.close()


def test_plain_sockets_get_no_answer(world: World) -> None:
    with socket.create_connection(("127.0.0.1", world.server.port), 20) as plain:
        plain.sendall(b"GET / HTTP/1.1\r\nHost: x\r\nX-Remote-User: admin\r\n\r\n")
        assert not plain.recv(64).startswith(b"HTTP")
