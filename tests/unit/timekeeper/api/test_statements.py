# SPDX-License-Identifier: Apache-2.0
"""Entries, periods, seals and statements of a budget."""

from __future__ import annotations

from fractions import Fraction

import pytest
from support.openings import opening
from support.timekeeper_service import HOUR, T0, World

from slicekeeper.units import parse_instant
from timekeeper.ledger import settlement, workload
from timekeeper.ledger.verify import verify
from timekeeper.ledger.workload import Closing


def test_entries_show_both_sides_of_every_booking(world: World) -> None:
    world.pod("a", rate=Fraction(1, 3))
    uid = world.uid("a-pod")
    world.clock.advance(10_000)
    world.end("a")
    items = world.get("/api/v1/budgets/team/entries")["items"]
    charges = [(e["account"], e["amountMs"]) for e in items if e["kind"] == "charge"]
    assert charges == [("budget", -3_333), ("charged", 3_333)]
    assert {e["subject"] for e in items if e["kind"] == "charge"} == {uid}
    page = world.get("/api/v1/budgets/team/entries?limit=3")
    rest = world.get(f"/api/v1/budgets/team/entries?cursor={page['nextCursor']}")
    assert page["items"] + rest["items"] == items
    assert verify(world.service.books.database.engine, carry=False).differences == []


def test_entries_are_named_after_what_was_done(world: World) -> None:
    budget = "/api/v1/budgets/team"

    def post(what: str, amount: int, **more: str) -> None:
        body = {"amountMs": amount, "reason": "r", **more}
        assert world.call("POST", f"{budget}/{what}", body, {"Idempotency-Key": f"{what}{amount}"}).status_code == 201

    world.pod("a")
    for what, amount in (("grants", 5_000), ("adjustments", 4_000), ("adjustments", -3_000), ("transfers", 2_000)):
        world.clock.advance(1_000)
        post(what, amount, **({"to": "other"} if what == "transfers" else {}))
    world.clock.advance(1_000)
    world.call("PATCH", budget, {"amountMs": HOUR})
    world.end("a")
    late = opening("late", T0)
    workload.apply(
        world.service.books,
        [late],
        [Closing("late", T0 + 4_500, "finished")],
        {"team": world.service.policy.of("team")},
        world.clock.now_ms(),
    )
    totals = {t["kind"]: t["balanceMs"] for t in world.get(f"{budget}/statement")["totals"]}
    assert totals == {
        "adjustment-in": 4_000,
        "adjustment-out": -3_000,
        "allowance": 150 * 60_000,
        "budget-change": HOUR - 150 * 60_000,
        "charge": -9_500,
        "grant": 5_000,
        "transfer-out": -2_000,
    }
    entries = world.get(f"{budget}/entries")["items"]
    assert {e["kind"] for e in entries} == totals.keys()
    assert [e["amountMs"] for e in entries if (e["kind"], e["account"]) == ("adjustment-out", "budget")] == [-3_000]
    shown = world.call("GET", f"{budget}/statement?format=csv").text
    assert "total,budget-change," in shown
    (other,) = world.get("/api/v1/budgets/other/statement")["totals"]
    assert (other["kind"], other["balanceMs"]) == ("transfer-in", 2_000)


def test_periods_statements_and_seals(world: World) -> None:
    world.pod("a")
    world.clock.advance(HOUR)
    world.end("a")
    world.clock.advance(24 * HOUR)
    world.pod("b")
    world.clock.advance(2 * HOUR)
    world.end("b")
    budget = "/api/v1/budgets/team"
    newest, first = world.get(f"{budget}/periods")["items"]
    assert (newest["state"], newest["chargedMs"], newest["grantedMs"]) == ("open", 2 * HOUR, 150 * 60_000)
    assert (first["state"], first["chargedMs"], first["expiredMs"]) == ("grace", HOUR, 90 * 60_000)
    page = world.get(f"{budget}/periods?limit=1")
    assert world.get(f"{budget}/periods?cursor={page['nextCursor']}")["items"] == [first]

    refused = world.call("PUT", f"{budget}/seal", {"until": newest["end"], "reason": "r"})
    assert (refused.status_code, refused.json["code"]) == (409, "period-not-over")
    sealed = world.call("PUT", f"{budget}/seal", {"until": first["end"], "reason": "r"})
    assert (sealed.json["sealedUntil"], sealed.json["items"][0]["state"]) == (first["end"], "sealed")

    late = opening("late", T0)
    closing = Closing("late", T0 + 60_000, "finished")
    workload.apply(
        world.service.books, [late], [closing], {"team": world.service.policy.of("team")}, world.clock.now_ms()
    )
    before = world.get(f"{budget}/statement?from={first['start']}&to={first['end']}")
    assert (before["openingMs"], before["closingMs"]) == (0, 0)
    assert {t["kind"]: t["amountMs"] for t in before["totals"]} == {
        "allowance": 150 * 60_000,
        "charge": HOUR,
        "expiry": 90 * 60_000,
    }
    now = world.get(f"{budget}/statement")
    assert [(t["kind"], t["amountMs"]) for t in now["totals"] if t["correction"]] == [
        ("charge", 60_000),
        ("expiry", -60_000),
    ]
    assert now["closingMs"] == world.get(budget)["balanceMs"] == 30 * 60_000
    assert {p["podName"]: p["chargedMs"] for p in now["workloads"]} == {"b-pod": 2 * HOUR, "late": 60_000}
    following = world.get(f"{budget}/statement?limit=1")
    rest = world.get(f"{budget}/statement?cursor={following['nextCursor']}")
    assert following["workloads"] + rest["workloads"] == now["workloads"]
    table = world.call("GET", f"{budget}/statement?format=csv")
    lines = table.data.decode().splitlines()
    assert table.content_type.startswith("text/csv")
    assert [line for line in lines if line.startswith("closing")] == [
        f"closing,{newest['end']},team,,,,,{now['closingMs']}"
    ]
    assert sum(line.startswith("workload") for line in lines) == 2
    entries = world.get(f"{budget}/entries")["items"]
    assert {e["subject"] for e in entries if e["correctsAt"]} == {"late", f"period:{T0}"}


@pytest.mark.parametrize("drawn", ["before the change back", "after it"])
def test_what_rolled_over_is_shown_after_the_period_changed_to_days_and_back(world: World, drawn: str) -> None:
    """A period that no pod has drawn on yet takes another name with the calendar; what it began with is the same."""
    day = 24 * HOUR
    rule = {"amountMs": 100_000, "timeZone": "UTC", "rolloverMs": 60_000}

    def use(uid: str, seconds: int) -> None:
        start = world.clock.now_ms()
        world.clock.advance(seconds * 1000)
        closing = Closing(uid, start + seconds * 1000, "finished")
        policies = {"team": world.service.policy.of("team")}
        workload.apply(world.service.books, [opening(uid, start)], [closing], policies, world.clock.now_ms())

    def change(period: str) -> None:
        assert world.call("PUT", "/api/v1/budgets/team", {**rule, "period": period}).status_code == 200

    change("month")
    use("first", 30)
    world.clock.advance(9 * day + 12 * HOUR)
    change("day")
    world.clock.advance(day)
    if drawn == "before the change back":
        use("second", 5)
    change("month")
    use("third", 10)
    newest, cut = world.get("/api/v1/budgets/team/periods")["items"]
    assert (newest["start"], cut["start"]) == ("2026-01-11T00:00:00.000Z", "2026-01-01T00:00:00.000Z")
    assert (newest["rolledOverMs"], cut["rolledOverMs"]) == (60_000, 0)


def test_what_a_sealed_period_began_with_stays_when_a_late_pod_arrives(world: World) -> None:
    body = {"amountMs": 100_000, "period": "day", "timeZone": "UTC", "rolloverMs": 60_000}
    assert world.call("PUT", "/api/v1/budgets/team", body).status_code == 200
    policies = {"team": world.service.policy.of("team")}

    def book(uid: str, start: int) -> None:
        ends = [Closing(uid, start + 50_000, "finished")]
        workload.apply(world.service.books, [opening(uid, start)], ends, policies, world.clock.now_ms())

    world.clock.advance(24 * HOUR)
    book("first", T0 + 1_000)
    world.clock.advance(HOUR)
    book("second", T0 + 24 * HOUR + 1_000)
    world.clock.advance(24 * HOUR)
    days = world.get("/api/v1/budgets/team/periods")["items"]
    until = days[1]["end"]
    assert world.call("PUT", "/api/v1/budgets/team/seal", {"until": until, "reason": "r"}).status_code == 200
    sealed = world.get("/api/v1/budgets/team/periods")["items"][1:]
    assert (sealed[0]["state"], sealed[0]["rolledOverMs"]) == ("sealed", 50_000)
    book("late", T0 + 2 * HOUR)
    assert world.get("/api/v1/budgets/team/periods")["items"][1:] == sealed


def test_a_budget_its_usage_and_its_periods_name_the_same_running_period(world: World) -> None:
    rule = {"amountMs": 9 * HOUR, "timeZone": "UTC"}
    policies = {"team": world.service.policy.of("team")}
    assert world.call("PUT", "/api/v1/budgets/team", {**rule, "period": "month"}).status_code == 200
    workload.apply(world.service.books, [opening("runs", T0)], [], policies, T0)
    for period, more in (("day", {}), ("week", {"anchor": "2026-01-01T05:00:00Z"}), ("hour", {"newPeriod": True}),
                         ("month", {}), ("day", {"newPeriod": True})):  # fmt: skip
        world.clock.advance(77 * 60_000)
        assert world.call("PUT", "/api/v1/budgets/team", {**rule, "period": period, **more}).status_code == 200
        for minutes in (1, 20 * 60):
            world.clock.advance(minutes * 60_000)
            now = world.clock.now_ms()
            settlement.settle(world.service.books, [world.service.books.require("team").account.id], now)
            budget, usage = world.get("/api/v1/budgets/team"), world.get("/api/v1/usage/team")
            newest = world.get("/api/v1/budgets/team/periods")["items"][0]
            assert (budget["periodStart"], budget["periodEnd"]) == (newest["start"], newest["end"])
            assert usage["periodStart"] == newest["start"]
            used = now - parse_instant(newest["start"])
            assert budget["usedMs"] + budget["overBudgetMs"] == usage["chargedMs"] + usage["overBudgetMs"] == used
