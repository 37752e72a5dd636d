# SPDX-License-Identifier: Apache-2.0
"""Whether a container runtime reads the CDI folder, found out by the kernel's own word."""

from __future__ import annotations

import ctypes
import errno
import json
from pathlib import Path

import pytest

from nodeagent.cdi_probe import CdiProbe

SEAT = "slicekeeper.io/seat"


@pytest.fixture
def probe(tmp_path: Path) -> CdiProbe:
    made = CdiProbe(tmp_path, SEAT)
    made.start()
    return made


def test_a_folder_that_is_read_is_told_and_left_as_it_was(probe: CdiProbe, tmp_path: Path) -> None:
    [file] = tmp_path.iterdir()
    spec = json.loads(file.read_text())
    probe.look(started=False)
    assert probe.read
    assert (spec["kind"], spec["devices"][0]["containerEdits"]) == (SEAT, {"env": ["SLICEKEEPER_PROBE=1"]})
    assert list(tmp_path.iterdir()) == []
    probe.look(started=True)
    assert probe.read, "it stays known"


def test_a_folder_that_nobody_reads_is_told_until_a_runtime_starts_that_does(probe: CdiProbe, tmp_path: Path) -> None:
    probe.look(started=False)
    assert probe.read is None, "a runtime may know of a new folder only when a container asks for a device"
    probe.look(started=True)
    assert probe.read is False
    [file] = tmp_path.iterdir()
    file.read_bytes()
    probe.look(started=True)
    assert probe.read is True


def test_an_agent_that_stops_leaves_nothing(probe: CdiProbe, tmp_path: Path) -> None:
    probe.stop()
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_known_without_a_watch_or_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    away = CdiProbe(tmp_path / "away", SEAT)
    away.start()
    away.look(started=True)
    assert away.read is None
    away.stop()

    class NoWatches:
        def inotify_init1(self, _flags: int) -> int:
            ctypes.set_errno(errno.EMFILE)
            return -1

    monkeypatch.setattr("nodeagent.first_read._LIBC", NoWatches())
    blind = CdiProbe(tmp_path, SEAT)
    blind.start()
    blind.look(started=True)
    assert blind.read is None
    blind.stop()
