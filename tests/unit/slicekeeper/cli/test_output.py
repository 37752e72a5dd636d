# SPDX-License-Identifier: Apache-2.0
"""Tables fit the terminal, and nothing that a tenant writes forges a row, a control sequence or a formula."""

from __future__ import annotations

import csv
import json
from typing import Any

import pytest

from slicekeeper.cli.output import Column, narrow_table, show_list, table
from slicekeeper.cli.plain_text import indented, plain

UUIDS = [f"GPU-{n:08x}-0000-4000-8000-0123456789ab" for n in range(3)]
ALIKE = [f"GPU-00000000-0000-4000-8000-00000000000{n}" for n in range(3)]


@pytest.mark.parametrize("columns", [80, 120, 160])
def test_a_table_is_as_wide_as_the_terminal_and_wraps_its_last_column(
    columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    reason = "the deadline of the review is near and " * 6
    shown = narrow_table(("NAMESPACE", "POD", "REASON"), [("a-team", "resnet-50-train-7f9c4", reason)]).splitlines()
    assert columns - 20 < max(map(len, shown)) <= columns
    assert " ".join(word for line in shown[1:] for word in line.split()[-99:]).count("deadline") == 6
    assert all(line.startswith("                ") for line in shown[2:])


def test_long_names_lose_their_middle_and_gpus_stay_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    rows = [("a-namespace-with-a-long-name", f"{'x' * 50}-{n}", "Running", "over-budget", f"{UUIDS[n]} (50%)")
            for n in range(3)]  # fmt: skip
    shown = narrow_table(("NAMESPACE", "NAME", "PHASE", "STATE", "GPU"), rows).splitlines()
    assert all(len(line) <= 80 for line in shown)
    for number, line in enumerate(shown[1:]):
        assert f"…{'x' * 3}" in line
        assert f"-{number} " in line
        assert line.endswith(f"GPU-{number:08x} (50%)")


@pytest.mark.parametrize(
    ("uuids", "shown"),
    [
        (UUIDS, ["GPU-00000000", "GPU-00000001", "GPU-00000002"]),
        (ALIKE, ["GPU-…00000000", "GPU-…00000001", "GPU-…00000002"]),
        (["GPU-12345678-aaaa-4000-8000-0123456789ab", "GPU-12345678-bbbb-4000-8000-0123456789ab"],
         ["GPU-12345678-a", "GPU-12345678-b"]),
        (["MIG-12345678-aaaa-4000-8000-0123456789ab"] * 2, ["MIG-12345678"] * 2),
        (["node-1-0", "x"], ["node-1-0", "x"]),
    ],
)  # fmt: skip
def test_uuids_are_shortened_to_what_distinguishes_them(uuids: list[str], shown: list[str]) -> None:
    assert [line.strip() for line in narrow_table(("GPU",), [(one,) for one in uuids]).splitlines()[1:]] == shown


FORGED = "x\nevil  ok  999h\r\x1b[2J\x9b31m\u202e\u2028\x00end"


def test_control_characters_are_shown_and_not_obeyed(capsys: pytest.CaptureFixture[str]) -> None:
    columns: list[Column[Any]] = [Column("NAME", lambda r: r["name"]), Column("REASON", lambda r: r["reason"])]
    rows = [{"name": "team", "reason": FORGED, "n": -5}]
    for output in ("table", "wide", "csv", "name", "yaml", "json"):
        show_list(rows, output, columns, lambda r: str(r["reason"]))
        out = capsys.readouterr().out
        assert all(one.isprintable() or one == "\n" for one in out), output
        assert "\nevil" not in out, output
        assert output != "json" or json.loads(out) == rows
    assert len(table(("A", "B"), [("x", FORGED)]).splitlines()) == 2
    assert plain("ä – 語 \u00a0.") == "ä – 語 \u00a0."
    assert plain("a\tb\n") == r"a\tb\n"
    assert indented("first\nslicekeeper: done\x1b[0m") == "first\n  slicekeeper: done\\x1b[0m"


@pytest.mark.parametrize("text", ["=1+2", "+1", "-2+3", "@SUM(A1)", "\t=1", "\r=1", "=cmd|' /C calc'!A0", "＝1"])
def test_a_text_in_csv_is_no_formula_and_a_number_stays_one(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    show_list([{"reason": text, "amountMs": -5, "ratio": -0.5}], "csv", [], str)
    [row] = csv.DictReader(capsys.readouterr().out.splitlines())
    assert row["reason"][0] == "'"
    assert (row["amountMs"], row["ratio"]) == ("-5", "-0.5")
