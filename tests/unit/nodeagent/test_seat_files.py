# SPDX-License-Identifier: Apache-2.0
"""A seat's specification: what is in it, when it is there, and how long a start waits until it is read."""

from __future__ import annotations

import ctypes
import errno
import json
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest


class NoWatches:
    """A kernel that has given all its watches away."""

    def inotify_init1(self, _flags: int) -> int:
        ctypes.set_errno(errno.EMFILE)
        return -1

    def inotify_add_watch(self, *_: Any) -> int:
        """Refuse to watch also with the instance of the container before, whose thread may be slow to close it."""
        ctypes.set_errno(errno.ENOSPC)
        return -1


def test_a_started_container_has_its_spec_and_folder(bench: Any) -> None:
    pod = bench.pods.add("one", gpu=1)
    device = bench.start("seat-0002", "one")
    kind, _, name = device.partition("=")
    assert kind == "slicekeeper.io/seat"
    assert name.startswith("seat-0002-")
    [file] = bench.specs()
    spec = json.loads(file.read_text())
    assert (spec["kind"], [d["name"] for d in spec["devices"]]) == (kind, [name])
    edits = spec["devices"][0]["containerEdits"]
    assert edits["env"] == ["NVIDIA_VISIBLE_DEVICES=void"]
    assert edits["mounts"][0]["containerPath"] == "/run/slicekeeper"
    assert "ro" in edits["mounts"][0]["options"]
    about = json.loads((Path(edits["mounts"][0]["hostPath"]) / "seat.json").read_text())
    assert about["uid"] == pod["metadata"]["uid"]
    assert about["gpus"] == [pod["metadata"]["annotations"]["gpu.slicekeeper.io/train"]]
    assert (about["core"], about["memoryMib"]) == (50, 2048)


def test_that_a_container_was_started_is_known_when_it_must_have_been(
    bench: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nodeagent.seat_files.START_SECONDS", -1.0)
    assert not bench.files.has_started_one()
    bench.pods.add("one", gpu=1)
    bench.start("seat-0002", "one")
    assert bench.files.has_started_one()
    monkeypatch.setattr("nodeagent.seat_files.START_SECONDS", 1e9)
    assert not bench.files.has_started_one(), "its runtime may not have been asked for it yet"


def test_a_container_that_was_refused_is_not_taken_for_a_started_one(
    bench: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nodeagent.seat_files.START_SECONDS", -1.0)
    shutil.rmtree(bench.folder / "cdi")
    bench.pods.add("one", gpu=1)
    with pytest.raises(grpc.RpcError, match="No such file"):
        bench.start("seat-0002", "one")
    assert not bench.files.has_started_one()


def test_a_spec_is_there_only_while_its_container_starts(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each change in its folder makes the container runtime read all of them."""
    bench.pods.add("one", gpu=0)
    bench.start("seat-0000", "one")
    [file] = bench.specs()
    text = file.read_bytes()
    bench.seats.tidy()
    assert bench.specs() == [file], "kubelet may not have created the container yet"
    monkeypatch.setattr("nodeagent.seat_files.START_SECONDS", -1.0)
    bench.seats.tidy()
    assert bench.specs() == []
    bench.kubelet.pre_start("seat-0000")  # it is started again
    assert file.read_bytes() == text
    bench.plugin.stop()
    bench.agent()
    bench.seats.tidy()
    assert bench.specs() == [], "one that another agent left goes too"


def test_a_container_starts_when_its_runtime_has_seen_the_spec(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A runtime reads specs in the background; until it has begun to read this one it does not know the device."""
    monkeypatch.setattr("nodeagent.cdi_probe.READ_SECONDS", 60.0)
    bench.pods.add("one", gpu=0)
    with ThreadPoolExecutor(1) as pool:
        start = pool.submit(bench.start, "seat-0000", "one")
        while not bench.specs():
            time.sleep(0.01)
        with pytest.raises(TimeoutError):
            start.result(0.3)
        bench.specs()[0].read_bytes()
        start.result(30)
    bench.kubelet.pre_start("seat-0000")  # a restart finds it known


def test_a_runtime_that_does_not_watch_a_new_folder_is_not_waited_for_until_it_has_read_it(
    bench: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nodeagent.cdi_probe.READ_SECONDS", 600.0)
    monkeypatch.setattr("nodeagent.cdi_probe.UNWATCHED_SECONDS", 0.0)
    monkeypatch.setattr("nodeagent.cdi_probe.UNWATCHED_READ_SECONDS", 0.1)
    bench.files.probe.start()
    for number in range(2):
        bench.pods.add(f"pod-{number}", gpu=number)
    bench.start("seat-0000", "pod-0")
    [probe] = set((bench.folder / "cdi").glob("*.json")) - set(bench.specs())
    probe.read_bytes()  # as a runtime does when the first container asks for its device
    before = bench.specs()
    with ThreadPoolExecutor(1) as pool:
        start = pool.submit(bench.start, "seat-0001", "pod-1")
        while bench.specs() == before:
            time.sleep(0.01)
        with pytest.raises(TimeoutError):
            start.result(0.3)
        [file] = set(bench.specs()) - set(before)
        file.read_bytes()
        start.result(30)


def test_a_runtime_that_reads_no_spec_in_advance_is_not_waited_for_long(
    bench: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nodeagent.cdi_probe.READ_SECONDS", 0.1)
    bench.pods.add("one", gpu=0)
    bench.start("seat-0000", "one")
    monkeypatch.setattr("nodeagent.cdi_spec_read._LIBC", NoWatches())
    bench.pods.add("two", gpu=1)
    bench.start("seat-0001", "two")
    assert len(bench.specs()) == 2
