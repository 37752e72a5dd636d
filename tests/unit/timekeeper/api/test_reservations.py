# SPDX-License-Identifier: Apache-2.0
"""Reservations over HTTP: opened, shown and released by hand."""

from __future__ import annotations

from pathlib import Path

from support.timekeeper_service import HOUR, T0, World

from slicekeeper.units import format_instant


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
    released = world.call("DELETE", f"{url}/{made.json['id']}?reason=no+demo")
    assert (released.status_code, released.json["state"], released.json["heldMs"]) == (200, "released", 0)
    assert world.call("DELETE", f"{url}/{made.json['id']}").json == released.json
    world.clock.advance(2 * HOUR)
    assert [r["state"] for r in world.get(url)["items"]] == ["expired", "released"]
    assert world.get("/api/v1/budgets/team")["reservedMs"] == 0
    for wrong in ("0", "999", "x", "9" * 30):
        answer = world.call("DELETE", f"{url}/{wrong}")
        assert (answer.status_code, answer.json["code"]) == (404, "reservation-unknown")
    entries = world.get("/api/v1/audit?namespace=team")["items"]
    assert [entry["action"] for entry in entries] == ["reservation", "reservation", "release"]
    assert entries[-1]["detail"]["reason"] == "no demo"
