# SPDX-License-Identifier: Apache-2.0
"""Budgets that objects of the cluster keep: told once, late, twice and by two; what requests may still do."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from flask import Flask
from support.manual_clock import ManualClock
from support.timekeeper_service import serving
from werkzeug.test import TestResponse

from slicekeeper.units import Instant, format_instant
from timekeeper.api.app import routed
from timekeeper.api.handler_context import HandlerContext
from timekeeper.ledger.budget import follow_policy
from timekeeper.ledger.verify import verify

T0 = 1_767_225_600_000
CREATED = format_instant(Instant(T0))
HOUR = 3_600_000
DEFAULT = 150 * 60_000
TEAM, PHYSICS = "/api/v1/budgets/team", "/api/v1/parents/physics"


class World:
    def __init__(self, clock: ManualClock, service: HandlerContext, app: Flask) -> None:
        self.clock = clock
        self.service = service
        self.app = app

    def call(self, method: str, path: str, body: Any = None) -> TestResponse:
        if body is not None and path.endswith("/object"):
            body = {"objectVersion": self.object_version(path.removesuffix("/object")), **body}
        headers = {"Authorization": "Bearer operator-token", "Idempotency-Key": path}
        data = None if body is None else json.dumps(body)
        client = self.app.test_client()
        return client.open(path, method=method, data=data, headers=headers, content_type="application/json")

    def done(self, method: str, path: str, body: Any = None) -> Any:
        answer = self.call(method, path, body)
        assert answer.status_code in (200, 201), answer.data
        return answer.json

    def refused(self, method: str, path: str, body: Any = None) -> tuple[int, str]:
        answer = self.call(method, path, body)
        return answer.status_code, answer.json["code"]

    def budget(self, path: str = TEAM) -> tuple[int, str]:
        found = self.done("GET", path)
        return found["amountMs"], found.get("source", "")

    def object_version(self, path: str = TEAM) -> str:
        """Return what an operator that looks now sees; a team that is not there has none."""
        found = self.call("GET", path).json
        return str(found.get("objectVersion", "")) if found else ""

    def audit(self, path: str = "namespace=team") -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.done("GET", f"/api/v1/audit?{path}")["items"]
        return found

    def acts(self, path: str = "namespace=team") -> list[str]:
        return [one["action"] for one in self.audit(path)]


@pytest.fixture
def world(tmp_path: Path, database_url: str) -> Iterator[World]:
    clock = ManualClock(T0)
    with serving(tmp_path, database_url, clock) as (service, _):
        yield World(clock, service, routed(service))
        assert verify(service.books.database.engine, carry=False).differences == []


def told(generation: int = 1, hours: int = 1, uid: str = "one", **more: Any) -> dict[str, Any]:
    state = {"uid": uid, "createdAt": CREATED, "generation": generation}
    return {**state, "amountMs": hours * HOUR, "period": "day", **more}


def test_an_objects_generation_is_taken_once_and_never_an_older_one(world: World) -> None:
    assert world.done("PUT", f"{TEAM}/object", told(2, 2))["keptBy"] == {"uid": "one", "generation": 2}
    assert world.budget() == (2 * HOUR, "own")
    acts = world.acts()
    assert acts == ["object", "budget"]
    assert world.done("PUT", f"{TEAM}/object", told(2, 2))["amountMs"] == 2 * HOUR
    assert world.refused("PUT", f"{TEAM}/object", told(1, 1)) == (409, "object-outdated")
    assert (world.acts(), world.budget()) == (acts, (2 * HOUR, "own"))
    world.clock.advance(1000)
    world.done("PUT", f"{TEAM}/object", told(3, 2))  # of which the budget is no other: only the generation is
    assert world.acts() == [*acts, "object"]


def test_while_an_object_keeps_a_budget_requests_do_not_change_what_it_is(world: World) -> None:
    world.done("PUT", f"{TEAM}/object", told())
    for method, body in (("PUT", {"amountMs": 1, "period": "day"}), ("PATCH", {"amountMs": 1}), ("DELETE", None)):
        answer = world.call(method, TEAM, body)
        assert (answer.status_code, answer.json["code"]) == (409, "budget-kept-by-object")
        assert "kubectl edit gpubudget default -n team" in answer.json["detail"]
    grant = {"amountMs": HOUR, "reason": "r"}
    assert world.done("POST", f"{TEAM}/grants", grant)["grantedMs"] == HOUR
    assert world.done("POST", f"{TEAM}/adjustments", grant)["balanceMs"] == 3 * HOUR
    assert world.done("PUT", f"{TEAM}/status", {"status": "suspended", "reason": "r"})["status"] == "suspended"
    assert world.done("PUT", f"{TEAM}/object", told(2, 5))["status"] == "suspended"


def test_a_deleted_object_leaves_the_policys_budget_once(world: World) -> None:
    world.done("PUT", f"{TEAM}/object", told())
    assert world.done("DELETE", f"{TEAM}/object?object=another")["source"] == "own"
    world.clock.advance(1000)
    assert world.done("DELETE", f"{TEAM}/object?object=one")["keptBy"] is None
    assert world.budget() == (DEFAULT, "policy")
    acts = world.acts()
    assert world.done("DELETE", f"{TEAM}/object?object=one")["source"] == "policy"
    assert world.acts() == acts
    books, policy = world.service.books, world.service.policy.of("team")
    world.clock.advance(1000)
    follow_policy(books, {"team": policy}, world.clock.now_ms())
    assert world.budget() == (DEFAULT, "policy")
    assert world.done("PATCH", TEAM, {"amountMs": 7})["source"] == "own"
    assert world.refused("DELETE", f"{TEAM}/object") == (422, "query-invalid")


def test_an_object_that_was_made_again_comes_before_the_one_it_replaces(world: World) -> None:
    """Times do not tell which was first: both were made within a second."""
    before = world.object_version()
    world.done("PUT", f"{TEAM}/object", told(7, 1, "one"))
    late = world.object_version()
    world.done("PUT", f"{TEAM}/object", told(1, 2, "two"))
    for seen in (before, late):
        for generation in (7, 8):
            body = told(generation, 1, "one", objectVersion=seen)
            assert world.refused("PUT", f"{TEAM}/object", body) == (412, "version-mismatch")
    assert world.done("DELETE", f"{TEAM}/object?object=one")["keptBy"]["uid"] == "two"
    assert world.budget() == (2 * HOUR, "own")
    late = world.object_version()
    world.done("DELETE", f"{TEAM}/object?object=two")
    for seen in (before, late):
        body = told(1, 2, "two", objectVersion=seen)
        assert world.refused("PUT", f"{TEAM}/object", body) == (412, "version-mismatch")
    # Believed deleted, and it is there: whoever looks again says so, and it is not stuck.
    assert world.done("PUT", f"{TEAM}/object", told(1, 2, "two"))["keptBy"]["uid"] == "two"


def test_teams_are_made_by_objects_and_stay_when_these_are_deleted(world: World) -> None:
    physics = told(kind="team")
    assert world.refused("PUT", f"{TEAM}/object", told(parent="physics")) == (404, "parent-unknown")
    assert world.budget() == (DEFAULT, "policy")
    assert world.done("PUT", f"{PHYSICS}/object", physics)["keptBy"]["generation"] == 1
    assert world.refused("PUT", PHYSICS, {"kind": "team", "amountMs": 1, "period": "day"})[1] == "budget-kept-by-object"
    assert world.refused("PATCH", PHYSICS, {"amountMs": 1})[1] == "budget-kept-by-object"
    assert "kubectl edit clustergpubudget physics" in world.call("PATCH", PHYSICS, {"amountMs": 1}).json["detail"]
    assert world.refused("PUT", f"{PHYSICS}/object", told(2, kind="organisation")) == (409, "parent-refused")
    assert world.done("PUT", f"{TEAM}/object", told(parent="physics"))["parent"] == "physics"
    away = {"parent": None, "reason": "r"}
    assert world.refused("PUT", f"{TEAM}/parent", away) == (409, "budget-kept-by-object")
    world.clock.advance(1000)
    assert world.done("PUT", f"{TEAM}/object", told(2))["parent"] == "physics"  # it says nothing of it any more
    assert world.done("PUT", f"{TEAM}/parent", away)["parent"] is None
    world.clock.advance(1000)
    assert world.done("PUT", f"{TEAM}/object", told(3, parent="physics"))["parent"] == "physics"
    assert world.done("PUT", f"{TEAM}/object", told(4, parent=""))["parent"] is None
    world.done("DELETE", f"{PHYSICS}/object?object=one")
    assert world.done("PATCH", PHYSICS, {"rolloverMs": 5})["amountMs"] == HOUR
    assert world.acts("parent=physics")[:2] == ["team", "object"]


def test_the_audit_log_names_who_wrote_a_generation_in_all_that_follows_from_it(world: World) -> None:
    world.done("PUT", f"{PHYSICS}/object", told(kind="team", changedBy="carol"))
    world.done("PUT", f"{TEAM}/object", told(changedBy="alice", parent="physics"))
    assert [(one["actor"], one["action"]) for one in world.audit("parent=physics")] == [
        ("carol", "team"),
        ("carol", "object"),
    ]
    entries = world.audit()
    assert [(one["actor"], one["action"]) for one in entries] == [
        ("alice", "object"),
        ("alice", "budget"),
        ("alice", "parent"),
    ]
    detail = entries[0]["detail"]
    assert {key: detail[key] for key in ("uid", "generation", "reportedBy")} == {
        "uid": "one",
        "generation": 1,
        "reportedBy": "operator",
    }
    world.clock.advance(1000)
    world.done("PUT", f"{TEAM}/object", told(2, 2, changedBy="bob"))
    assert [one["actor"] for one in world.audit()] == ["alice"] * 3 + ["bob"] * 2
    # Once it is taken, nobody's word makes it another's.
    world.done("PUT", f"{TEAM}/object", told(2, 2, changedBy="mallory"))
    assert [one["actor"] for one in world.audit()] == ["alice"] * 3 + ["bob"] * 2


@pytest.mark.parametrize("more", [{}, {"changedBy": None}])
def test_a_writer_who_is_not_known_is_not_the_one_before(world: World, more: dict[str, Any]) -> None:
    world.done("PUT", f"{TEAM}/object", told(changedBy="alice"))
    world.clock.advance(1000)
    world.done("PUT", f"{TEAM}/object", told(2, 2, **more))
    last = world.audit()[-2:]
    assert [(one["actor"], one["action"]) for one in last] == [("operator", "object"), ("operator", "budget")]
    assert last[0]["detail"]["changedBy"] == "not known"
    assert "reportedBy" not in last[0]["detail"]


def test_a_long_name_is_kept_as_other_users_are(world: World) -> None:
    for generation, name in enumerate((f"{'u' * 1023}1", f"{'u' * 1023}2"), start=1):
        world.done("PUT", f"{TEAM}/object", told(generation, changedBy=name))
        world.clock.advance(1000)
    first, second = (one["actor"] for one in world.audit() if one["action"] == "object")
    assert len(first) == len(second) == 253
    assert first != second


@pytest.mark.parametrize(
    ("wrong", "code"),
    [
        ({"generation": 0}, "body-invalid"),
        ({"uid": ""}, "body-invalid"),
        ({"changedBy": ""}, "body-invalid"),
        ({"changedBy": "u" * 1025}, "body-invalid"),
        ({"createdAt": "now"}, "instant-invalid"),
        ({"timeZone": "Mars/Olympus"}, "time-zone-unknown"),
        ({"parent": "No"}, "parent-invalid"),
        ({"kind": "team"}, "body-invalid"),
    ],
)
def test_wrong_tellings_are_named(world: World, wrong: dict[str, Any], code: str) -> None:
    assert world.refused("PUT", f"{TEAM}/object", {**told(), **wrong}) == (422, code)
    assert world.budget() == (DEFAULT, "policy")
