# SPDX-License-Identifier: Apache-2.0
"""Intervals corrected by hand over HTTP."""

from __future__ import annotations

from support.timekeeper_service import HOUR, T0, World

from slicekeeper.units import format_instant
from timekeeper.ledger.verify import verify


def test_an_interval_is_put_right_by_hand(world: World) -> None:
    world.pod("a")
    uid = world.uid("a-pod")
    url, right = "/api/v1/budgets/team/intervals", {"Idempotency-Key": "k"}
    body = {"podUid": uid, "end": format_instant(T0 + 60_000), "reason": "the node's clock"}
    running = world.call("POST", url, body, right)
    assert (running.status_code, running.json["code"], running.json["field"]) == (409, "pod-running", "end")
    world.clock.advance(HOUR)
    world.end("a")
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
