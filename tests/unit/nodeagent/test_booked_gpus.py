# SPDX-License-Identifier: Apache-2.0
"""A container starts only on GPUs that its pod has, and that no earlier Binding has."""

from __future__ import annotations

from typing import Any

import grpc
import pytest

from slicekeeper import names

EXCLUSIVE = {"slicekeeper.io/sharing-mode": "exclusive: asked for"}


def test_a_container_that_holds_no_gpu_gets_no_seat(bench: Any) -> None:
    bench.pods.add("one", gpu=None)
    with pytest.raises(grpc.RpcError, match="has a seat and no GPU"):
        bench.start("seat-0000", "one")
    assert len(bench.refused) == 1


def test_an_unknown_gpu_is_refused(bench: Any) -> None:
    pod = bench.pods.add("one", gpu=0)
    pod["metadata"]["annotations"]["gpu.slicekeeper.io/train"] = "GPU-elsewhere"
    with pytest.raises(grpc.RpcError, match="GPU-elsewhere is not offered on this node"):
        bench.start("seat-0000", "one")


@pytest.mark.parametrize("first", ["early", "late"])
def test_the_later_binding_loses_whichever_starts_first(bench: Any, first: str) -> None:
    bench.pods.add("early", gpu=0, core=60, at="10:00:00")
    bench.pods.add("late", gpu=0, core=60, at="10:00:01")
    seats = {"early": "seat-0000", "late": "seat-0001"}
    order = [first, "late" if first == "early" else "early"]
    for name in order:
        if name == "late":
            with pytest.raises(grpc.RpcError, match="booked twice: with team/early"):
                bench.start(seats[name], name)
        else:
            bench.start(seats[name], name)
    assert len(bench.specs()) == 1


def test_memory_is_counted_too(bench: Any) -> None:
    bench.pods.add("early", gpu=0, core=10, blocks=200)
    bench.pods.add("late", gpu=0, core=10, blocks=200, at="11:00:00")
    bench.start("seat-0000", "early")
    with pytest.raises(grpc.RpcError, match="MiB"):
        bench.start("seat-0001", "late")


def test_a_pod_with_an_annotation_that_cannot_be_read_holds_what_it_asked_for(bench: Any) -> None:
    for name, at in (("early", "10:00:00"), ("late", "11:00:00")):
        pod = bench.pods.add(name, gpu=0, core=60, at=at)
        pod["metadata"]["annotations"]["tencent.com/vcuda-core-limit"] = "nonsense"
    bench.start("seat-0000", "early")
    with pytest.raises(grpc.RpcError, match="booked twice: with team/early"):
        bench.start("seat-0001", "late")


@pytest.mark.parametrize("alone", ["early", "late"])
def test_a_pod_that_has_its_gpu_for_itself_is_alone_there(bench: Any, alone: str) -> None:
    for name, at in (("early", "10:00:00"), ("late", "10:00:01")):
        pod = bench.pods.add(name, gpu=0, core=10, at=at)
        pod["metadata"]["annotations"] |= EXCLUSIVE if name == alone else {}
    bench.start("seat-0000", "early")
    with pytest.raises(grpc.RpcError, match="GPU-0 is booked twice: with team/early it would carry 110%"):
        bench.start("seat-0001", "late")


def test_a_pod_that_has_its_gpu_for_itself_has_all_of_it(bench: Any) -> None:
    pod = bench.pods.add("one", gpu=0, core=30)
    pod["metadata"]["annotations"] |= {**EXCLUSIVE, "tencent.com/vcuda-core-limit": "40"}
    bench.start("seat-0000", "one")
    seat = bench.store.get("seat-0000")
    assert (seat.core, seat.limit, seat.memory_mib) == (30, 100, 81920)


def test_containers_of_one_pod_that_share_its_gpu_keep_to_their_memory(bench: Any) -> None:
    pod = bench.pods.add("one", gpu=0, core=30)
    pod["spec"]["containers"].append({**pod["spec"]["containers"][0], "name": "other"})
    pod["metadata"]["annotations"] |= {**EXCLUSIVE, "gpu.slicekeeper.io/other": "GPU-0"}
    bench.start("seat-0000", "one")
    seat = bench.store.get("seat-0000")
    assert (seat.core, seat.limit, seat.memory_mib) == (30, 100, 2048)


def test_a_mode_that_is_not_known_gives_no_seat(bench: Any) -> None:
    pod = bench.pods.add("one", gpu=0)
    pod["metadata"]["annotations"]["slicekeeper.io/sharing-mode"] = "remote: asked for"
    with pytest.raises(grpc.RpcError, match="the mode 'remote', which this node's agent does not know"):
        bench.start("seat-0000", "one")
    assert len(bench.refused) == 1


def test_a_pod_that_has_ended_holds_nothing(bench: Any) -> None:
    bench.pods.add("early", gpu=0, core=60)["status"]["phase"] = "Succeeded"
    bench.pods.add("late", gpu=0, core=60, at="11:00:00")
    bench.start("seat-0000", "late")


@pytest.mark.parametrize(
    ("value", "marked", "limited"),
    [
        (names.LIBRARY_PATH, False, True),
        (f"/opt/own.so:{names.LIBRARY_PATH}", False, True),
        ("/opt/own.so", False, False),
        ("/opt/own.so", True, True),
        (None, False, False),
    ],
)
def test_a_container_is_limited_if_the_webhook_had_it_load_the_limiter(
    bench: Any, value: str | None, marked: bool, limited: bool
) -> None:
    pod = bench.pods.add("one", gpu=0)
    if value is not None:
        pod["spec"]["containers"][0]["env"] = [
            {"name": "OTHER", "value": names.LIBRARY_PATH},
            {"name": "LD_PRELOAD", "value": value},
            *([{"name": names.LIMITER_VARIABLE, "value": names.LIBRARY_PATH}] if marked else []),
        ]
    if limited:
        with pytest.raises(grpc.RpcError, match="the node's arbiter does not answer.*kubelet tries again"):
            bench.start("seat-0000", "one")
    else:
        bench.start("seat-0000", "one")
    assert bench.store.get("seat-0000").limited == limited
