# SPDX-License-Identifier: Apache-2.0
"""What every endpoint refuses, driven by the OpenAPI document itself: a new route cannot be forgotten here."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from flask import Flask
from support import scripted_history as history
from support.manual_clock import ManualClock
from support.timekeeper_service import serving

from slicekeeper import names
from slicekeeper.kube.client import PODS
from timekeeper.api.app import MAX_BODY_BYTES, routed
from timekeeper.core.budget_record import Rule
from timekeeper.ledger import hierarchy
from timekeeper.store.db.database import Database

PLACES = {"{namespace}": "team", "{parent}": "lab", "{reservation}": "1", "{grant}": "1"}
BAD_PATHS = ("Team", "a" * 64, "-a", "a_b", "%2e%2e", "a%00", "%F0%9F%92%A5")
BAD_INTEGERS = (2**63, -(2**63) - 1, 10**40, 1.5, "1", True, None)
GOOD: dict[str, Any] = {
    "timeZone": "UTC",
    "reason": "r",
    "to": "other",
    "podUid": "nobody",
    "rate": "1",
    "model": "A100",
}


@dataclass
class Operation:
    """One method of one path, as the document tells of it."""

    method: str
    path: str
    told: dict[str, Any]
    schemas: dict[str, Any]

    @property
    def body(self) -> dict[str, Any] | None:
        content = self.told.get("requestBody", {}).get("content", {})
        return None if not content else self.resolved(content["application/json"]["schema"])

    def resolved(self, schema: dict[str, Any]) -> dict[str, Any]:
        return self.schemas[schema["$ref"].rpartition("/")[2]] if "$ref" in schema else schema

    def at(self, **places: str) -> str:
        """Return the path of what there is, or of another place."""
        found = self.path
        for place, name in PLACES.items():
            found = found.replace(place, places.get(place.strip("{}"), name))
        return found

    def good(self) -> dict[str, Any]:
        """Return a body of which nothing is wrong by itself."""
        found = self.body or {}
        wanted = found.get("required", [])
        return {name: self.value(name, self.resolved(found["properties"][name])) for name in wanted}

    def value(self, name: str, schema: dict[str, Any]) -> Any:
        if name in GOOD:
            return GOOD[name]
        if "enum" in schema:
            return schema["enum"][0]
        if schema.get("type") == "integer":
            return max(schema.get("minimum", 0), 1)
        return {"string": "2030-01-01T00:00:00Z", "array": [], "number": 1.0, "boolean": False}.get(
            schema.get("type", "")
        )


@dataclass
class Site:
    app: Flask
    database: Database
    foreign: str
    """A token of a pod in another namespace."""
    operations: list[Operation]

    def send(self, it: Operation, body: Any = None, *, path: str = "", token: str = "operator-token") -> Any:
        data = body if isinstance(body, bytes) else None if body is None else json.dumps(body).encode()
        headers = {"Authorization": f"Bearer {token}", "Idempotency-Key": "k"}
        return self.app.test_client().open(
            path or it.at(),
            method=it.method.upper(),
            data=data,
            headers=headers,
            content_type="application/json",
        )

    def refused(self, it: Operation, what: str, statuses: tuple[int, ...], answer: Any) -> None:
        where = f"{it.method} {it.path}, {what}: {answer.status_code} {answer.data[:200]!r}"
        assert answer.status_code in statuses, where
        assert answer.content_type == "application/problem+json", where
        assert answer.json["type"] == f"urn:slicekeeper:problem:{answer.json['code']}", where


@pytest.fixture
def site(tmp_path: Path, database_url: str) -> Iterator[Site]:
    with serving(tmp_path, database_url, ManualClock(history.T0)) as (service, cluster):
        there = [{"metadata": {"name": name, "uid": f"uid-{name}"}} for name in ("team", "other")]
        service.controller.namespaces.on_list(there)  # whose accounts the history has
        books = service.books
        history.STEPS[0](books)
        hierarchy.put_parent_budget(books, "lab", "team", Rule(history.T0, 1, "day", "UTC"), actor="me", if_match=None)
        metadata = {"name": "p", "labels": {names.MANAGED_LABEL: "true"}}
        spec = {"nodeName": "n", "containers": [{"name": "main"}]}
        cluster.store.create(PODS, {"metadata": metadata, "spec": spec, "status": {}}, "other")
        foreign = cluster.tokens.issue(cluster.store.get(PODS, "p", "other"), "timekeeper")
        app = routed(service)
        document = app.test_client().get("/api/v1/openapi.json").json
        operations = [
            Operation(method, path, told, document["components"]["schemas"])
            for path, methods in document["paths"].items()
            for method, told in methods.items()
            if told.get("security") != []
        ]
        yield Site(app, books.database, foreign, operations)


def test_no_endpoint_takes_what_is_wrong_and_nothing_is_half_done(site: Site) -> None:
    before = history.digest(site.database.engine)
    assert len(site.operations) > 20
    for it in site.operations:
        reports = it.path.endswith(("/report", "/reports"))
        token = site.send(it, it.good() if it.body else None, token="nobody")
        site.refused(it, "a token that nobody gave out", (401,), token)
        if not reports:
            site.refused(it, "a pod of another namespace", (403,), site.send(it, it.good(), token=site.foreign))
        for place in (place.strip("{}") for place in PLACES if place in it.path):
            for bad in BAD_PATHS:
                answer = site.send(it, it.good() if it.body else None, path=it.at(**{place: bad}))
                site.refused(it, f"{place} {bad}", (404, 422), answer)
        for parameter in it.told.get("parameters", ()):
            if parameter["in"] == "query":
                check_query(site, it, parameter["name"])
        if it.body is not None:
            check_body(site, it, it.body)
    assert history.digest(site.database.engine) == before


def check_query(site: Site, it: Operation, name: str) -> None:
    path = it.at()
    for bad in ("%00", "-1", "x" * 5000) if name in ("limit", "cursor") else ("%00",):
        answer = site.send(it, it.good() if it.body else None, path=f"{path}?{name}={bad}")
        site.refused(it, f"{name}={bad[:9]}", (422,), answer)


def check_body(site: Site, it: Operation, schema: dict[str, Any]) -> None:
    good = it.good()
    site.refused(it, "too large", (413,), site.send(it, b" " * (MAX_BODY_BYTES + 1)))
    site.refused(it, "no JSON", (400,), site.send(it, b"{"))
    site.refused(it, "an unknown field", (422,), site.send(it, {**good, "surprise": 1}))
    for name, value in good.items() if not it.path.endswith("/reports") else ():
        twice = json.dumps(good)[:-1] + f", {json.dumps(name)}: {json.dumps(value)}}}"
        site.refused(it, f"{name} twice", (422,), site.send(it, twice.encode()))
    for name in schema.get("required", ()):
        less = {key: value for key, value in good.items() if key != name}
        site.refused(it, f"without {name}", (422,), site.send(it, less))
    for name, told in schema["properties"].items():
        kinds = [it.resolved(one) for one in told.get("anyOf", [told])]
        for kind in kinds:
            if kind.get("type") == "integer":
                out = [kind[end] + step for end, step in (("minimum", -1), ("maximum", 1)) if end in kind]
                nothing = any(one.get("type") == "null" for one in kinds)
                for bad in (*out, *BAD_INTEGERS):
                    if bad is not None or not nothing:
                        site.refused(it, f"{name} {bad!r}", (422,), site.send(it, {**good, name: bad}))
            elif kind.get("type") == "string":
                for bad in (1, [], "\0", *(["Mars/Olympus", "../etc/passwd", ""] if name == "timeZone" else [])):
                    site.refused(it, f"{name} {bad!r}", (422,), site.send(it, {**good, name: bad}))
