# SPDX-License-Identifier: Apache-2.0
"""The webhook as it is deployed: its own process, gunicorn over TLS, a timekeeper beside it that can be killed."""

import contextlib
import datetime
import http.client
import ipaddress
import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from base64 import b64decode
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

SHARE = {"tencent.com/vcuda-core": 50, "tencent.com/vcuda-memory": 15}


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


class Authority:
    """A certificate authority that issues one server certificate after another."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test authority")])
        root = self._sign(self.name, self.key.public_key(), x509.BasicConstraints(ca=True, path_length=None))
        (folder / "ca.crt").write_bytes(root.public_bytes(serialization.Encoding.PEM))

    def _sign(self, subject: x509.Name, key: ec.EllipticCurvePublicKey, extension: x509.ExtensionType) -> Any:
        now = datetime.datetime.now(datetime.UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self.name)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(hours=1))
            .not_valid_after(now + datetime.timedelta(days=1))
            .add_extension(extension, critical=True)
            .sign(self.key, hashes.SHA256())
        )

    def issue(self) -> int:
        """Replace certificate and key, one after the other, as a Secret's files are; return the serial number."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "webhook")])
        names = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
        certificate = self._sign(subject, key.public_key(), names)
        plain = serialization.NoEncryption()
        files = {
            "tls.key": key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain),
            "tls.crt": certificate.public_bytes(serialization.Encoding.PEM),
        }
        for name, data in files.items():
            replace(self.folder / name, data)
        return int(certificate.serial_number)


def replace(file: Path, data: bytes) -> None:
    new = file.with_suffix(".new")
    new.write_bytes(data)
    new.replace(file)


class FakeTimekeeper:
    """A real HTTP server with the decisions that the test sets; it can be stopped and started again."""

    def __init__(self) -> None:
        self.port = free_port()
        self.exhausted: tuple[str, ...] = ()
        self.not_modified = 0
        self.server: ThreadingHTTPServer | None = None

    def start(self) -> None:
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                tag = f'"{outer.exhausted}"'
                known = self.headers.get("If-None-Match") == tag
                outer.not_modified += known
                body = (
                    b""
                    if known
                    else json.dumps({"asOf": "", "items": [outer.decision(n) for n in outer.exhausted]}).encode()
                )
                self.send_response(304 if known else 200)
                self.send_header("ETag", tag)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", self.port), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def stop(self) -> None:
        if self.server is not None:
            self.server.shutdown()
            self.server.server_close()
            self.server = None

    @staticmethod
    def decision(namespace: str) -> dict[str, Any]:
        return {
            "enforcement": "hard" if namespace == "spent" else "soft", "namespace": namespace, "state": "exhausted",
            "balanceMs": 0, "usedMs": 1, "asOf": "", "since": "",
            "staleAfter": "", "priorityClassName": "",
        }  # fmt: skip


class Webhook:
    """The process, and requests to it."""

    def __init__(self, folder: Path, timekeeper: FakeTimekeeper) -> None:
        self.port, self.metrics_port = free_port(), free_port()
        self.folder = folder
        config = {
            "webhook": {
                "bind": f"127.0.0.1:{self.port}",
                "metricsBind": f"127.0.0.1:{self.metrics_port}",
                "tls": {"certificateFile": str(folder / "tls.crt"), "keyFile": str(folder / "tls.key")},
                "refreshSeconds": 0.1,
                "staleSeconds": 5,
                "flipGraceSeconds": 5,
            },
            "timekeeperClient": {"url": f"http://127.0.0.1:{timekeeper.port}", "timeoutSeconds": 2},
            "policy": {"file": str(folder / "policy.yaml"), "reloadSeconds": 0.1},
        }
        (folder / "config.yaml").write_text(yaml.safe_dump(config), "utf-8")
        self.context = ssl.create_default_context(cafile=str(folder / "ca.crt"))
        environ = {k: v for k, v in os.environ.items() if not k.startswith(("SLICEKEEPER_", "KUBERNETES_"))}
        command = [sys.executable, "-c", "from slicekeeper.cli.main import main; main()"]
        with (folder / "log").open("wb") as log:
            self.process = subprocess.Popen(
                [*command, "--config", str(folder / "config.yaml"), "webhook", "serve"], stderr=log, env=environ
            )

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(20)

    def workers(self) -> list[int]:
        """Return the processes that serve: their threads run, the one for metrics last."""
        found = []
        for file in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):
                fields = file.read_text().rpartition(")")[2].split()
                if int(fields[1]) == self.process.pid and int(fields[17]) >= 4:
                    found.append(int(file.parent.name))
        return found

    def log(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.folder / "log").read_text("utf-8").splitlines()]

    def connect(self) -> http.client.HTTPSConnection:
        return http.client.HTTPSConnection("127.0.0.1", self.port, timeout=20, context=self.context)

    def get(self, path: str) -> str:
        with contextlib.closing(self.connect()) as connection:
            connection.request("GET", path)
            answer = connection.getresponse()
            assert answer.status == 200
            return answer.read().decode()

    def metrics(self) -> str:
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", self.metrics_port, timeout=20)) as plain:
            plain.request("GET", "/metrics")
            return plain.getresponse().read().decode()

    def review(
        self,
        endpoint: str,
        obj: Any,
        connection: http.client.HTTPSConnection | None = None,
        *,
        namespace: str = "research",
    ) -> dict[str, Any]:
        with contextlib.ExitStack() as stack:
            used = connection or stack.enter_context(contextlib.closing(self.connect()))
            used.request("POST", endpoint, json.dumps(review(obj, namespace)), {"Content-Type": "application/json"})
            answer = used.getresponse()
            body = answer.read()
            assert answer.status == 200, body
            response: dict[str, Any] = json.loads(body)["response"]
            return response

    def serial(self) -> int:
        with self.stream() as stream:
            certificate = stream.getpeercert()
            assert certificate
            return int(str(certificate["serialNumber"]), 16)

    def stream(self) -> ssl.SSLSocket:
        raw = socket.create_connection(("127.0.0.1", self.port), 20)
        return self.context.wrap_socket(raw, server_hostname="127.0.0.1")


def review(obj: Any, namespace: str = "research") -> dict[str, Any]:
    kind = {"group": "", "version": "v1", "kind": "Pod"}
    request = {"uid": "u-1", "kind": kind, "operation": "CREATE", "namespace": namespace, "object": obj}
    return {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}


def pod(core: int = 50) -> dict[str, Any]:
    limits = {**SHARE, "tencent.com/vcuda-core": core}
    return {"metadata": {"name": "a"}, "spec": {"containers": [{"name": "a", "resources": {"limits": limits}}]}}


def patch(response: dict[str, Any]) -> dict[str, Any]:
    return {operation["path"]: operation["value"] for operation in json.loads(b64decode(response["patch"]))}


def eventually(check: Callable[[], bool], seconds: float = 30.0) -> None:
    end = time.monotonic() + seconds
    while not check():
        assert time.monotonic() < end, "it did not come about"
        time.sleep(0.05)


def settled(check: Callable[[], bool]) -> None:
    """Wait until every worker says the same: several answers in a row, over connections of their own."""
    eventually(lambda: all(check() for _ in range(12)))


@pytest.fixture
def timekeeper() -> Iterator[FakeTimekeeper]:
    server = FakeTimekeeper()
    server.start()
    yield server
    server.stop()


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    issuer = Authority(tmp_path)
    issuer.issue()
    return issuer


@pytest.fixture
def webhook(tmp_path: Path, timekeeper: FakeTimekeeper, authority: Authority) -> Iterator[Webhook]:
    (tmp_path / "policy.yaml").write_text("default: {}\n", "utf-8")
    server = Webhook(tmp_path, timekeeper)

    def up() -> bool:
        assert server.process.poll() is None, (tmp_path / "log").read_text("utf-8")
        with contextlib.suppress(OSError):
            return "fresh" in server.get("/readyz") and len(server.workers()) == 2
        return False

    eventually(up)
    yield server
    if server.process.poll() is None:
        assert server.stop() == 0


def test_a_pod_is_mutated_and_then_validated_by_any_worker(webhook: Webhook) -> None:
    for _ in range(8):
        response = webhook.review("/mutate", pod())
        assert response["allowed"]
        assert patch(response)["/spec/priorityClassName"] == "gpu-default-priority"
        assert not webhook.review("/mutate", pod(150))["allowed"]


def test_certificates_rotate_under_load_without_a_failed_review(webhook: Webhook, authority: Authority) -> None:
    stop = threading.Event()
    answered: list[int] = []
    failed: list[BaseException] = []

    def work(keep: bool) -> None:
        count = 0
        connection = webhook.connect()
        try:
            while not stop.is_set():
                assert webhook.review("/mutate", pod(), connection if keep else None)["allowed"]
                count += 1
        except BaseException as error:  # told in the main thread
            failed.append(error)
        finally:
            connection.close()
            answered.append(count)

    threads = [threading.Thread(target=work, args=(keep,)) for keep in (True, True, False, False)]
    for thread in threads:
        thread.start()
    serials = set()
    for _ in range(6):
        serial = authority.issue()
        settled(lambda wanted=serial: webhook.serial() == wanted)  # type: ignore[misc]
        serials.add(serial)
    stop.set()
    for thread in threads:
        thread.join()
    assert not failed
    assert len(serials) == 6
    assert min(answered) > 0


def test_a_certificate_that_does_not_fit_its_key_leaves_the_old_one(webhook: Webhook, authority: Authority) -> None:
    before = webhook.serial()
    replace(authority.folder / "tls.crt", b"no certificate")
    assert webhook.serial() == before
    assert webhook.review("/mutate", pod())["allowed"]
    after = authority.issue()
    settled(lambda: webhook.serial() == after)


def test_a_policy_change_takes_effect_and_a_broken_one_does_not(webhook: Webhook) -> None:
    file = webhook.folder / "policy.yaml"

    def ceiling() -> str:
        return str(patch(webhook.review("/mutate", pod()))["/metadata/annotations"]["tencent.com/vcuda-core-limit"])

    replace(file, b"default: {ceiling: 70}\n")
    settled(lambda: ceiling() == "70")
    replace(file, b"default: {ceilling: 60}\n")
    eventually(lambda: "did you mean ceiling?" in webhook.get("/readyz"))
    eventually(lambda: "slicekeeper_webhook_policy_file_refused 1.0" in webhook.metrics())
    assert ceiling() == "70"
    assert any("old policy stays in force" in line["message"] for line in webhook.log())
    replace(file, b"default: {ceiling: 60}\n")
    settled(lambda: ceiling() == "60")
    eventually(lambda: "slicekeeper_webhook_policy_file_refused 0.0" in webhook.metrics())


def test_a_flip_changes_the_class_and_validate_takes_either(webhook: Webhook, timekeeper: FakeTimekeeper) -> None:
    from webhook.patch import apply

    def admitted() -> dict[str, Any]:
        return apply(pod(), json.loads(b64decode(webhook.review("/mutate", pod())["patch"])))

    before = admitted()
    timekeeper.exhausted = ("research",)
    settled(lambda: admitted()["spec"]["priorityClassName"] == "gpu-lower-priority")
    for manifest in (before, admitted()):
        assert all(webhook.review("/validate", manifest)["allowed"] for _ in range(6))
    # After the grace the class that the namespace no longer has is refused.
    settled(lambda: not webhook.review("/validate", before)["allowed"])
    assert webhook.review("/validate", admitted())["allowed"]
    timekeeper.exhausted = ()
    settled(lambda: admitted()["spec"]["priority"] == 0)
    assert timekeeper.not_modified > 0


def test_stale_modes_while_the_timekeeper_is_away(webhook: Webhook, timekeeper: FakeTimekeeper) -> None:
    timekeeper.exhausted = ("spent",)
    settled(lambda: not webhook.review("/mutate", pod(), namespace="spent")["allowed"])
    timekeeper.stop()
    settled(lambda: "not known at present" in str(webhook.review("/mutate", pod()).get("warnings")))
    eventually(lambda: "slicekeeper_webhook_decisions_stale 1.0" in webhook.metrics())
    assert "stale" in webhook.get("/readyz")
    assert patch(webhook.review("/mutate", pod()))["/spec/priority"] == 0
    for mode, check in {
        "allow-in-budget": lambda answer: patch(answer)["/spec/priority"] == 0,
        "over-budget": lambda answer: patch(answer)["/spec/priority"] == -100,
        "deny": lambda answer: answer.get("status", {}).get("code") == 503,
    }.items():
        replace(webhook.folder / "policy.yaml", f"default: {{stale: {mode}}}\n".encode())
        settled(lambda wanted=check: wanted(webhook.review("/mutate", pod())))  # type: ignore[misc]
        # What was spent stays spent, whatever holds for what is not known.
        refusal = webhook.review("/mutate", pod(), namespace="spent")
        assert not refusal["allowed"]
        assert "when the timekeeper last answered" in refusal["status"]["message"]
    for worker in webhook.workers():
        os.kill(worker, signal.SIGKILL)
    settled(lambda: _refused(webhook, "spent"))
    timekeeper.exhausted = ()
    timekeeper.start()
    settled(lambda: webhook.review("/mutate", pod(), namespace="spent")["allowed"])
    eventually(lambda: "slicekeeper_webhook_decisions_stale 0.0" in webhook.metrics())


def _refused(webhook: Webhook, namespace: str) -> bool:
    with contextlib.suppress(OSError, http.client.HTTPException):
        return "no GPU budget left" in str(webhook.review("/mutate", pod(), namespace=namespace))
    return False


def test_metrics_sum_up_both_workers(webhook: Webhook) -> None:
    for _ in range(20):
        webhook.review("/mutate", pod())
    for _ in range(5):
        webhook.review("/mutate", pod(150))
    for text in (webhook.metrics(), webhook.metrics()):
        assert 'slicekeeper_webhook_reviews_total{endpoint="mutate",outcome="mutated"} 20.0' in text
        assert 'slicekeeper_webhook_reviews_total{endpoint="mutate",outcome="refused"} 5.0' in text
        assert 'slicekeeper_webhook_refusals_total{code="core-not-whole"} 5.0' in text
        assert 'slicekeeper_webhook_review_seconds_count{endpoint="mutate"} 25.0' in text


def test_a_worker_that_dies_comes_back_though_the_policy_is_broken_meanwhile(webhook: Webhook) -> None:
    replace(webhook.folder / "policy.yaml", b"default: {ceilling: 60}\n")
    workers = webhook.workers()
    assert webhook.review("/mutate", pod())["allowed"]
    for worker, how in zip(workers, (signal.SIGKILL, signal.SIGTERM), strict=True):
        os.kill(worker, how)

    def answers() -> bool:
        with contextlib.suppress(OSError, http.client.HTTPException):
            return bool(webhook.review("/mutate", pod())["allowed"])
        return False

    settled(answers)
    assert webhook.process.poll() is None
    # What the first workers counted is still there.
    text = webhook.metrics().partition('reviews_total{endpoint="mutate",outcome="mutated"} ')[2]
    assert float(text.split()[0]) >= 13


def test_connections_on_which_nothing_comes_keep_nobody_waiting(webhook: Webhook) -> None:
    """As the API server opens them ahead of need: more than there are threads."""
    with contextlib.ExitStack() as stack:
        silent = [stack.enter_context(webhook.stream()) for _ in range(40)]
        for _ in range(20):
            stack.enter_context(socket.create_connection(("127.0.0.1", webhook.port), 20))
        for _ in range(8):
            assert webhook.review("/mutate", pod())["allowed"]
        silent[0].sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        assert silent[0].recv(1024).startswith(b"HTTP/1.1 200")


def test_bodies_cut_off_on_the_wire_harm_nobody(webhook: Webhook) -> None:
    head = b"POST /mutate HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n{"
    for _ in range(20):
        with webhook.stream() as stream:
            stream.sendall(head)
    with socket.create_connection(("127.0.0.1", webhook.port), 20) as raw:
        raw.sendall(b"GET / HTTP/1.1\r\n\r\n")  # plain text on a TLS port
    assert webhook.review("/mutate", pod())["allowed"]
    assert not [line for line in webhook.log() if line["level"] == "ERROR"]


def test_a_body_above_the_limit_is_refused_and_not_read(webhook: Webhook) -> None:
    """With a length and in chunks; the client learns of it though it has sent only a part."""
    piece = b"0" * (1 << 20)
    chunk = b"%x\r\n%s\r\n" % (len(piece), piece)
    start = b"POST /mutate HTTP/1.1\r\nHost: x\r\n"
    whole = {
        b"Content-Length: %d\r\n\r\n" % ((16 << 20) + 1): 0,
        b"Transfer-Encoding: chunked\r\n\r\n": 17,
    }
    for head, chunks in whole.items():
        with webhook.stream() as stream:
            stream.sendall(start + head)
            for _ in range(chunks):
                stream.sendall(chunk)
            answer = http.client.HTTPResponse(stream)
            answer.begin()
            assert (answer.status, answer.headers["Content-Type"]) == (413, "application/problem+json")
            assert json.loads(answer.read())["code"] == "request-entity-too-large"
            assert stream.recv(1) == b""  # what else comes is no request
    assert webhook.review("/mutate", pod())["allowed"]


def test_a_large_review_in_chunks_is_judged(webhook: Webhook) -> None:
    manifest = pod()
    manifest["spec"]["containers"][0]["env"] = [{"name": f"V{n}", "value": "x" * 80} for n in range(10_000)]
    body = json.dumps(review(manifest)).encode()
    with contextlib.closing(webhook.connect()) as connection:
        for _ in range(2):  # the connection stays
            pieces = (body[at : at + 100_000] for at in range(0, len(body), 100_000))
            connection.request("POST", "/mutate", pieces, {"Transfer-Encoding": "chunked"}, encode_chunked=True)
            assert json.loads(connection.getresponse().read())["response"]["allowed"]


def test_what_has_begun_is_finished_when_the_server_is_to_stop(webhook: Webhook) -> None:
    body = json.dumps(review(pod())).encode()
    head = b"POST /mutate HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body)
    idle = webhook.connect()
    assert webhook.review("/mutate", pod(), idle)["allowed"]
    with webhook.stream() as begun, contextlib.closing(idle), socket.socket() as half:
        begun.sendall(head + body[:10])
        half.connect(("127.0.0.1", webhook.port))
        assert webhook.review("/mutate", pod())["allowed"]
        webhook.process.send_signal(signal.SIGTERM)
        eventually(lambda: not _listens(webhook.port))
        begun.sendall(body[10:])
        answers = [http.client.HTTPResponse(begun)]
        answers[0].begin()
        idle.request("POST", "/mutate", body)
        answers.append(idle.getresponse())
        with webhook.context.wrap_socket(half, server_hostname="127.0.0.1") as late:
            late.sendall(head + body)
            answers.append(http.client.HTTPResponse(late))
            answers[2].begin()
        for answer in answers:
            assert (answer.status, answer.headers["Connection"]) == (200, "close")
            assert json.loads(answer.read())["response"]["allowed"]
    assert webhook.process.wait(20) == 0


def _listens(port: int) -> bool:
    with contextlib.suppress(ConnectionRefusedError), socket.create_connection(("127.0.0.1", port), 20):
        return True
    return False
