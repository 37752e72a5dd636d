# SPDX-License-Identifier: Apache-2.0
"""The list of workloads: its pages, and the figures of a running pod."""

from __future__ import annotations

from support.timekeeper_service import HOUR, World

from timekeeper.ledger import settlement


def test_a_running_pod_shows_the_same_before_and_after_its_split_is_booked(world: World) -> None:
    world.pod("a")
    world.clock.advance(HOUR * 3)
    (ahead,) = world.get("/api/v1/workloads")["items"]
    assert (ahead["chargedMs"], ahead["overBudgetMs"]) == (150 * 60_000, 30 * 60_000)
    place = world.service.books.require("team").account.id
    settlement.settle(world.service.books, [place], world.clock.now_ms())
    assert world.get("/api/v1/workloads")["items"] == [ahead]


def test_pages_go_on_where_the_last_one_ended(world: World) -> None:
    for index in range(5):
        world.pod(f"p{index}", "team" if index < 3 else "other")
        world.clock.advance(1_000)
    seen, cursor = [], ""
    while cursor is not None:
        page = world.get(f"/api/v1/workloads?limit=2&cursor={cursor}")
        seen += [one["podName"] for one in page["items"]]
        cursor = page["nextCursor"]
    assert seen == [f"p{index}-pod" for index in (4, 3, 2, 1, 0)]
    assert [w["podName"] for w in world.get("/api/v1/workloads?namespace=other")["items"]] == ["p4-pod", "p3-pod"]
    first = world.get("/api/v1/budgets?limit=1")
    assert [b["namespace"] for b in first["items"]] == ["other"]
    second = world.get(f"/api/v1/budgets?limit=1&cursor={first['nextCursor']}")
    assert ([b["namespace"] for b in second["items"]], second["nextCursor"]) == (["team"], None)


def test_only_those_that_run_or_only_those_that_have_ended_are_listed(world: World) -> None:
    for index in range(4):
        world.pod(f"p{index}")
    world.clock.advance(HOUR)
    for uid in ("p0", "p2"):
        world.end(uid)
    for state, wanted in (("running", {1, 3}), ("closed", {0, 2}), ("all", {0, 1, 2, 3})):
        first = world.get(f"/api/v1/workloads?namespace=team&state={state}&limit=1")
        rest = world.get(f"/api/v1/workloads?namespace=team&state={state}&cursor={first['nextCursor']}")
        assert {one["podName"] for one in first["items"] + rest["items"]} == {f"p{n}-pod" for n in wanted}
    refused = world.call("GET", "/api/v1/workloads?state=gone")
    assert (refused.status_code, refused.json["field"]) == (422, "state")
