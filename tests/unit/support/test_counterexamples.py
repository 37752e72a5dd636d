# SPDX-License-Identifier: Apache-2.0
"""A counterexample that a run finds is kept, with the command that finds it again, and shrinking has an end."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from hypothesis.internal.conjecture import engine

CONFTEST = Path(__file__).parents[2] / "conftest.py"
PROPERTY = """
from hypothesis import given, strategies as st

@given(st.integers())
def test_all_numbers_are_small(number):
    assert number < 1000
"""


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", ".", *arguments]
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST")}
    environment["PYTHONPATH"] = str(CONFTEST.parent)
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def test_a_counterexample_is_kept_with_the_command_that_finds_it_again(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST.read_text())
    (tmp_path / "test_numbers.py").write_text(PROPERTY)
    ended = run(tmp_path, "test_numbers.py", "--hypothesis-seed=17")
    (kept,) = (tmp_path / "build" / "counterexamples").iterdir()
    again = "pytest test_numbers.py -k test_all_numbers_are_small --hypothesis-seed=17"
    assert ended.returncode == 1
    assert kept.read_text().startswith(again + "\n")
    assert "number=1000," in kept.read_text()
    assert "Counterexample" in ended.stdout
    assert f"kept in build/counterexamples/{kept.name}; find it again by\n{again}" in ended.stdout


def test_a_run_without_a_counterexample_keeps_nothing(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST.read_text())
    (tmp_path / "test_numbers.py").write_text(PROPERTY + "\n\ndef test_no_property():\n    assert not 1\n")
    ended = run(tmp_path, "-k", "test_no_property")
    assert ended.returncode == 1
    assert not (tmp_path / "build").exists()


def test_shrinking_is_bounded_in_this_run() -> None:
    assert engine.MAX_SHRINKING_SECONDS <= 60
