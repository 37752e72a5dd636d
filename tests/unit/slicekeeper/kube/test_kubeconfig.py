# SPDX-License-Identifier: Apache-2.0
"""Commands reach a cluster whenever kubectl does: kubeconfigs of every kind, with a real TLS server on loopback."""

from __future__ import annotations

import json
import os
import select
import socket
import ssl
import subprocess
import sys
import threading
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from support.tls_server import LIFE, NOW, TlsServer

from certificates.authority import KeyPair, make_ca, sign_server
from slicekeeper.cli.main import cli
from slicekeeper.errors import SettingsError
from slicekeeper.kube import kubeconfig


def certificate(name: str) -> KeyPair:
    """Return a client's certificate, signed by itself."""
    key, subject = ec.generate_private_key(ec.SECP256R1()), x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    builder = x509.CertificateBuilder(subject, subject, key.public_key(), 1, NOW - LIFE, NOW + LIFE)
    pem = builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
    kinds = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return KeyPair(pem, key.private_bytes(*kinds))


class ApiServer:
    """An API server without nodes, over TLS; it notes who asked."""

    def __init__(self, folder: Path) -> None:
        self.ca, self.user = make_ca(NOW, LIFE), certificate("ada")
        pair = sign_server(self.ca, ("127.0.0.1", "api.example"), NOW, LIFE)
        for name, data in (("tls.crt", pair.certificate), ("tls.key", pair.key), ("users.crt", self.user.certificate)):
            (folder / name).write_bytes(data)
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(folder / "users.crt"))
        context.load_cert_chain(folder / "tls.crt", folder / "tls.key")
        context.verify_mode = ssl.CERT_OPTIONAL
        self.asked: list[tuple[str, str]] = []
        body = b'{"items": [], "metadata": {"resourceVersion": "1"}}'
        self._server = TlsServer(context, body, lambda *asked: self.asked.append(asked))
        self.port = self._server.port
        self.url = f"https://127.0.0.1:{self.port}"
        self.cluster = {"server": self.url, "certificate-authority-data": encoded(self.ca.certificate)}

    def impersonated(self) -> list[tuple[str, str]]:
        """Return the user and groups of the last request."""
        return [header for header in self._server.headers if header[0].startswith("Impersonate-")]

    def stop(self) -> None:
        self._server.stop()


def encoded(data: bytes) -> str:
    return b64encode(data).decode()


@pytest.fixture
def api(tmp_path: Path) -> Iterator[ApiServer]:
    made = ApiServer(tmp_path)
    yield made
    made.stop()


def write(file: Path, cluster: dict[str, Any], user: dict[str, Any], name: str = "one") -> Path:
    """Write a kubeconfig with one cluster, user and context, all of one name."""
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": name,
        "clusters": [{"name": name, "cluster": cluster}],
        "users": [{"name": name, "user": user}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": name}}],
    }
    file.write_text(yaml.safe_dump(config))
    return file


def nodes(*arguments: str, home: Path, **environ: str) -> Result:
    """Run `slicekeeper nodes` as a person without settings does."""
    none = dict.fromkeys(("KUBERNETES_SERVICE_HOST", "SLICEKEEPER_KUBERNETES_SERVER", "KUBECONFIG"))
    environment: dict[str, str | None] = {**none, "HOME": str(home), "SLICEKEEPER_CONFIG": os.devnull, **environ}
    return CliRunner().invoke(cli, ["nodes", "-o", "json", *arguments], env=environment)


def plugin(folder: Path, status: dict[str, str]) -> dict[str, Any]:
    """Return a user whose credentials come from a program beside the kubeconfig."""
    version = "client.authentication.k8s.io/v1"
    answer = json.dumps({"apiVersion": version, "kind": "ExecCredential", "status": status})
    script = folder / "login"
    script.write_text(f"#!/bin/sh\ncat <<'END'\n{answer}\nEND\n")
    script.chmod(0o755)
    return {"exec": {"apiVersion": version, "command": "./login", "interactiveMode": "Never"}}


def by_token(api: ApiServer, folder: Path) -> tuple[dict[str, Any], str, str]:
    return {"token": "secret"}, "Bearer secret", ""


def by_token_file(api: ApiServer, folder: Path) -> tuple[dict[str, Any], str, str]:
    (folder / "token").write_text("from-file")
    return {"tokenFile": "token"}, "Bearer from-file", ""


def by_certificate_data(api: ApiServer, folder: Path) -> tuple[dict[str, Any], str, str]:
    pair = api.user
    user = {"client-certificate-data": encoded(pair.certificate), "client-key-data": encoded(pair.key)}
    return user, "", "ada"


def by_certificate_files(api: ApiServer, folder: Path) -> tuple[dict[str, Any], str, str]:
    (folder / "ada.crt").write_bytes(api.user.certificate)
    (folder / "ada.key").write_bytes(api.user.key)
    return {"client-certificate": "ada.crt", "client-key": "ada.key"}, "", "ada"


def by_plugin(api: ApiServer, folder: Path) -> tuple[dict[str, Any], str, str]:
    return plugin(folder, {"token": "of-plugin"}), "Bearer of-plugin", ""


def by_plugin_certificate(api: ApiServer, folder: Path) -> tuple[dict[str, Any], str, str]:
    pair = api.user
    status = {"clientCertificateData": pair.certificate.decode(), "clientKeyData": pair.key.decode()}
    return plugin(folder, status), "", "ada"


def by_password(api: ApiServer, folder: Path) -> tuple[dict[str, Any], str, str]:
    return {"username": "ada", "password": "s"}, f"Basic {encoded(b'ada:s')}", ""


WAYS = (
    by_token,
    by_token_file,
    by_certificate_data,
    by_certificate_files,
    by_plugin,
    by_plugin_certificate,
    by_password,
)


@pytest.mark.parametrize("way", WAYS)
def test_the_server_learns_who_asks(
    api: ApiServer, tmp_path: Path, way: Callable[[ApiServer, Path], tuple[dict[str, Any], str, str]]
) -> None:
    user, authorization, subject = way(api, tmp_path)
    file = write(tmp_path / "config", api.cluster, user)
    done = nodes("--kubeconfig", str(file), home=tmp_path)
    assert (done.exit_code, done.output) == (0, "[]\n")
    assert set(api.asked) == {(authorization, subject)}


def test_who_acts_as_somebody_else_is_nobody_else(api: ApiServer, tmp_path: Path) -> None:
    """As with kubectl: the API server gets the name, and decides by that user's rights."""
    user = {
        "token": "secret",
        "as": "lead",
        "as-uid": "7",
        "as-groups": ["team", "all"],
        "as-user-extra": {"Scopes/a": ["x", "y"]},
    }
    file = write(tmp_path / "config", api.cluster, user)
    assert nodes("--kubeconfig", str(file), home=tmp_path).exit_code == 0
    assert set(api.asked) == {("Bearer secret", "")}
    assert sorted(api.impersonated()) == [
        ("Impersonate-Extra-scopes%2Fa", "x"),
        ("Impersonate-Extra-scopes%2Fa", "y"),
        ("Impersonate-Group", "all"),
        ("Impersonate-Group", "team"),
        ("Impersonate-Uid", "7"),
        ("Impersonate-User", "lead"),
    ]
    himself = write(tmp_path / "himself", api.cluster, {"token": "secret"})
    assert nodes("--kubeconfig", str(himself), home=tmp_path).exit_code == 0
    assert api.impersonated() == []
    nobody = write(tmp_path / "nobody", api.cluster, {"token": "secret", "as-groups": ["system:masters"]})
    refused = nodes("--kubeconfig", str(nobody), home=tmp_path)
    assert isinstance(refused.exception, SettingsError)
    assert "without as" in str(refused.exception)


def test_files_of_the_environment_are_merged_and_a_context_chosen(api: ApiServer, tmp_path: Path) -> None:
    away = {"server": "https://127.0.0.1:1"}
    first = write(tmp_path / "first", away, {"token": "away"}, "away")
    second = write(tmp_path / "second", api.cluster, {"token": "here"}, "here")
    both = f"{first}{os.pathsep}{tmp_path / 'none'}{os.pathsep}{second}"
    assert nodes("--context", "here", home=tmp_path, KUBECONFIG=both).exit_code == 0
    assert set(api.asked) == {("Bearer here", "")}
    done = nodes("--context", "away", home=tmp_path, KUBECONFIG=both)
    assert "no answer from https://127.0.0.1:1" in str(done.exception)


def test_the_usual_file_is_read_last_and_what_is_named_wins(api: ApiServer, tmp_path: Path) -> None:
    (tmp_path / ".kube").mkdir()
    write(tmp_path / ".kube" / "config", api.cluster, {"token": "usual"})
    named = write(tmp_path / "named", api.cluster, {"token": "named"})
    assert nodes(home=tmp_path).exit_code == 0
    assert {token for token, _ in api.asked} == {"Bearer usual"}
    settings = {"SLICEKEEPER_KUBERNETES_SERVER": "http://127.0.0.1:1"}
    assert "no answer from http://127.0.0.1:1" in str(nodes(home=tmp_path, **settings).exception)
    api.asked.clear()
    assert nodes("--kubeconfig", str(named), home=tmp_path, **settings).exit_code == 0
    assert {token for token, _ in api.asked} == {"Bearer named"}
    api.asked.clear()
    assert nodes("--context", "one", home=tmp_path, **settings).exit_code == 0
    assert {token for token, _ in api.asked} == {"Bearer usual"}


def test_without_a_kubeconfig_a_pod_is_its_service_account(tmp_path: Path) -> None:
    done = nodes(home=tmp_path, KUBERNETES_SERVICE_HOST="127.0.0.1", KUBERNETES_SERVICE_PORT="1")
    assert "no answer from https://127.0.0.1:1" in str(done.exception)
    assert "~/.kube/config" in str(nodes(home=tmp_path).exception)


def test_the_server_is_verified_by_its_ca_and_name(api: ApiServer, tmp_path: Path) -> None:
    other = {**api.cluster, "certificate-authority-data": encoded(make_ca(NOW, LIFE).certificate)}
    done = nodes("--kubeconfig", str(write(tmp_path / "config", other, {"token": "secret"})), home=tmp_path)
    assert "certificate" in str(done.exception)
    named = {**api.cluster, "tls-server-name": "api.example"}
    assert nodes("--kubeconfig", str(write(tmp_path / "config", named, {})), home=tmp_path).exit_code == 0
    stranger = {**api.cluster, "tls-server-name": "stranger.example"}
    done = nodes("--kubeconfig", str(write(tmp_path / "config", stranger, {"token": "t"})), home=tmp_path)
    assert "stranger.example" in str(done.exception)
    assert api.asked == [("", "")] * 2  # nodes and pods, by the name that is the server's


def test_a_proxy_is_gone_through(api: ApiServer, tmp_path: Path) -> None:
    seen = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def forward(client: socket.socket) -> None:
            seen.append(client.recv(4096).split(b"\r\n")[0])
            with client, socket.create_connection(("127.0.0.1", api.port)) as server:
                client.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
                ends = {client: server, server: client}
                while True:
                    for end in select.select(list(ends), [], [])[0]:
                        data = end.recv(65536)
                        if not data:
                            return
                        ends[end].sendall(data)

        def accept() -> None:
            with suppress(OSError):  # until the listener is shut down
                while True:
                    threading.Thread(target=forward, args=(listener.accept()[0],), daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        cluster = {**api.cluster, "proxy-url": f"http://127.0.0.1:{listener.getsockname()[1]}"}
        file = write(tmp_path / "config", cluster, {"token": "secret"})
        environ = {"NO_PROXY": "", "no_proxy": ""}
        assert nodes("--kubeconfig", str(file), home=tmp_path, **environ).exit_code == 0
        listener.shutdown(socket.SHUT_RDWR)
    assert {request.rpartition(b" ")[0] for request in seen} == {f"CONNECT 127.0.0.1:{api.port}".encode()}
    assert set(api.asked) == {("Bearer secret", "")}


@pytest.mark.parametrize(
    ("text", "arguments", "told"),
    [
        (None, (), "there is no such file"),
        ("", (), "empty"),
        ("a: [", (), "while parsing"),
        ("- a", (), "it has not the form of a kubeconfig"),
        ("just text", (), "it has not the form of a kubeconfig"),
        ("clusters: []", (), "Expected key current-context"),
        ("current-context: a\ncontexts: []", (), "Expected object with name a in"),
        ("current-context: a\ncontexts: []", ("--context", "staging"), "context 'staging'"),
    ],
)
def test_a_wrong_file_is_named_with_what_is_wrong(
    tmp_path: Path, text: str | None, arguments: tuple[str, ...], told: str
) -> None:
    file = tmp_path / "wrong"
    if text is not None:
        file.write_text(text)
    done = nodes("--kubeconfig", str(file), *arguments, home=tmp_path)
    assert isinstance(done.exception, SettingsError)
    assert f"kubeconfig is {str(file)!r}" in str(done.exception)
    assert told in str(done.exception)
    assert "--kubeconfig" in str(done.exception)


def test_no_server_and_credentials_that_are_missing_are_named(api: ApiServer, tmp_path: Path) -> None:
    done = nodes("--kubeconfig", str(write(tmp_path / "config", {"server": "api.example"}, {})), home=tmp_path)
    assert "the cluster's server is 'api.example'" in str(done.exception)
    user = {"client-certificate": "gone.crt", "client-key": "gone.key"}
    done = nodes("--kubeconfig", str(write(tmp_path / "config", api.cluster, user)), home=tmp_path)
    assert "gone.crt" in str(done.exception)


def test_a_plugin_that_fails_says_why(api: ApiServer, tmp_path: Path) -> None:
    user = plugin(tmp_path, {})
    (tmp_path / "login").write_text("#!/bin/sh\necho 'log in first: example login' >&2\nexit 3\n")
    done = nodes("--kubeconfig", str(write(tmp_path / "config", api.cluster, user)), home=tmp_path)
    assert isinstance(done.exception, SettingsError)
    assert "log in first: example login" in str(done.exception)
    (tmp_path / "login").unlink()
    done = nodes("--kubeconfig", str(tmp_path / "config"), home=tmp_path)
    assert "login" in str(done.exception)
    assert api.asked == []


def test_the_library_is_needed_only_for_a_kubeconfig(
    api: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = (
        "import sys; import slicekeeper.cli.pods, slicekeeper.cli.check.command; print('kubernetes' in sys.modules)"
    )
    assert subprocess.check_output([sys.executable, "-c", program], text=True) == "False\n"
    file = write(tmp_path / "config", api.cluster, {"token": "secret"})
    for module in ("kubernetes.client", "kubernetes"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(SettingsError, match=r"pip install 'slicekeeper\[cli\]'"):
        kubeconfig.connect(str(file))
