# SPDX-License-Identifier: Apache-2.0
"""Seats over real gRPC sockets: the right owner or none, names used once, and nothing lost by a restart."""

from __future__ import annotations

import json
import shutil
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest

from nodeagent.kubelet_protocol import plugin
from slicekeeper import names


def test_it_registers_and_offers_its_seats(bench: Any) -> None:
    asked = bench.kubelet.registered[-1]
    assert (asked.version, asked.resource_name) == ("v1beta1", "slicekeeper.io/seat")
    assert asked.options.pre_start_required
    assert bench.kubelet.offered == ["seat-0000", "seat-0001", "seat-0002", "seat-0003"]
    assert bench.kubelet.call("GetDevicePluginOptions", plugin.Empty(), plugin.DevicePluginOptions).pre_start_required


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


def test_a_restarted_container_keeps_its_seat_unchanged(bench: Any) -> None:
    bench.pods.add("one", gpu=0)
    bench.start("seat-0000", "one")
    [file] = bench.specs()
    before = (file.stat().st_ino, file.read_bytes())
    bench.kubelet.owners.clear()  # nothing is asked again: a seat never changes its owner
    bench.kubelet.pre_start("seat-0000")
    assert (file.stat().st_ino, file.read_bytes()) == before


def test_a_seat_given_anew_has_a_name_never_used_before(bench: Any) -> None:
    bench.pods.add("one", gpu=0)
    bench.pods.add("two", gpu=1)
    first = bench.start("seat-0000", "one")
    second = bench.start("seat-0000", "two")
    assert first != second
    assert [file.name.count(second.partition("=")[2]) for file in bench.specs()] == [1]


def test_seats_of_pods_that_are_gone_are_freed(bench: Any) -> None:
    bench.pods.add("one", gpu=0)
    bench.pods.add("two", gpu=1)
    bench.start("seat-0000", "one")
    bench.start("seat-0001", "two")
    del bench.pods.known["team", "one"]
    bench.seats.free()
    assert [seat.pod for seat in bench.store.all()] == ["two"]
    assert len(bench.specs()) == 1
    assert len(list((bench.folder / "run/seats").iterdir())) == 1


def test_a_seat_that_the_disk_does_not_give_up_keeps_no_other(bench: Any) -> None:
    """As on a disk that the kernel has made read-only after an error: the agent goes on, and so does its watch."""
    for number, name in enumerate(("first", "second")):
        bench.pods.add(name, gpu=number)
        bench.start(f"seat-000{number}", name)
    stays = bench.folder / "state" / "seat-0000.json"
    stays.unlink()
    stays.mkdir()
    bench.pods.known.clear()
    bench.seats.free()
    assert [seat.id for seat in bench.store.all()] == ["seat-0000"]


def test_a_seat_without_room_for_its_folder_keeps_no_agent_from_its_start(bench: Any) -> None:
    for number, name in enumerate(("first", "second")):
        bench.pods.add(name, gpu=number)
        bench.start(f"seat-000{number}", name)
    first, second = (bench.folder / "run" / "seats" / seat.name for seat in bench.store.all())
    for folder in (first, second):
        shutil.rmtree(folder)
    first.touch()
    bench.seats.restore()
    assert second.is_dir()


def test_a_seat_that_is_taken_while_others_are_freed_is_kept(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """As when a StatefulSet's pod is gone, and the API server has shown the next one to its start alone."""
    bench.pods.add("old", gpu=0)
    bench.start("seat-0000", "old")
    bench.pods.known.clear()
    shown: list[list[Any]] = []

    def pods() -> list[Any]:
        if not shown:
            shown.append([])
            bench.pods.add("new", gpu=1)
            bench.start("seat-0001", "new")
            return shown[0]
        return list(bench.pods.known.values())

    monkeypatch.setattr(bench.pods, "all", pods)
    bench.seats.free()
    assert [seat.pod for seat in bench.store.all()] == ["new"]


def test_the_seat_of_a_pod_that_goes_while_its_container_starts_is_freed_later_and_holds_up_nobody(
    bench: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The watch that reports it also shows the pods that other starts wait for."""
    monkeypatch.setattr("nodeagent.cdi_probe.READ_SECONDS", 60.0)
    bench.pods.add("one", gpu=0)
    with ThreadPoolExecutor(1) as pool:
        start = pool.submit(bench.start, "seat-0000", "one")
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
        starts = [pool.submit(bench.start, f"seat-{n:04}", f"unshown-{n}") for n in range(99)]
        for _ in starts:
            assert unshown.waits.acquire(timeout=60)
        bench.pods.add("good", gpu=0)
        bench.start("seat-0099", "good")
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
        start = pool.submit(bench.start, "seat-0000", "unshown")
        assert unshown.waits.acquire(timeout=60)
        bench.pods.add("unshown", gpu=0)
        bench.pods.add("next", gpu=1)
        device = bench.start("seat-0000", "next")
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
        starts = [pool.submit(bench.start, "seat-0000", "unshown")]
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
    bench.start("seat-0000", "one")
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


def test_many_containers_starting_at_once_get_their_own(bench: Any) -> None:
    for number in range(4):
        bench.pods.add(f"pod-{number}", gpu=number % 2, core=20)
    with ThreadPoolExecutor(4) as pool:
        devices = list(pool.map(lambda n: bench.start(f"seat-{n:04}", f"pod-{n}"), range(4)))
    assert len(set(devices)) == 4
    assert {(seat.id, seat.pod) for seat in bench.store.all()} == {(f"seat-{n:04}", f"pod-{n}") for n in range(4)}


def test_two_seats_for_one_container_are_refused(bench: Any) -> None:
    request = plugin.AllocateRequest(
        container_requests=[plugin.ContainerAllocateRequest(devices_ids=["seat-0000", "seat-0001"])]
    )
    with pytest.raises(grpc.RpcError, match="exactly one"):
        bench.kubelet.call("Allocate", request, plugin.AllocateResponse)


def test_a_record_that_is_damaged_or_cannot_be_read_is_left_out(bench: Any) -> None:
    (bench.folder / "state/seat-0003.json").write_text("{")
    (bench.folder / "state/seat-0002.json").mkdir()
    bench.plugin.stop()
    bench.agent()
    assert bench.store.get("seat-0003") is None
    with pytest.raises(grpc.RpcError, match="not known here"):
        bench.kubelet.pre_start("seat-0003")


def test_a_pod_of_the_same_name_gets_its_own_seat_although_the_watch_still_shows_the_old_one(bench: Any) -> None:
    """kubelet is ahead of the agent's watch: a StatefulSet's next pod starts while the agent knows the one before."""
    old = bench.pods.add("web-0", gpu=0)
    bench.start("seat-0000", "web-0")
    new = bench.pods.add("web-0", gpu=1, core=30)
    new["metadata"]["uid"] = "uid-new"
    bench.pods.known, bench.pods.server = {("team", "web-0"): old}, {("team", "web-0"): new}
    bench.start("seat-0001", "web-0")
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
        bench.start("seat-0000", "web-0")
    bench.pods.server = {("team", "web-0"): pod}
    with pytest.raises(grpc.RpcError, match="has ended or is being deleted"):
        bench.start("seat-0000", "web-0")
    bench.pods.server = None
    with pytest.raises(grpc.RpcError, match="does not say which pod"):
        bench.start("seat-0000", "web-0")


def test_a_container_whose_seat_kubelet_has_forgotten_gets_another(bench: Any) -> None:
    pod = bench.pods.add("one", gpu=0)
    bench.start("seat-0000", "one")
    bench.pods.server = {("team", "one"): pod}
    bench.start("seat-0001", "one")
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
    bench.start("seat-0000", "one")
