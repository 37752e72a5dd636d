# SPDX-License-Identifier: Apache-2.0
"""Reviews per second over TLS, beside bare views that parse the same JSON: of Flask on threads, of Starlette on a loop.

    .venv/bin/python benchmarks/webhook/reviews.py [--rounds 5] [--seconds 3] [--connections 8]

All run with two workers and the same settings; the webhook's server is that of the Starlette view. The load generator
shares their cores, so rounds of them take turns and what counts is the ratio in one run. The generator's own cost is in
both rates and so favours the ratio; the servers' CPU time per review, read from /proc, is free of it. Prints Markdown.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import multiprocessing
import os
import socket
import ssl
import statistics
import tempfile
import threading
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import flask
import orjson
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from certificates.authority import make_ca, sign_server
from slicekeeper.clock import Clock
from slicekeeper.config.policy import PolicyBook
from slicekeeper.config.settings import ServingSettings, Settings, TlsSettings
from slicekeeper.net.serving.process import serve
from slicekeeper.net.serving.wsgi import WsgiBridge
from slicekeeper.wire.timekeeper import DecisionList
from webhook.admission import Admission
from webhook.admission_review import Reviewer
from webhook.app import make_shell
from webhook.decision_refresh import Decisions
from webhook.json_patch import apply
from webhook.review_inputs import Case

BARE = ("bare Flask", "bare Starlette")


class NoDecisions:
    """A timekeeper that has decided nothing yet and answers at once."""

    def decisions(self, etag: str = "") -> tuple[DecisionList | None, str]:
        return DecisionList(items=[], as_of=""), etag


def pod(containers: int) -> dict:
    """A pod as the API server sends it, defaults and all; every container holds a share of a GPU."""
    mount = {
        "name": "kube-api-access-x7k2p",
        "readOnly": True,
        "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount",
    }
    share = {"cpu": "2", "memory": "8Gi", "tencent.com/vcuda-core": "50", "tencent.com/vcuda-memory": "15"}
    return {
        "kind": "Pod",
        "apiVersion": "v1",
        "metadata": {
            "generateName": "train-",
            "namespace": "research",
            "labels": {"batch.kubernetes.io/job-name": "train", "app": "resnet"},
            "annotations": {"example.com/owner": "vision"},
            "ownerReferences": [
                {"apiVersion": "batch/v1", "kind": "Job", "name": "train", "uid": "b2", "controller": True}
            ],
        },
        "spec": {
            "volumes": [{"name": "kube-api-access-x7k2p", "projected": {"sources": [], "defaultMode": 420}}],
            "containers": [
                {
                    "name": f"trainer-{index}",
                    "image": "registry.example.com/vision/resnet:2026-03",
                    "command": ["python", "-m", "train", "--epochs", "90"],
                    "env": [{"name": f"OPTION_{n}", "value": "x" * 20} for n in range(6)],
                    "resources": {"limits": dict(share), "requests": dict(share)},
                    "volumeMounts": [mount],
                    "terminationMessagePath": "/dev/termination-log",
                    "terminationMessagePolicy": "File",
                    "imagePullPolicy": "IfNotPresent",
                }
                for index in range(containers)
            ],
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 30,
            "dnsPolicy": "ClusterFirst",
            "serviceAccountName": "default",
            "serviceAccount": "default",
            "securityContext": {},
            "schedulerName": "default-scheduler",
            "tolerations": [
                {
                    "key": "node.kubernetes.io/not-ready",
                    "operator": "Exists",
                    "effect": "NoExecute",
                    "tolerationSeconds": 300,
                }
            ],
            "priority": 0,
            "enableServiceLinks": True,
            "preemptionPolicy": "PreemptLowerPriority",
        },
        "status": {},
    }


def review(obj: dict) -> bytes:
    kind = {"group": "", "version": "v1", "kind": "Pod"}
    return orjson.dumps(
        {
            "kind": "AdmissionReview",
            "apiVersion": "admission.k8s.io/v1",
            "request": {
                "uid": "0df28fbd-5f5f-11e8-bc74-36e6bb280816",
                "kind": kind,
                "resource": {"group": "", "version": "v1", "resource": "pods"},
                "requestKind": kind,
                "namespace": "research",
                "operation": "CREATE",
                "userInfo": {
                    "username": "system:serviceaccount:kube-system:job-controller",
                    "groups": ["system:authenticated"],
                },
                "object": obj,
                "oldObject": None,
                "dryRun": False,
                "options": {"kind": "CreateOptions", "apiVersion": "meta.k8s.io/v1"},
            },
        }
    )


def bare_answer(body: bytes) -> bytes:
    """What a webhook that does nothing costs: it parses and answers that all is well."""
    response = {"uid": orjson.loads(body)["request"]["uid"], "allowed": True}
    return orjson.dumps({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response})


def flask_app() -> flask.Flask:
    app = flask.Flask(__name__, static_folder=None)
    app.config["MAX_CONTENT_LENGTH"] = 16 << 20

    @app.post("/mutate")
    @app.post("/validate")
    def view() -> flask.Response:
        return flask.Response(bare_answer(flask.request.get_data(cache=False)), mimetype="application/json")

    return app


def starlette_app() -> Starlette:
    async def view(request: Request) -> Response:
        return Response(bare_answer(await request.body()), media_type="application/json")

    return Starlette(routes=[Route(path, view, methods=["POST"]) for path in ("/mutate", "/validate")])


def webhook_app() -> Starlette:
    """The webhook as it is served, with a timekeeper that answers at once."""
    settings, book = Settings(), PolicyBook()
    decisions = Decisions(NoDecisions(), Clock(), settings.webhook)
    decisions.start()

    def case_of(namespace: str) -> Case:
        policy = book.of(namespace)
        return Case(namespace, policy, decisions.standing(namespace, policy))

    reviewer = Reviewer(Admission(settings), case_of)
    return make_shell(reviewer, settings.webhook.max_body_bytes, dict)


def run_server(which: str, port: int, folder: Path) -> None:
    tls = TlsSettings(certificate_file=str(folder / "tls.crt"), key_file=str(folder / "tls.key"))
    bind = f"127.0.0.1:{port}"
    applications = {"bare Flask": lambda: WsgiBridge(flask_app(), threads=8), "bare Starlette": starlette_app}
    make = applications.get(which, webhook_app)
    serve(make, bind=bind, workers=2, tls=tls, limits=ServingSettings(), loglevel="warning")


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


class Load:
    """Keep-alive connections that send one prepared request again and again."""

    def __init__(self, port: int, ca: Path, body: bytes, path: str, connections: int) -> None:
        self.port, self.connections = port, connections
        self.context = ssl.create_default_context(cafile=str(ca))
        lines = (
            f"POST {path} HTTP/1.1",
            "Host: 127.0.0.1",
            "Content-Type: application/json",
            f"Content-Length: {len(body)}",
        )
        self.request = "\r\n".join((*lines, "", "")).encode() + body

    def once(self, stream: ssl.SSLSocket) -> bytes:
        stream.sendall(self.request)
        data = stream.recv(65536)
        while b"\r\n\r\n" not in data:
            data += stream.recv(65536)
        head, _, body = data.partition(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 200"):
            raise RuntimeError(f"answer: {data[:300]!r}")
        length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n", 1)[0])
        while len(body) < length:
            body += stream.recv(65536)
        return body

    def connect(self) -> ssl.SSLSocket:
        raw = socket.create_connection(("127.0.0.1", self.port), timeout=30)
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return self.context.wrap_socket(raw, server_hostname="127.0.0.1")

    def run(self, seconds: float) -> tuple[float, list[float]]:
        """Return reviews per second and each one's time in seconds."""
        times: list[list[float]] = [[] for _ in range(self.connections)]
        streams = [self.connect() for _ in times]
        for stream in streams:
            self.once(stream)
        begin = time.perf_counter()
        end = begin + seconds

        def work(stream: ssl.SSLSocket, mine: list[float]) -> None:
            now = time.perf_counter()
            while now < end:
                self.once(stream)
                after = time.perf_counter()
                mine.append(after - now)
                now = after

        threads = [threading.Thread(target=work, args=pair) for pair in zip(streams, times, strict=True)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        elapsed = time.perf_counter() - begin
        for stream in streams:
            stream.close()
        everything = [t for mine in times for t in mine]
        return len(everything) / elapsed, everything


def cpu_seconds(server: int) -> float:
    """CPU time that the workers of a gunicorn have used."""
    ticks = 0
    for file in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = file.read_text().rpartition(")")[2].split()
            if int(fields[1]) == server:
                ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def wait_for(load: Load) -> None:
    for _ in range(1200):
        try:
            with load.connect() as stream:
                load.once(stream)
                return
        except OSError:
            time.sleep(0.05)
    raise RuntimeError(f"no server on port {load.port}")


def percentile(values: list[float], percent: int) -> float:
    return statistics.quantiles(values, n=100)[percent - 1] * 1000


def main() -> None:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--rounds", type=int, default=5)
    arguments.add_argument("--seconds", type=float, default=3.0)
    arguments.add_argument("--connections", type=int, default=8)
    chosen = arguments.parse_args()
    spawn = multiprocessing.get_context("spawn")
    new, body = pod(1), review(pod(1))
    settings = Settings()
    admission = Admission(settings)
    admitted = review(apply(new, admission.mutate(new, Case("research", PolicyBook().default)).patch))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        now, day = datetime.now(UTC), timedelta(days=1)
        authority = make_ca(now, day)
        server = sign_server(authority, ("127.0.0.1",), now, day)
        (folder / "ca.crt").write_bytes(authority.certificate)
        (folder / "tls.crt").write_bytes(server.certificate)
        (folder / "tls.key").write_bytes(server.key)
        (folder / "metrics").mkdir()
        os.environ["PROMETHEUS_MULTIPROC_DIR"] = str(folder / "metrics")
        servers, loads = {}, {}
        for which in (*BARE, "webhook"):
            port = free_port()
            servers[which] = spawn.Process(target=run_server, args=(which, port, folder))
            servers[which].start()
            ca = folder / "ca.crt"
            loads[which, "mutate"] = Load(port, ca, body, "/mutate", chosen.connections)
            loads[which, "validate"] = Load(port, ca, admitted, "/validate", chosen.connections)
        try:
            rows = measure(chosen.rounds, chosen.seconds, {k: v.pid or 0 for k, v in servers.items()}, loads)
        finally:
            for server in servers.values():
                server.terminate()
            for server in servers.values():
                server.join()
    print(f"{chosen.rounds} rounds of {chosen.seconds:g} s, {chosen.connections} connections, 2 workers, TLS 1.3\n")
    print(
        "| review | view | reviews/s | p50 ms | p99 ms | server CPU µs/review |\n"
        "| --- | --- | ---: | ---: | ---: | ---: |"
    )
    for (which, endpoint), row in rows.items():
        rate, cpu = statistics.median(row.rates), row.cpu / len(row.times) * 1e6
        shown = f"{rate:.0f} | {percentile(row.times, 50):.2f} | {percentile(row.times, 99):.2f} | {cpu:.0f}"
        print(f"| {endpoint} | {which} | {shown} |")
    print()
    for which, endpoint in itertools.product(BARE, ("mutate", "validate")):
        ours, bare = rows["webhook", endpoint], rows[which, endpoint]
        ratios = [a / b for a, b in zip(ours.rates, bare.rates, strict=True)]
        cpu = (bare.cpu / len(bare.times)) / (ours.cpu / len(ours.times))
        each = ", ".join(f"{ratio:.2f}" for ratio in ratios)
        print(f"`{endpoint}` ÷ {which}: ratio of rates by round {each};")
        print(f"median **{statistics.median(ratios):.2f}**; by server CPU {cpu:.2f}.")


class Row:
    """What one load on one server came to."""

    def __init__(self) -> None:
        self.rates: list[float] = []
        self.times: list[float] = []
        self.cpu = 0.0


def measure(
    rounds: int, seconds: float, pids: dict[str, int], loads: dict[tuple[str, str], Load]
) -> dict[tuple[str, str], Row]:
    rows = {key: Row() for key in loads}
    for load in loads.values():
        wait_for(load)
        load.run(0.5)
    with loads["webhook", "mutate"].connect() as stream:
        response = json.loads(loads["webhook", "mutate"].once(stream))["response"]
        assert "patch" in response, "the pod must get its patch"
    with loads["webhook", "validate"].connect() as stream:
        assert json.loads(loads["webhook", "validate"].once(stream))["response"]["allowed"]
    for _ in range(rounds):
        for endpoint in ("mutate", "validate"):
            for which in (*BARE, "webhook"):
                row, before = rows[which, endpoint], cpu_seconds(pids[which])
                rate, times = loads[which, endpoint].run(seconds)
                row.cpu += cpu_seconds(pids[which]) - before
                row.rates.append(rate)
                row.times += times
    return rows


if __name__ == "__main__":
    main()
