# SPDX-License-Identifier: Apache-2.0
import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from slicekeeper.cli import main
from slicekeeper.cli import output as cli_output
from slicekeeper.cli.main import cli
from slicekeeper.cli.output import table
from slicekeeper.errors import SettingsError


def run(*args: str) -> subprocess.CompletedProcess[str]:
    command = [str(Path(sys.executable).parent / "slicekeeper"), *args]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


def test_help_lists_the_commands_and_imports_no_part() -> None:
    probe = (
        "import sys; from click.testing import CliRunner; from slicekeeper.cli.main import cli\n"
        "r = CliRunner().invoke(cli, ['--help']); assert r.exit_code == 0, r.output\n"
        "assert 'Show and change budgets.' in r.output and 'Run the reporting sidecar.' in r.output, r.output\n"
        "loaded = {'flask', 'sqlalchemy', 'numpy', 'cryptography', 'webhook.commands', 'timekeeper.commands'}\n"
        "assert not loaded & set(sys.modules), loaded & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", probe], check=True, timeout=60)


def test_sidecar_command_imports_neither_flask_nor_sqlalchemy() -> None:
    probe = (
        "import sys; from click.testing import CliRunner; from slicekeeper.cli.main import cli\n"
        "r = CliRunner().invoke(cli, ['sidecar', 'run', '--help']); assert r.exit_code == 0, r.output\n"
        "loaded = {'flask', 'sqlalchemy', 'numpy', 'pydantic', 'orjson', 'webhook', 'timekeeper', 'scheduler'}\n"
        "assert not loaded & set(sys.modules), loaded & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", probe], check=True, timeout=60)


def test_unknown_setting_is_one_line_and_exit_2(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("webhok: {}\n")
    done = run("--config", str(file), "config", "show")
    assert done.returncode == 2
    assert done.stderr.splitlines() == [f"slicekeeper: {file}: unknown key webhok; did you mean webhook?"]


def test_no_answer_is_one_line_and_exit_1(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("timekeeperClient: {url: 'http://127.0.0.1:9'}\n")
    done = run("--config", str(file), "budget", "list")
    assert done.returncode == 1
    assert "no answer from http://127.0.0.1:9 (Connection refused)" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_file_that_cannot_be_read_or_written_is_one_line_and_exit_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exited:
        main.run(tmp_path.read_text)  # root may read any file, but no folder as one
    assert (exited.value.code, capsys.readouterr().err) == (1, f"slicekeeper: {tmp_path}: Is a directory\n")


def test_without_an_address_the_setting_is_named(tmp_path: Path) -> None:
    environ = {"SLICEKEEPER_HOME": str(tmp_path), "HOME": str(tmp_path), "KUBECONFIG": ""}
    done = CliRunner().invoke(cli, ["budget", "list"], env=environ)
    assert isinstance(done.exception, SettingsError)
    assert "neither a timekeeper nor a cluster is configured: set timekeeperClient.url" in str(done.exception)
    assert "--kubeconfig" in str(done.exception)


def test_bad_amount_names_the_remedy() -> None:
    done = CliRunner().invoke(cli, ["budget", "set", "team-a", "20"])
    assert done.exit_code == 2
    assert "for example 20h" in done.output


def test_config_show_tells_where_a_value_came_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("webhook: {workers: 3}\n")
    monkeypatch.setenv("SLICEKEEPER_LOG_LEVEL", "debug")
    done = CliRunner().invoke(cli, ["--config", str(file), "config", "show", "-o", "json"])
    rows = {row["key"]: row for row in json.loads(done.output)}
    assert rows["webhook.workers"] == {
        "key": "webhook.workers",
        "value": 3,
        "from": str(file),
        "variable": "SLICEKEEPER_WEBHOOK_WORKERS",
    }
    assert rows["log.level"]["from"] == "$SLICEKEEPER_LOG_LEVEL"
    assert rows["webhook.bind"]["from"] == "default"


def test_table_aligns_columns() -> None:
    assert table(("A", "LONG"), [("wide cell", 1), ("x", 22)]).splitlines() == [
        "A          LONG",
        "wide cell  1",
        "x          22",
    ]


def test_many_items_are_shown_as_they_come(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli_output, "_AT_ONCE", 2)
    for count in (0, 1, 2, 5):
        items = [{"n": n, "text": "x"} for n in range(count)]
        told = {}
        for output in ("json", "yaml", "table"):
            cli_output.show_each(iter(items), output, ("N", "TEXT"), lambda one: (one["n"], one["text"]))
            told[output] = capsys.readouterr().out
        assert json.loads(told["json"]) == items
        assert yaml.safe_load(told["yaml"]) == items
        lines = [line.split() for line in told["table"].splitlines()]
        assert lines[0] == ["N", "TEXT"]
        assert [line for line in lines if line != lines[0]] == [[str(n), "x"] for n in range(count)]
