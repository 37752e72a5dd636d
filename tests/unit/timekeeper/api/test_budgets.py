# SPDX-License-Identifier: Apache-2.0
"""Budgets over HTTP: set, changed by version, by patch, and what is shown of them as time goes on."""

from __future__ import annotations

from typing import Any

import pytest
from support.timekeeper_service import World

from slicekeeper.units import parse_instant
from timekeeper.api.handlers import budget
from timekeeper.ledger import settlement
from timekeeper.ledger.verify import verify

_OWN = {
    "amountMs": 9_000_000,
    "period": "week",
    "timeZone": "Europe/Berlin",
    "creditMs": 5_000,
    "rolloverMs": 6_000,
    "anchor": "2025-12-29T05:00:00.000Z",
}


def test_a_budget_is_changed_only_by_who_has_read_it(world: World) -> None:
    read = world.call("GET", "/api/v1/budgets/team")
    body = {"amountMs": 60_000, "period": "month", "timeZone": "Europe/Berlin"}
    put = world.call("PUT", "/api/v1/budgets/team", body, {"If-Match": read.headers["ETag"]})
    assert (put.status_code, put.json["amountMs"], put.json["source"]) == (200, 60_000, "own")
    assert put.json["periodStart"] == "2025-12-31T23:00:00.000Z"
    late = world.call("PUT", "/api/v1/budgets/team", {**body, "amountMs": 1}, {"If-Match": read.headers["ETag"]})
    assert (late.status_code, late.json["code"]) == (412, "version-mismatch")
    assert world.get("/api/v1/budgets/team")["amountMs"] == 60_000
    for method in ("GET", "HEAD"):
        same = world.call(method, "/api/v1/budgets/team", headers={"If-None-Match": put.headers["ETag"]})
        assert same.status_code == 304


@pytest.mark.parametrize(("path", "more"), [("budgets/team", {}), ("parents/lab", {"kind": "team"})])
def test_the_audit_log_has_the_reason_for_a_budget(world: World, path: str, more: dict[str, str]) -> None:
    def reason() -> object:
        return world.get("/api/v1/audit")["items"][-1]["detail"]["reason"]

    body = {"amountMs": 60_000, "period": "month", **more}
    world.call("PUT", f"/api/v1/{path}", {**body, "reason": "a new project"})
    assert reason() == "a new project"
    world.call("PUT", f"/api/v1/{path}", {**body, "amountMs": 1})
    assert reason() == "set"
    world.call("PATCH", f"/api/v1/{path}", {"amountMs": 2, "reason": "a deadline"})
    assert reason() == "a deadline"
    tag = world.call("GET", f"/api/v1/{path}").headers["ETag"]
    assert world.call("PATCH", f"/api/v1/{path}", {"reason": "nothing"}).headers["ETag"] == tag
    assert reason() == "a deadline"
    answer = world.call("PUT", f"/api/v1/{path}", {**body, "reason": " "})
    assert (answer.status_code, answer.json["field"]) == (422, "reason")


def test_of_two_who_give_a_namespace_its_first_budget_at_once_one_is_refused(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    tag = world.call("GET", "/api/v1/budgets/team").headers["ETag"]
    body = {"amountMs": 60_000, "period": "month"}
    set_budget, answers = budget.set_budget, []

    def second(*given: Any, **named: Any) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(budget, "set_budget", set_budget)
            answers.append(world.call("PUT", "/api/v1/budgets/team", {**body, "amountMs": 1}, {"If-Match": tag}))
        set_budget(*given, **named)

    monkeypatch.setattr(budget, "set_budget", second)
    first = world.call("PUT", "/api/v1/budgets/team", body, {"If-Match": tag})
    assert [answers[0].status_code, first.status_code] == [200, 412]
    assert world.get("/api/v1/budgets/team")["amountMs"] == 1


def test_a_first_pod_does_not_change_the_version_of_a_budget(world: World) -> None:
    tag = world.call("GET", "/api/v1/budgets/team").headers["ETag"]
    world.pod("a")
    assert world.call("GET", "/api/v1/budgets/team").headers["ETag"] == tag
    for status in ("suspended", "active"):
        world.call("PUT", "/api/v1/budgets/team/status", {"status": status, "reason": "r"})
        now = world.call("GET", "/api/v1/budgets/team").headers["ETag"]
        assert (now == tag) == (status == "active")


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
