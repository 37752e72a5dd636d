# SPDX-License-Identifier: Apache-2.0
"""`kubectl gpubudget` and `slicekeeper budget` against a served timekeeper: formats, dates, names, files."""

from __future__ import annotations

import csv
import json
import re
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, tzinfo
from pathlib import Path
from typing import Any

import click
import pytest
import yaml
from click.testing import CliRunner
from support.manual_clock import ManualClock
from support.openings import opening
from support.timekeeper_service import serving
from werkzeug.serving import make_server

from slicekeeper.cli import budget_reports, date_options, output, plugin
from slicekeeper.cli.budget import budget
from slicekeeper.cli.date_options import instant_of
from slicekeeper.cli.main import cli
from slicekeeper.errors import NotFound
from timekeeper.api.app import routed
from timekeeper.ledger import workload
from timekeeper.store.db.engine import make_engine
from timekeeper.store.db.migrate import upgrade

NOW = datetime(datetime.now(UTC).year, 1, 1, tzinfo=UTC)
T0 = int(NOW.timestamp() * 1000)
LONG = "a-team-with-18-abc"
Run = Callable[..., str]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A timekeeper with three namespaces, of which one has run a pod; return the settings that lead to it."""
    folder, clock = tmp_path_factory.mktemp("commands"), ManualClock(T0)
    url = f"sqlite:///{folder}/db.sqlite"
    engine = make_engine(url)
    upgrade(engine)
    engine.dispose()
    with serving(folder, url, clock) as (service, _):
        for name in ("team", "other", "closing", LONG, "fresh"):
            service.controller.namespaces.on_event("ADDED", {"metadata": {"name": name, "uid": f"uid-{name}"}})
        pod = replace(opening("uid-p", start=T0), pod_name="train")
        policies = {"team": service.policy.of("team")}
        workload.apply(service.books, [pod], [], policies, clock.now_ms())
        clock.advance(3_600_000)
        workload.apply(
            service.books, [], [workload.Closing("uid-p", T0 + 1_200_000, "finished")], policies, clock.now_ms()
        )
        server = make_server("127.0.0.1", 0, routed(service), threaded=True)
        threading.Thread(target=server.serve_forever, args=(0.01,)).start()
        config = folder / "config.yaml"
        client = {"url": f"http://127.0.0.1:{server.port}", "tokenFile": str(folder / "token"), "timeoutSeconds": 60}
        config.write_text(json.dumps({"timekeeperClient": client}))
        yield config
        server.shutdown()
        server.server_close()


@pytest.fixture
def fresh(served: Path) -> str:
    """Return a namespace that the cluster has, and the ledger has not seen."""
    assert served.exists()
    return "fresh"


@pytest.fixture
def run(served: Path, tmp_path: Path) -> Run:
    """Give a function that runs a command of the group and returns what it printed."""

    def command(*args: str, code: int = 0, stdin: str = "", kubeconfig: str = "") -> str:
        environ = {"HOME": str(tmp_path), "KUBECONFIG": kubeconfig}
        done = CliRunner().invoke(cli, ["--config", str(served), "budget", *args], input=stdin, env=environ)
        assert done.exit_code == code, (args, done.output, done.exception)
        return done.output + (str(done.exception) if code else "")

    return command


def test_tables_have_80_columns_whatever_they_show(run: Run) -> None:
    run("set", LONG, "1234567h", "--period", "month")
    run("grant", LONG, "999h", "--reason", "a long reason that goes on and on, and on " * 3)
    run("move", LONG)
    for command in (("list",), ("get", "-A"), ("top",), ("grants", LONG), ("explain", LONG), ("audit",), ("rates",),
                    ("periods", LONG), ("statement", LONG), ("usage", "team")):  # fmt: skip
        shown = run(*command)
        too_long = [line for line in shown.splitlines() if len(line) > 80]
        assert not too_long, command
    assert "1234567h0m0s" not in run("list")
    assert "GRANTED" in run("list", "-o", "wide")


def test_a_budget_is_closed_only_if_that_is_confirmed(run: Run) -> None:
    for answer in ("", "n\n"):
        assert "cannot be opened again" in run("status", "closing", "closed", code=1, stdin=answer)
    assert json.loads(run("get", "closing", "-o", "json"))["status"] == "active"
    run("status", "closing", "suspended")
    run("status", "closing", "active")
    shown = run("status", "closing", "closed", "-o", "json", stdin="y\n")
    assert '"state": "closed"' in shown


def test_who_sets_a_budget_can_say_why(run: Run) -> None:
    def reason() -> str:
        return str(json.loads(run("audit", "-o", "json"))[-1]["detail"]["reason"])

    run("set", "team", "8h", "--reason", "a grant proposal")
    assert reason() == "a grant proposal"
    run("set", "team", "9h")
    assert reason() == "set on the command line"
    run("set", "-f", "-", "--reason", "as planned", stdin="{namespace: team, amount: 20h}")
    assert reason() == "as planned"


def test_unset_gives_the_policys_budget_back(run: Run) -> None:
    before = json.loads(run("get", "other", "-o", "json"))
    run("set", "other", "7h", "--period", "day")
    after = json.loads(run("unset", "other", "-o", "json"))
    assert (after["source"], after["amountMs"]) == ("policy", before["amountMs"])
    assert "namespace taem" in run("unset", "taem", code=1)
    assert "NAMESPACE" in run("unset", code=2)


def test_formats_agree_with_each_other(run: Run) -> None:
    whole = json.loads(run("list", "-o", "json"))
    assert yaml.safe_load(run("list", "-o", "yaml")) == whole
    assert run("list", "-o", "name").split() == [one["namespace"] for one in whole]
    rows = list(csv.DictReader(run("list", "-o", "csv").splitlines()))
    assert [(row["namespace"], int(row["usedMs"])) for row in rows] == [(b["namespace"], b["usedMs"]) for b in whole]
    assert [json.loads(row["gone"]) for row in rows] == [one["gone"] for one in whole]
    wide = run("list", "-o", "wide").splitlines()
    assert len(wide) == len(whole) + 1


def test_a_name_that_is_mistyped_is_not_found_with_names_that_are_near(run: Run) -> None:
    told = run("get", "taem", code=1)
    assert "namespace taem is not found; did you mean team?" in told
    assert "did you mean" not in run("get", "zzz", code=1)
    run("watch", "taem", code=1)
    run("explain", "taem", code=1)


def test_a_namespace_is_named_by_argument_by_option_or_by_the_context(run: Run, tmp_path: Path) -> None:
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "c",
        "users": [{"name": "u", "user": {}}],
        "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:9"}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u", "namespace": "other"}}],
    }
    file = tmp_path / "kubeconfig"
    file.write_text(yaml.safe_dump(config))
    for name in ("team", "other"):
        run("grant", name, "1h")
    for args, name in (
        (("get", "team"), "team"), (("get", "-n", "team"), "team"), (("get", "--namespace=team"), "team"),
        (("get",), "other"), (("statement",), "other"), (("statement", "-nteam"), "team"),
        (("statement", "-n", "team"), "team"), (("set", "-n", "team", "150m"), "team"),
    ):  # fmt: skip
        assert json.loads(run(*args, "-o", "json", kubeconfig=str(file)))["namespace"] == name, args
    assert [b["namespace"] for b in json.loads(run("get", "team", "other", "-o", "json"))] == ["team", "other"]
    assert "give a NAMESPACE" in run("statement", code=2)


@pytest.mark.parametrize("reason", ["-none was left", "-n", "--namespace=x"])
def test_a_reason_that_looks_like_a_namespaces_option_is_a_reason(run: Run, reason: str) -> None:
    assert json.loads(run("grant", "team", "1h", "--reason", reason, "-o", "json"))["namespace"] == "team"
    assert reason in [grant["reason"] for grant in json.loads(run("grants", "-n", "team", "-o", "json"))]


def test_plain_dates_are_days_of_the_budgets_time_zone(run: Run) -> None:
    run("set", "other", "25h", "--time-zone", "America/New_York")
    year = NOW.year
    told = json.loads(
        run("statement", "other", "--from", f"{year - 1}-07-04", "--to", f"{year - 1}-12-25", "-o", "json")
    )
    assert (told["start"], told["end"]) == (f"{year - 1}-07-04T04:00:00.000Z", f"{year - 1}-12-25T05:00:00.000Z")
    run("grant", "other", "1h", "--until", f"{year + 1}-02-01")
    grant, *_ = json.loads(run("grants", "other", "-o", "json"))
    assert grant["validTo"] == f"{year + 1}-02-01T05:00:00.000Z"
    assert "is not an instant" in run("statement", "other", "--from", f"{year}-13-01", code=2)
    assert "is not an instant" in run("statement", "other", "--from", "last week", code=2)


def clock_at(instant: str) -> type[datetime]:
    """Return a datetime class with a stopped clock."""

    class Still(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> Any:
            return datetime.fromisoformat(instant).astimezone(tz)

    return Still


def test_words_for_days_and_days_without_a_midnight(monkeypatch: pytest.MonkeyPatch) -> None:
    # Berlin's clocks are about to go forward, and its day has begun.
    monkeypatch.setattr(date_options, "datetime", clock_at("2026-03-28T23:30:00Z"))
    told = {word: instant_of(word, lambda: "Europe/Berlin") for word in ("yesterday", "today", "tomorrow")}
    assert told == {
        "yesterday": "2026-03-28T00:00:00+01:00",
        "today": "2026-03-29T00:00:00+01:00",
        "tomorrow": "2026-03-30T00:00:00+02:00",
    }
    # Santiago's clocks went from 24:00 to 01:00.
    assert instant_of("2023-09-03", lambda: "America/Santiago") == "2023-09-03T01:00:00-03:00"
    assert instant_of("2026-11-30T12:00:00Z", lambda: pytest.fail("not asked")) == "2026-11-30T12:00:00Z"


def test_budgets_in_files_are_set_where_they_differ(run: Run, tmp_path: Path) -> None:
    folder = tmp_path / "budgets"
    (folder / "below").mkdir(parents=True)
    (folder / "one.yaml").write_text("{namespace: team, amount: 30h, period: week}\n---\n")
    (folder / "below/two.yaml").write_text(run("get", "other", "-o", "yaml").replace("creditMs: 0", "creditMs: 60000"))
    assert run("set", "-f", str(folder), "-o", "name").split() == ["other", "team"]
    assert json.loads(run("get", "team", "-o", "json"))["amountMs"] == 108_000_000
    before = len(json.loads(run("audit", "-o", "json")))
    assert run("set", "-f", str(folder), "-o", "name") == ""
    assert len(json.loads(run("audit", "-o", "json"))) == before
    for text, told in (
        ("{namespace: team, amont: 30h}", "unknown key amont"),
        ("{namespace: team, amount: 30}", "for example 25h"),
        ("{amount: 30h}", "names its namespace"),
        ("{namespace: team}", "nothing is set for namespace"),
        ("{namespace: team, amount: 30h, enforcement: hard}", "the policy sets it (budget.enforcement); leave it out"),
        ("{namespace: team, amount: 30h, status: closed}", "from 'active': `slicekeeper budget status` sets it"),
        ("{namespace: team, amount: 30h, parent: lab}", "`slicekeeper budget move` sets it"),
        ("{namespace: team, amount: 30h, usedMs: 0}", "usedMs is only shown, and cannot be set"),
        ("{namespace: team, amount: 30h, state: ok}", "state is only shown, and cannot be set"),
        ("{namespace: team, amount: 30h, amountMs: 1}", "both amount and amountMs are set"),
        ("{namespace: team, amount: 30h, period: none, rollover: 1h}", "has nothing to roll over"),
        ("[{namespace: x, amount: 1h}, {namespace: x, amount: 2h}]", "keep one of the two"),
        ("{", "cannot be read"),
        ("", "no budget found"),
        ("{apiVersion: slicekeeper.io/v1alpha1, kind: GpuBudget, spec: {amount: 1h}}", "use kubectl apply -f"),
    ):
        assert told in run("set", "-f", "-", stdin=text, code=1), text
    assert json.loads(run("get", "team", "-o", "json"))["amountMs"] == 108_000_000
    run("set", "team", "-f", str(folder), code=2)
    run("set", code=2)
    assert run("set", "-f", "-", "-o", "name", stdin="{namespace: team, amount: 30h, enforcement: soft}") == ""


def test_use_reasons_and_periods_are_told(run: Run) -> None:
    shown = run("explain", "team")
    assert shown.startswith("team: ok")
    assert "charge" in shown
    [last] = [e for e in json.loads(run("explain", "team", "-o", "json")) if e["kind"] == "charge"][-1:]
    assert last["subject"]
    most = run("top", "--most", "1").splitlines()
    assert most[1].split()[0] == "team"
    assert json.loads(run("periods", "team", "-o", "json"))[0]["state"] == "open"
    [used] = json.loads(run("usage", "team", "--from", f"{NOW:%Y-%m-%d}", "-o", "json"))
    assert (used["group"], used["allocatedMs"] > 0) == ("uid-p", True)
    assert json.loads(run("rates", "A100", "3/2", "-o", "json"))["rate"] == "3/2"
    assert [r["rate"] for r in json.loads(run("rates", "A100", "-o", "json"))] == ["3/2"]
    assert "give a MODEL and a RATE" in run("rates", "A100", "--from", "2020-01-01", code=2)
    assert json.loads(run("seal", "team", "2020-01-01", "-o", "json")) == json.loads(
        run("periods", "team", "-o", "json")
    )


def test_watch_tells_a_budget_again_when_it_has_changed(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    looks = []

    def sleep(_: float) -> None:
        looks.append(1)
        if len(looks) == 2:
            run("grant", "team", "500h")
        if len(looks) == 4:
            raise KeyboardInterrupt

    monkeypatch.setattr(budget_reports.time, "sleep", sleep)
    lines = run("watch", "team").splitlines()
    assert [line.split()[0] for line in lines] == ["NAMESPACE", "team", "team"]


def test_colours_are_for_terminals_and_not_where_they_are_unwanted(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal:
        def isatty(self) -> bool:
            return True

    rows = [("a", "ok"), ("b", "exhausted")]
    plain = output.table(("NAME", "STATE"), rows)
    monkeypatch.setattr(output.sys, "stdout", Terminal())
    coloured = output.table(("NAME", "STATE"), rows)
    assert "\033[31mexhausted" in coloured
    assert click.unstyle(coloured) == plain
    monkeypatch.setenv("NO_COLOR", "1")
    assert output.table(("NAME", "STATE"), rows) == plain


def test_long_work_tells_a_terminal_how_far_it_is_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert output.gathered(range(250), "rows") == list(range(250))
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(output.sys.stderr, "isatty", lambda: True)
    output.gathered(range(250), "rows")
    assert capsys.readouterr().err == "\r100 rows…\r200 rows…\r\033[K"


def test_amounts_and_instants_are_short_in_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    told = {0: "0s", 999: "0s", 61_000: "1m1s", 3_600_000: "1h", 5_400_000: "1h30m", -90_000: "-1m30s", -500: "0s",
            100 * 3_600_000 + 60_000: "100h", 10**12: "277777h"}  # fmt: skip
    assert {ms: output.rounded(ms) for ms in told} == told
    monkeypatch.setattr(output, "datetime", clock_at("2026-12-31T23:59:59Z"))
    assert output.brief("2026-11-23T14:05:59.000Z") == "11-23 14:05"
    assert output.brief("2027-11-23T14:05:59.000Z") == "2027-11-23"
    assert output.brief(None) == "-"


def test_the_plugin_has_the_same_commands_and_completes_them(
    served: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    wanted = {"get", "top", "statement", "grant", "refund", "transfer", "rates", "usage", "audit", "seal", "explain",
              "watch", "set", "list", "adjust", "grants", "withdraw", "status", "move", "correct", "corrections",
              "periods"}  # fmt: skip
    assert wanted <= set(budget.commands)
    monkeypatch.setenv("SLICEKEEPER_CONFIG", str(served))
    monkeypatch.setattr(plugin.sys, "argv", ["kubectl-gpubudget", "get", "team", "-o", "name"])
    with pytest.raises(SystemExit) as ended:
        plugin.main()
    assert (ended.value.code, capsys.readouterr().out) == (0, "team\n")
    for words, found in (
        (["st"], {"statement", "status"}),
        (["statement", "te"], {"team"}),
        (["get", "-o", "j"], {"json"}),
        (["grant", "--un"], {"--until"}),
    ):
        monkeypatch.setattr(plugin.sys, "argv", ["kubectl_complete-gpubudget", *words])
        plugin.complete()
        *lines, last = capsys.readouterr().out.splitlines()
        assert ({line.split("\t")[0] for line in lines}, last) == (found, ":4"), words


def test_an_error_of_the_plugin_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(**_: Any) -> None:
        raise NotFound("namespace x is not found", 404)

    monkeypatch.setattr(plugin.budget, "main", fail)
    with pytest.raises(SystemExit) as ended:
        plugin.main()
    assert (ended.value.code, capsys.readouterr().err) == (1, "slicekeeper: namespace x is not found\n")


READS = ("get", "explain", "statement", "grants", "periods", "usage", "audit", "corrections", "watch")
WRITES = ("set 1h", "unset", "grant 1h", "adjust 1h", "transfer 1h team", "status suspended", "refund 1h uid-p", "move",
          "seal 2026-01-01", "withdraw 1", "correct uid-p --start 2026-01-01T00:00:00Z")  # fmt: skip


@pytest.mark.parametrize("words", [*READS, *WRITES])
def test_an_unknown_namespace_has_one_answer_and_one_exit_code(run: Run, words: str) -> None:
    command, *rest = words.split()
    told = run(command, "taem", *rest, code=1)
    assert told.splitlines()[-1] == "namespace taem is not found; did you mean team?"


def test_other_commands_answer_of_unknown_namespaces_as_budget_does(served: Path) -> None:
    for args in (("reservation", "list", "taem"), ("reservation", "show", "taem", "1"),
                 ("reservation", "open", "taem", "1h", "--until", "2999-01-01"), ("reservation", "cancel", "taem", "1"),
                 ("budget", "transfer", "team", "1h", "taem")):  # fmt: skip
        done = CliRunner().invoke(cli, ["--config", str(served), *args])
        assert done.exit_code == 1, args
        to = "TO: " if args[1] == "transfer" else ""
        assert str(done.exception) == f"{to}namespace taem is not found; did you mean team?", args


def test_a_namespace_without_a_pod_so_far_has_a_budget_and_empty_lists(run: Run, fresh: str) -> None:
    assert json.loads(run("get", fresh, "-o", "json"))["state"] == "ok"
    for words in (("grants",), ("periods",), ("usage",), ("audit",), ("corrections",)):
        assert json.loads(run(*words, fresh, "-o", "json")) == [], words
    assert run("explain", fresh).startswith(f"{fresh}: ok")
    assert run("statement", fresh) == f"nothing is booked in namespace {fresh} yet\n"
    assert json.loads(run("statement", fresh, "-o", "json"))["totals"] == []
    assert run("statement", fresh, "-o", "csv") == ""


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("grant", "team", "5h", "--until", "2020-01-01"), "--until: 2020-01-01 is not later than now"),
        (("grant", "team", "5h", "--from", "2020-01-01"), "--from: 2020-01-01 is in the past"),
        (("transfer", "team", "5m", "other", "--until", "2020-01-01"), "--until: 2020-01-01 is in"),
        (("transfer", "team", "100000h", "other"), "AMOUNT: 100000h are more than the "),
        (("adjust", "team", "1000h", "--take"), "AMOUNT: 1000h are more than the "),
        (("transfer", "team", "5m", "team"), "TO: it must be a different budget"),
        (("grant", "team", "5m", "--reason", ""), "--reason: it must not be empty"),
        (("set", "team", "--time-zone", "Mars/Base"), "--time-zone: "),
        (("refund", "team", "5h", "uid-p"), "AMOUNT"),
        (("withdraw", "team", "999"), "team has no grant 999"),
        (("rates", "A100", "2", "--from", "2020-01-01"), "--from: 2020-01-01 is in the past"),
    ],
    ids=lambda words: " ".join(words)[:40],
)  # fmt: skip
def test_a_refusal_names_the_option_and_amounts_as_they_were_typed(run: Run, words: tuple[str, ...], told: str) -> None:
    run("set", "team", "150m", "--period", "day", "--time-zone", "UTC")
    answer = run(*words, code=1).splitlines()[-1]
    assert answer.startswith(told)
    assert not re.search(r"/api/|Ms\b|GPU-ms|[a-z][A-Z]", answer.replace("GPU", "")), answer


def test_a_refused_amount_is_told_in_hours_on_both_sides(run: Run) -> None:
    run("set", "other", "2h30m", "--period", "none")
    told = run("adjust", "other", "100000h", "--take", code=1).splitlines()[-1]
    assert re.fullmatch(r"AMOUNT: 100000h are more than the [0-9hms.]+ that other has left and unreserved", told), told


@pytest.mark.parametrize("amount", ["-5", "-5h", "-1h30m"])
def test_a_negative_amount_is_called_negative_and_not_an_option(run: Run, amount: str) -> None:
    assert f"--take deducts {amount[1:]}" in run("adjust", "team", amount, code=2)
    for words in (("grant", "team", amount), ("set", "team", amount), ("set", "-n", "team", amount),
                  ("transfer", "team", amount, "other")):  # fmt: skip
        assert f"'{amount}': an amount is never negative" in run(*words, code=2), words
    assert f"{amount!r} is negative" in run("set", "team", "--credit", amount, code=2)
    assert f"'{amount}': it is negative" in run("rates", "A100", amount, code=2)
    assert "No such option" in run("grant", "team", "--amuont", code=2)
    run("grant", "team", "1m", "--reason", amount)


@pytest.mark.parametrize("amount", ["0s", "9999999999999h"])
def test_an_amount_that_cannot_be_booked_is_refused_with_the_range(run: Run, amount: str) -> None:
    assert f"'{amount}' is out of range; use 0.001s to " in run("grant", "team", amount, code=2)


def test_files_that_change_nothing_say_so(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "budget.yaml"
    file.write_text(run("get", "team", "-o", "yaml"))
    assert run("set", "-f", str(file)) == "nothing to change: the budgets are as the files say\n"


def test_a_grant_prints_the_number_by_which_it_can_be_withdrawn(run: Run) -> None:
    said = run("grant", "team", "2h", "--from", "2999-01-01", "--key", "once")
    number = said.splitlines()[-1].removeprefix("2h granted to team: grant ")
    again = run("grant", "team", "2h", "--from", "2999-01-01", "--key", "once")
    assert again.splitlines()[-1].endswith(f"grant {number}")
    [withdrawn] = [line.split() for line in run("withdraw", "team", number).splitlines()[1:]]
    assert withdrawn[0] == number


def test_the_audit_is_told_in_words_and_with_the_whole_reason(run: Run) -> None:
    reason = "the deadline of the review is on Friday, and the cluster was down for two days in this week"
    run("grant", LONG, "90m", "--reason", reason)
    shown = run("audit", LONG)
    assert "amount 1h30m" in " ".join(shown.split())
    assert reason in " ".join(
        line[line.find("  ") :].strip() if line[0] == " " else line for line in shown.splitlines()
    )
    assert "Ms" not in shown
    assert "namespaceUid" not in shown
    assert "namespaceUid: " in run("audit", LONG, "-o", "wide")


def test_usage_names_pods_and_needs_no_namespace_for_all_of_them(run: Run) -> None:
    day = f"{NOW:%Y-%m-%d}"
    head, row = run("usage", "team", "--from", day).splitlines()
    assert head.split()[:2] == ["FROM", "POD"]
    assert row.split()[2] == "train"
    assert "uid-p " in run("usage", "team", "--from", day, "-o", "wide")
    found = json.loads(run("usage", "--by", "namespace", "--from", day, "-o", "json"))
    assert [one["group"] for one in found] == ["team"]
    assert all(one["usedMs"] is None or one["usedMs"] + one["unobservedMs"] <= one["allocatedMs"] for one in found)
    assert "give a NAMESPACE" in run("usage", "--by", "model", code=2)


def test_a_budget_is_explained_without_numbers_of_milliseconds(run: Run) -> None:
    run("grant", "team", "2h")
    shown = run("explain", "team")
    assert not re.search(r"[0-9]{10}", shown)
    assert "period 01-01 00:00" in shown
    assert re.search(r"grant [0-9]+", shown)
    assert " train\n" in shown
    assert re.search(r"period:[0-9]{13}", run("explain", "team", "-o", "wide"))


def test_a_statement_adds_up_line_by_line_and_says_what_still_runs(run: Run) -> None:
    shown = run("statement", "team")
    sums, *_ = shown.split("\n\n")
    head, *lines = [line.split() for line in sums.splitlines()]
    assert head == ["BOOKED", "AT", "COUNT", "GPU-TIME", "CHANGE", "BALANCE"]
    assert (lines[0][0], lines[-1][0]) == ("opening", "closing")
    assert lines[-2][-1] == lines[-1][-1], "the balance runs from line to line"


def test_an_error_of_a_file_names_the_namespace_and_the_field_in_it(run: Run) -> None:
    text = "[{namespace: other, amount: 3h}, {namespace: team, amount: 3h, timeZone: Mars/Base}]"
    told = run("set", "-f", "-", stdin=text, code=1).splitlines()[-1]
    assert told.startswith("namespace team: timeZone: 'Mars/Base'")
    assert run("set", "-f", "-", stdin="{namespace: taem, amount: 3h}", code=1).endswith("did you mean team?")


def test_a_key_that_cannot_be_sent_is_refused_without_the_request(run: Run) -> None:
    told = run("grant", "team", "1h", "--key", "a\nb", code=1).splitlines()[-1]
    assert told.startswith("not sent: the bearer token or the idempotency key")
