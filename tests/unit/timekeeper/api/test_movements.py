# SPDX-License-Identifier: Apache-2.0
"""Grants, refunds, transfers and adjustments over HTTP, each once per key, and in the audit log."""

from __future__ import annotations

from typing import Any

from support.timekeeper_service import GOOD_BUDGET, GOOD_GRANT, HOUR, T0, World
from werkzeug.test import TestResponse

from slicekeeper.units import format_instant
from timekeeper.ledger.verify import verify


def test_movements_prices_and_status_are_told_and_audited(world: World) -> None:
    def post(what: str, body: Any, key: str) -> TestResponse:
        return world.call("POST", f"/api/v1/budgets/team/{what}", body, {"Idempotency-Key": key})

    world.pod("a")
    uid = world.uid("a-pod")
    world.clock.advance(HOUR)
    world.end("a")
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


def test_a_refund_is_shown_with_the_end_that_its_period_has_now(world: World) -> None:
    world.pod("a")
    world.clock.advance(HOUR)
    world.end("a")
    body = {"podUid": world.uid("a-pod"), "amountMs": HOUR, "reason": "a broken GPU"}
    world.call("POST", "/api/v1/budgets/team/refunds", body, {"Idempotency-Key": "k"})
    for change, end in (
        ({}, T0 + 24 * HOUR),
        ({"period": "month"}, T0 + 31 * 24 * HOUR),
        ({"period": "none"}, None),
        ({"period": "week"}, T0 + 4 * 24 * HOUR),
        ({"newPeriod": True}, T0 + 6 * HOUR),
        ({"period": "year"}, T0 + 6 * HOUR),
    ):
        world.clock.advance(HOUR)
        assert world.call("PATCH", "/api/v1/budgets/team", {"amountMs": HOUR, **change}).status_code == 200
        (refund,) = world.get("/api/v1/budgets/team/refunds")["items"]
        assert refund["validTo"] == (None if end is None else format_instant(end)), change


def test_what_there_is_to_spend_is_what_is_used_and_what_is_left(world: World) -> None:
    def figures() -> tuple[int, ...]:
        found = world.get("/api/v1/budgets/team")
        return tuple(found[f"{key}Ms"] // 60_000 for key in ("amount", "granted", "withdrawn", "toSpend", "balance"))

    def post(what: str, body: Any, key: str) -> None:
        answer = world.call("POST", f"/api/v1/budgets/team/{what}", body, {"Idempotency-Key": key})
        assert answer.status_code == 201, answer.data

    assert figures() == (150, 0, 0, 150, 150), "it has no account yet"
    post("adjustments", {"amountMs": -HOUR, "reason": "r"}, "a")
    assert figures() == (150, 0, 60, 90, 90)
    post("transfers", {"to": "other", "amountMs": HOUR // 2, "reason": "r"}, "b")
    assert figures() == (150, 0, 90, 60, 60)
    assert world.get("/api/v1/budgets/other")["toSpendMs"] == 3 * HOUR
    world.clock.advance(1)
    post("grants", {"amountMs": HOUR, "reason": "r", "validTo": format_instant(T0 + 2 * HOUR)}, "c")
    world.pod("a")
    world.clock.advance(HOUR // 2)
    assert figures() == (150, 60, 90, 120, 90)
    assert 'gpu_budget_limit_seconds{namespace="team"} 7200.0' in world.metrics()
    world.end("a")
    world.clock.advance(2 * HOUR)
    assert figures() == (150, 60, 90, 90, 60), "the rest of the grant has expired"
    world.clock.advance(24 * HOUR)
    assert figures() == (150, 0, 0, 150, 150), "another period"


def test_a_closed_budget_is_shown_as_closed_in_it_and_under_it(world: World) -> None:
    world.pod("a")
    world.pod("b", "other")
    world.call("PUT", "/api/v1/parents/lab", {"amountMs": 9 * HOUR, "period": "day", "kind": "team"})
    world.call("PUT", "/api/v1/budgets/other/parent", {"parent": "lab", "reason": "r"})
    for status in ("suspended", "closed"):
        for path in ("budgets/team", "parents/lab"):
            answer = world.call("PUT", f"/api/v1/{path}/status", {"status": status, "reason": "r"})
            assert (answer.json["status"], answer.json["state"]) == (status, status)
        decisions = {one["namespace"]: one for one in world.get("/api/v1/decisions")["items"]}
        assert {one["state"] for one in decisions.values()} == {status}
        assert decisions["team"]["reason"].startswith(f"the budget is {status} since ")
        assert decisions["other"]["reason"].startswith(f"the budget of team lab is {status} since ")
        assert {one["priorityClassName"] for one in decisions.values()} == {"gpu-lower-priority"}
        (child,) = world.get("/api/v1/parents/lab/children")["items"]
        assert (world.get("/api/v1/budgets/other")["state"], child["state"]) == (status, status)
        assert world.get("/budget/team")["budget_available"] is False


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


def test_a_grant_needs_a_key(world: World) -> None:
    answer = world.call("POST", "/api/v1/budgets/team/grants", GOOD_GRANT)
    assert (answer.status_code, answer.json["code"]) == (422, "idempotency-key-missing")


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
