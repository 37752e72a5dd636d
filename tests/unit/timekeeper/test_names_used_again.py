# SPDX-License-Identifier: Apache-2.0
"""A namespace that is deleted and made again: both accounts are found, by UID, and each by who may see it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from flask import Flask
from support.manual_clock import ManualClock
from support.openings import opening
from support.timekeeper_service import serving
from werkzeug.test import TestResponse

from timekeeper.api.app import routed
from timekeeper.api.handler_context import HandlerContext
from timekeeper.api.problems import Problem
from timekeeper.core.caller import Caller
from timekeeper.ledger import workload
from timekeeper.ledger.explain import explain
from timekeeper.ledger.verify import verify
from timekeeper.ledger.workload import Closing

T0 = 1_767_225_600_000
HOUR = 3_600_000


class World:
    """A namespace `team` that was deleted after two pods, and made again."""

    def __init__(self, service: HandlerContext, clock: ManualClock) -> None:
        self.service, self.clock, self.app = service, clock, routed(service)
        self.there("old")
        self.run("a", "old", 600_000)
        self.run("b", "old", 300_000)
        self.there("new")

    def there(self, uid: str) -> None:
        self.service.controller.namespaces.on_list([{"metadata": {"name": "team", "uid": uid}}])

    def run(self, uid: str, namespace: str, span: int) -> None:
        begun = opening(uid, self.clock.now_ms())
        begun = type(begun)(**{**begun.__dict__, "namespace_uid": namespace})
        end = self.clock.now_ms() + span
        self.clock.advance(span)
        workload.apply(
            self.service.books, [begun], [Closing(uid, end, "finished")], {"team": self.service.policy.of("team")}, end
        )

    def call(self, method: str, path: str, body: Any = None, key: str = "k") -> TestResponse:
        headers = {"Authorization": "Bearer operator-token", "Idempotency-Key": key}
        data = None if body is None else json.dumps(body).encode()
        return Flask.test_client(self.app).open(
            path, method=method, data=data, headers=headers, content_type="application/json"
        )

    def get(self, path: str) -> Any:
        answer = self.call("GET", path)
        assert answer.status_code == 200, answer.data
        return answer.json


@pytest.fixture
def world(tmp_path: Path, database_url: str) -> Iterator[World]:
    clock = ManualClock(T0)
    with serving(tmp_path, database_url, clock) as (service, _):
        yield World(service, clock)
        assert verify(service.books.database.engine, carry=False).differences == []


BASE = "/api/v1/budgets/team"


def test_the_new_namespace_does_not_see_the_old_account(world: World) -> None:
    """Before its first pod too, when the old account is the only one of the name."""
    fresh = world.get(BASE)
    assert (fresh["uid"], fresh["gone"], fresh["usedMs"], fresh["balanceMs"]) == ("new", False, 0, 150 * 60_000)
    assert world.get("/api/v1/usage/team")["workloads"] == 0
    assert world.get("/budget/team")["budget_remaining"] == 150.0
    for path in ("statement", "entries", "periods"):
        answer = world.call("GET", f"{BASE}/{path}")
        assert (answer.status_code, answer.json["code"]) == (404, "namespace-unknown")
    for path in ("grants", "refunds", "adjustments", "transfers", "reservations"):
        assert world.get(f"{BASE}/{path}")["items"] == []
    refused = world.call("POST", f"{BASE}/refunds", {"podUid": "a", "amountMs": 1, "reason": "r"})
    assert (refused.status_code, refused.json["code"]) == (404, "pod-unknown")


def test_the_old_account_is_listed_stated_and_refunded_by_its_uid(world: World) -> None:
    world.run("c", "new", 60_000)
    listed = world.get("/api/v1/budgets")["items"]
    assert [(b["namespace"], b["uid"], b["gone"], b["usedMs"]) for b in listed] == [
        ("team", "old", True, 900_000),
        ("team", "new", False, 60_000),
    ]
    first = world.get("/api/v1/budgets?limit=1")
    assert [b["uid"] for b in first["items"]] == ["old"]
    assert [b["uid"] for b in world.get(f"/api/v1/budgets?cursor={first['nextCursor']}")["items"]] == ["new"]

    assert world.get(f"{BASE}?uid=old")["usedMs"] == 900_000
    assert {w["podUid"]: w["chargedMs"] for w in world.get(f"{BASE}/statement?uid=old")["workloads"]} == {
        "a": 600_000,
        "b": 300_000,
    }
    assert [w["podUid"] for w in world.get(f"{BASE}/statement")["workloads"]] == ["c"]
    assert b"600000" in world.call("GET", f"{BASE}/statement?uid=old&format=csv").data
    assert {e["subject"] for e in world.get(f"{BASE}/entries?uid=old")["items"]} > {"a", "b"}
    assert world.get(f"{BASE}/periods?uid=old")["items"][0]["chargedMs"] == 900_000

    body = {"podUid": "a", "amountMs": 500_000, "reason": "a broken node"}
    assert world.call("POST", f"{BASE}/refunds?uid=old", body).status_code == 201
    assert world.call("POST", f"{BASE}/refunds?uid=old", body).status_code == 200
    more = world.call("POST", f"{BASE}/refunds?uid=old", {**body, "amountMs": 100_001}, "k2")
    assert (more.status_code, more.json["code"]) == (409, "refund-above-charge")
    assert [r["counterpart"] for r in world.get(f"{BASE}/refunds?uid=old")["items"]] == ["a"]
    assert world.get(f"{BASE}/refunds")["items"] == []
    taken = world.call("POST", f"{BASE}/adjustments?uid=old", {"amountMs": -1, "reason": "r"}, "k3")
    assert (taken.status_code, taken.json["uid"]) == (201, "old")
    lines = list(explain(world.service.books.database.engine, "default", "team", T0 + HOUR, carry=False, uid="old"))
    assert lines[-1].balance_ms == world.get(f"{BASE}?uid=old")["balanceMs"]


@pytest.mark.parametrize(("route", "name"), [("workloads?", "podUid"), ("usage?groupBy=workload&bucket=day&", "group")])
def test_pods_are_those_of_one_account(world: World, route: str, name: str) -> None:
    def pods(query: str) -> list[str]:
        return [pod[name] for pod in world.get(f"/api/v1/{route}{query}")["items"]]

    assert pods("namespace=team") == []
    world.run("c", "new", 60_000)
    assert pods("namespace=team") == pods("namespace=team&uid=new") == ["c"]
    assert sorted(pods("namespace=team&uid=old")) == ["a", "b"]
    assert sorted(pods("")) == ["a", "b", "c"]
    for query, status, code in (("uid=old", 422, "query-invalid"), ("namespace=team&uid=x", 404, "namespace-unknown")):
        refused = world.call("GET", f"/api/v1/{route}{query}")
        assert (refused.status_code, refused.json["code"], refused.json["field"]) == (status, code, "uid")


def test_the_audit_log_is_that_of_one_account(world: World) -> None:
    def told(query: str) -> list[tuple[str, str]]:
        return [(one["action"], one["detail"]["reason"]) for one in world.get(f"/api/v1/audit?{query}")["items"]]

    forged = '"namespaceUid":"new"'
    for uid, reason in (("old", forged), ("new", "n")):
        body = {"amountMs": 5, "reason": reason}
        assert told("namespace=team") == []
        assert (
            world.call(
                "POST", f"{BASE}/adjustments?uid={uid}" if uid == "old" else f"{BASE}/adjustments", body, uid
            ).status_code
            == 201
        )
    assert told("namespace=team") == told("namespace=team&uid=new") == [("adjustment", "n")]
    assert told("namespace=team&uid=old") == [("adjustment", forged)]
    assert told("") == [("adjustment", forged), ("adjustment", "n")]
    for query, status in (("uid=old", 422), ("namespace=team&uid=x", 404)):
        refused = world.call("GET", f"/api/v1/audit?{query}")
        assert (refused.status_code, refused.json["field"]) == (status, "uid")


def test_the_last_account_of_a_name_that_nobody_has_is_still_found_by_the_name(world: World) -> None:
    world.service.controller.namespaces.on_list([])
    assert (world.get(BASE)["uid"], world.get(BASE)["gone"]) == ("old", True)


@pytest.mark.parametrize("path", ["", "/statement", "/entries", "/periods", "/grants", "/refunds"])
def test_a_uid_that_has_no_account_of_the_name_is_refused(world: World, path: str) -> None:
    workload.apply(
        world.service.books,
        [opening("x", T0, 1, "other")],
        [],
        {"other": world.service.policy.of("other")},
        world.clock.now_ms(),
    )
    for uid in ("nobody", "uid-other", "new"):
        answer = world.call("GET", f"{BASE}{path}?uid={uid}")
        assert (answer.status_code, answer.json["code"], answer.json["field"]) == (404, "namespace-unknown", "uid")
    assert world.call("GET", f"{BASE}{path}?uid={'x' * 65}").status_code == 422


def test_rights_in_the_new_namespace_open_no_account_of_the_old_one(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, str, str]] = []

    def allow(_caller: Caller, verb: str, namespace: str, subresource: str = "") -> None:
        asked.append((verb, namespace, subresource))
        if not namespace:
            raise Problem(403, "forbidden", "only in team")

    monkeypatch.setattr(world.service.identity, "allow", allow)
    world.run("c", "new", 1)
    assert world.call("GET", f"{BASE}/statement").status_code == 200
    assert world.call("GET", f"{BASE}/statement?uid=new").status_code == 200
    body = {"podUid": "a", "amountMs": 1, "reason": "r"}
    assert world.call("GET", "/api/v1/workloads?namespace=team").status_code == 200
    for answer in (
        world.call("GET", f"{BASE}/statement?uid=old"),
        world.call("GET", f"{BASE}?uid=old"),
        world.call("GET", "/api/v1/workloads?namespace=team&uid=old"),
        world.call("GET", "/api/v1/usage?namespace=team&uid=old"),
        world.call("POST", f"{BASE}/refunds?uid=old", body),
    ):
        assert (answer.status_code, answer.json["code"]) == (403, "forbidden")
    assert asked[3:] == [
        ("get", "", "statement"),
        ("get", "", ""),
        ("list", "", ""),
        ("list", "", ""),
        ("create", "", "refunds"),
    ]


def test_what_changes_the_rule_of_a_budget_takes_no_uid(world: World) -> None:
    answer = world.call("PUT", f"{BASE}/status?uid=old", {"status": "closed", "reason": "r"})
    assert (answer.status_code, answer.json["code"]) == (422, "query-invalid")
