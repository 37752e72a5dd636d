# SPDX-License-Identifier: Apache-2.0
"""Local mode's home: what it may be, who may use it, and what is never removed from it."""

from __future__ import annotations

import fcntl
import threading
from pathlib import Path

import pytest

from simulator.local import LocalCluster, Options, _without_ours
from slicekeeper.cli import local_home
from slicekeeper.errors import SettingsError


def local(home: Path) -> LocalCluster:
    return LocalCluster(home, Options(), lambda _line: None)


@pytest.mark.parametrize(
    ("home", "why"),
    [("file", "it is not a folder"), ("file/below", "it is not a folder"), ("/proc/no-such", "No such file")],
)
def test_a_home_that_cannot_be_one_is_refused_with_a_remedy(tmp_path: Path, home: str, why: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SettingsError) as refused:
        local(tmp_path / home).start()
    assert str(refused.value).startswith(f"local mode cannot keep its state in {tmp_path / home}: {why}")
    assert str(refused.value).endswith("name a folder that you may write to: SLICEKEEPER_HOME=DIR")


def test_a_folder_with_files_of_others_is_refused_and_keeps_them(tmp_path: Path) -> None:
    mine = tmp_path / "certificates" / "authority.py"
    mine.parent.mkdir()
    mine.write_text("mine")
    with pytest.raises(SettingsError, match="which has its own certificates: local mode would remove that"):
        local(tmp_path).start()
    assert (mine.read_text(), [one.name for one in tmp_path.iterdir()]) == ("mine", ["certificates"])


def test_a_command_that_looks_whether_local_mode_runs_does_not_keep_it_from_starting(tmp_path: Path) -> None:
    made = local(tmp_path / "home")
    (tmp_path / "home").mkdir()
    with (tmp_path / "home" / local_home.LOCK).open("w") as looking:
        fcntl.flock(looking, fcntl.LOCK_SH)
        threading.Timer(0.2, looking.close).start()
        made._take_home()
    try:
        with pytest.raises(SettingsError, match="local mode already runs in"):
            local(tmp_path / "home").start()
    finally:
        made.stop()


def test_an_empty_variable_is_no_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLICEKEEPER_HOME", "")
    assert local_home.home() == Path(".slicekeeper")


def test_the_parts_follow_no_variable_to_a_real_cluster_or_ledger(tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text("kubernetes: {server: 'http://127.0.0.1:1'}\ntimekeeper: {database: 'sqlite:///here'}\n")
    meant = {"PATH": "/bin", "SLICEKEEPER_LOG_LEVEL": "debug"}
    others = {
        "SLICEKEEPER_KUBERNETES_SERVER": "https://prod",
        "SLICEKEEPER_KUBERNETES_TOKEN_FILE": "/prod/token",
        "SLICEKEEPER_TIMEKEEPER_CLIENT_URL": "https://prod",
        "SLICEKEEPER_TIMEKEEPER_DATABASE": "postgresql://prod",
    }
    assert _without_ours({**meant, **others}, config) == meant
