# SPDX-License-Identifier: Apache-2.0
"""Requests that are executed once per Idempotency-Key keep it, whatever they did; the route table names them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text
from support.timekeeper_service import GOOD_BUDGET, HOUR, T0, World

from slicekeeper.units import format_instant
from timekeeper.api.routes import ROUTES, Route
from timekeeper.ledger.verify import verify

KEYED = [route for route in ROUTES if "Idempotency-Key" in route.headers]
WITHOUT = {
    "/api/v1/reports": "a counter is cumulative",
    "/budget/{namespace}/report": "a sign of life changes nothing that a later one has changed",
    "/api/v1/rates": "a rate names its instant, or is the newest then",
}
"""The writes that create something without a key, and why they need none."""

FIRST = {
    "grants": {"amountMs": 60_000, "reason": "r"},
    "adjustments": {"amountMs": 60_000, "reason": "r"},
    "transfers": {"to": "other", "toKind": "namespace", "amountMs": 60_000, "reason": "r"},
    "reservations": {"amountMs": 60_000, "reason": "r", "expiresAt": format_instant(T0 + 9 * HOUR)},
    "refunds": {"podUid": "", "amountMs": 60_000, "reason": "r"},
    "intervals": {"podUid": "", "end": format_instant(T0 + HOUR), "reason": "r"},
    "increase": {"minutes": 1, "reason": "r"},
}
"""A request of each kind. The interval is the one that the pod has already: this correction changes nothing."""

LATER = {
    **{kind: {**body, "amountMs": 90_000} for kind, body in FIRST.items()},
    "intervals": {**FIRST["intervals"], "end": format_instant(T0 + HOUR // 2)},
    "increase": {"minutes": 2, "reason": "r"},
}


def named(route: Route) -> str:
    return f"{route.method} {route.path}"


def test_every_write_that_creates_something_takes_a_key_or_has_a_reason_not_to() -> None:
    without = {route.path for route in ROUTES if route.method == "POST" and route not in KEYED}
    assert without == WITHOUT.keys()
    assert {route.path.rpartition("/")[2] for route in KEYED} == FIRST.keys()
    assert all(route.method == "POST" for route in KEYED)


@pytest.mark.parametrize("route", KEYED, ids=named)
def test_what_is_answered_with_2xx_keeps_its_key_and_its_repetition_undoes_nothing(world: World, route: Route) -> None:
    policy = Path(world.service.settings.policy.file)
    policy.write_text("default: {budget: {amount: 150m, period: day, enforcement: safe}}\n")
    assert world.service.policy.refresh()
    world.call("PUT", "/api/v1/parents/lab", {**GOOD_BUDGET, "kind": "team", "amountMs": HOUR})
    world.pod("a")
    world.clock.advance(HOUR)
    world.end("a")
    world.clock.advance(1_000)
    url, kind = route.path.format(namespace="team", parent="lab"), route.path.rpartition("/")[2]

    def send(body: dict[str, Any], key: str) -> int:
        sent = {**body, "podUid": world.uid("a-pod")} if "podUid" in body else body
        return world.call("POST", url, sent, {"Idempotency-Key": key}).status_code

    first = send(FIRST[kind], "first")
    assert first in (200, 201)
    assert send(LATER[kind], "later") in (200, 201)
    before = records(world)
    assert [send(FIRST[kind], key) for key in ("first", "first")] == [200, 200]
    assert records(world) == before
    assert [send(LATER[kind], "first"), send(FIRST[kind], "later")] == [409, 409]
    assert records(world) == before
    assert verify(world.service.books.database.engine, carry=False).differences == []


def records(world: World) -> list[Any]:
    """Return what requests have recorded, and the intervals and balances that follow."""
    tables = ("budget_grant", "reservation", "interval_correction", "workload", "account", "audit")
    with world.service.books.database.engine.connect() as connection:
        return [connection.execute(text(f"SELECT * FROM {table} ORDER BY 1")).all() for table in tables]
