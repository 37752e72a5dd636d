# SPDX-License-Identifier: Apache-2.0
"""The webhook as it is deployed: its own process over TLS, with a timekeeper beside it that can be killed."""

import contextlib
import http.client
import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import threading
from base64 import b64decode
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

import yaml
from cryptography import x509
from support.ports import free_port
from support.quiet_handler import QuietHandler
from support.waiting import wait_for

from certificates.authority import make_ca, sign_server

LIFE = timedelta(days=1)
SHARE = {"tencent.com/vcuda-core": 50, "tencent.com/vcuda-memory": 15}


class Authority:
    """A certificate authority that issues one server certificate after another."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ca = make_ca(datetime.now(UTC), LIFE)
        (folder / "ca.crt").write_bytes(self.ca.certificate)

    def issue(self) -> int:
        """Replace certificate and key, one after the other, as a Secret's files are; return the serial number."""
        made = sign_server(self.ca, ("127.0.0.1",), datetime.now(UTC), LIFE)
        replace(self.folder / "tls.key", made.key)
        replace(self.folder / "tls.crt", made.certificate)
        return x509.load_pem_x509_certificate(made.certificate).serial_number


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

    @property
    def client(self) -> dict[str, Any]:
        return {"url": f"http://127.0.0.1:{self.port}"}

    def start(self) -> None:
        outer = self

        class Handler(QuietHandler):
            def do_GET(self) -> None:
                tag = f'"{outer.exhausted}"'
                known = self.headers.get("If-None-Match") == tag
                outer.not_modified += known
                body = json.dumps({"asOf": "", "items": [outer.decision(n) for n in outer.exhausted]}).encode()
                self.send(b"" if known else body, 304 if known else 200, {"ETag": tag})

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
            "enforcement": "hard" if namespace == "spent" else "soft",
            "namespace": namespace,
            "state": "exhausted",
            "balanceMs": 0,
            "usedMs": 1,
            "asOf": "",
            "since": "",
            "staleAfter": "",
            "priorityClassName": "",
        }


class Webhook:
    """The process, and requests to it.

    `client` says where it finds its timekeeper, `policies` the API server whose GpuPolicies it follows. `first` is
    Python that the process runs before it serves.
    """

    def __init__(
        self, folder: Path, client: dict[str, Any], *, policies: str = "", first: str = "", **more: Any
    ) -> None:
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
                **more,
            },
            "timekeeperClient": {"timeoutSeconds": 2, **client},
            "policy": {"file": str(folder / "policy.yaml"), "reloadSeconds": 0.1, "objects": bool(policies)},
            "kubernetes": {"server": policies},
        }
        (folder / "config.yaml").write_text(yaml.safe_dump(config), "utf-8")
        self.context = ssl.create_default_context(cafile=str(folder / "ca.crt"))
        environ = {k: v for k, v in os.environ.items() if not k.startswith(("SLICEKEEPER_", "KUBERNETES_"))}
        command = [sys.executable, "-c", f"{first}\nfrom slicekeeper.cli.main import main; main()"]
        with (folder / "log").open("wb") as log:
            self.process = subprocess.Popen(
                [*command, "--config", str(folder / "config.yaml"), "webhook", "serve"], stderr=log, env=environ
            )

    def wait_until_ready(self) -> None:
        """Wait until both workers serve with fresh decisions."""

        def fresh() -> bool:
            with contextlib.suppress(OSError):
                return "fresh" in self.get("/readyz")
            return False

        def serve() -> bool:
            assert self.process.poll() is None, (self.folder / "log").read_text("utf-8")
            return len(self.workers()) == 2

        wait_for(serve, "both workers")
        self.settled(fresh)

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60)

    def workers(self) -> list[int]:
        """Return the processes that serve: their threads run, the one for metrics last."""
        found = []
        for file in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):
                fields = file.read_text().rpartition(")")[2].split()
                if int(fields[1]) == self.process.pid and int(fields[17]) >= 4:
                    found.append(int(file.parent.name))
        return found

    def settled(self, check: Callable[[], bool]) -> None:
        """Wait until every worker passes: each is asked while the other is stopped, as a busy one may take no turn."""

        def all_pass() -> bool:
            return len(workers := self.workers()) == 2 and all(self._alone(worker, check) for worker in workers)

        wait_for(all_pass, "what every worker must pass")

    def _alone(self, worker: int, check: Callable[[], bool]) -> bool:
        others = [other for other in self.workers() if other != worker]
        with contextlib.suppress(ProcessLookupError):
            for other in others:
                os.kill(other, signal.SIGSTOP)
            try:
                return check()
            finally:
                for other in others:
                    os.kill(other, signal.SIGCONT)
        return False

    def log(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.folder / "log").read_text("utf-8").splitlines()]

    def connect(self) -> http.client.HTTPSConnection:
        return http.client.HTTPSConnection("127.0.0.1", self.port, timeout=60, context=self.context)

    def get(self, path: str) -> str:
        with contextlib.closing(self.connect()) as connection:
            connection.request("GET", path)
            answer = connection.getresponse()
            assert answer.status == 200
            return answer.read().decode()

    def metrics(self) -> str:
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", self.metrics_port, timeout=60)) as plain:
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
        raw = socket.create_connection(("127.0.0.1", self.port), 60)
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
