# SPDX-License-Identifier: Apache-2.0
"""Where the runtime reads no CDI specification, no container starts without its GPU; nothing is refused unproven."""

from __future__ import annotations

from typing import Any

import grpc
import pytest


def _read_all(bench: Any) -> None:
    """Do as a container runtime with CDI when it needs a device that it has not read, and when it starts."""
    for file in (bench.folder / "cdi").glob("*.json"):
        file.read_bytes()


def test_where_the_runtime_reads_no_cdi_no_container_starts_without_its_gpu(bench: Any) -> None:
    bench.files.probe.start()
    for name in ("one", "two"):
        bench.pods.add(name, gpu=0, core=10)
    bench.start_sidecar("seat-0000", "one")
    with pytest.raises(grpc.RpcError, match="reads no CDI specification"):
        bench.start("seat-0001", "one")
    with pytest.raises(grpc.RpcError, match="reads no CDI specification"):
        bench.kubelet.pre_start("seat-0001")
    [said, _] = bench.refused
    assert "enable_cdi = true" in said
    assert len(said) <= 1024, "an event takes no longer note"
    bench.start_sidecar("seat-0002", "two")  # holds no GPU, and shows whether the runtime reads by now
    with pytest.raises(grpc.RpcError, match="reads no CDI specification"):
        bench.start("seat-0003", "two")
    _read_all(bench)
    for seat in ("seat-0001", "seat-0003"):
        bench.kubelet.pre_start(seat)
    assert bench.files.probe.read is True


def test_a_runtime_that_reads_cdi_late_is_not_refused(bench: Any) -> None:
    bench.files.probe.start()
    bench.pods.add("one", gpu=0)
    bench.start_sidecar("seat-0000", "one")
    _read_all(bench)
    bench.start("seat-0001", "one")


def test_nothing_is_refused_without_a_proof(bench: Any) -> None:
    bench.files.probe.start()
    bench.pods.add("one", gpu=0, core=10)
    bench.pods.add("two", gpu=0, core=10)
    bench.start_sidecar("seat-0000", "two")  # it may not have been created: its pod goes no further
    bench.start("seat-0001", "one")  # a native sidecar with a GPU may come before ours
    bench.kubelet.pre_start("seat-0001")
    assert bench.files.probe.read is None


def test_a_runtime_that_reads_no_longer_is_found_out_by_its_second_pod(bench: Any) -> None:
    bench.files.probe.start()
    for name in ("one", "two"):
        bench.pods.add(name, gpu=0, core=10)
    _read_all(bench)
    bench.start_sidecar("seat-0000", "one")
    bench.start("seat-0001", "one")
    bench.start_sidecar("seat-0002", "two")
    with pytest.raises(grpc.RpcError, match="reads no CDI specification"):
        bench.start("seat-0003", "two")


def test_a_sidecar_that_starts_again_is_no_proof(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.files.probe.start()
    bench.pods.add("one", gpu=0)
    bench.start_sidecar("seat-0000", "one")
    _read_all(bench)
    monkeypatch.setattr("nodeagent.seat_files.START_SECONDS", -1.0)
    bench.seats.tidy()
    assert bench.specs() == []
    bench.kubelet.pre_start("seat-0000")  # the runtime may still know what it read before
    bench.start("seat-0001", "one")
    assert bench.files.probe.read is True


def test_what_an_agent_before_this_one_waited_for_is_no_proof(bench: Any) -> None:
    bench.files.probe.start()
    bench.pods.add("one", gpu=0)
    bench.start_sidecar("seat-0000", "one")
    bench.plugin.stop()
    bench.files.probe.stop()
    bench.agent()
    bench.files.probe.start()
    bench.start("seat-0001", "one")


def test_a_container_that_starts_again_is_refused_once_that_is_known(bench: Any) -> None:
    bench.files.probe.start()
    bench.pods.add("one", gpu=0, core=10)
    bench.pods.add("two", gpu=0, core=10)
    bench.start("seat-0000", "one")
    bench.start_sidecar("seat-0001", "two")
    bench.kubelet.pre_start("seat-0000")
    with pytest.raises(grpc.RpcError, match="reads no CDI specification"):
        bench.start("seat-0002", "two")
    with pytest.raises(grpc.RpcError, match="reads no CDI specification"):
        bench.kubelet.pre_start("seat-0000")
