# SPDX-License-Identifier: Apache-2.0
"""The routes of the service that Slicekeeper replaces, with its payloads."""

from __future__ import annotations

from fractions import Fraction

from support.timekeeper_service import GOOD_GRANT, HOUR, T0, World

from slicekeeper.units import format_instant


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


def test_legacy_routes_answer_with_the_payloads_that_their_clients_know(world: World) -> None:
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
