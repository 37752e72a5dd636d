# SPDX-License-Identifier: Apache-2.0
"""What every endpoint refuses, by status, code and field; nothing of it is half done."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from support.databases import Databases
from support.timekeeper_service import GOOD_BUDGET, GOOD_GRANT, HOUR, T0, World, new_world

from slicekeeper.kube.client import NAMESPACES
from slicekeeper.units import Instant, format_instant
from timekeeper.api.routes import ROUTES
from timekeeper.ledger.verify import verify
from timekeeper.store import accounts

WITH_IDENTITY = [route for route in ROUTES if not route.public]
GOOD_TRANSFER = {"to": "other", "amountMs": 1, "reason": "r"}


@pytest.fixture(scope="module")
def untouched(tmp_path_factory: pytest.TempPathFactory, databases: Databases) -> Iterator[World]:
    """A world that all tests of refusals share: nothing happened in it, and nothing may."""
    with databases.migrated() as url, new_world(tmp_path_factory.mktemp("untouched"), url) as made:
        yield made
        with made.service.books.database.reading() as session:
            assert accounts.all_accounts(session) == []


@dataclass
class OnePod:
    world: World
    token: str


@pytest.fixture(scope="module")
def one_pod(tmp_path_factory: pytest.TempPathFactory, databases: Databases) -> Iterator[OnePod]:
    """A world that all tests share that are refused although a pod runs; at the end it has that pod and no more."""
    with databases.migrated() as url, new_world(tmp_path_factory.mktemp("one-pod"), url) as made:
        yield OnePod(made, made.pod("a"))
        (workload,) = made.get("/api/v1/workloads")["items"]
        assert workload["podName"] == "a-pod"
        assert made.get("/api/v1/budgets/team")["source"] == "policy"
        assert verify(made.service.books.database.engine, carry=False).differences == []


def fill(path: str) -> str:
    return path.replace("{namespace}", "team").replace("{parent}", "physics")


@pytest.mark.parametrize("route", WITH_IDENTITY, ids=lambda r: f"{r.method} {r.path}")
def test_every_endpoint_wants_to_know_who_asks(untouched: World, route: Any) -> None:
    for header in ("", "Bearer ", "Basic b3BlcmF0b3I=", "Bearer nobody", "Bearer operator-token2"):
        answer = untouched.call(route.method, fill(route.path), {}, {"Authorization": header})
        assert (answer.status_code, answer.json["code"]) == (401, "unauthenticated")
        assert answer.content_type == "application/problem+json"
        assert answer.json["type"] == "urn:slicekeeper:problem:unauthenticated"


@pytest.mark.parametrize("route", WITH_IDENTITY, ids=lambda r: f"{r.method} {r.path}")
def test_a_pods_token_may_only_report(one_pod: OnePod, route: Any) -> None:
    header = {"Authorization": f"Bearer {one_pod.token}"}
    answer = one_pod.world.call(route.method, fill(route.path), {}, header)
    reports = route.path.endswith(("/report", "/reports"))
    assert answer.status_code == (422 if reports else 403), answer.data


@pytest.mark.parametrize("route", [r for r in ROUTES if r.body], ids=lambda r: f"{r.method} {r.path}")
@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b"", 400, "body-not-json"),
        (b'{"am', 400, "body-not-json"),
        (b"[" * 100_000, 422, "body-invalid"),
        (b"\xff", 400, "body-not-json"),
        (b'{"reason": "\\u0000"}', 422, "body-invalid"),
        (b"[]", 422, "body-invalid"),
        ({"surprise": 1}, 422, "body-invalid"),
        (b" " * (5 << 20), 413, "body-too-large"),
    ],
)
def test_every_body_is_checked(one_pod: OnePod, route: Any, body: Any, status: int, code: str) -> None:
    answer = one_pod.world.call(route.method, fill(route.path), body, {"Idempotency-Key": "k"})
    assert (answer.status_code, answer.json["code"]) == (status, code)
    assert one_pod.world.get("/api/v1/budgets/team")["amountMs"] == 150 * 60_000


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "code", "field"),
    [
        ("PUT", "", {**GOOD_BUDGET, "amountMs": -1}, 422, "body-invalid", "amountMs"),
        ("PUT", "", {**GOOD_BUDGET, "amountMs": 10**14 + 1}, 422, "body-invalid", "amountMs"),
        ("PUT", "", {**GOOD_BUDGET, "amountMs": 10**40}, 422, "body-invalid", "amountMs"),
        ("PUT", "", {**GOOD_BUDGET, "amountMs": 1.5}, 422, "body-invalid", "amountMs"),
        ("PUT", "", {**GOOD_BUDGET, "amountMs": "1"}, 422, "body-invalid", "amountMs"),
        ("PUT", "", {**GOOD_BUDGET, "period": "decade"}, 422, "body-invalid", "period"),
        ("PUT", "", {**GOOD_BUDGET, "timeZone": "Mars/Olympus"}, 422, "time-zone-unknown", "timeZone"),
        ("PUT", "", {**GOOD_BUDGET, "timeZone": "../etc/passwd"}, 422, "time-zone-unknown", "timeZone"),
        ("PUT", "", {**GOOD_BUDGET, "timeZone": "Europe"}, 422, "time-zone-unknown", "timeZone"),
        ("PUT", "", {**GOOD_BUDGET, "amountMS": 1}, 422, "body-invalid", "amountMS"),
        ("PUT", "", {**GOOD_BUDGET, "creditMs": -1}, 422, "body-invalid", "creditMs"),
        ("PUT", "", {**GOOD_BUDGET, "timeZone": "localtime"}, 422, "time-zone-unknown", "timeZone"),
        ("PUT", "", {**GOOD_BUDGET, "anchor": "2026-02-30T00:00:00Z"}, 422, "instant-invalid", "anchor"),
        ("PUT", "", {**GOOD_BUDGET, "anchor": "9999-12-31T23:59:59Z"}, 422, "instant-invalid", "anchor"),
        ("PUT", "", {**GOOD_BUDGET, "period": "none", "anchor": "2026-01-01T00:00:00Z"}, 422, "body-invalid", "anchor"),
        ("PUT", "", {**GOOD_BUDGET, "period": "none", "rolloverMs": 1}, 422, "body-invalid", "rolloverMs"),
        ("PATCH", "", {"period": "none", "rolloverMs": 1}, 422, "body-invalid", "rolloverMs"),
        ("PUT", "/status", {"status": "open", "reason": "r"}, 422, "body-invalid", "status"),
        ("POST", "/grants", {**GOOD_GRANT, "reason": " "}, 422, "body-invalid", "reason"),
        ("POST", "/transfers", {**GOOD_TRANSFER, "toKind": "parent"}, 404, "parent-unknown", "to"),
        ("PUT", "", {"amountMs": 1}, 422, "body-invalid", "period"),
        ("POST", "/grants", {**GOOD_GRANT, "priority": 101}, 422, "body-invalid", "priority"),
        ("POST", "/refunds", {**GOOD_GRANT, "podUid": "x", "amountMs": -1}, 422, "body-invalid", "amountMs"),
        ("POST", "/refunds", {**GOOD_GRANT, "podUid": "x"}, 404, "pod-unknown", "podUid"),
        ("POST", "/adjustments", {**GOOD_GRANT, "amountMs": 0}, 422, "body-invalid", "amountMs"),
        ("POST", "/adjustments", {**GOOD_GRANT, "amountMs": -(2**63)}, 422, "body-invalid", "amountMs"),
        ("POST", "/transfers", {**GOOD_TRANSFER, "to": "team"}, 422, "body-invalid", "to"),
        ("POST", "/transfers", {**GOOD_TRANSFER, "to": "No"}, 422, "namespace-invalid", "to"),
        ("POST", "/transfers", {**GOOD_TRANSFER, "to": "nowhere"}, 404, "namespace-unknown", "to"),
        ("POST", "/transfers", {**GOOD_TRANSFER, "amountMs": 10**13}, 409, "balance-insufficient", "amountMs"),
        ("POST", "/transfers", {**GOOD_TRANSFER, "validTo": "2020-01-01T00:00:00Z"}, 422, "instant-past", "validTo"),
        ("POST", "/grants", {**GOOD_GRANT, "amountMs": 0}, 422, "body-invalid", "amountMs"),
        ("POST", "/grants", {**GOOD_GRANT, "amountMs": -5}, 422, "body-invalid", "amountMs"),
        ("POST", "/grants", {**GOOD_GRANT, "amountMs": 2**63}, 422, "body-invalid", "amountMs"),
        ("POST", "/grants", {**GOOD_GRANT, "reason": ""}, 422, "body-invalid", "reason"),
        ("POST", "/grants", {**GOOD_GRANT, "validTo": "tomorrow"}, 422, "instant-invalid", "validTo"),
        ("POST", "/grants", {**GOOD_GRANT, "validFrom": "2020-01-01T00:00:00Z"}, 422, "instant-past", "validFrom"),
        ("POST", "/grants", {**GOOD_GRANT, "validTo": "2020-01-01T00:00:00Z"}, 422, "instant-order", "validTo"),
        ("POST", "/grants", {**GOOD_GRANT, "validTo": "9999-99-99T00:00:00Z"}, 422, "instant-invalid", "validTo"),
        ("POST", "/grants", {**GOOD_GRANT, "validTo": "9999-12-31T23:00:00-02:00"}, 422, "instant-invalid", "validTo"),
    ],
)
def test_wrong_values_are_named_and_nothing_is_half_done(
    untouched: World, method: str, path: str, body: Any, status: int, code: str, field: str
) -> None:
    answer = untouched.call(method, f"/api/v1/budgets/team{path}", body, {"Idempotency-Key": "k"})
    assert (answer.status_code, answer.json["code"], answer.json.get("field", "")) == (status, code, field)
    assert untouched.get("/api/v1/budgets/team/grants")["items"] == []
    assert untouched.get("/api/v1/budgets/team")["source"] == "policy"


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/api/v1/budgets/Team", 422, "namespace-invalid"),
        ("GET", "/api/v1/budgets?limit=0", 422, "limit-invalid"),
        ("GET", "/api/v1/budgets?limit=x", 422, "limit-invalid"),
        ("GET", "/api/v1/workloads?cursor=%00", 422, "cursor-invalid"),
        ("GET", "/api/v1/workloads?cursor=bm8=", 422, "cursor-invalid"),
        ("GET", "/api/v1/budgets/team/grants?cursor=!MTIz", 422, "cursor-invalid"),
        ("GET", "/api/v1/rates?cursor=OTk5OTk5OTk5OTk5OTk5OTk5OTk5", 422, "cursor-invalid"),
        ("GET", "/api/v1/rates?model=%00", 422, "query-invalid"),
        ("GET", "/api/v1/budgets/team/entries", 404, "namespace-unknown"),
        ("GET", "/api/v1/decisions/team", 404, "namespace-unknown"),
        ("PUT", "/api/v1/budgets/nowhere", 404, "namespace-unknown"),
        ("GET", "/api/v1/budgets/team/statement", 404, "namespace-unknown"),
        ("GET", "/api/v1/budgets/team/statement?format=xml", 422, "query-invalid"),
        ("GET", "/api/v1/budgets/team/periods?cursor=%00", 422, "cursor-invalid"),
        ("GET", "/api/v1/usage?bucket=week", 422, "query-invalid"),
        ("GET", "/api/v1/usage?from=2020-01-01T00:00:00Z", 422, "interval-invalid"),
        ("GET", "/api/v1/usage?from=now", 422, "instant-invalid"),
        (
            "GET",
            "/api/v1/usage?from=9999-12-01T00:00:00Z&bucket=month&to=9999-12-02T00:00:00Z",
            422,
            "interval-invalid",
        ),
        ("GET", "/api/v1/usage?timeZone=Mars", 422, "time-zone-unknown"),
        ("GET", "/nothing", 404, "not-found"),
        ("GET", "/api/v1//budgets", 404, "not-found"),
        ("GET", "/api/v1/usage?namspace=team", 422, "query-invalid"),
        ("GET", "/api/v1/usage?timeZone=localtime", 422, "time-zone-unknown"),
        ("GET", "/api/v1/usage?timeZone=right/UTC", 422, "time-zone-unknown"),
        ("GET", "/api/v1/usage?from=0001-01-01T00:00:00Z", 422, "instant-invalid"),
        ("GET", "/api/v1/budgets/team/reservations/1", 404, "reservation-unknown"),
        ("GET", "/api/v1/audit?namespace=team&parent=lab", 422, "query-invalid"),
        ("GET", "/api/v1/audit?parent=lab", 404, "parent-unknown"),
        ("POST", "/api/v1/budgets/team", 405, "method-not-allowed"),
        ("GET", "/readyz", 503, None),
    ],
)
def test_refusals(untouched: World, method: str, path: str, status: int, code: str | None) -> None:
    answer = untouched.call(method, path, GOOD_BUDGET if method == "PUT" else None)
    assert answer.status_code == status
    assert answer.json.get("code") == code


_OF_A_NAMESPACE = (
    "budgets/{}", "budgets/{}/grants", "budgets/{}/refunds", "budgets/{}/adjustments", "budgets/{}/transfers",
    "budgets/{}/intervals", "budgets/{}/reservations", "budgets/{}/entries", "budgets/{}/periods",
    "budgets/{}/statement", "budgets/{}/reservations/1", "decisions/{}", "usage/{}", "usage?namespace={}",
    "workloads?namespace={}", "audit?namespace={}",
)  # fmt: skip


@pytest.mark.parametrize("route", _OF_A_NAMESPACE)
def test_a_namespace_that_nobody_has_is_not_found_on_every_route(untouched: World, route: str) -> None:
    answer = untouched.call("GET", f"/api/v1/{route.format('nowhere')}")
    assert (answer.status_code, answer.json["code"]) == (404, "namespace-unknown")
    assert answer.json["detail"].startswith("namespace nowhere is not found")


def test_a_namespace_that_is_as_new_as_can_be_has_its_policys_budget(world: World) -> None:
    world.cluster.store.create(NAMESPACES, {"metadata": {"name": "fresh"}}, "")  # no watch has seen it
    assert world.get("/api/v1/budgets/fresh")["amountMs"] == 9_000_000
    for route in ("budgets/{}/grants", "budgets/{}/reservations", "workloads?namespace={}", "usage?namespace={}"):
        assert world.get(f"/api/v1/{route.format('fresh')}")["items"] == [], route
    assert world.call("POST", "/api/v1/budgets/fresh/grants", GOOD_GRANT, {"Idempotency-Key": "k"}).status_code == 201


def test_a_new_grant_is_where_the_answer_says(world: World) -> None:
    later = {**GOOD_GRANT, "validFrom": format_instant(Instant(T0 + HOUR))}
    first = world.call("POST", "/api/v1/budgets/team/grants", later, {"Idempotency-Key": "k"})
    again = world.call("POST", "/api/v1/budgets/team/grants", later, {"Idempotency-Key": "k"})
    assert (first.status_code, again.status_code) == (201, 200)
    assert first.headers["Location"] == again.headers["Location"]
    assert world.call("DELETE", first.headers["Location"]).status_code == 200
