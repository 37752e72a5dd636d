# SPDX-License-Identifier: Apache-2.0
"""Whether a container runtime reads the CDI folder, found out by the kernel's own word."""

from __future__ import annotations

import ctypes
import errno
import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from nodeagent.cdi_probe import CdiProbe
from nodeagent.cdi_spec_read import Inotify

SEAT = "slicekeeper.io/seat"


@pytest.fixture
def probe(tmp_path: Path) -> Iterator[CdiProbe]:
    made = CdiProbe(tmp_path, SEAT, Inotify())
    made.start()
    yield made
    made.stop()


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


def test_a_container_that_was_created_unread_proves_that_nobody_reads(probe: CdiProbe, tmp_path: Path) -> None:
    probe.created("seat-0001-x")
    assert not probe.ignored(), "nothing was waited for"
    probe.not_read_yet("seat-0001-x", time.monotonic())
    assert not probe.ignored(), "a runtime may read it when it creates the container"
    probe.created("seat-0002-x")
    assert not probe.ignored(), "that is another one"
    probe.created("seat-0001-x")
    assert probe.ignored()
    assert probe.read is False
    [file] = tmp_path.iterdir()
    file.read_bytes()
    assert not probe.ignored(), "the runtime was started again, with CDI on"
    assert probe.read is True


def test_a_runtime_that_reads_at_need_has_read_everything_by_then(probe: CdiProbe, tmp_path: Path) -> None:
    probe.not_read_yet("seat-0001-x", time.monotonic())
    [file] = tmp_path.iterdir()
    file.read_bytes()
    probe.created("seat-0001-x")
    assert not probe.ignored()
    assert probe.read is True


def test_a_runtime_that_has_stopped_to_read_is_found_out(probe: CdiProbe, tmp_path: Path) -> None:
    [file] = tmp_path.iterdir()
    file.read_bytes()
    probe.look(started=True)
    probe.not_read_yet("seat-0001-x", time.monotonic())
    assert [f.name for f in tmp_path.iterdir()] == [file.name], "it is asked again"
    probe.look(started=True)
    probe.created("seat-0001-x")
    assert not probe.ignored(), "this one may have been read before the probe was there"
    assert probe.read is True
    probe.not_read_yet("seat-0002-x", time.monotonic())
    probe.created("seat-0002-x")
    assert probe.ignored()
    assert probe.read is False


def test_a_probe_that_somebody_removed_proves_nothing(probe: CdiProbe, tmp_path: Path) -> None:
    probe.not_read_yet("seat-0001-x", time.monotonic())
    [file] = tmp_path.iterdir()
    file.unlink()
    probe.look(started=True)
    assert probe.read is None
    probe.created("seat-0001-x")
    assert not probe.ignored()
    probe.not_read_yet("seat-0002-x", time.monotonic())
    assert list(tmp_path.iterdir()) == [file], "it is put back"
    for name in ("seat-0001-x", "seat-0002-x"):
        probe.created(name)
        assert not probe.ignored(), "that one was written before"
    probe.not_read_yet("seat-0003-x", time.monotonic())
    probe.created("seat-0003-x")
    assert probe.ignored()


def test_an_agent_that_stops_leaves_nothing(probe: CdiProbe, tmp_path: Path) -> None:
    probe.stop()
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_known_without_a_watch_or_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    away = CdiProbe(tmp_path / "away", SEAT, Inotify())
    away.start()
    away.look(started=True)
    assert away.read is None
    away.stop()

    class NoWatches:
        def inotify_init1(self, _flags: int) -> int:
            ctypes.set_errno(errno.EMFILE)
            return -1

    monkeypatch.setattr("nodeagent.cdi_spec_read._LIBC", NoWatches())
    blind = CdiProbe(tmp_path, SEAT, Inotify())
    blind.start()
    blind.look(started=True)
    assert blind.read is None
    blind.not_read_yet("seat-0001-x", time.monotonic())
    blind.created("seat-0001-x")
    assert not blind.ignored()
    blind.stop()
    blind.not_read_yet("seat-0001-x", time.monotonic())
    assert list(tmp_path.iterdir()) == [], "it was stopped"
