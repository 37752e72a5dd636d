# SPDX-License-Identifier: Apache-2.0
"""The built wheel, installed without access to the checkout: an editable install would hide missing files."""

from __future__ import annotations

import json
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "manifests/examples"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out), str(ROOT)]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    return next(out.glob("*.whl"))


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the bin folder of an environment with the wheel, and this one's dependencies behind it."""
    home = tmp_path_factory.mktemp("venv")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(home)], check=True, timeout=120)
    site = Path(next(home.glob("lib/python*/site-packages")))
    install = [sys.executable, "-m", "pip", "--python", str(home / "bin/python"), "install", "--quiet", "--no-deps"]
    subprocess.run([*install, "--disable-pip-version-check", str(wheel)], check=True, timeout=120)
    # A folder named in a .pth file has its own .pth files passed over: the checkout stays out of sight.
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return home / "bin"


def run(installed: Path, cwd: Path, *args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(installed / "slicekeeper"), *args], cwd=cwd, capture_output=True, text=True, check=False, timeout=120
    )


def test_wheel_holds_every_package_and_nothing_else(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.split("/")[0] for name in names if ".dist-info/" not in name}
    assert {"slicekeeper", "webhook", "timekeeper", "sidecar", "scheduler", "simulator", "migrations"} <= tops
    assert not {"tests", "benchmarks", "vcuda", "docs"} & tops
    assert any(name.startswith("migrations/versions/") for name in names)
    assert any(name.endswith("licenses/LICENSE") for name in names)


def test_code_comes_from_the_wheel(installed: Path, tmp_path: Path) -> None:
    code = (
        "import slicekeeper, timekeeper, migrations as m; print(slicekeeper.__file__, timekeeper.__file__, m.__path__)"
    )
    done = subprocess.run(
        [str(installed / "python"), "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True, timeout=60
    )
    assert str(ROOT) not in done.stdout


def test_review_works(installed: Path, tmp_path: Path) -> None:
    done = run(installed, tmp_path, "review", "-f", str(EXAMPLES / "mnist-case.yaml"), "-n", "team-a", "-o", "json")
    assert done.returncode == 0, done.stderr
    assert "gpu-sidecar" in done.stdout


def test_database_is_made_and_verified(installed: Path, tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(json.dumps({"timekeeper": {"database": f"sqlite:///{tmp_path}/t.sqlite"}}))
    for verb in ("migrate", "verify"):
        done = run(installed, tmp_path, "--config", str(config), "timekeeper", verb)
        assert done.returncode == 0, done.stdout + done.stderr


def test_local_mode_runs_through(installed: Path, tmp_path: Path) -> None:
    done = run(installed, tmp_path, "local", "--once", "--examples", str(EXAMPLES))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "mnist-case" in done.stdout
