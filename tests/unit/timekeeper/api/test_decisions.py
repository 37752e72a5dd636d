# SPDX-License-Identifier: Apache-2.0
"""What the webhook is told about a namespace, as its budget is spent and granted again."""

from __future__ import annotations

from support.timekeeper_service import HOUR, T0, World

from slicekeeper import names
from slicekeeper.gpu.inventory import Gpu, MigSlice, encode
from slicekeeper.kube.client import Object
from slicekeeper.units import format_instant


def test_a_namespace_runs_out_and_a_grant_gives_it_more(world: World) -> None:
    world.pod("a")
    world.clock.advance(HOUR)
    budget = world.get("/api/v1/budgets/team")
    assert (budget["amountMs"], budget["usedMs"], budget["balanceMs"]) == (150 * 60_000, HOUR, 90 * 60_000)
    assert budget["runOutAt"] == format_instant(T0 + 150 * 60_000)
    first = world.call("GET", "/api/v1/decisions")
    assert first.json["items"][0]["state"] == "ok"
    again = world.call("GET", "/api/v1/decisions", headers={"If-None-Match": first.headers["ETag"]})
    assert (again.status_code, again.data) == (304, b"")
    world.clock.advance(2 * HOUR)
    changed = world.call("GET", "/api/v1/decisions", headers={"If-None-Match": first.headers["ETag"]})
    (decision,) = changed.json["items"]
    assert (decision["state"], decision["balanceMs"]) == ("exhausted", 0)
    assert decision["priorityClassName"] == "gpu-lower-priority"
    assert decision["since"] == format_instant(T0 + 150 * 60_000)
    assert decision["overBudgetMs"] == 30 * 60_000
    body = {"amountMs": HOUR, "reason": "a deadline"}
    given = world.call("POST", "/api/v1/budgets/team/grants", body, {"Idempotency-Key": "k1"})
    assert (given.status_code, given.json["balanceMs"], given.json["state"]) == (201, HOUR, "ok")
    repeated = world.call("POST", "/api/v1/budgets/team/grants", body, {"Idempotency-Key": "k1"})
    assert (repeated.status_code, repeated.json["grantedMs"]) == (200, HOUR)
    other = world.call("POST", "/api/v1/budgets/team/grants", {**body, "amountMs": 1}, {"Idempotency-Key": "k1"})
    assert (other.status_code, other.json["code"]) == (409, "idempotency-key-reused")
    assert world.get("/api/v1/decisions/team")["state"] == "ok"
    (listed,) = world.get("/api/v1/budgets/team/grants")["items"]
    assert (listed["reason"], listed["actor"]) == ("a deadline", "operator")


def test_decisions_name_the_gpus_that_the_cluster_has(world: World) -> None:
    nodes = world.service.controller.nodes
    first = world.call("GET", "/api/v1/decisions")
    assert first.json["gpus"] == {"memoryMib": {}, "mostOnNode": 0}

    def node(name: str, *gpus: Gpu) -> Object:
        return {"metadata": {"name": name, "annotations": {names.NODE_GPUS: encode(list(gpus))}}}

    divided = tuple(MigSlice(f"MIG-{size}", size, size, 7) for size in (10, 20))
    small = [Gpu(f"GPU-{one}", "T4", 15_360) for one in "abc"]
    for one in (
        node("a", *small),
        node("b", Gpu("GPU-d", "A100", 81_920)),
        node("c", Gpu("GPU-e", "H100", 80, mig=divided)),
    ):
        nodes.on_event("ADDED", one)
    changed = world.call("GET", "/api/v1/decisions", headers={"If-None-Match": first.headers["ETag"]})
    assert changed.json["gpus"] == {"memoryMib": {"A100": 81_920, "H100": 20, "T4": 15_360}, "mostOnNode": 3}
    nodes.on_event("DELETED", node("a"))
    nodes.on_list([node("b", Gpu("GPU-d", "A100", 81_920))])
    assert world.get("/api/v1/decisions")["gpus"] == {"memoryMib": {"A100": 81_920}, "mostOnNode": 1}


def test_a_rate_of_a_model_that_no_gpu_is_comes_with_a_warning(world: World) -> None:
    def warning(model: str) -> str:
        body = {"model": model, "rate": "4", "reason": "r"}
        return str(world.call("POST", "/api/v1/rates", body).json["warning"])

    assert warning("A100") == "", "no GPU is known yet"
    gpus = encode([Gpu("GPU-a", "A100-80GB", 81_920)])
    nodes = world.service.controller.nodes
    nodes.on_event("ADDED", {"metadata": {"name": "a", "annotations": {names.NODE_GPUS: gpus}}})
    nodes.on_event("ADDED", {"metadata": {"name": "b", "labels": {"nvidia.com/gpu.product": "Tesla-T4-SHARED"}}})
    assert warning("a100") == "no GPU of the cluster is of the model a100; there are A100-80GB, Tesla-T4"
    assert [warning(model) for model in ("A100-80GB", "Tesla-T4")] == ["", ""]
    listed = {rate["model"]: rate["warning"] for rate in world.get("/api/v1/rates")["items"]}
    assert [model for model, text in listed.items() if text] == ["A100", "a100"]


def test_a_budget_warns_then_overdraws_its_credit(world: World) -> None:
    body = {"amountMs": HOUR, "period": "day", "timeZone": "UTC", "creditMs": HOUR, "rolloverMs": 5}
    put = world.call("PUT", "/api/v1/budgets/team", body)
    assert (put.json["creditMs"], put.json["rolloverMs"]) == (HOUR, 5)
    world.pod("a")
    states = []
    for percent in (79, 1, 20, 99, 1):
        world.clock.advance(percent * HOUR // 100)
        states.append(world.get("/api/v1/decisions/team")["state"])
    assert states == ["ok", "warning", "overdraft", "overdraft", "exhausted"]


def test_a_deleted_namespace_has_no_decision_and_its_successor_begins_afresh(world: World) -> None:
    for namespace in ("team", "other"):
        world.pod(f"in-{namespace}", namespace)
    before = world.call("GET", "/api/v1/decisions")
    world.service.controller.namespaces.on_list(
        [{"metadata": {"name": "team", "uid": "uid-anew"}}, {"metadata": {"name": "other", "uid": "uid-other"}}]
    )
    after = world.call("GET", "/api/v1/decisions", headers={"If-None-Match": before.headers["ETag"]})
    assert [one["namespace"] for one in before.json["items"]] == ["other", "team"]
    assert [one["namespace"] for one in after.json["items"]] == ["other"]
    assert world.call("GET", "/api/v1/decisions/team").status_code == 404
    assert world.get("/api/v1/decisions/other")["state"] == "ok"
