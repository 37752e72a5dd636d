# SPDX-License-Identifier: Apache-2.0
"""The command line's budgets, parents and reservations against a served timekeeper."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest
from click.testing import CliRunner
from support.manual_clock import ManualClock
from support.openings import opening
from support.timekeeper_service import serving
from werkzeug.serving import make_server

from slicekeeper.cli.budget_options import PERIODS
from slicekeeper.cli.main import cli
from timekeeper.api.app import routed
from timekeeper.api.handler_context import HandlerContext
from timekeeper.api.schemas.budget import BudgetBody
from timekeeper.ledger import workload
from timekeeper.ledger.workload import Closing

T0 = 1_767_225_600_000
Run = Callable[..., Any]


@pytest.fixture
def world(tmp_path: Path, database_url: str) -> Iterator[HandlerContext]:
    with serving(tmp_path, database_url, ManualClock(T0)) as (service, _):
        yield service


@pytest.fixture
def run(tmp_path: Path, world: HandlerContext) -> Iterator[Run]:
    """Yield a function that runs a command and returns its JSON output, or its error message if it fails.

    With `code` -1 it returns the output for people.
    """
    (tmp_path / "policy.yaml").write_text("default: {budget: {amount: 2h, period: none, enforcement: safe}}\n")
    assert world.policy.refresh()
    for name in ("team", "other"):
        world.controller.namespaces.on_event("ADDED", {"metadata": {"name": name, "uid": f"uid-{name}"}})
    server = make_server("127.0.0.1", 0, routed(world), threaded=True)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    config, url = tmp_path / "config.yaml", f"http://127.0.0.1:{server.port}"
    client = {"url": url, "tokenFile": str(tmp_path / "token"), "timeoutSeconds": 60}  # however busy the machine is
    config.write_text(json.dumps({"timekeeperClient": client}))

    def command(*args: str, code: int = 0) -> Any:
        done = CliRunner().invoke(cli, ["--config", str(config), *args, *([] if code else ["-o", "json"])])
        assert (done.exit_code == 0) == (code <= 0), (args, done.output, done.exception)
        if code < 0:
            return done.output
        return f"{done.output}{done.exception}" if code else json.loads(done.output)

    try:
        yield command
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_teams_are_made_moved_granted_and_shown(run: Run) -> None:
    since = ("--period=year", "--time-zone=Europe/Berlin", "--anchor=2026-04-01T00:00:00+02:00")
    made = run("parent", "set", "physics", "10h", *since, "--credit", "1h", "--rollover", "30m")
    assert (made["kind"], made["amountMs"], made["creditMs"], made["rolloverMs"], made["periodEnd"]) == (
        "team",
        36_000_000,
        3_600_000,
        1_800_000,
        "2026-03-31T22:00:00.000Z",
    )
    assert run("parent", "set", "science", "100h", "--kind", "organisation", "--period", "none")["anchor"] is None
    assert run("parent", "move", "physics", "science")["parent"] == "science"
    assert run("budget", "move", "team", "physics", "--reason", "theirs")["parent"] == "physics"
    for _ in range(2):
        assert run("parent", "grant", "physics", "1h", "--key", "k")["balanceMs"] == 39_600_000
    assert [one["name"] for one in run("parent", "list")] == ["physics", "science"]
    assert run("parent", "get", "physics") == run("parent", "list")[0]
    assert [one["name"] for one in run("parent", "children", "physics")] == ["team"]
    assert run("budget", "move", "team")["parent"] is None
    assert "is neither a team nor an organisation" in run("parent", "get", "nobody", code=1)


def test_a_command_that_is_repeated_with_its_key_undoes_nothing(run: Run) -> None:
    create = ("parent", "set", "physics", "10h", "--key", "k")
    once = ("budget", "set", "team", "10h", "--new-period", "--key", "k")
    rate = ("budget", "rates", "A100", "2", "--key", "k")
    for command in (create, once, rate):
        run(*command)
    run("parent", "set", "physics", "5h")
    run("budget", "set", "team", "5h")
    run("budget", "rates", "A100", "3")
    assert {run(*command)["amountMs"] for command in (create, once)} == {5 * 3_600_000}
    assert run(*rate)["rate"] == "2"
    assert [rate["rate"] for rate in run("budget", "rates")] == ["2", "3"]
    assert "--key" in run("budget", "set", "team", "6h", "--key", "k", code=1)
    assert "--key" in run("parent", "set", "physics", "6h", "--key", "k", code=1)


def test_options_that_are_not_named_keep_their_value(run: Run, world: HandlerContext) -> None:
    rest = {
        "period": "week",
        "timeZone": "Europe/Berlin",
        "creditMs": 3_600_000,
        "rolloverMs": 1_800_000,
        "anchor": "2025-12-29T05:00:00.000Z",
    }
    since = ("--period", "week", "--time-zone", "Europe/Berlin", "--anchor", "2025-12-29T05:00:00Z")
    options = (*since, "--credit", "1h", "--rollover", "30m")
    for group, name in (("budget", "team"), ("parent", "physics")):
        assert run(group, "set", name, "20h", *options).items() >= {**rest, "amountMs": 72_000_000}.items()
        assert run(group, "set", name, "25h").items() >= {**rest, "amountMs": 90_000_000}.items()
        assert run(group, "set", name, "--credit", "0s").items() >= {**rest, "creditMs": 0}.items()
        assert run(group, "set", name, "--anchor", "none").get("anchor") is None
        assert run(group, "set", name, "--time-zone", "UTC")["amountMs"] == 90_000_000
        assert "say what to change" in run(group, "set", name, code=1)
    assert "not an organisation" in run("parent", "set", "physics", "1h", "--kind", "organisation", code=1)
    assert run("parent", "set", "physics", "1h", "--kind", "team")["period"] == "week"
    assert "name its AMOUNT" in run("parent", "set", "chemistry", "--credit", "1h", code=1)
    assert run("budget", "set", "other", "25h").items() >= {"amountMs": 90_000_000, "period": "none"}.items()


def test_a_new_period_begins_only_where_it_is_asked_for(run: Run, world: HandlerContext) -> None:
    closing = Closing("uid-p", T0 + 1_200_000, "finished")
    workload.apply(world.books, [opening("uid-p", T0)], [closing], {"team": world.policy.of("team")}, T0 + 1_200_000)
    assert isinstance(world.clock, ManualClock)
    world.clock.advance(1_200_000)
    for options in (("10m",), ("25h",), ("--period", "month"), ("--time-zone", "Asia/Tokyo"), ("--period", "day")):
        assert run("budget", "set", "team", *options)["usedMs"] == 1_200_000
    assert run("budget", "set", "team", "25h", "--new-period")["usedMs"] == 0


def test_time_is_set_aside_shown_and_given_back(run: Run) -> None:
    made = run("reservation", "open", "team", "90m", "--until", "2026-01-02T00:00:00Z", "--reason", "demonstration")
    assert (made["state"], made["heldMs"], made["reason"]) == ("open", 5_400_000, "demonstration")
    assert run("reservation", "show", "team", str(made["id"])) == made
    assert run("reservation", "list", "team") == [made]
    refused = run("reservation", "open", "team", "31m", "--until", "2026-01-02T00:00:00Z", code=1)
    assert "31m are more than the 30m that team has free" in refused
    assert run("reservation", "cancel", "team", str(made["id"]))["state"] == "released"
    assert "has no reservation" in run("reservation", "show", "other", str(made["id"]), code=1)


def test_a_reservation_may_end_with_a_day_of_the_budgets_time_zone(run: Run) -> None:
    run("budget", "set", "team", "25h", "--time-zone", "Asia/Tokyo")
    made = run("reservation", "open", "team", "30m", "--until", "2026-01-03")
    assert made["expiresAt"] == "2026-01-02T15:00:00.000Z"


def test_time_is_moved_by_hand_and_stated(run: Run, world: HandlerContext) -> None:
    closing = Closing("uid-p", T0 + 1_200_000, "finished")
    workload.apply(world.books, [opening("uid-p", T0)], [closing], {"team": world.policy.of("team")}, T0 + 1_200_000)
    assert isinstance(world.clock, ManualClock)
    world.clock.advance(1_200_000)
    for _ in range(2):
        assert run("budget", "adjust", "team", "1h", "--key", "k", "--reason", "owed")["balanceMs"] == 9_600_000
    assert run("budget", "adjust", "team", "30m", "--take")["balanceMs"] == 7_800_000
    assert run("budget", "refund", "team", "5m", "uid-p")["balanceMs"] == 8_100_000
    run("parent", "set", "lab", "1h", "--period", "none")
    assert run("budget", "transfer", "team", "15m", "other")["balanceMs"] == 7_200_000
    assert run("budget", "transfer", "team", "1h", "lab", "--to-kind", "parent")["balanceMs"] == 3_600_000
    assert run("parent", "adjust", "lab", "1h", "--take")["balanceMs"] == 3_600_000
    until = ("--until", "2026-01-02T00:00:00Z")
    assert run("parent", "transfer", "lab", "30m", "team", "--to-kind", "namespace", *until)["balanceMs"] == 1_800_000
    assert "are more than the" in run("budget", "transfer", "team", "10h", "other", code=1)
    assert run("budget", "status", "team", "suspended", "--reason", "audit")["status"] == "suspended"
    assert run("parent", "status", "lab", "closed", "--yes")["state"] == "closed"
    told = run("budget", "statement", "team")
    assert (told["openingMs"], told["closingMs"]) == (0, 5_400_000)
    assert [(pod["podName"], pod["chargedMs"]) for pod in told["workloads"]] == [("uid-p", 1_200_000)]
    early = run("budget", "statement", "team", "--from", "2025-01-01T00:00:00Z", "--to", "2025-02-01T00:00:00Z")
    assert early["totals"] == []
    shown = run("budget", "statement", "team", code=-1).splitlines()
    assert [line.split()[0] for line in shown if line][:2] == ["BOOKED", "opening"]
    assert shown[-1].split() == ["uid-p", "20m", "0s"]
    shown = run("budget", "statement", "team", "-o", "wide", code=-1).splitlines()
    assert shown[-1].split() == ["uid-p", "uid-p", "20m", "0s"]
    rows = run("budget", "statement", "team", "-o", "csv", code=-1).splitlines()
    assert rows[-1] == "workload,uid-p,uid-p,,,1200000,0,"
    assert run("parent", "statement", "lab")["parent"] == "lab"


def test_the_command_line_knows_every_period() -> None:
    assert get_args(get_type_hints(BudgetBody)["period"]) == PERIODS


def test_a_grant_of_later_is_listed_and_withdrawn(run: Run) -> None:
    run("parent", "set", "lab", "10h", "--period", "none")
    for kind, name in (("budget", "team"), ("parent", "lab")):
        whole = run(kind, "grant", name, "1h", "--from", "2026-02-01T00:00:00Z", "--until", "2026-03-01T00:00:00Z")
        assert whole["grantedMs"] == 0
        (grant,) = run(kind, "grants", name)
        assert (grant["amountMs"], grant["validFrom"], grant["withdrawnAt"]) == (
            3_600_000,
            "2026-02-01T00:00:00.000Z",
            None,
        )
        gone = run(kind, "withdraw", name, str(grant["id"]), "--reason", "a mistake")
        assert gone["withdrawnAt"] == "2026-01-01T00:00:00.000Z"
        assert run(kind, "grants", name) == [gone]
        assert "2026-02-01" in run(kind, "grants", name, "-o", "wide", code=-1)
        assert "no grant 99" in run(kind, "withdraw", name, "99", code=1)
        run(kind, "grant", name, "1h")
        now = run(kind, "grants", name)[0]["id"]
        assert "began at" in run(kind, "withdraw", name, str(now), code=1)


def test_an_interval_is_corrected_and_an_account_named_by_its_uid(run: Run, world: HandlerContext) -> None:
    closing = Closing("uid-p", T0 + 1_200_000, "finished")
    workload.apply(world.books, [opening("uid-p", T0)], [closing], {"team": world.policy.of("team")}, T0 + 1_200_000)
    assert isinstance(world.clock, ManualClock)
    world.clock.advance(1_200_000)
    assert run("budget", "correct", "team", "uid-p", "--end", "2026-01-01T00:10:00Z", "--key", "k")["usedMs"] == 600_000
    (row,) = run("budget", "corrections", "team")
    assert (row["podUid"], row["end"], row["endBefore"]) == (
        "uid-p",
        "2026-01-01T00:10:00.000Z",
        "2026-01-01T00:20:00.000Z",
    )
    assert "2026-01-01T00:10:00.000Z" in run("budget", "corrections", "team", "-o", "wide", code=-1)
    assert "name a start, an end, or both" in run("budget", "correct", "team", "uid-p", code=1)
    world.controller.namespaces.on_list([{"metadata": {"name": "team", "uid": "another"}}])
    assert "had no pod" in run("budget", "refund", "team", "1m", "uid-p", code=1)
    old = ("--uid", "uid-team")
    run("budget", "refund", "team", "1m", "uid-p", *old)
    run("budget", "adjust", "team", "1m", *old)
    assert run("budget", "get", "team", *old)["gone"] is True
    assert run("budget", "statement", "team", *old)["workloads"][0]["intervalCorrected"] is True
    assert "uid-p" in run("budget", "statement", "team", *old, "-o", "csv", code=-1)
    assert run("budget", "grants", "team", *old) == []
    assert [b["uid"] for b in run("budget", "list")] == ["uid-team"]
    assert "--uid uid-team" in run("budget", "list", "-o", "wide", code=-1)
    assert "team (gone)" in run("budget", "list", code=-1)
