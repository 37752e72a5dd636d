# SPDX-License-Identifier: Apache-2.0
"""Reports of sidecars, and the usage that they show: they never move a charge."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from support.timekeeper_service import HOUR, T0, World

from slicekeeper.kube.client import PODS
from slicekeeper.units import format_instant


def report(world: World, name: str, seq: int, used: int | None, **more: Any) -> dict[str, Any]:
    return {
        "namespace": "team",
        "podName": name,
        "podUid": world.uid(name),
        "container": "main",
        "epoch": T0 * 1_000_000,
        "seq": seq,
        "usedMs": used,
        "monotonicNs": seq * 10**10,
        "source": "node",
    } | more


def send(world: World, token: str, *reports: dict[str, Any]) -> list[tuple[str, str]]:
    answer = world.call("POST", "/api/v1/reports", {"reports": reports}, {"Authorization": f"Bearer {token}"})
    assert answer.status_code == 200, answer.data
    return [(one["outcome"], one["reason"]) for one in answer.json["outcomes"]]


def test_reports_feed_usage_and_never_move_a_charge(world: World) -> None:
    mine, theirs = world.pod("a"), world.pod("b")
    world.clock.advance(HOUR)
    before = world.get("/api/v1/budgets/team")
    first, second = report(world, "a-pod", 1, 9_000), report(world, "a-pod", 2, 18_000, memoryMib=2_048)
    assert world.get("/api/v1/usage/team")["usedMs"] is None
    assert send(world, mine, second) == [("accepted", "")]
    assert send(world, mine, first, second) == [("duplicate", ""), ("duplicate", "")]
    assert send(world, theirs, first) == [("refused", "wrong-pod")]
    assert send(world, mine, report(world, "a-pod", 3, 17_999)) == [("refused", "counter-ran-backwards")]
    assert send(world, mine, report(world, "a-pod", 3, 99_000_000)) == [("refused", "counter-above-possible")]
    assert send(world, mine, report(world, "a-pod", 3, 1, container="x")) == [("refused", "unknown-container")]
    assert send(world, mine, report(world, "a-pod", 3, 1, namespace="other")) == [("refused", "wrong-pod")]
    assert send(world, mine, report(world, "a-pod", 1, 5_000, epoch=T0 * 1_000_000 + 7)) == [("accepted", "")]
    assert send(world, mine, report(world, "a-pod", 4, None, memoryMib=512)) == [("accepted", "")]
    assert send(world, mine, report(world, "a-pod", 5, None)) == [("accepted", "")]
    peaks = {one["podName"]: one["peakMemoryMib"] for one in world.get("/api/v1/workloads")["items"]}
    assert peaks == {"a-pod": 2_048, "b-pod": None}
    used = {one["podName"]: one["usedMs"] for one in world.get("/api/v1/workloads")["items"]}
    assert used == {"a-pod": 23_000, "b-pod": None}
    usage = world.get("/api/v1/usage/team")
    assert (usage["usedMs"], usage["workloads"], usage["unknownWorkloads"]) == (23_000, 2, 1)
    assert world.get("/api/v1/budgets/team") == before


def test_a_pod_the_ledger_does_not_know_is_refused_by_name(world: World) -> None:
    mine = world.pod("a")
    world.clock.advance(60_000)
    body = report(world, "a-pod", 1, 1) | {"podUid": "nobody"}
    answer = world.call("POST", "/api/v1/reports", {"reports": [body]})
    assert [o["reason"] for o in answer.json["outcomes"]] == ["unknown-pod"]
    assert send(world, mine, body) == [("refused", "wrong-pod")]


def test_the_sidecar_leaves_when_all_others_have_ended(world: World) -> None:
    token = world.pod("a")
    pod = world.cluster.store.get(PODS, "a-pod", "team")
    ended = {"name": "main", "state": {"terminated": {"exitCode": 1, "finishedAt": "2026-01-01T00:00:05Z"}}}
    headers = {"Authorization": f"Bearer {token}"}
    body = {"reports": [report(world, "a-pod", 1, None)]}
    assert world.call("POST", "/api/v1/reports", body, headers).json["terminate"] is False
    world.service.controller.pods.on_event("MODIFIED", {**pod, "status": {"containerStatuses": [ended]}})
    assert world.call("POST", "/api/v1/reports", body, headers).json["terminate"] is True
    life = world.call("POST", "/budget/team/report", {"pod_name": "a-pod"}, headers)
    assert life.json == {"terminate": True}


def test_usage_by_time_is_paged_and_never_guesses(world: World) -> None:
    world.pod("a", rate=Fraction(1, 2))
    world.pod("b", "other")
    world.clock.advance(90 * 60_000)
    first = world.get("/api/v1/usage?timeZone=Europe/Berlin&limit=1")
    (item,) = first["items"]
    assert (item["group"], item["allocatedMs"], item["usedMs"], item["unobservedMs"]) == ("other", HOUR, None, HOUR)
    rest = world.get(f"/api/v1/usage?timeZone=Europe/Berlin&cursor={first['nextCursor']}")
    assert [(i["start"], i["group"]) for i in rest["items"]] == [
        (format_instant(T0), "team"),
        (format_instant(T0 + HOUR), "other"),
        (format_instant(T0 + HOUR), "team"),
    ]
    (team,) = world.get("/api/v1/usage?namespace=team&bucket=month&groupBy=workload")["items"]
    assert (team["group"], team["allocatedMs"], team["unknownWorkloads"]) == (world.uid("a-pod"), 45 * 60_000, 1)


def test_what_was_used_and_what_was_not_observed_are_at_most_what_was_held(world: World) -> None:
    mine, held = world.pod("a"), HOUR - 60_000
    world.clock.advance(held)
    assert send(world, mine, report(world, "a-pod", 1, 3_000_000)) == [("accepted", "")]  # the first in all this time
    for group in ("namespace", "workload", "model"):
        route = f"/api/v1/usage?groupBy={group}&from={format_instant(T0)}&to={format_instant(T0 + HOUR)}"
        [bucket] = world.get(route)["items"]
        assert (bucket["allocatedMs"], bucket["usedMs"], bucket["unobservedMs"]) == (held, 3_000_000, 540_000), group
