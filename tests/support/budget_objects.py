# SPDX-License-Identifier: Apache-2.0
"""GpuBudgets in the simulated API server, beside a timekeeper's service over a real database, and who keeps them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
from flask import Flask
from support.custom_objects import apply, kinds_served
from support.manual_clock import ManualClock
from support.timekeeper_service import serving

from objects.budgets.keeper import Keeper
from objects.budgets.resources import CLUSTER_GPU_BUDGETS, GPU_BUDGETS, ONLY_NAME
from simulator.api_errors import ObjectNotFound
from simulator.cluster import Cluster
from simulator.kinds import ObjectKind
from simulator.store import Store
from slicekeeper.config.settings import TimekeeperClientSettings
from slicekeeper.kube.client import NAMESPACES, KubeClient, Object, Resource
from slicekeeper.net import json_client
from slicekeeper.net.timekeeper_client import TimekeeperClient
from timekeeper.api.app import routed
from timekeeper.api.handler_context import HandlerContext
from timekeeper.ledger.verify import verify

T0 = 1_767_225_600_000
TEAM, ORGANISATION = GPU_BUDGETS.resource, CLUSTER_GPU_BUDGETS.resource
DEFINITIONS = Resource("/apis/apiextensions.k8s.io/v1", "customresourcedefinitions", namespaced=False)


served = partial(
    kinds_served,
    ObjectKind("GpuBudget", TEAM),
    ObjectKind("ClusterGpuBudget", ORGANISATION),
    ObjectKind("CustomResourceDefinition", DEFINITIONS),
)


class Killed(BaseException):
    """The process ends here, whatever it would have caught."""


@dataclass
class Interrupted:
    """Stands before a client: at the call of a number something happens, before or after the call is carried out."""

    client: Any
    calls: Iterator[int]
    at: int
    happens: Callable[[], None]
    after: bool

    def __getattr__(self, name: str) -> Any:
        method = getattr(self.client, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            now = next(self.calls) == self.at
            if now and not self.after:
                self.happens()
            answer = method(*args, **kwargs)
            if now and self.after:
                self.happens()
            return answer

        return call


class _FlaskHttp:
    """What `JsonClient` is, for an application in this process."""

    def __init__(self, app: Flask) -> None:
        self._app = app

    def request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Any = None,
        headers: Mapping[str, str] | None = None,
    ) -> tuple[int, Mapping[str, str], bytes]:
        sent = {"Authorization": "Bearer operator-token", **(headers or {})}
        data = None if body is None else msgspec.json.encode(body)
        answer = self._app.test_client().open(
            path, method=method, query_string=query, data=data, headers=sent, content_type="application/json"
        )
        if answer.status_code >= 400:
            raise json_client._refusal(answer.status_code, answer.data, f"{method} {path}")
        return answer.status_code, answer.headers, answer.data


@dataclass
class ObjectWorld:
    """A cluster, its ledger, and short words for what tests do to both."""

    clock: ManualClock
    service: HandlerContext
    cluster: Cluster
    kube: KubeClient
    timekeeper: TimekeeperClient

    @property
    def store(self) -> Store:
        return self.cluster.store

    def namespace(self, name: str) -> str:
        self.kube.create(NAMESPACES, {"metadata": {"name": name}})
        return name

    def apply(self, spec: Object, namespace: str = "team", name: str = ONLY_NAME, by: str = "") -> Object:
        return apply(self.store, TEAM, namespace, name, spec, by)

    def apply_parent(self, name: str, spec: Object, by: str = "") -> Object:
        return apply(self.store, ORGANISATION, "", name, spec, by)

    def delete(self, namespace: str = "team") -> None:
        with suppress(ObjectNotFound):
            self.store.delete(TEAM, ONLY_NAME, namespace)

    def status(self, namespace: str = "team") -> Object:
        return dict(self.store.get(TEAM, ONLY_NAME, namespace).get("status") or {})

    def keeper(self, *, acts: Callable[[], bool] = lambda: True) -> Keeper:
        return Keeper(self.kube, self.timekeeper, self.clock, acts)

    def acts(self, namespace: str = "team") -> list[str]:
        return [action for _, action in self.audit(namespace=namespace)]

    def audit(self, **query: str) -> list[tuple[str, str]]:
        """Return who did what."""
        return [(one["actor"], one["action"]) for one in self.timekeeper.records("audit", query=query)]


@contextmanager
def object_world(folder: Path, database_url: str) -> Iterator[ObjectWorld]:
    """Make one; at the end its ledger must be right."""
    clock = ManualClock(T0)
    with served(), serving(folder, database_url, clock) as (service, cluster):
        kube = KubeClient(service.settings.kubernetes)
        timekeeper = TimekeeperClient(TimekeeperClientSettings(url="http://here"))
        timekeeper._http = _FlaskHttp(routed(service))  # type: ignore[assignment]
        try:
            yield ObjectWorld(clock, service, cluster, kube, timekeeper)
            assert verify(service.books.database.engine, carry=False).differences == []
        finally:
            kube.close()
