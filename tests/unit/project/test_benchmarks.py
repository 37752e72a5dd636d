# SPDX-License-Identifier: Apache-2.0
"""No benchmark has lost what it imports: they are run by hand only, so nothing else would show it."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
LOAD = "import runpy, sys; sys.path.insert(0, sys.argv[2]); runpy.run_path(sys.argv[1])"


@pytest.mark.parametrize("path", sorted((ROOT / "benchmarks").rglob("*.py")), ids=lambda path: path.stem)
def test_a_benchmark_can_be_loaded(path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LOAD, str(path), str(path.parent)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
