# SPDX-License-Identifier: Apache-2.0
"""Nothing that would give a namespace GPU time is accepted if no budget applies to it: it is exempt, or `mode: off`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.timekeeper_service import GOOD_BUDGET, GOOD_GRANT, World

_OBJECT = {
    **GOOD_BUDGET,
    "uid": "u",
    "createdAt": "2026-01-01T00:00:00Z",
    "generation": 1,
    "objectVersion": "",
}
_UNTIL = "2027-01-01T00:00:00Z"
_WRITES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "a budget": ("PUT", "", GOOD_BUDGET),
    "a part of one": ("PATCH", "", {"amountMs": 5}),
    "an object": ("PUT", "/object", _OBJECT),
    "a grant": ("POST", "/grants", GOOD_GRANT),
    "an adjustment": ("POST", "/adjustments", GOOD_GRANT),
    "a withdrawal": ("POST", "/adjustments", {"amountMs": -1, "reason": "r"}),
    "a transfer": ("POST", "/transfers", {**GOOD_GRANT, "to": "other"}),
    "a reservation": ("POST", "/reservations", {**GOOD_GRANT, "expiresAt": _UNTIL}),
    "a status": ("PUT", "/status", {"status": "suspended", "reason": "r"}),
    "a parent": ("PUT", "/parent", {"parent": "lab", "reason": "r"}),
}


@pytest.fixture
def without(world: World) -> World:
    """A world whose namespaces `kube-system`, exempt, and `team`, off in the policy file, have no budget."""
    seen = {"metadata": {"name": "kube-system", "uid": "uid-kube-system"}}
    world.service.controller.namespaces.on_event("ADDED", seen)
    world.call("PUT", "/api/v1/parents/lab", {**GOOD_BUDGET, "kind": "team"})
    _policy(world, "off")
    return world


def _policy(world: World, mode: str) -> None:
    default = "default: {budget: {amount: 150m, period: day, enforcement: safe}}\n"
    Path(world.service.settings.policy.file).write_text(f"{default}namespaces: [{{match: [team], mode: {mode}}}]\n")
    world.service.policy.refresh()


@pytest.mark.parametrize("namespace", ["kube-system", "team"])
@pytest.mark.parametrize("write", _WRITES)
def test_a_namespace_without_a_budget_gets_no_gpu_time(without: World, namespace: str, write: str) -> None:
    method, path, body = _WRITES[write]
    where = f"/api/v1/budgets/{namespace}{path}"
    answer = without.call(method, where, body, {"Idempotency-Key": "k"})
    assert (answer.status_code, answer.json["code"], answer.json["field"]) == (409, "namespace-off", "namespace")
    assert f"no budget applies to {namespace}" in answer.json["detail"]
    assert without.get("/api/v1/audit")["items"][1:] == [], "only the team was created"


@pytest.mark.parametrize("namespace", ["kube-system", "team"])
def test_nothing_is_transferred_to_a_namespace_without_a_budget(without: World, namespace: str) -> None:
    body = {**GOOD_GRANT, "to": namespace, "toKind": "namespace"}
    for source in ("budgets/other", "parents/lab"):
        answer = without.call("POST", f"/api/v1/{source}/transfers", body, {"Idempotency-Key": "k"})
        assert (answer.status_code, answer.json["code"], answer.json["field"]) == (409, "namespace-off", "to")
    assert without.get("/api/v1/budgets/other")["balanceMs"] == 150 * 60_000


def test_the_minutes_of_the_old_service_are_refused_too(without: World) -> None:
    answer = without.call("POST", "/budget/team/increase", {"minutes": 5, "reason": "r"})
    assert (answer.status_code, answer.json["code"]) == (409, "namespace-off")


def test_a_repeated_grant_is_answered_after_its_namespace_was_exempted(without: World) -> None:
    _policy(without, "observe")
    for mode, status in (("observe", 201), ("off", 200)):
        _policy(without, mode)
        answer = without.call("POST", "/api/v1/budgets/team/grants", GOOD_GRANT, {"Idempotency-Key": "k"})
        assert answer.status_code == status


def test_an_own_budget_and_a_place_can_be_given_up_while_no_budget_applies(without: World) -> None:
    _policy(without, "enforce")
    without.call("PUT", "/api/v1/budgets/team", GOOD_BUDGET)
    without.call("PUT", "/api/v1/budgets/team/parent", {"parent": "lab", "reason": "r"})
    _policy(without, "off")
    alone = without.call("PUT", "/api/v1/budgets/team/parent", {"parent": None, "reason": "r"})
    assert (alone.status_code, alone.json["parent"]) == (200, None)
    unset = without.call("DELETE", "/api/v1/budgets/team")
    assert (unset.status_code, unset.json["source"]) == (200, "policy")
