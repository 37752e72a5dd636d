# SPDX-License-Identifier: Apache-2.0
"""The REST interface: stories, and what every endpoint refuses. Real databases, a real API server for identities."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from flask import Flask
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families
from schemathesis.specs.openapi.checks import positive_data_acceptance
from support.databases import Databases
from support.openings import opening
from support.timekeeper_service import serving
from werkzeug.test import TestResponse

from simulator.cluster import Cluster
from slicekeeper import names
from slicekeeper.clock import ManualClock
from slicekeeper.kube.client import Object
from slicekeeper.units import format_instant, parse_instant
from timekeeper.api import metrics
from timekeeper.api.app import routed
from timekeeper.api.routes import ROUTES
from timekeeper.api.service import Service
from timekeeper.core.caller import Caller
from timekeeper.ledger import settlement, workload
from timekeeper.ledger.verify import verify
from timekeeper.ledger.workload import Closing
from timekeeper.store import accounts
from timekeeper.store.db import migrate

T0 = 1_767_225_600_000
HOUR = 3_600_000
OPERATOR = {"Authorization": "Bearer operator-token"}


@dataclass
class World:
    clock: ManualClock
    service: Service
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
        self.cluster.store.create(names_pods(), pod, namespace)
        stored = self.cluster.store.get(names_pods(), f"{uid}-pod", namespace)
        self.service.controller.pods.on_event("ADDED", stored)
        workload.apply(
            self.service.books,
            [replace(opening(stored["metadata"]["uid"], self.clock.now_ms(), rate, namespace), pod_name=f"{uid}-pod")],
            [],
            {namespace: self.service.policy.of(namespace)},
            self.clock.now_ms(),
        )
        return self.cluster.tokens.issue(stored, "timekeeper")

    def uid(self, name: str, namespace: str = "team") -> str:
        return str(self.cluster.store.get(names_pods(), name, namespace)["metadata"]["uid"])


def names_pods() -> Any:
    from slicekeeper.kube.client import PODS

    return PODS


@contextmanager
def new_world(folder: Path, database_url: str) -> Iterator[World]:
    clock = ManualClock(T0)
    with serving(folder, database_url, clock) as (service, cluster):
        for name in ("team", "other"):
            service.controller.namespaces.on_event("ADDED", {"metadata": {"name": name, "uid": f"uid-{name}"}})
        yield World(clock, service, cluster, routed(service))


@pytest.fixture
def world(tmp_path: Path, database_url: str) -> Iterator[World]:
    with new_world(tmp_path, database_url) as made:
        yield made


@pytest.fixture(scope="module")
def untouched(tmp_path_factory: pytest.TempPathFactory, databases: Databases) -> Iterator[World]:
    """A world that all tests of refusals share: nothing happened in it, and nothing may."""
    with databases.migrated() as url, new_world(tmp_path_factory.mktemp("untouched"), url) as made:
        yield made
        with made.service.books.database.reading() as session:
            assert accounts.everyone(session) == []


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


def test_a_namespace_runs_out_and_a_grant_gives_it_more(world: World) -> None:
    world.pod("a")
    world.clock.advance(HOUR)
    budget = world.get("/api/v1/budgets/team")
    assert (budget["amountMs"], budget["usedMs"], budget["balanceMs"]) == (150 * 60_000, HOUR, 90 * 60_000)
    assert budget["runOutAt"] == format_instant(T0 + 150 * 60_000)
    first = world.call("GET", "/api/v1/decisions")
    assert first.json["items"][0]["state"] == "ok"
    again = world.call("GET", "/api/v1/decisions", headers={"If-None-Match": first.headers["ETag"]})
    assert (again.status_code, again.data) == (304, b"")
    world.clock.advance(2 * HOUR)
    changed = world.call("GET", "/api/v1/decisions", headers={"If-None-Match": first.headers["ETag"]})
    (decision,) = changed.json["items"]
    assert (decision["state"], decision["balanceMs"]) == ("exhausted", 0)
    assert decision["priorityClassName"] == "gpu-lower-priority"
    assert decision["since"] == format_instant(T0 + 150 * 60_000)
    assert decision["overBudgetMs"] == 30 * 60_000
    body = {"amountMs": HOUR, "reason": "a deadline"}
    given = world.call("POST", "/api/v1/budgets/team/grants", body, {"Idempotency-Key": "k1"})
    assert (given.status_code, given.json["balanceMs"], given.json["state"]) == (201, HOUR, "ok")
    repeated = world.call("POST", "/api/v1/budgets/team/grants", body, {"Idempotency-Key": "k1"})
    assert (repeated.status_code, repeated.json["grantedMs"]) == (200, HOUR)
    other = world.call("POST", "/api/v1/budgets/team/grants", {**body, "amountMs": 1}, {"Idempotency-Key": "k1"})
    assert (other.status_code, other.json["code"]) == (409, "idempotency-key-reused")
    assert world.get("/api/v1/decisions/team")["state"] == "ok"
    (listed,) = world.get("/api/v1/budgets/team/grants")["items"]
    assert (listed["reason"], listed["actor"]) == ("a deadline", "operator")


def test_a_running_pod_shows_the_same_before_and_after_its_split_is_booked(world: World) -> None:
    world.pod("a")
    world.clock.advance(HOUR * 3)
    (ahead,) = world.get("/api/v1/workloads")["items"]
    assert (ahead["chargedMs"], ahead["overBudgetMs"]) == (150 * 60_000, 30 * 60_000)
    place = world.service.books.require("team").account.id
    settlement.settle(world.service.books, [place], world.clock.now_ms())
    assert world.get("/api/v1/workloads")["items"] == [ahead]


def test_a_budget_is_changed_only_by_who_has_read_it(world: World) -> None:
    read = world.call("GET", "/api/v1/budgets/team")
    body = {"amountMs": 60_000, "period": "month", "timeZone": "Europe/Berlin"}
    put = world.call("PUT", "/api/v1/budgets/team", body, {"If-Match": read.headers["ETag"]})
    assert (put.status_code, put.json["amountMs"], put.json["source"]) == (200, 60_000, "own")
    assert put.json["periodStart"] == "2025-12-31T23:00:00.000Z"
    late = world.call("PUT", "/api/v1/budgets/team", {**body, "amountMs": 1}, {"If-Match": read.headers["ETag"]})
    assert (late.status_code, late.json["code"]) == (412, "version-mismatch")
    assert world.get("/api/v1/budgets/team")["amountMs"] == 60_000
    same = world.call("GET", "/api/v1/budgets/team", headers={"If-None-Match": put.headers["ETag"]})
    assert same.status_code == 304


_OWN = {
    "amountMs": 9_000_000,
    "period": "week",
    "timeZone": "Europe/Berlin",
    "creditMs": 5_000,
    "rolloverMs": 6_000,
    "anchor": "2025-12-29T05:00:00.000Z",
}


@pytest.mark.parametrize("path", ["/api/v1/budgets/team", "/api/v1/parents/physics"])
def test_a_patch_changes_what_it_names_and_nothing_else(world: World, path: str) -> None:
    parent = "parents" in path
    if parent:
        early = world.call("PATCH", path, {"amountMs": 1})
        assert (early.status_code, early.json["code"]) == (404, "parent-unknown")
    world.call("PUT", path, {**_OWN, **({"kind": "team"} if parent else {})})
    wanted: dict[str, Any] = dict(_OWN)
    steps: tuple[dict[str, Any], ...] = (
        {"amountMs": 8_000_000}, {"timeZone": "Asia/Tokyo"}, {"creditMs": 0}, {"rolloverMs": 0}, {"period": "month"},
        {}, {"anchor": None}, {"anchor": "2025-12-30T00:00:00.000Z", "amountMs": 1}, {"newPeriod": True},
    )  # fmt: skip
    for body in steps:
        tag = world.call("GET", path).headers["ETag"]
        patched = world.call("PATCH", path, body, {"If-Match": tag})
        assert patched.status_code == 200, patched.json
        wanted |= {name: value for name, value in body.items() if name != "newPeriod"}
        assert {name: patched.json.get(name) for name in wanted} == wanted
        if body:
            late = world.call("PATCH", path, {"amountMs": 77}, {"If-Match": tag})
            assert (late.status_code, late.json["code"], late.json["field"]) == (412, "version-mismatch", "If-Match")
    last = world.call("PATCH", path, {"period": "none"})
    assert (last.json["period"], last.json.get("anchor"), last.json["amountMs"]) == ("none", None, 1)
    refused: tuple[tuple[dict[str, Any], str], ...] = (
        ({"anchor": "2026-01-01T00:00:00Z"}, "anchor"),
        ({"period": "none", "anchor": "2026-01-01T00:00:00Z"}, "anchor"),
        ({"timeZone": "Nowhere"}, "timeZone"), ({"amountMs": -1}, "amountMs"), ({"amountMs": None}, "amountMs"),
        ({"period": "fortnight"}, "period"), ({"amountms": 5}, "amountms"), ({"newPeriod": "yes"}, "newPeriod"),
    )  # fmt: skip
    for body, field in refused:
        answer = world.call("PATCH", path, body)
        assert (answer.status_code, answer.json["field"]) == (422, field), answer.json
    if parent:
        other = world.call("PATCH", path, {"amountMs": 5, "kind": "organisation"})
        assert (other.status_code, other.json["field"]) == (409, "kind")
    assert world.get(path)["amountMs"] == 1


def test_a_namespace_has_the_policys_budget_again_when_its_own_is_unset(world: World) -> None:
    path = "/api/v1/budgets/team"
    unseen = world.call("DELETE", path)
    assert (unseen.status_code, unseen.json["source"]) == (200, "policy")
    default = unseen.json["amountMs"]
    world.pod("a")
    own = world.call("PUT", path, {"amountMs": 9_000_000, "period": "month", "timeZone": "UTC"})
    world.clock.advance(60_000)
    world.call("PATCH", path, {"creditMs": 5})
    late = world.call("DELETE", path, headers={"If-Match": own.headers["ETag"]})
    assert (late.status_code, late.json["code"], late.json["field"]) == (412, "version-mismatch", "If-Match")
    again = world.call("DELETE", f"{path}?reason=enough")
    assert (again.json["source"], again.json["amountMs"], again.json["usedMs"]) == ("policy", default, 60_000)
    newest = world.get("/api/v1/audit")["items"][-1]
    assert (newest["action"], newest["detail"]["reason"], newest["detail"]["source"]) == ("budget", "enough", "policy")
    count = len(world.get("/api/v1/audit")["items"])
    assert world.call("DELETE", path).json["source"] == "policy"
    assert len(world.get("/api/v1/audit")["items"]) == count, "again changes nothing"
    world.call("PUT", path, {"amountMs": 9_000_000, "period": "month", "timeZone": "UTC"})
    world.call("PUT", f"{path}/status", {"status": "closed", "reason": "r"})
    closed = world.call("DELETE", path)
    assert (closed.status_code, closed.json["code"]) == (409, "budget-closed")
    assert world.call("DELETE", "/api/v1/budgets/nobody").status_code == 404


def test_used_time_counts_on_over_http_unless_a_new_period_is_asked_for(world: World) -> None:
    world.pod("a")
    world.clock.advance(80 * 60_000)
    path = "/api/v1/budgets/team"
    body = {"amountMs": 100 * 60_000, "period": "day", "timeZone": "UTC"}
    for changed in ({}, {"amountMs": 50 * 60_000}, {}, {"timeZone": "Asia/Tokyo"}, {"period": "month"}, {}):
        found = world.call("PUT", path, {**body, **changed}).json
        assert (found["usedMs"], found["balanceMs"]) == (80 * 60_000, found["amountMs"] - 80 * 60_000)
        assert found["state"] == ("exhausted" if found["balanceMs"] < 0 else "warning")
    assert world.call("PATCH", path, {"timeZone": "Asia/Tokyo"}).json["balanceMs"] == 20 * 60_000
    begun = world.call("PATCH", path, {"newPeriod": True}).json
    assert (begun["usedMs"], begun["balanceMs"], begun["timeZone"]) == (0, 100 * 60_000, "Asia/Tokyo")
    begun = world.call("PUT", path, {**body, "newPeriod": True}).json
    assert (begun["usedMs"], begun["balanceMs"], begun["timeZone"]) == (0, 100 * 60_000, "UTC")
    told = [row for row in world.get("/api/v1/audit")["items"] if row["detail"].get("newPeriod")]
    assert len(told) == 2


@pytest.mark.parametrize("given", ["*", 'W/"x", {tag}', '"a, b" ,{tag}'])
def test_a_condition_may_name_any_version_or_several(world: World, given: str) -> None:
    for path in ("/api/v1/budgets/team", "/api/v1/parents/physics"):
        extra = {"kind": "team"} if "parents" in path else {}
        body = {"amountMs": 60_000, "period": "month", "timeZone": "UTC", **extra}
        if extra:
            early = world.call("PUT", path, body, {"If-Match": "*"})
            assert (early.status_code, early.json["code"]) == (412, "version-mismatch")  # there is none yet
            world.call("PUT", path, body)
        for amount in (1, 2):  # of the policy at first, then of its own
            tag = world.call("GET", path).headers["ETag"]
            put = world.call("PUT", path, {**body, "amountMs": amount}, {"If-Match": given.format(tag=tag)})
            assert (put.status_code, put.json["amountMs"]) == (200, amount)
            for other in (f"W/{put.headers['ETag']}", f'{tag}, "y"', "", 'W/"|", ""', '"', 'a"b, ,"None"'):
                late = world.call("PUT", path, {**body, "amountMs": 9}, {"If-Match": other})
                assert (late.status_code, late.json["code"]) == (412, "version-mismatch")
            for known in (f"W/{put.headers['ETag']}", f'"a, b", {put.headers["ETag"]}', "*"):
                assert world.call("GET", path, headers={"If-None-Match": known}).status_code == 304
            assert world.call("GET", path, headers={"If-None-Match": tag}).status_code == 200


def test_pages_go_on_where_the_last_one_ended(world: World) -> None:
    for index in range(5):
        world.pod(f"p{index}", "team" if index < 3 else "other")
        world.clock.advance(1_000)
    seen, cursor = [], ""
    while cursor is not None:
        page = world.get(f"/api/v1/workloads?limit=2&cursor={cursor}")
        seen += [one["podName"] for one in page["items"]]
        cursor = page["nextCursor"]
    assert seen == [f"p{index}-pod" for index in (4, 3, 2, 1, 0)]
    assert [w["podName"] for w in world.get("/api/v1/workloads?namespace=other")["items"]] == ["p4-pod", "p3-pod"]
    first = world.get("/api/v1/budgets?limit=1")
    assert [b["namespace"] for b in first["items"]] == ["other"]
    second = world.get(f"/api/v1/budgets?limit=1&cursor={first['nextCursor']}")
    assert ([b["namespace"] for b in second["items"]], second["nextCursor"]) == (["team"], None)


def test_entries_show_both_sides_of_every_booking(world: World) -> None:
    world.pod("a", rate=Fraction(1, 3))
    uid = world.uid("a-pod")
    world.clock.advance(10_000)
    workload.apply(world.service.books, [], [Closing(uid, T0 + 10_000, "finished")], {}, world.clock.now_ms())
    items = world.get("/api/v1/budgets/team/entries")["items"]
    charges = [(e["account"], e["amountMs"]) for e in items if e["kind"] == "charge"]
    assert charges == [("budget", -3_333), ("charged", 3_333)]
    assert {e["subject"] for e in items if e["kind"] == "charge"} == {uid}
    page = world.get("/api/v1/budgets/team/entries?limit=3")
    rest = world.get(f"/api/v1/budgets/team/entries?cursor={page['nextCursor']}")
    assert page["items"] + rest["items"] == items
    assert verify(world.service.books.database.engine, carry=False).differences == []


def test_movements_prices_and_status_are_told_and_audited(world: World) -> None:
    def post(what: str, body: Any, key: str) -> TestResponse:
        return world.call("POST", f"/api/v1/budgets/team/{what}", body, {"Idempotency-Key": key})

    world.pod("a")
    uid = world.uid("a-pod")
    world.clock.advance(HOUR)
    workload.apply(world.service.books, [], [Closing(uid, T0 + HOUR, "finished")], {}, world.clock.now_ms())
    path = "/api/v1/budgets/team"
    refund = {"podUid": uid, "amountMs": HOUR // 2, "reason": "a broken GPU"}
    assert post("refunds", refund, "k1").json["balanceMs"] == 2 * HOUR
    above = post("refunds", {**refund, "amountMs": HOUR}, "k2")
    assert (above.status_code, above.json["code"]) == (409, "refund-above-charge")
    moved = {"to": "other", "amountMs": HOUR, "reason": "a loan"}
    assert post("transfers", moved, "k3").json["balanceMs"] == HOUR
    assert post("transfers", moved, "k3").status_code == 200
    assert world.get("/api/v1/budgets/other")["balanceMs"] == 150 * 60_000 + HOUR
    lack = post("transfers", {**moved, "amountMs": 2 * HOUR}, "k4")
    assert (lack.status_code, lack.json["code"]) == (409, "balance-insufficient")
    taken = {"amountMs": -HOUR // 2, "reason": "booked twice"}
    assert post("adjustments", taken, "k5").json["balanceMs"] == HOUR // 2
    assert [m["amountMs"] for m in world.get(f"{path}/transfers")["items"]] == [-HOUR]
    assert world.get("/api/v1/budgets/other/transfers")["items"][0]["counterpart"] == "team"
    assert world.get(f"{path}/refunds")["items"][0]["counterpart"] == uid
    assert world.get(f"{path}/adjustments")["items"][0]["reason"] == "booked twice"
    price = world.call("POST", "/api/v1/rates", {"model": "H100", "rate": "3/2", "reason": "new hardware"})
    assert (price.status_code, price.json["rate"]) == (201, "3/2")
    assert [r["model"] for r in world.get("/api/v1/rates?model=H100")["items"]] == ["H100"]
    stopped = world.call("PUT", f"{path}/status", {"status": "suspended", "reason": "a review"})
    assert (stopped.json["status"], stopped.json["state"]) == ("suspended", "suspended")
    decision = world.get("/api/v1/decisions/team")
    assert (decision["state"], decision["priorityClassName"]) == ("suspended", "gpu-lower-priority")
    assert "suspended since" in decision["reason"]
    log = world.get("/api/v1/audit")["items"]
    assert [one["action"] for one in log] == ["refund", "transfer", "transfer", "adjustment", "rate", "status"]
    assert [one["prevHash"] for one in log[1:]] == [one["hash"] for one in log[:-1]]
    assert world.get("/api/v1/audit?namespace=team")["items"][-1]["detail"]["status"] == "suspended"
    assert verify(world.service.books.database.engine, carry=False).differences == []


def _enforce(world: World, how: str) -> None:
    path = Path(world.service.settings.policy.file)
    path.write_text(f"default: {{budget: {{amount: 150m, period: day, enforcement: {how}}}}}\n")
    assert world.service.policy.refresh()


def test_time_is_set_aside_by_hand_shown_and_given_back(world: World) -> None:
    url, key = "/api/v1/budgets/team/reservations", {"Idempotency-Key": "r"}
    body = {"amountMs": HOUR, "reason": "demo day", "expiresAt": format_instant(T0 + 2 * HOUR)}
    refused = world.call("POST", url, body, key)
    assert (refused.status_code, refused.json["code"]) == (409, "enforcement-not-safe")
    _enforce(world, "safe")
    made = world.call("POST", url, body, key)
    assert made.status_code == 201, made.data
    assert (made.json["state"], made.json["heldMs"], made.json["podUid"]) == ("open", HOUR, None)
    again = world.call("POST", url, body, key)
    assert (again.status_code, again.json["id"]) == (200, made.json["id"])
    for changed, headers, status, code in (
        ({**body, "amountMs": 1}, key, 409, "idempotency-key-reused"),
        ({**body, "amountMs": 90 * 60_000 + 1}, {"Idempotency-Key": "s"}, 409, "balance-insufficient"),
        ({**body, "expiresAt": format_instant(T0)}, {"Idempotency-Key": "s"}, 422, "instant-past"),
        (body, {}, 422, "idempotency-key-missing"),
        ({**body, "more": 1}, {"Idempotency-Key": "s"}, 422, "body-invalid"),
    ):
        answer = world.call("POST", url, changed, headers)
        assert (answer.status_code, answer.json["code"]) == (status, code)
    budget, decision = world.get("/api/v1/budgets/team"), world.get("/api/v1/decisions/team")
    assert (budget["reservedMs"], budget["enforcement"], budget["balanceMs"]) == (HOUR, "safe", 150 * 60_000)
    assert (decision["reservedMs"], decision["enforcement"]) == (HOUR, "safe")
    assert world.get("/api/v1/budgets")["items"][0]["reservedMs"] == HOUR
    assert 'gpu_budget_reserved_seconds{namespace="team"} 3600.0' in world.metrics()
    other = world.call("POST", url, {**body, "amountMs": 1}, {"Idempotency-Key": "s"})
    (newest,) = world.get(f"{url}?limit=1")["items"]
    assert newest["id"] == other.json["id"]
    released = world.call("DELETE", f"{url}/{made.json['id']}")
    assert (released.status_code, released.json["state"], released.json["heldMs"]) == (200, "released", 0)
    assert world.call("DELETE", f"{url}/{made.json['id']}").json == released.json
    world.clock.advance(2 * HOUR)
    assert [r["state"] for r in world.get(url)["items"]] == ["expired", "released"]
    assert world.get("/api/v1/budgets/team")["reservedMs"] == 0
    for wrong in ("0", "999", "x", "9" * 30):
        answer = world.call("DELETE", f"{url}/{wrong}")
        assert (answer.status_code, answer.json["code"]) == (404, "reservation-unknown")
    actions = [entry["action"] for entry in world.get("/api/v1/audit?namespace=team")["items"]]
    assert actions == ["reservation", "reservation", "release"]


def test_a_budget_warns_then_overdraws_its_credit(world: World) -> None:
    body = {"amountMs": HOUR, "period": "day", "timeZone": "UTC", "creditMs": HOUR, "rolloverMs": 5}
    put = world.call("PUT", "/api/v1/budgets/team", body)
    assert (put.json["creditMs"], put.json["rolloverMs"]) == (HOUR, 5)
    world.pod("a")
    states = []
    for percent in (79, 1, 20, 99, 1):
        world.clock.advance(percent * HOUR // 100)
        states.append(world.get("/api/v1/decisions/team")["state"])
    assert states == ["ok", "warning", "overdraft", "overdraft", "exhausted"]


def test_a_grant_that_has_not_begun_is_withdrawn(world: World) -> None:
    world.call("PUT", "/api/v1/parents/lab", {**GOOD_BUDGET, "kind": "team"})
    for path in ("/api/v1/budgets/team", "/api/v1/parents/lab"):
        body = {**GOOD_GRANT, "validFrom": format_instant(T0 + HOUR)}
        for key in ("a", "b"):
            assert world.call("POST", f"{path}/grants", body, {"Idempotency-Key": key}).status_code == 201
        second, first = (one["id"] for one in world.get(f"{path}/grants")["items"])
        for _ in range(2):
            gone = world.call("DELETE", f"{path}/grants/{first}?reason=by+mistake")
            assert (gone.status_code, gone.json["withdrawnAt"]) == (200, format_instant(world.clock.now_ms()))
        assert [one["withdrawnAt"] for one in world.get(f"{path}/grants")["items"]] == [None, gone.json["withdrawnAt"]]
        assert world.get("/api/v1/audit")["items"][-1]["detail"]["reason"] == "by mistake"
        for wrong in (999, 0, "x", "9" * 30, "%31%00"):
            answer = world.call("DELETE", f"{path}/grants/{wrong}")
            assert (answer.status_code, answer.json["code"], answer.json["field"]) == (404, "grant-unknown", "grant")
    world.clock.advance(HOUR)
    begun = world.call("DELETE", f"{path}/grants/{second}")
    assert (begun.status_code, begun.json["code"], begun.json["field"]) == (409, "grant-begun", "grant")
    answer = world.call("DELETE", "/api/v1/budgets/other/grants/1")
    assert (answer.status_code, answer.json["code"]) == (404, "namespace-unknown")


def test_an_interval_is_put_right_by_hand(world: World) -> None:
    world.pod("a")
    uid = world.uid("a-pod")
    url, right = "/api/v1/budgets/team/intervals", {"Idempotency-Key": "k"}
    body = {"podUid": uid, "end": format_instant(T0 + 60_000), "reason": "the node's clock"}
    running = world.call("POST", url, body, right)
    assert (running.status_code, running.json["code"], running.json["field"]) == (409, "pod-running", "end")
    world.clock.advance(HOUR)
    workload.apply(world.service.books, [], [Closing(uid, T0 + HOUR, "finished")], {}, T0 + HOUR)
    for wrong, status, code, field in (
        ({**body, "end": format_instant(T0 + 9 * HOUR)}, 409, "interval-implausible", "end"),
        ({**body, "start": format_instant(T0 - 1)}, 409, "interval-implausible", "start"),
        ({**body, "end": format_instant(T0 - 1)}, 409, "interval-implausible", "end"),
        ({**body, "end": "yesterday"}, 422, "instant-invalid", "end"),
        ({"podUid": uid, "reason": "r"}, 422, "body-invalid", "start"),
        ({**body, "podUid": "nobody"}, 404, "pod-unknown", "podUid"),
        ({**body, "reason": " "}, 422, "body-invalid", "reason"),
    ):
        answer = world.call("POST", url, wrong, right)
        assert (answer.status_code, answer.json["code"], answer.json["field"]) == (status, code, field)
    for status in (201, 200):
        done = world.call("POST", url, body, right)
        assert (done.status_code, done.json["usedMs"]) == (status, 60_000)
    other = world.call("POST", url, {**body, "end": format_instant(T0 + 1)}, right)
    assert (other.status_code, other.json["code"]) == (409, "idempotency-key-reused")
    (row,) = world.get(url)["items"]
    assert (row["podUid"], row["start"], row["end"], row["endBefore"], row["actor"], row["reason"]) == (
        uid,
        format_instant(T0),
        format_instant(T0 + 60_000),
        format_instant(T0 + HOUR),
        "operator",
        "the node's clock",
    )
    (pod,) = world.get("/api/v1/budgets/team/statement")["workloads"]
    assert (pod["chargedMs"], pod["intervalCorrected"]) == (60_000, True)
    assert "corrected" in world.get("/api/v1/workloads")["items"][0]["flags"]
    assert world.get("/api/v1/audit")["items"][-1]["action"] == "interval"
    assert verify(world.service.books.database.engine, carry=False).differences == []


# The original's routes


def test_long_keys_of_an_increase_are_two_and_elsewhere_refused(world: World) -> None:
    body, same = {"minutes": 30, "reason": "a paper"}, "k" * 255
    for key in (same, f"{same}1", f"{same}2", f"{same}1", same):
        answer = world.call("POST", "/budget/team/increase", body, {"Idempotency-Key": key})
        assert answer.status_code == 200
    assert world.get("/api/v1/budgets/team")["grantedMs"] == 3 * 30 * 60_000
    for route, wanted in (
        ("grants", GOOD_GRANT),
        ("adjustments", GOOD_GRANT),
        ("refunds", {**GOOD_GRANT, "podUid": "p"}),
        ("transfers", {**GOOD_GRANT, "to": "other"}),
        ("reservations", {**GOOD_GRANT, "expiresAt": format_instant(T0 + HOUR)}),
    ):
        answer = world.call("POST", f"/api/v1/budgets/team/{route}", wanted, {"Idempotency-Key": f"{same}1"})
        assert (answer.status_code, answer.json["code"]) == (422, "idempotency-key-missing")
        assert answer.json["field"] == "Idempotency-Key"


def test_the_originals_routes_answer_with_its_payloads(world: World) -> None:
    assert world.get("/budget/never-seen") == {"budget_available": True, "budget": 150.0, "budget_remaining": 150.0}
    token = world.pod("a", rate=Fraction(1, 2))
    world.clock.advance(113 * 60_000)
    assert world.get("/budget/team") == {"budget_available": True, "budget": 150.0, "budget_remaining": 93.5}
    mine = {"Authorization": f"Bearer {token}"}
    life = world.call("POST", "/budget/team/report", {"usage_factor": 0.75, "pod_name": "a-pod"}, mine)
    assert (life.status_code, life.json) == (200, {"terminate": False})
    assert world.get("/budget/team")["budget_remaining"] == 93.5
    more = world.call("POST", "/budget/team/increase", {"minutes": 30, "reason": "a paper"})
    assert more.json == {"budget_available": True, "budget": 180.0, "budget_remaining": 123.5}
    assert world.call("POST", "/budget/team/increase").status_code == 400
    refused = world.call("POST", "/budget/team/increase", {"minutes": 30, "reason": "a paper"}, mine)
    assert refused.status_code == 403


# Reports


def report(world: World, name: str, seq: int, used: int | None, **more: Any) -> dict[str, Any]:
    return {
        "namespace": "team",
        "podName": name,
        "podUid": world.uid(name),
        "container": "main",
        "epoch": T0 * 1_000_000,
        "seq": seq,
        "usedMs": used,
        "monotonicNs": seq * 10**10,
        "source": "node",
    } | more


def send(world: World, token: str, *reports: dict[str, Any]) -> list[tuple[str, str]]:
    answer = world.call("POST", "/api/v1/reports", {"reports": reports}, {"Authorization": f"Bearer {token}"})
    assert answer.status_code == 200, answer.data
    return [(one["outcome"], one["reason"]) for one in answer.json["outcomes"]]


def test_reports_feed_usage_and_never_move_a_charge(world: World) -> None:
    mine, theirs = world.pod("a"), world.pod("b")
    world.clock.advance(HOUR)
    before = world.get("/api/v1/budgets/team")
    first, second = report(world, "a-pod", 1, 9_000), report(world, "a-pod", 2, 18_000, memoryMib=2_048)
    assert world.get("/api/v1/usage/team")["usedMs"] is None
    assert send(world, mine, second) == [("accepted", "")]
    assert send(world, mine, first, second) == [("duplicate", ""), ("duplicate", "")]
    assert send(world, theirs, first) == [("refused", "wrong-pod")]
    assert send(world, mine, report(world, "a-pod", 3, 17_999)) == [("refused", "counter-ran-backwards")]
    assert send(world, mine, report(world, "a-pod", 3, 99_000_000)) == [("refused", "counter-above-possible")]
    assert send(world, mine, report(world, "a-pod", 3, 1, container="x")) == [("refused", "unknown-container")]
    assert send(world, mine, report(world, "a-pod", 3, 1, namespace="other")) == [("refused", "wrong-pod")]
    assert send(world, mine, report(world, "a-pod", 1, 5_000, epoch=T0 * 1_000_000 + 7)) == [("accepted", "")]
    assert send(world, mine, report(world, "a-pod", 4, None, memoryMib=512)) == [("accepted", "")]
    assert send(world, mine, report(world, "a-pod", 5, None)) == [("accepted", "")]
    peaks = {one["podName"]: one["peakMemoryMib"] for one in world.get("/api/v1/workloads")["items"]}
    assert peaks == {"a-pod": 2_048, "b-pod": None}
    used = {one["podName"]: one["usedMs"] for one in world.get("/api/v1/workloads")["items"]}
    assert used == {"a-pod": 23_000, "b-pod": None}
    usage = world.get("/api/v1/usage/team")
    assert (usage["usedMs"], usage["workloads"], usage["unknownWorkloads"]) == (23_000, 2, 1)
    assert world.get("/api/v1/budgets/team") == before


def test_a_pod_the_ledger_does_not_know_is_refused_by_name(world: World) -> None:
    mine = world.pod("a")
    world.clock.advance(60_000)
    body = report(world, "a-pod", 1, 1) | {"podUid": "nobody"}
    answer = world.call("POST", "/api/v1/reports", {"reports": [body]})
    assert [o["reason"] for o in answer.json["outcomes"]] == ["unknown-pod"]
    assert send(world, mine, body) == [("refused", "wrong-pod")]


def test_the_sidecar_leaves_when_all_others_have_ended(world: World) -> None:
    token = world.pod("a")
    pod = world.cluster.store.get(names_pods(), "a-pod", "team")
    ended = {"name": "main", "state": {"terminated": {"exitCode": 1, "finishedAt": "2026-01-01T00:00:05Z"}}}
    headers = {"Authorization": f"Bearer {token}"}
    body = {"reports": [report(world, "a-pod", 1, None)]}
    assert world.call("POST", "/api/v1/reports", body, headers).json["terminate"] is False
    world.service.controller.pods.on_event("MODIFIED", {**pod, "status": {"containerStatuses": [ended]}})
    assert world.call("POST", "/api/v1/reports", body, headers).json["terminate"] is True
    life = world.call("POST", "/budget/team/report", {"pod_name": "a-pod"}, headers)
    assert life.json == {"terminate": True}


# Refusals

WITH_IDENTITY = [route for route in ROUTES if not route.public]


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


GOOD_BUDGET = {"amountMs": 1, "period": "day", "timeZone": "UTC"}
GOOD_GRANT = {"amountMs": 1, "reason": "r"}
GOOD_TRANSFER = {"to": "other", "amountMs": 1, "reason": "r"}


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


def test_a_grant_needs_a_key(world: World) -> None:
    answer = world.call("POST", "/api/v1/budgets/team/grants", GOOD_GRANT)
    assert (answer.status_code, answer.json["code"]) == (422, "idempotency-key-missing")


def test_rights_are_asked_of_the_api_server(world: World) -> None:
    # The simulator lets its one user do all, and others nothing.
    identity = world.service.identity
    identity.allow(Caller("slicekeeper-operator-test", operator=True), "update", "team")
    with pytest.raises(Exception, match="may not get gpubudgets/statement in namespace team"):
        identity.allow(Caller("system:serviceaccount:team:default"), "get", "team", "statement")


def test_a_server_on_a_database_of_another_revision_is_not_ready(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    found = migrate.head()
    monkeypatch.setattr(migrate, "head", lambda: "9999")
    answer = world.call("GET", "/readyz")
    assert answer.status_code == 503
    assert f"at revision {found}: this release needs 9999" in answer.json["reason"]


def test_whoever_has_a_long_name_is_kept_by_its_beginning_and_a_digest(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    actors = set()
    for end in "ab":
        name = f"system:serviceaccount:{'n' * 63}:{'s' * 252}{end}"
        monkeypatch.setattr(world.service.identity, "caller", lambda _, name=name, **_kw: Caller(name, operator=True))
        answer = world.call("POST", "/api/v1/budgets/team/grants", GOOD_GRANT, {"Idempotency-Key": end})
        assert answer.status_code == 201, answer.data
        actors.add(world.get("/api/v1/budgets/team/grants")["items"][0]["actor"])
    assert len(actors) == 2
    assert {len(actor) for actor in actors} == {253}
    assert all(actor.startswith(f"system:serviceaccount:{'n' * 63}:s") for actor in actors)


def test_a_token_is_reviewed_once_until_its_pod_ends(world: World) -> None:
    token = world.pod("a")
    identity = world.service.identity
    first = identity.caller(f"Bearer {token}")
    assert (first.pod_name, first.namespace) == ("a-pod", "team")
    world.cluster.store.delete(names_pods(), "a-pod", "team", grace=0)
    assert identity.caller(f"Bearer {token}") == first
    identity.forget(first.pod_uid)
    with pytest.raises(Exception, match="not valid"):
        identity.caller(f"Bearer {token}")


def test_metrics_have_their_names(world: World) -> None:
    world.pod("a")
    world.clock.advance(HOUR)
    text = world.metrics()
    assert 'gpu_budget_limit_seconds{namespace="team"} 9000.0' in text
    assert 'gpu_budget_remaining_seconds{namespace="team"} 5400.0' in text
    assert 'gpu_budget_exhausted{namespace="team"} 0.0' in text
    for name in ("gpu_budget_reserved_seconds", "gpu_budget_charged_seconds_total", "timekeeper_report_lag_seconds"):
        assert f"\n{name}" in text
    workload.apply(
        world.service.books, [], [Closing(world.uid("a-pod"), T0 + HOUR, "finished")], {}, world.clock.now_ms()
    )
    text = world.metrics()
    assert 'timekeeper_unobserved_seconds{namespace="team"} 3600.0' in text
    assert 'gpu_budget_charged_seconds_total{account="charged",namespace="team"} 3600.0' in text
    world.clock.advance(25 * HOUR)
    assert "timekeeper_unobserved_seconds{" not in world.metrics()


def test_a_controller_that_is_stuck_makes_the_server_unhealthy(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    assert world.get("/healthz") == {"status": "ok", "reason": ""}
    later = world.service.controller._looked + 61
    monkeypatch.setattr("timekeeper.cluster.controller.time.monotonic", lambda: later)
    answer = world.call("GET", "/healthz")
    assert (answer.status_code, answer.json["status"]) == (503, "failing")
    assert answer.json["reason"] == "the controller has not finished a look for 61 s"


def test_periods_statements_and_seals(world: World) -> None:
    world.pod("a")
    world.clock.advance(HOUR)

    def end(uid: str) -> None:
        closing = Closing(world.uid(f"{uid}-pod"), world.clock.now_ms(), "finished")
        workload.apply(world.service.books, [], [closing], {}, world.clock.now_ms())

    end("a")
    world.clock.advance(24 * HOUR)
    world.pod("b")
    world.clock.advance(2 * HOUR)
    end("b")
    budget = "/api/v1/budgets/team"
    newest, first = world.get(f"{budget}/periods")["items"]
    assert (newest["state"], newest["chargedMs"], newest["grantedMs"]) == ("open", 2 * HOUR, 150 * 60_000)
    assert (first["state"], first["chargedMs"], first["expiredMs"]) == ("grace", HOUR, 90 * 60_000)
    page = world.get(f"{budget}/periods?limit=1")
    assert world.get(f"{budget}/periods?cursor={page['nextCursor']}")["items"] == [first]

    refused = world.call("PUT", f"{budget}/seal", {"until": newest["end"], "reason": "r"})
    assert (refused.status_code, refused.json["code"]) == (409, "period-not-over")
    sealed = world.call("PUT", f"{budget}/seal", {"until": first["end"], "reason": "r"})
    assert (sealed.json["sealedUntil"], sealed.json["items"][0]["state"]) == (first["end"], "sealed")

    late = opening("late", T0)
    closing = Closing("late", T0 + 60_000, "finished")
    workload.apply(
        world.service.books, [late], [closing], {"team": world.service.policy.of("team")}, world.clock.now_ms()
    )
    before = world.get(f"{budget}/statement?from={first['start']}&to={first['end']}")
    assert (before["openingMs"], before["closingMs"]) == (0, 0)
    assert {t["kind"]: t["amountMs"] for t in before["totals"]} == {
        "allowance": 150 * 60_000,
        "charge": HOUR,
        "expiry": 90 * 60_000,
    }
    now = world.get(f"{budget}/statement")
    assert [(t["kind"], t["amountMs"]) for t in now["totals"] if t["correction"]] == [
        ("charge", 60_000),
        ("expiry", -60_000),
    ]
    assert now["closingMs"] == world.get(budget)["balanceMs"] == 30 * 60_000
    assert {p["podName"]: p["chargedMs"] for p in now["workloads"]} == {"b-pod": 2 * HOUR, "late": 60_000}
    following = world.get(f"{budget}/statement?limit=1")
    rest = world.get(f"{budget}/statement?cursor={following['nextCursor']}")
    assert following["workloads"] + rest["workloads"] == now["workloads"]
    table = world.call("GET", f"{budget}/statement?format=csv")
    lines = table.data.decode().splitlines()
    assert table.content_type.startswith("text/csv")
    assert [line for line in lines if line.startswith("closing")] == [
        f"closing,{newest['end']},team,,,,,{now['closingMs']}"
    ]
    assert sum(line.startswith("workload") for line in lines) == 2
    entries = world.get(f"{budget}/entries")["items"]
    assert {e["subject"] for e in entries if e["correctsAt"]} == {"late", f"period:{T0}"}


def test_usage_by_time_is_paged_and_never_guesses(world: World) -> None:
    world.pod("a", rate=Fraction(1, 2))
    world.pod("b", "other")
    world.clock.advance(90 * 60_000)
    first = world.get("/api/v1/usage?timeZone=Europe/Berlin&limit=1")
    (item,) = first["items"]
    assert (item["group"], item["allocatedMs"], item["usedMs"], item["unobservedMs"]) == ("other", HOUR, None, HOUR)
    rest = world.get(f"/api/v1/usage?timeZone=Europe/Berlin&cursor={first['nextCursor']}")
    assert [(i["start"], i["group"]) for i in rest["items"]] == [
        (format_instant(T0), "team"),
        (format_instant(T0 + HOUR), "other"),
        (format_instant(T0 + HOUR), "team"),
    ]
    (team,) = world.get("/api/v1/usage?namespace=team&bucket=month&groupBy=workload")["items"]
    assert (team["group"], team["allocatedMs"], team["unknownWorkloads"]) == (world.uid("a-pod"), 45 * 60_000, 1)


# The interface's own description


def test_the_document_describes_every_route(world: World) -> None:
    document = world.get("/api/v1/openapi.json")
    assert document["openapi"].startswith("3.1")
    described = {(m.upper(), path) for path, methods in document["paths"].items() for m in methods}
    assert described == {(route.method, route.path) for route in ROUTES}


def test_a_deleted_namespace_has_no_decision_and_its_successor_begins_afresh(world: World) -> None:
    for namespace in ("team", "other"):
        world.pod(f"in-{namespace}", namespace)
    before = world.call("GET", "/api/v1/decisions")
    world.service.controller.namespaces.on_list(
        [{"metadata": {"name": "team", "uid": "uid-anew"}}, {"metadata": {"name": "other", "uid": "uid-other"}}]
    )
    after = world.call("GET", "/api/v1/decisions", headers={"If-None-Match": before.headers["ETag"]})
    assert [one["namespace"] for one in before.json["items"]] == ["other", "team"]
    assert [one["namespace"] for one in after.json["items"]] == ["other"]
    assert world.call("GET", "/api/v1/decisions/team").status_code == 404
    assert world.get("/api/v1/decisions/other")["state"] == "ok"


def test_schemathesis_finds_nothing(world: World, databases: Databases) -> None:
    world.pod("a")
    schema = schemathesis.openapi.from_wsgi("/api/v1/openapi.json", world.app)
    examples = 12 if databases.kind == "sqlite" else 4  # the requests are the same, a server takes longer for each
    schema.config.generation.update(max_examples=examples)
    for result in schema.get_all_operations():
        operation = result.ok()
        if operation.path not in ("/readyz", "/healthz"):  # nothing follows a cluster here: they tell so with 503
            _exercise(operation, examples)


def _exercise(operation: Any, examples: int) -> None:
    from hypothesis import HealthCheck, given, settings

    @settings(max_examples=examples, deadline=None, suppress_health_check=list(HealthCheck), database=None)
    @given(case=operation.as_strategy())
    def run(case: Any) -> None:
        # Cursors, zones and instants have a meaning that no schema tells, so a valid one may still be refused.
        case.call_and_validate(headers=OPERATOR, excluded_checks=[positive_data_acceptance])

    run()


BODY = {"kind": "team", "amountMs": 20_000, "period": "none"}


def test_teams_and_organisations_are_made_put_above_each_other_and_bind(world: World) -> None:
    assert world.call("PUT", "/api/v1/parents/physics", BODY).status_code == 201
    made = world.call("PUT", "/api/v1/parents/science", {**BODY, "kind": "organisation", "amountMs": 10**9})
    assert (made.status_code, made.json["state"], made.json["parent"]) == (201, "ok", None)
    for path, parent in (("parents/physics", "science"), ("budgets/team", "physics"), ("budgets/other", "physics")):
        put = world.call("PUT", f"/api/v1/{path}/parent", {"parent": parent, "reason": "r"})
        assert (put.status_code, put.json["parent"]) == (200, parent), put.data
    world.pod("a")
    world.pod("b", "other")
    world.clock.advance(4_000)
    physics = world.get("/api/v1/parents/physics")
    assert (physics["usedMs"], physics["balanceMs"], physics["runOutAt"]) == (
        8_000,
        12_000,
        format_instant(T0 + 10_000),
    )
    for name in ("physics", "science"):
        below = world.get(f"/api/v1/parents/{name}/children")["items"]
        assert sum(child["consumedMs"] for child in below) == world.get(f"/api/v1/parents/{name}")["usedMs"] == 8_000
    decision = world.get("/api/v1/decisions/team")
    assert (decision["boundBy"], decision["balanceMs"], decision["state"]) == ("physics", 12_000, "ok")
    assert decision["runOutAt"] == format_instant(T0 + 10_000)
    world.clock.advance(8_000)
    decision = world.get("/api/v1/decisions/team")
    assert (decision["state"], decision["since"]) == ("exhausted", format_instant(T0 + 10_000))
    assert decision["reason"].startswith("nothing is left of the budget of team physics")
    grant, once = {"amountMs": 5_000, "reason": "more"}, {"Idempotency-Key": "k"}
    for status in (201, 200):
        booked = world.call("POST", "/api/v1/parents/physics/grants", grant, once)
        assert (booked.status_code, booked.json["balanceMs"]) == (status, 5_000)
    assert world.get("/api/v1/decisions/team")["state"] == "ok"
    suspended = world.call("PUT", "/api/v1/parents/science/status", {"status": "suspended", "reason": "r"})
    assert (suspended.status_code, suspended.json["state"]) == (200, "suspended")
    budget, decision = world.get("/api/v1/budgets/team"), world.get("/api/v1/decisions/team")
    assert (budget["boundBy"], budget["state"], budget["status"]) == ("science", "suspended", "active")
    assert decision["state"] == "suspended"
    assert decision["reason"].startswith("the budget of organisation science is not active since")
    assert [item["name"] for item in world.get("/api/v1/parents")["items"]] == ["physics", "science"]
    audited = world.get("/api/v1/audit")["items"]
    assert [entry["action"] for entry in audited] == [
        "team",
        "organisation",
        "parent",
        "parent",
        "parent",
        "grant",
        "status",
    ]
    assert world.get("/api/v1/audit?namespace=team")["items"][0]["detail"]["parent"] == "physics"
    assert verify(world.service.books.database.engine, carry=False).differences == []


@pytest.mark.parametrize(
    ("path", "parent", "status", "code"),
    [
        ("parents/physics", "physics", 409, "hierarchy-cycle"),
        ("parents/science", "physics", 409, "parent-refused"),
        ("budgets/team", "nobody", 404, "parent-unknown"),
        ("budgets/team", "No Name", 422, "parent-invalid"),
    ],
)
def test_what_is_no_hierarchy_is_refused_by_field(world: World, path: str, parent: str, status: int, code: str) -> None:
    for name, kind in (("physics", "team"), ("science", "organisation")):
        world.call("PUT", f"/api/v1/parents/{name}", {**BODY, "kind": kind})
    refused = world.call("PUT", f"/api/v1/{path}/parent", {"parent": parent, "reason": "r"})
    assert (refused.status_code, refused.json["code"], refused.json["field"]) == (status, code, "parent")
    assert parent in refused.json["detail"]


def test_a_parents_budget_is_changed_by_version(world: World) -> None:
    etag = world.call("PUT", "/api/v1/parents/physics", BODY).headers["ETag"]
    changed = world.call("PUT", "/api/v1/parents/physics", {**BODY, "amountMs": 5}, {"If-Match": etag})
    assert (changed.status_code, changed.json["amountMs"]) == (200, 5)
    stale = world.call("PUT", "/api/v1/parents/physics", {**BODY, "amountMs": 6}, {"If-Match": etag})
    assert (stale.status_code, stale.json["code"]) == (412, "version-mismatch")
    kept = world.call("GET", "/api/v1/parents/physics", headers={"If-None-Match": changed.headers["ETag"]})
    assert kept.status_code == 304
    assert world.call("PUT", "/api/v1/parents/physics", {**BODY, "kind": "organisation"}).json["field"] == "kind"


def test_a_team_has_all_that_a_namespace_has(world: World) -> None:
    for name, kind in (("physics", "team"), ("chemistry", "team"), ("science", "organisation")):
        amount = 10**9 if name == "science" else 100_000
        world.call("PUT", f"/api/v1/parents/{name}", {**BODY, "kind": kind, "amountMs": amount, "period": "hour"})
    for path, parent in (("budgets/team", "physics"), ("parents/physics", "science"), ("parents/chemistry", "science")):
        world.call("PUT", f"/api/v1/{path}/parent", {"parent": parent, "reason": "r"})
    world.pod("a")
    world.clock.advance(4_000)
    moved = {
        "/parents/physics/adjustments": {"amountMs": -1_000, "reason": "r"},
        "/parents/physics/grants": {"amountMs": 5_000, "reason": "r"},
        "/parents/physics/transfers": {"to": "chemistry", "amountMs": 3_000, "reason": "r"},
        "/budgets/team/transfers": {"to": "chemistry", "toKind": "parent", "amountMs": 2_000, "reason": "r"},
        "/parents/chemistry/transfers": {"to": "other", "toKind": "namespace", "amountMs": 500, "reason": "r"},
    }
    for path, body in moved.items():
        for status in (201, 200):
            assert world.call("POST", f"/api/v1{path}", body, {"Idempotency-Key": path}).status_code == status, path
    assert world.get("/api/v1/parents/physics")["balanceMs"] == 100_000 - 4_000 - 1_000 + 5_000 - 3_000
    assert world.get("/api/v1/parents/chemistry")["balanceMs"] == 100_000 + 3_000 + 2_000 - 500
    shown = world.get("/api/v1/parents/chemistry/transfers")["items"]
    assert [(one["amountMs"], one["counterpart"]) for one in shown] == [
        (-500, "other"),
        (2_000, "team"),
        (3_000, "team physics"),
    ]
    assert world.get("/api/v1/budgets/other/transfers")["items"][0]["counterpart"] == "team chemistry"
    for path, to in (("parents/physics", "science"), ("parents/science", "physics"), ("parents/physics", "team")):
        body = {"to": to, "amountMs": 1, "reason": "r", "toKind": "namespace" if to == "team" else "parent"}
        refused = world.call("POST", f"/api/v1/{path}/transfers", body, {"Idempotency-Key": "x"})
        assert (refused.status_code, refused.json["code"], refused.json["field"]) == (409, "transfer-refused", "to")
    own = world.call("POST", "/api/v1/parents/lost/transfers", {"to": "lost", "amountMs": 1, "reason": "r"})
    assert own.status_code == 422

    world.clock.advance(HOUR)
    settlement.settle(world.service.books, [world.service.books.require("team").account.id], world.clock.now_ms())
    span = f"from={format_instant(T0)}&to={format_instant(T0 + HOUR)}"
    statement = world.get(f"/api/v1/parents/physics/statement?{span}")
    assert (statement["parent"], statement["namespace"], statement["workloads"]) == ("physics", None, [])
    assert [(one["name"], one["kind"], one["chargedMs"]) for one in statement["children"]] == [
        ("team", "namespace", 101_000)
    ]
    assert statement["openingMs"] + sum(t["balanceMs"] for t in statement["totals"]) == statement["closingMs"] == 0
    lines = world.call("GET", f"/api/v1/parents/physics/statement?format=csv&{span}").text.splitlines()
    assert any(line.startswith("namespace,team,") for line in lines)
    first = world.get("/api/v1/parents/physics/periods")["items"][-1]
    assert (first["state"], first["chargedMs"], first["grantedMs"]) == ("grace", 101_000, 101_000)
    sealed = world.call(
        "PUT", "/api/v1/parents/physics/seal", {"until": format_instant(T0 + HOUR), "reason": "month end"}
    )
    assert (sealed.status_code, sealed.json["sealedUntil"]) == (200, format_instant(T0 + HOUR))
    entries = world.get("/api/v1/parents/physics/entries")["items"]
    assert {one["subject"] for one in entries if one["kind"] == "charge"} == {"namespace:team"}
    limits = {
        (sample.labels["parent"], sample.labels["kind"]): sample.value
        for family in text_string_to_metric_families(world.metrics())
        for sample in family.samples
        if sample.name == "gpu_budget_parent_limit_seconds"
    }
    assert limits[("physics", "team")] == 100.0
    assert verify(world.service.books.database.engine, carry=False).differences == []


def test_a_request_repeated_in_other_words_is_the_same(world: World) -> None:
    url, key = "/api/v1/budgets/team/grants", {"Idempotency-Key": "k"}
    for body, status in (
        (b'{"amountMs": 5, "reason": "r"}', 201),
        (b'{"reason":"r",  "amountMs":5}', 200),
        (b'{"reason":"r","amountMs":6}', 409),
        (b'{"amountMs":5,"reason":"\xff"}', 400),
    ):
        assert world.call("POST", url, body, key).status_code == status, body
    assert world.get("/api/v1/budgets/team")["grantedMs"] == 5


def test_a_budget_begins_where_its_anchor_says(world: World) -> None:
    body = {"amountMs": 9_000, "period": "month", "timeZone": "Europe/Berlin", "anchor": "2026-01-31T00:00:00+01:00"}
    put = world.call("PUT", "/api/v1/budgets/team", body)
    assert (put.status_code, put.json["anchor"]) == (200, "2026-01-30T23:00:00.000Z")
    world.pod("a")
    ends = []
    for _ in range(4):
        budget = world.get("/api/v1/budgets/team")
        ends.append(budget["periodEnd"])
        world.clock.advance(parse_instant(budget["periodEnd"]) - world.clock.now_ms())
        assert world.get("/api/v1/budgets/team")["balanceMs"] == 9_000
    assert ends == [
        "2026-01-30T23:00:00.000Z",
        "2026-02-27T23:00:00.000Z",
        "2026-03-30T22:00:00.000Z",
        "2026-04-29T22:00:00.000Z",
    ]
    settlement.settle(world.service.books, [world.service.books.require("team").account.id], world.clock.now_ms())
    shown = world.get("/api/v1/budgets/team/periods")["items"]
    assert [(one["start"], one["chargedMs"]) for one in shown[1:4]] == [(end, 9_000) for end in reversed(ends[:3])]
    sealed = world.call("PUT", "/api/v1/budgets/team/seal", {"until": ends[0], "reason": "r"})
    assert sealed.status_code == 200, sealed.data
    assert verify(world.service.books.database.engine, carry=False).differences == []


def test_children_show_the_same_before_and_after_a_crossing_is_booked(world: World) -> None:
    world.call("PUT", "/api/v1/parents/physics", {**BODY, "amountMs": 3_600_000 + 10_000, "period": "day"})
    world.call("PUT", "/api/v1/budgets/team/parent", {"parent": "physics", "reason": "r"})
    world.pod("a")
    for advance, total in ((HOUR + 5_000, 3_605_000), (10_000, 3_610_000), (24 * HOUR - 15_000 - HOUR + 2_000, 2_000)):
        world.clock.advance(advance)
        unbooked = world.get("/api/v1/parents/physics/children")["items"][0]["consumedMs"]
        assert unbooked == world.get("/api/v1/parents/physics")["usedMs"] == total
    settlement.settle(world.service.books, [world.service.books.require("team").account.id], world.clock.now_ms())
    assert world.get("/api/v1/parents/physics/children")["items"][0]["consumedMs"] == 2_000


@pytest.mark.parametrize("drawn", ["before the change back", "after it"])
def test_what_rolled_over_is_shown_after_the_period_changed_to_days_and_back(world: World, drawn: str) -> None:
    """A period that no pod has drawn on yet takes another name with the calendar; what it began with is the same."""
    day = 24 * HOUR
    rule = {"amountMs": 100_000, "timeZone": "UTC", "rolloverMs": 60_000}

    def use(uid: str, seconds: int) -> None:
        start = world.clock.now_ms()
        world.clock.advance(seconds * 1000)
        closing = Closing(uid, start + seconds * 1000, "finished")
        policies = {"team": world.service.policy.of("team")}
        workload.apply(world.service.books, [opening(uid, start)], [closing], policies, world.clock.now_ms())

    def change(period: str) -> None:
        assert world.call("PUT", "/api/v1/budgets/team", {**rule, "period": period}).status_code == 200

    change("month")
    use("first", 30)
    world.clock.advance(9 * day + 12 * HOUR)
    change("day")
    world.clock.advance(day)
    if drawn == "before the change back":
        use("second", 5)
    change("month")
    use("third", 10)
    newest, cut = world.get("/api/v1/budgets/team/periods")["items"]
    assert (newest["start"], cut["start"]) == ("2026-01-11T00:00:00.000Z", "2026-01-01T00:00:00.000Z")
    assert (newest["rolledOverMs"], cut["rolledOverMs"]) == (60_000, 0)
