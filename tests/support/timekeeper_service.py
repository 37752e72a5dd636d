# SPDX-License-Identifier: Apache-2.0
"""A timekeeper's service over a simulated cluster and a real database, for tests of its REST interface."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

from flask import Flask
from prometheus_client import generate_latest
from support.manual_clock import ManualClock
from support.openings import opening
from support.small_cluster import api_served
from werkzeug.test import TestResponse

from simulator.api import Api
from simulator.cluster import Cluster
from slicekeeper import names
from slicekeeper.config.policy_file import PolicyFile
from slicekeeper.config.settings import PolicySettings, Settings, TimekeeperSettings
from slicekeeper.kube.client import NAMESPACES, PODS, Object
from timekeeper.api import metrics
from timekeeper.api.app import routed
from timekeeper.api.handler_context import HandlerContext
from timekeeper.api.identity import Identity
from timekeeper.cluster.reconcile_loop import Controller
from timekeeper.ledger import workload
from timekeeper.ledger.books import Books
from timekeeper.ledger.workload import Closing
from timekeeper.store.db.database import Database
from timekeeper.store.db.engine import make_engine

T0 = 1_767_225_600_000
HOUR = 3_600_000
OPERATOR = {"Authorization": "Bearer operator-token"}
GOOD_BUDGET = {"amountMs": 1, "period": "day", "timeZone": "UTC"}
GOOD_GRANT = {"amountMs": 1, "reason": "r"}


@dataclass
class World:
    """A service with what it is made of, and short words for what tests do with it."""

    clock: ManualClock
    service: HandlerContext
    cluster: Cluster
    app: Flask

    def call(self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None) -> TestResponse:
        data = body if isinstance(body, (bytes, type(None))) else json.dumps(body).encode()
        sent = {**OPERATOR, **(headers or {})}
        return self.app.test_client().open(
            path, method=method, data=data, headers=sent, content_type="application/json"
        )

    def get(self, path: str, **headers: str) -> Any:
        answer = self.call("GET", path, headers=headers)
        assert answer.status_code == 200, answer.data
        return answer.json

    def metrics(self) -> str:
        return generate_latest(metrics.registry(self.service)).decode()

    def pod(self, uid: str, namespace: str = "team", rate: Fraction = Fraction(1)) -> str:
        """Have a pod run, as the watch and the books have it; return its token."""
        metadata = {"name": f"{uid}-pod", "namespace": namespace, "uid": uid, "labels": {names.MANAGED_LABEL: "true"}}
        spec: Object = {"nodeName": "n", "restartPolicy": "Never", "containers": [{"name": "main"}]}
        pod: Object = {"metadata": metadata, "spec": spec, "status": {"phase": "Running"}}
        self.cluster.store.create(PODS, pod, namespace)
        stored = self.cluster.store.get(PODS, f"{uid}-pod", namespace)
        self.service.controller.pods.on_event("ADDED", stored)
        workload.apply(
            self.service.books,
            [replace(opening(stored["metadata"]["uid"], self.clock.now_ms(), rate, namespace), pod_name=f"{uid}-pod")],
            [],
            {namespace: self.service.policy.of(namespace)},
            self.clock.now_ms(),
        )
        return self.cluster.tokens.issue(stored, "timekeeper")

    def end(self, uid: str, namespace: str = "team") -> None:
        """Have the books learn that a pod ends now."""
        now = self.clock.now_ms()
        workload.apply(self.service.books, [], [Closing(self.uid(f"{uid}-pod", namespace), now, "finished")], {}, now)

    def uid(self, name: str, namespace: str = "team") -> str:
        return str(self.cluster.store.get(PODS, name, namespace)["metadata"]["uid"])


@contextmanager
def serving(folder: Path, database_url: str, clock: ManualClock) -> Iterator[tuple[HandlerContext, Cluster]]:
    """Serve the namespaces team and other; the operator's token is operator-token. The controller does not run."""
    cluster = Cluster(clock)
    token, policy = folder / "token", folder / "policy.yaml"
    token.write_text("operator-token\n")
    policy.write_text("default: {budget: {amount: 150m, period: day}}\n")
    with api_served(Api(cluster)) as (reached, client):
        settings = Settings(
            kubernetes=reached,
            policy=PolicySettings(file=str(policy)),
            timekeeper=TimekeeperSettings(database=database_url, operator_token_file=str(token)),
        )
        for name in ("team", "other"):
            client.create(NAMESPACES, {"metadata": {"name": name}})
        database = Database(make_engine(database_url))
        books, file = Books(database, "default", carry=False), PolicyFile(settings.policy)
        identity = Identity(client, "timekeeper", str(token))
        controller = Controller(settings, clock, client, books, file, identity.forget)
        try:
            yield HandlerContext(settings, clock, books, file, controller, identity), cluster
        finally:
            controller.stop()
            database.close()


@contextmanager
def new_world(folder: Path, database_url: str) -> Iterator[World]:
    """Serve a world in which nothing has happened."""
    clock = ManualClock(T0)
    with serving(folder, database_url, clock) as (service, cluster):
        for name in ("team", "other"):
            service.controller.namespaces.on_event("ADDED", {"metadata": {"name": name, "uid": f"uid-{name}"}})
        yield World(clock, service, cluster, routed(service))
