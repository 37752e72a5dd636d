# SPDX-License-Identifier: Apache-2.0
"""Seats over real gRPC sockets: the right owner or none, names used once, and nothing lost by a restart."""

from __future__ import annotations

import ctypes
import errno
import json
import shutil
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest

from nodeagent.kubelet_protocol import plugin
from slicekeeper import names


class NoWatches:
    """A kernel that has given all its watches away."""

    def inotify_init1(self, _flags: int) -> int:
        ctypes.set_errno(errno.EMFILE)
        return -1


def _start(bench: Any, seat: str, name: str) -> str:
    bench.kubelet.owners[seat] = [("team", name, "train")]
    [device] = bench.kubelet.allocate(seat)
    bench.kubelet.pre_start(seat)
    return str(device)


def test_it_registers_and_offers_its_seats(bench: Any) -> None:
    asked = bench.kubelet.registered[-1]
    assert (asked.version, asked.resource_name) == ("v1beta1", "slicekeeper.io/seat")
    assert asked.options.pre_start_required
    assert bench.kubelet.offered == ["seat-0000", "seat-0001", "seat-0002", "seat-0003"]
    assert bench.kubelet.call("GetDevicePluginOptions", plugin.Empty(), plugin.DevicePluginOptions).pre_start_required


def test_a_started_container_has_its_spec_and_folder(bench: Any) -> None:
    pod = bench.pods.add("one", gpu=1)
    device = _start(bench, "seat-0002", "one")
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
    monkeypatch.setattr("nodeagent.cdi.START_SECONDS", -1.0)
    assert not bench.files.has_started_one()
    bench.pods.add("one", gpu=1)
    _start(bench, "seat-0002", "one")
    assert bench.files.has_started_one()
    monkeypatch.setattr("nodeagent.cdi.START_SECONDS", 1e9)
    assert not bench.files.has_started_one(), "its runtime may not have been asked for it yet"


def test_a_container_that_was_refused_is_not_taken_for_a_started_one(
    bench: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nodeagent.cdi.START_SECONDS", -1.0)
    shutil.rmtree(bench.folder / "cdi")
    bench.pods.add("one", gpu=1)
    with pytest.raises(grpc.RpcError, match="No such file"):
        _start(bench, "seat-0002", "one")
    assert not bench.files.has_started_one()


def _start_sidecar(bench: Any, seat: str, name: str) -> None:
    bench.kubelet.owners[seat] = [("team", name, names.SIDECAR)]
    bench.kubelet.allocate(seat)
    bench.kubelet.pre_start(seat)


def _read_all(bench: Any) -> None:
    """Do as a container runtime with CDI when it needs a device that it has not read, and when it starts."""
    for file in (bench.folder / "cdi").glob("*.json"):
        file.read_bytes()


def test_where_the_runtime_reads_no_cdi_no_container_starts_without_its_gpu(bench: Any) -> None:
    bench.files.probe.start()
    for name in ("one", "two"):
        bench.pods.add(name, gpu=0, core=10)
    _start_sidecar(bench, "seat-0000", "one")
    with pytest.raises(grpc.RpcError, match="reads no CDI specification"):
        _start(bench, "seat-0001", "one")
    with pytest.raises(grpc.RpcError, match="reads no CDI specification"):
        bench.kubelet.pre_start("seat-0001")
    [said, _] = bench.refused
    assert "enable_cdi = true" in said
    assert len(said) <= 1024, "an event takes no longer note"
    _start_sidecar(bench, "seat-0002", "two")  # holds no GPU, and shows whether the runtime reads by now
    with pytest.raises(grpc.RpcError, match="reads no CDI specification"):
        _start(bench, "seat-0003", "two")
    _read_all(bench)
    for seat in ("seat-0001", "seat-0003"):
        bench.kubelet.pre_start(seat)
    assert bench.files.probe.read is True


def test_a_runtime_that_reads_cdi_late_is_not_refused(bench: Any) -> None:
    bench.files.probe.start()
    bench.pods.add("one", gpu=0)
    _start_sidecar(bench, "seat-0000", "one")
    _read_all(bench)
    _start(bench, "seat-0001", "one")


def test_nothing_is_refused_without_a_proof(bench: Any) -> None:
    bench.files.probe.start()
    bench.pods.add("one", gpu=0, core=10)
    bench.pods.add("two", gpu=0, core=10)
    _start_sidecar(bench, "seat-0000", "two")  # it may not have been created: its pod goes no further
    _start(bench, "seat-0001", "one")  # a native sidecar with a GPU may come before ours
    bench.kubelet.pre_start("seat-0001")
    assert bench.files.probe.read is None


def test_a_runtime_that_reads_no_longer_is_found_out_by_its_second_pod(bench: Any) -> None:
    bench.files.probe.start()
    for name in ("one", "two"):
        bench.pods.add(name, gpu=0, core=10)
    _read_all(bench)
    _start_sidecar(bench, "seat-0000", "one")
    _start(bench, "seat-0001", "one")
    _start_sidecar(bench, "seat-0002", "two")
    with pytest.raises(grpc.RpcError, match="reads no CDI specification"):
        _start(bench, "seat-0003", "two")


def test_a_sidecar_that_starts_again_is_no_proof(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.files.probe.start()
    bench.pods.add("one", gpu=0)
    _start_sidecar(bench, "seat-0000", "one")
    _read_all(bench)
    monkeypatch.setattr("nodeagent.cdi.START_SECONDS", -1.0)
    bench.seats.tidy()
    assert bench.specs() == []
    bench.kubelet.pre_start("seat-0000")  # the runtime may still know what it read before
    _start(bench, "seat-0001", "one")
    assert bench.files.probe.read is True


def test_what_an_agent_before_this_one_waited_for_is_no_proof(bench: Any) -> None:
    bench.files.probe.start()
    bench.pods.add("one", gpu=0)
    _start_sidecar(bench, "seat-0000", "one")
    bench.plugin.stop()
    bench.files.probe.stop()
    bench.agent()
    bench.files.probe.start()
    _start(bench, "seat-0001", "one")


def test_a_container_that_starts_again_is_refused_once_that_is_known(bench: Any) -> None:
    bench.files.probe.start()
    bench.pods.add("one", gpu=0, core=10)
    bench.pods.add("two", gpu=0, core=10)
    _start(bench, "seat-0000", "one")
    _start_sidecar(bench, "seat-0001", "two")
    bench.kubelet.pre_start("seat-0000")
    with pytest.raises(grpc.RpcError, match="reads no CDI specification"):
        _start(bench, "seat-0002", "two")
    with pytest.raises(grpc.RpcError, match="reads no CDI specification"):
        bench.kubelet.pre_start("seat-0000")


def test_a_sidecar_has_a_folder_and_no_device(bench: Any) -> None:
    bench.pods.add("one", gpu=1)
    bench.kubelet.owners["seat-0001"] = [("team", "one", names.SIDECAR)]
    bench.kubelet.allocate("seat-0001")
    bench.kubelet.pre_start("seat-0001")
    [file] = bench.specs()
    edits = json.loads(file.read_text())["devices"][0]["containerEdits"]
    assert edits.keys() == {"env", "mounts"}
    assert edits["env"] == ["NVIDIA_VISIBLE_DEVICES=void"]
    assert [mount["containerPath"] for mount in edits["mounts"]] == ["/run/slicekeeper"]


def test_the_sidecar_of_a_pod_without_a_gpu_has_no_seat(bench: Any) -> None:
    bench.pods.add("one", gpu=None)
    bench.kubelet.owners["seat-0001"] = [("team", "one", names.SIDECAR)]
    bench.kubelet.allocate("seat-0001")
    with pytest.raises(grpc.RpcError, match="has a seat and no GPU"):
        bench.kubelet.pre_start("seat-0001")
    assert bench.specs() == []


def test_nothing_is_written_before_the_owner_is_known(bench: Any) -> None:
    bench.kubelet.allocate("seat-0000")
    assert bench.specs() == []


@pytest.mark.parametrize("owners", [[], [("team", "one", "train"), ("team", "two", "train")]])
def test_no_owner_or_two_is_no_seat(bench: Any, owners: list[tuple[str, str, str]]) -> None:
    bench.pods.add("one", gpu=0)
    bench.kubelet.owners["seat-0000"] = owners
    bench.kubelet.allocate("seat-0000")
    with pytest.raises(grpc.RpcError, match="exactly one"):
        bench.kubelet.pre_start("seat-0000")
    assert bench.specs() == []


def test_a_container_that_holds_no_gpu_gets_no_seat(bench: Any) -> None:
    bench.pods.add("one", gpu=None)
    with pytest.raises(grpc.RpcError, match="has a seat and no GPU"):
        _start(bench, "seat-0000", "one")
    assert len(bench.refused) == 1


def test_an_unknown_gpu_is_refused(bench: Any) -> None:
    pod = bench.pods.add("one", gpu=0)
    pod["metadata"]["annotations"]["gpu.slicekeeper.io/train"] = "GPU-elsewhere"
    with pytest.raises(grpc.RpcError, match="GPU-elsewhere is not offered on this node"):
        _start(bench, "seat-0000", "one")


@pytest.mark.parametrize("first", ["early", "late"])
def test_the_later_binding_loses_whichever_starts_first(bench: Any, first: str) -> None:
    bench.pods.add("early", gpu=0, core=60, at="10:00:00")
    bench.pods.add("late", gpu=0, core=60, at="10:00:01")
    seats = {"early": "seat-0000", "late": "seat-0001"}
    order = [first, "late" if first == "early" else "early"]
    for name in order:
        if name == "late":
            with pytest.raises(grpc.RpcError, match="booked twice: with team/early"):
                _start(bench, seats[name], name)
        else:
            _start(bench, seats[name], name)
    assert len(bench.specs()) == 1


def test_memory_is_counted_too(bench: Any) -> None:
    bench.pods.add("early", gpu=0, core=10, blocks=200)
    bench.pods.add("late", gpu=0, core=10, blocks=200, at="11:00:00")
    _start(bench, "seat-0000", "early")
    with pytest.raises(grpc.RpcError, match="MiB"):
        _start(bench, "seat-0001", "late")


def test_a_pod_with_an_annotation_that_cannot_be_read_holds_what_it_asked_for(bench: Any) -> None:
    for name, at in (("early", "10:00:00"), ("late", "11:00:00")):
        pod = bench.pods.add(name, gpu=0, core=60, at=at)
        pod["metadata"]["annotations"]["tencent.com/vcuda-core-limit"] = "nonsense"
    _start(bench, "seat-0000", "early")
    with pytest.raises(grpc.RpcError, match="booked twice: with team/early"):
        _start(bench, "seat-0001", "late")


EXCLUSIVE = {"slicekeeper.io/sharing-mode": "exclusive: asked for"}


@pytest.mark.parametrize("alone", ["early", "late"])
def test_a_pod_that_has_its_gpu_for_itself_is_alone_there(bench: Any, alone: str) -> None:
    for name, at in (("early", "10:00:00"), ("late", "10:00:01")):
        pod = bench.pods.add(name, gpu=0, core=10, at=at)
        pod["metadata"]["annotations"] |= EXCLUSIVE if name == alone else {}
    _start(bench, "seat-0000", "early")
    with pytest.raises(grpc.RpcError, match="GPU-0 is booked twice: with team/early it would carry 110%"):
        _start(bench, "seat-0001", "late")


def test_a_pod_that_has_its_gpu_for_itself_has_all_of_it(bench: Any) -> None:
    pod = bench.pods.add("one", gpu=0, core=30)
    pod["metadata"]["annotations"] |= {**EXCLUSIVE, "tencent.com/vcuda-core-limit": "40"}
    _start(bench, "seat-0000", "one")
    seat = bench.store.get("seat-0000")
    assert (seat.core, seat.limit, seat.memory_mib) == (30, 100, 81920)


def test_containers_of_one_pod_that_share_its_gpu_keep_to_their_memory(bench: Any) -> None:
    pod = bench.pods.add("one", gpu=0, core=30)
    pod["spec"]["containers"].append({**pod["spec"]["containers"][0], "name": "other"})
    pod["metadata"]["annotations"] |= {**EXCLUSIVE, "gpu.slicekeeper.io/other": "GPU-0"}
    _start(bench, "seat-0000", "one")
    seat = bench.store.get("seat-0000")
    assert (seat.core, seat.limit, seat.memory_mib) == (30, 100, 2048)


def test_a_mode_that_is_not_known_gives_no_seat(bench: Any) -> None:
    pod = bench.pods.add("one", gpu=0)
    pod["metadata"]["annotations"]["slicekeeper.io/sharing-mode"] = "remote: asked for"
    with pytest.raises(grpc.RpcError, match="the mode 'remote', which this node's agent does not know"):
        _start(bench, "seat-0000", "one")
    assert len(bench.refused) == 1


def test_a_pod_that_has_ended_holds_nothing(bench: Any) -> None:
    bench.pods.add("early", gpu=0, core=60)["status"]["phase"] = "Succeeded"
    bench.pods.add("late", gpu=0, core=60, at="11:00:00")
    _start(bench, "seat-0000", "late")


def test_a_restarted_container_keeps_its_seat_unchanged(bench: Any) -> None:
    bench.pods.add("one", gpu=0)
    _start(bench, "seat-0000", "one")
    [file] = bench.specs()
    before = (file.stat().st_ino, file.read_bytes())
    bench.kubelet.owners.clear()  # nothing is asked again: a seat never changes its owner
    bench.kubelet.pre_start("seat-0000")
    assert (file.stat().st_ino, file.read_bytes()) == before


def test_a_seat_given_anew_has_a_name_never_used_before(bench: Any) -> None:
    bench.pods.add("one", gpu=0)
    bench.pods.add("two", gpu=1)
    first = _start(bench, "seat-0000", "one")
    second = _start(bench, "seat-0000", "two")
    assert first != second
    assert [file.name.count(second.partition("=")[2]) for file in bench.specs()] == [1]


def test_seats_of_pods_that_are_gone_are_freed(bench: Any) -> None:
    bench.pods.add("one", gpu=0)
    bench.pods.add("two", gpu=1)
    _start(bench, "seat-0000", "one")
    _start(bench, "seat-0001", "two")
    del bench.pods.known["team", "one"]
    bench.seats.free()
    assert [seat.pod for seat in bench.store.all()] == ["two"]
    assert len(bench.specs()) == 1
    assert len(list((bench.folder / "run/seats").iterdir())) == 1


def test_a_seat_that_is_taken_while_others_are_freed_is_kept(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """As when a StatefulSet's pod is gone, and the API server has shown the next one to its start alone."""
    bench.pods.add("old", gpu=0)
    _start(bench, "seat-0000", "old")
    bench.pods.known.clear()
    shown: list[list[Any]] = []

    def pods() -> list[Any]:
        if not shown:
            shown.append([])
            bench.pods.add("new", gpu=1)
            _start(bench, "seat-0001", "new")
            return shown[0]
        return list(bench.pods.known.values())

    monkeypatch.setattr(bench.pods, "all", pods)
    bench.seats.free()
    assert [seat.pod for seat in bench.store.all()] == ["new"]


def test_the_seat_of_a_pod_that_goes_while_its_container_starts_is_freed_later_and_holds_up_nobody(
    bench: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The watch that reports it also shows the pods that other starts wait for."""
    monkeypatch.setattr("nodeagent.cdi_spec_read.READ_SECONDS", 60.0)
    bench.pods.add("one", gpu=0)
    with ThreadPoolExecutor(1) as pool:
        start = pool.submit(_start, bench, "seat-0000", "one")
        while not bench.specs():
            time.sleep(0.01)
        bench.pods.known.clear()
        bench.seats.free()
        bench.seats.tidy()
        assert not start.done()
        assert bench.store.get("seat-0000").taken
        bench.specs()[0].read_bytes()
        start.result(30)
    bench.seats.free()
    assert bench.store.all() == bench.specs() == []


class Unshown:
    """Starts whose pods the API server does not show yet wait here."""

    def __init__(self, pods: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        self.waits, self.shown = threading.Semaphore(0), threading.Event()
        self._known = pods.known
        monkeypatch.setattr(pods, "find", self._find)

    def _find(self, namespace: str, name: str, _seconds: float) -> Any:
        if name.startswith("unshown"):
            self.waits.release()
            assert self.shown.wait(60)
        return self._known.get((namespace, name))


def test_no_start_waits_for_others_that_wait_for_their_pods(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.plugin.stop()
    bench.agent(seats=100)
    unshown = Unshown(bench.pods, monkeypatch)
    with ThreadPoolExecutor(99) as pool:
        starts = [pool.submit(_start, bench, f"seat-{n:04}", f"unshown-{n}") for n in range(99)]
        for _ in starts:
            assert unshown.waits.acquire(timeout=60)
        bench.pods.add("good", gpu=0)
        _start(bench, "seat-0099", "good")
        unshown.shown.set()
        for start in starts:
            with pytest.raises(grpc.RpcError):
                start.result(60)
    assert [seat.pod for seat in bench.store.all() if seat.taken] == ["good"]


def test_a_seat_that_is_given_out_again_while_its_start_waits_is_the_new_ones(
    bench: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its pod was deleted by force; kubelet takes in pods one by one, so this must not wait for the old start."""
    unshown = Unshown(bench.pods, monkeypatch)
    with ThreadPoolExecutor(1) as pool:
        start = pool.submit(_start, bench, "seat-0000", "unshown")
        assert unshown.waits.acquire(timeout=60)
        bench.pods.add("unshown", gpu=0)
        bench.pods.add("next", gpu=1)
        device = _start(bench, "seat-0000", "next")
        unshown.shown.set()
        with pytest.raises(grpc.RpcError, match="was taken from this container"):
            start.result(30)
    [seat] = bench.store.all()
    assert (seat.pod, f"slicekeeper.io/seat={seat.name}") == ("next", device)
    assert len(bench.specs()) == 1


def test_a_start_that_kubelet_makes_again_while_the_first_one_waits_takes_the_same_seat(
    bench: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """kubelet gives up a start after 30 s, and the agent does not notice."""
    unshown = Unshown(bench.pods, monkeypatch)
    with ThreadPoolExecutor(2) as pool:
        starts = [pool.submit(_start, bench, "seat-0000", "unshown")]
        assert unshown.waits.acquire(timeout=60)
        starts.append(pool.submit(bench.kubelet.pre_start, "seat-0000"))
        assert unshown.waits.acquire(timeout=60)
        pod = bench.pods.add("unshown", gpu=0)
        bench.pods.server["team", "unshown"] = pod
        unshown.shown.set()
        for start in starts:
            start.result(30)
    [seat] = bench.store.all()
    assert (seat.pod, len(bench.specs())) == ("unshown", 1)


def test_a_restarted_agent_puts_everything_back(bench: Any) -> None:
    bench.pods.add("one", gpu=0)
    bench.pods.add("two", gpu=1)
    _start(bench, "seat-0000", "one")
    bench.kubelet.owners["seat-0001"] = [("team", "two", "train")]
    [pending] = bench.kubelet.allocate("seat-0001")
    [file] = bench.specs()
    text = file.read_bytes()
    [folder] = (bench.folder / "run/seats").iterdir()
    bench.plugin.stop()
    file.unlink()  # as a reboot does
    shutil.rmtree(folder)
    (bench.folder / "cdi/slicekeeper.io-seat-seat-0009-dead.json").write_text("{}")
    bench.agent()
    assert bench.specs() == []
    assert (folder / "seat.json").exists(), "what the arbiter and the sidecar work in"
    bench.kubelet.pre_start("seat-0000")
    assert bench.specs() == [file]
    assert file.read_bytes() == text
    bench.kubelet.pre_start("seat-0001")  # allocated before the restart, started after it
    assert any(pending.partition("=")[2] in spec.name for spec in bench.specs())


def test_a_spec_is_there_only_while_its_container_starts(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each change in its folder makes the container runtime read all of them."""
    bench.pods.add("one", gpu=0)
    _start(bench, "seat-0000", "one")
    [file] = bench.specs()
    text = file.read_bytes()
    bench.seats.tidy()
    assert bench.specs() == [file], "kubelet may not have created the container yet"
    monkeypatch.setattr("nodeagent.cdi.START_SECONDS", -1.0)
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
    monkeypatch.setattr("nodeagent.cdi_spec_read.READ_SECONDS", 60.0)
    bench.pods.add("one", gpu=0)
    with ThreadPoolExecutor(1) as pool:
        start = pool.submit(_start, bench, "seat-0000", "one")
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
    monkeypatch.setattr("nodeagent.cdi_spec_read.READ_SECONDS", 600.0)
    monkeypatch.setattr("nodeagent.cdi_spec_read.UNWATCHED_SECONDS", 0.0)
    monkeypatch.setattr("nodeagent.cdi_spec_read.UNWATCHED_READ_SECONDS", 0.1)
    bench.files.probe.start()
    for number in range(2):
        bench.pods.add(f"pod-{number}", gpu=number)
    _start(bench, "seat-0000", "pod-0")
    [probe] = set((bench.folder / "cdi").glob("*.json")) - set(bench.specs())
    probe.read_bytes()  # as a runtime does when the first container asks for its device
    before = bench.specs()
    with ThreadPoolExecutor(1) as pool:
        start = pool.submit(_start, bench, "seat-0001", "pod-1")
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
    monkeypatch.setattr("nodeagent.cdi_spec_read.READ_SECONDS", 0.1)
    bench.pods.add("one", gpu=0)
    _start(bench, "seat-0000", "one")
    monkeypatch.setattr("nodeagent.cdi_spec_read._LIBC", NoWatches())
    bench.pods.add("two", gpu=1)
    _start(bench, "seat-0001", "two")
    assert len(bench.specs()) == 2


def test_many_containers_starting_at_once_get_their_own(bench: Any) -> None:
    for number in range(4):
        bench.pods.add(f"pod-{number}", gpu=number % 2, core=20)
    with ThreadPoolExecutor(4) as pool:
        devices = list(pool.map(lambda n: _start(bench, f"seat-{n:04}", f"pod-{n}"), range(4)))
    assert len(set(devices)) == 4
    assert {(seat.id, seat.pod) for seat in bench.store.all()} == {(f"seat-{n:04}", f"pod-{n}") for n in range(4)}


def test_two_seats_for_one_container_are_refused(bench: Any) -> None:
    request = plugin.AllocateRequest(
        container_requests=[plugin.ContainerAllocateRequest(devices_ids=["seat-0000", "seat-0001"])]
    )
    with pytest.raises(grpc.RpcError, match="exactly one"):
        bench.kubelet.call("Allocate", request, plugin.AllocateResponse)


def test_a_damaged_record_is_left_out(bench: Any) -> None:
    (bench.folder / "state/seat-0003.json").write_text("{")
    bench.plugin.stop()
    bench.agent()
    assert bench.store.get("seat-0003") is None
    with pytest.raises(grpc.RpcError, match="not known here"):
        bench.kubelet.pre_start("seat-0003")


def test_a_pod_of_the_same_name_gets_its_own_seat_although_the_watch_still_shows_the_old_one(bench: Any) -> None:
    """kubelet is ahead of the agent's watch: a StatefulSet's next pod starts while the agent knows the one before."""
    old = bench.pods.add("web-0", gpu=0)
    _start(bench, "seat-0000", "web-0")
    new = bench.pods.add("web-0", gpu=1, core=30)
    new["metadata"]["uid"] = "uid-new"
    bench.pods.known, bench.pods.server = {("team", "web-0"): old}, {("team", "web-0"): new}
    _start(bench, "seat-0001", "web-0")
    seat = bench.store.get("seat-0001")
    assert (seat.uid, seat.core) == ("uid-new", 30)
    assert list(seat.gpus) == [new["metadata"]["annotations"]["gpu.slicekeeper.io/train"]]
    bench.pods.known = bench.pods.server
    bench.seats.free()
    assert [seat.id for seat in bench.store.all()] == ["seat-0001"]


@pytest.mark.parametrize("end", [{"status": {"phase": "Failed"}}, {"metadata": {"deletionTimestamp": "2026-01-01"}}])
def test_a_pod_that_has_ended_or_is_deleted_gets_no_seat(bench: Any, end: dict[str, Any]) -> None:
    pod = bench.pods.add("web-0", gpu=0)
    for key, value in end.items():
        pod[key] |= value
    with pytest.raises(grpc.RpcError, match="has not shown pod team/web-0 yet"):
        _start(bench, "seat-0000", "web-0")
    bench.pods.server = {("team", "web-0"): pod}
    with pytest.raises(grpc.RpcError, match="has ended or is being deleted"):
        _start(bench, "seat-0000", "web-0")
    bench.pods.server = None
    with pytest.raises(grpc.RpcError, match="does not say which pod"):
        _start(bench, "seat-0000", "web-0")


def test_a_container_whose_seat_kubelet_has_forgotten_gets_another(bench: Any) -> None:
    pod = bench.pods.add("one", gpu=0)
    _start(bench, "seat-0000", "one")
    bench.pods.server = {("team", "one"): pod}
    _start(bench, "seat-0001", "one")
    assert {seat.uid for seat in bench.store.all()} == {"uid-one"}


def test_a_seat_that_cannot_be_remembered_is_not_given_and_says_why(bench: Any) -> None:
    """A full disk, or a folder that was removed."""
    shutil.rmtree(bench.folder / "state")
    with pytest.raises(grpc.RpcError) as refused:
        bench.kubelet.allocate("seat-0000")
    assert refused.value.code() == grpc.StatusCode.FAILED_PRECONDITION
    assert "seat-0000 cannot be remembered" in refused.value.details()
    (bench.folder / "state").mkdir()
    bench.pods.add("one", gpu=0)
    _start(bench, "seat-0000", "one")


@pytest.mark.parametrize(
    ("value", "limited"),
    [(names.LIBRARY_PATH, True), (f"/opt/own.so:{names.LIBRARY_PATH}", True), ("/opt/own.so", False), (None, False)],
)
def test_a_container_is_limited_if_the_webhook_had_it_load_the_limiter(
    bench: Any, value: str | None, limited: bool
) -> None:
    pod = bench.pods.add("one", gpu=0)
    if value is not None:
        pod["spec"]["containers"][0]["env"] = [
            {"name": "OTHER", "value": names.LIBRARY_PATH},
            {"name": "LD_PRELOAD", "value": value},
        ]
    if limited:
        with pytest.raises(grpc.RpcError, match="the node's arbiter does not answer.*kubelet tries again"):
            _start(bench, "seat-0000", "one")
    else:
        _start(bench, "seat-0000", "one")
    assert bench.store.get("seat-0000").limited == limited
