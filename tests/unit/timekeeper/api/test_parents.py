# SPDX-License-Identifier: Apache-2.0
"""Teams and organisations over HTTP: put above budgets, bound by, and booked on."""

from __future__ import annotations

import pytest
from prometheus_client.parser import text_string_to_metric_families
from support.timekeeper_service import HOUR, T0, World

from slicekeeper.units import format_instant
from timekeeper.ledger import settlement
from timekeeper.ledger.verify import verify

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
    assert decision["reason"].startswith("the budget of organisation science is suspended since")
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
