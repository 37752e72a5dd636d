# SPDX-License-Identifier: Apache-2.0
"""The timekeeper's routes on a database, under the server that it ships with, with a bare view beside them.

    python server.py DATABASE-URL PORT THREADS [NOW]

The bare view `POST /bare` reads its body as JSON and writes it back: what the server itself costs. `GET /peak` tells
the most bytes that the process had resident since it was last asked, and its CPU seconds so far. NOW, in milliseconds,
stops the clock there. No cluster is followed, and `/metrics` is served beside the rest.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

import msgspec
from flask import Flask, Response, request
from prometheus_client import generate_latest

from slicekeeper.clock import Clock
from slicekeeper.config.policy_file import PolicyFile
from slicekeeper.config.settings import (
    KubernetesSettings,
    PolicySettings,
    ServingSettings,
    Settings,
    TimekeeperSettings,
)
from slicekeeper.kube.client import KubeClient
from slicekeeper.net.serving.process import serve
from slicekeeper.net.serving.wsgi import WsgiBridge
from slicekeeper.units import Instant
from timekeeper.api import metrics
from timekeeper.api.app import routed
from timekeeper.api.handler_context import HandlerContext
from timekeeper.api.identity import Identity
from timekeeper.cluster.reconcile_loop import Controller
from timekeeper.ledger.books import Books
from timekeeper.store.db.database import Database
from timekeeper.store.db.engine import make_engine

TOKEN = "benchmark"


class Stopped(Clock):
    """A clock that stays at its origin."""

    def now_ms(self) -> Instant:
        """Return that instant."""
        return Instant(self.origin_ms)


def bare() -> Response:
    """Read JSON, write JSON."""
    return Response(msgspec.json.encode(msgspec.json.decode(request.get_data())), content_type="application/json")


def peak() -> Response:
    """Tell the most memory since the last call, and the CPU time."""
    status = Path("/proc/self/status").read_text()
    found = next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmHWM"))
    Path("/proc/self/clear_refs").write_text("5")
    return Response(msgspec.json.encode({"peak": found, "cpu": time.process_time()}), content_type="application/json")


def make(url: str, folder: Path, clock: Clock) -> Flask:
    """Return the application."""
    (folder / "token").write_text(TOKEN)
    (folder / "policy.yaml").write_text("default: {budget: {amount: 1000h, period: month}}\n")
    settings = Settings(
        kubernetes=KubernetesSettings(server="http://127.0.0.1:9"),
        policy=PolicySettings(file=str(folder / "policy.yaml")),
        timekeeper=TimekeeperSettings(database=url, operator_token_file=str(folder / "token")),
    )
    client = KubeClient(settings.kubernetes)
    books = Books(Database(make_engine(url)), "default", carry=False)
    policy = PolicyFile(settings.policy)
    identity = Identity(client, "timekeeper", settings.timekeeper.operator_token_file)
    controller = Controller(settings, clock, client, books, policy, identity.forget)
    service = HandlerContext(settings, clock, books, policy, controller, identity)
    registry = metrics.registry(service)
    app = routed(service)
    app.add_url_rule("/metrics", "metrics", lambda: Response(generate_latest(registry)))
    app.add_url_rule("/bare", "bare", bare, methods=["POST"])
    app.add_url_rule("/peak", "peak", peak)
    return app


def main() -> None:
    """Serve."""
    url, port, threads = sys.argv[1], sys.argv[2], int(sys.argv[3])
    clock = Stopped(int(sys.argv[4])) if len(sys.argv) > 4 else Clock()
    with tempfile.TemporaryDirectory() as folder:
        serve(
            lambda: WsgiBridge(make(url, Path(folder), clock), threads=threads, max_body_bytes=4 << 20),
            bind=f"127.0.0.1:{port}",
            limits=ServingSettings(),
        )


if __name__ == "__main__":
    main()
