# SPDX-License-Identifier: Apache-2.0
"""Every write is executed once per Idempotency-Key, also if it changes nothing; they are in the route table."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import pytest
from sqlalchemy import inspect, text
from support.timekeeper_service import GOOD_BUDGET, HOUR, T0, World
from werkzeug.test import TestResponse

from slicekeeper import names
from slicekeeper.units import format_instant
from timekeeper.api.routes import ROUTES, Route
from timekeeper.ledger.verify import verify

WRITES = [route for route in ROUTES if route.method != "GET"]
WITHOUT = {
    "POST /api/v1/reports": "a counter is cumulative",
    "POST /budget/{namespace}/report": "a sign of life changes nothing that a later one has changed",
    **{
        f"{method} /api/v1/{owner}/object": "each generation of an object counts once, and the request has its UID"
        for method in ("PUT", "DELETE")
        for owner in ("budgets/{namespace}", "parents/{parent}")
    },
}
"""The writes that take no key, and why they need none."""

KEYED = [route for route in WRITES if f"{route.method} {route.path}" not in WITHOUT]
DAY = 24 * HOUR


class Case(NamedTuple):
    """A request, and what is sent under other keys: another one on the same route, and one that replaces it."""

    first: Any
    other: Any
    replaced_by: tuple[str, str, Any] | None = None
    """Method, the path's last part, and body; None: `other`."""


_BODY = {**GOOD_BUDGET, "reason": "r"}
_SET = {"PUT": {**_BODY, "amountMs": 7 * HOUR}, "PATCH": {"amountMs": 7 * HOUR, "newPeriod": True}}
_GRANT = ("POST", "/grants", {"amountMs": 1, "reason": "r"})
CASES = {
    **{
        f"{method} {kind}": Case({**body, **more}, {**body, **more, "amountMs": 8 * HOUR})
        for method, body in _SET.items()
        for kind, more in (("{namespace}", {}), ("{parent}", {"kind": "team"}))
    },
    "DELETE {namespace}": Case("?reason=a", "?reason=b", ("PUT", "", _BODY)),
    "PUT status": Case(
        {"status": "suspended", "reason": "r"}, {"status": "suspended", "reason": "s"},
        ("PUT", "/status", {"status": "active", "reason": "r"}),
    ),
    "PUT parent": Case({"parent": "top", "reason": "r"}, {"parent": None, "reason": "r"}),
    "PUT seal": Case(
        {"until": format_instant(T0 + DAY), "reason": "r"}, {"until": format_instant(T0 + DAY), "reason": "s"}, _GRANT
    ),
    "POST rates": Case({"model": "A100", "rate": "2", "reason": "r"}, {"model": "A100", "rate": "3", "reason": "r"}),
    "DELETE {grant}": Case("?reason=a", "?reason=b", _GRANT),
    "DELETE {reservation}": Case("?reason=a", "?reason=b", _GRANT),
    **{
        f"POST {kind}": Case({**body, "reason": "r"}, {**body, "amountMs": 90_000, "reason": "r"})
        for kind, body in {
            "grants": {"amountMs": 60_000},
            "adjustments": {"amountMs": 60_000},
            "transfers": {"to": "other", "toKind": "namespace", "amountMs": 60_000},
            "reservations": {"amountMs": 60_000, "expiresAt": format_instant(T0 + 9 * DAY)},
            "refunds": {"podUid": "", "amountMs": 60_000},
        }.items()
    },
    # The interval that the pod has already: this correction changes nothing.
    "POST intervals": Case(
        {"podUid": "", "end": format_instant(T0 + HOUR), "reason": "r"},
        {"podUid": "", "end": format_instant(T0 + HOUR // 2), "reason": "r"},
    ),
    "POST increase": Case({"minutes": 1, "reason": "r"}, {"minutes": 2, "reason": "r"}),
}  # fmt: skip


def named(route: Route) -> str:
    return f"{route.method} {route.path}"


def case_of(route: Route) -> Case:
    return CASES[f"{route.method} {route.path.rpartition('/')[2]}"]


def test_every_write_takes_a_key_or_has_a_reason_not_to() -> None:
    assert all(case_of(route) for route in KEYED)
    assert {named(route) for route in WRITES if "Idempotency-Key" not in route.headers} == WITHOUT.keys()
    assert not any("Idempotency-Key" in route.headers for route in ROUTES if route.method == "GET")


class TestEveryWrite:
    """What each of them does; another one of the same kind has happened in between."""

    @pytest.mark.parametrize("route", KEYED, ids=named)
    def test_a_repetition_gets_the_same_answer_and_undoes_nothing_later(self, world: World, route: Route) -> None:
        url, case = prepared(world, route), case_of(route)
        first = send(world, route, url, case.first, "first")
        assert first.status_code in route.status, first.data
        repeated = send(world, route, url, case.first, "first")
        assert (repeated.status_code, repeated.json) == (200, first.json)
        assert not route.aggregated or send(world, route, at_api_server(url), case.first, "first").json == first.json
        self.nothing_is_undone(world, route, url)

    @pytest.mark.parametrize("route", [route for route in KEYED if not route.needs_key], ids=named)
    def test_one_that_changes_nothing_keeps_its_key(self, world: World, route: Route) -> None:
        url, case = prepared(world, route), case_of(route)
        assert send(world, route, url, case.first, "").status_code in route.status
        assert send(world, route, url, case.first, "first").status_code in route.status
        self.nothing_is_undone(world, route, url)

    def nothing_is_undone(self, world: World, route: Route, url: str) -> None:
        case = case_of(route)
        world.clock.advance(1_000)
        if case.replaced_by is None:
            assert send(world, route, url, case.other, "other").status_code in route.status
        else:
            method, last, body = case.replaced_by
            owner = "/".join(url.split("/")[:5])
            assert world.call(method, owner + last, body, {"Idempotency-Key": "between"}).status_code in (200, 201)
        before = records(world)
        world.clock.advance(1_000)
        assert send(world, route, url, case.first, "first").status_code == 200
        assert records(world) == before
        refused = send(world, route, url, case.other, "first")
        assert (refused.status_code, refused.json["code"]) == (409, "idempotency-key-reused")
        assert "'first'" in refused.json["detail"]
        assert records(world) == before
        assert verify(world.service.books.database.engine, carry=False).differences == []


def test_an_empty_change_keeps_its_key_too(world: World) -> None:
    once = {"Idempotency-Key": "k"}
    for path in ("budgets/team", "parents/lab"):
        world.call("PUT", "/api/v1/parents/lab", {**GOOD_BUDGET, "kind": "team"})
        assert world.call("PATCH", f"/api/v1/{path}", {}, once).status_code == 200
        assert world.call("PATCH", f"/api/v1/{path}", {"amountMs": 2}, once).status_code == 409


def test_a_key_belongs_to_one_budget_and_is_not_kept_by_a_refusal(world: World) -> None:
    once, body = {"Idempotency-Key": "k"}, {"status": "suspended", "reason": "r"}
    assert world.call("PUT", "/api/v1/parents/lab/status", body, once).status_code == 404
    world.call("PUT", "/api/v1/parents/lab", {**GOOD_BUDGET, "kind": "team"})
    for path in ("budgets/team", "budgets/other", "parents/lab"):
        assert world.call("PUT", f"/api/v1/{path}/status", body, once).status_code == 200


def test_a_retry_is_answered_although_it_would_be_refused_by_now(world: World) -> None:
    policy = Path(world.service.settings.policy.file)
    policy.write_text("default: {budget: {amount: 150m, period: day, enforcement: safe}}\n")
    assert world.service.policy.refresh()
    sent = [
        ("POST", "/reservations", {"amountMs": 5, "reason": "r", "expiresAt": format_instant(T0 + HOUR)}),
        ("POST", "/grants", {"amountMs": 5, "reason": "r"}),
        ("PATCH", "", {"amountMs": HOUR, "newPeriod": True}),
        ("PUT", "/status", {"status": "suspended", "reason": "r"}),
    ]
    send_all = [
        world.call(m, f"/api/v1/budgets/team{last}", b, {"Idempotency-Key": last or "k"}) for m, last, b in sent
    ]
    assert {answer.status_code for answer in send_all} <= {200, 201}
    policy.write_text("default: {mode: 'off'}\n")
    assert world.service.policy.refresh()
    for method, last, body in sent:
        url = f"/api/v1/budgets/team{last}"
        assert world.call(method, url, body, {"Idempotency-Key": "new"}).json["code"] == "namespace-off"
        assert world.call(method, url, body, {"Idempotency-Key": last or "k"}).status_code == 200


def prepared(world: World, route: Route) -> str:
    """Have something that each route can change; return the route's path."""
    policy = Path(world.service.settings.policy.file)
    policy.write_text("default: {budget: {amount: 150m, period: day, enforcement: safe}}\n")
    assert world.service.policy.refresh()
    for name, kind in (("lab", "team"), ("top", "organisation")):
        world.call("PUT", f"/api/v1/parents/{name}", {**GOOD_BUDGET, "kind": kind, "amountMs": HOUR})
    world.pod("a")
    world.clock.advance(HOUR)
    world.end("a")
    world.clock.advance(DAY)
    later = {"amountMs": 9, "reason": "r", "validFrom": format_instant(T0 + 5 * DAY)}
    held = {"amountMs": 9, "reason": "r", "expiresAt": format_instant(T0 + 5 * DAY)}
    made = [world.call("POST", f"/api/v1/{owner}/grants", later, {"Idempotency-Key": "made"}) for owner in OWNERS]
    grants = {owner: made.headers["Location"].rpartition("/")[2] for owner, made in zip(OWNERS, made, strict=True)}
    reservation = world.call("POST", "/api/v1/budgets/team/reservations", held, {"Idempotency-Key": "made"}).json["id"]
    owner = OWNERS["{parent}" in route.path]
    return route.path.format(namespace="team", parent="lab", grant=grants[owner], reservation=reservation)


OWNERS = ("budgets/team", "parents/lab")


def at_api_server(url: str) -> str:
    return url.replace("/api/v1", f"/apis/{names.API}", 1)


def send(world: World, route: Route, url: str, body: Any, key: str) -> TestResponse:
    headers = {"Idempotency-Key": key} if key else {}
    if isinstance(body, str):
        return world.call(route.method, url + body, None, headers)
    sent = {**body, "podUid": world.uid("a-pod")} if "podUid" in body else body
    return world.call(route.method, url, sent, headers)


def records(world: World) -> list[Any]:
    """Return all that the database has but signs of life and what is computed: settling again may write it anew."""
    engine = world.service.books.database.engine
    with engine.connect() as connection:
        tables = sorted({*inspect(engine).get_table_names()} - {"anchor", "watch_mark", "namespace", "alembic_version"})
        return [(name, connection.execute(text(f"SELECT * FROM {name} ORDER BY 1, 2")).all()) for name in tables]
