# SPDX-License-Identifier: Apache-2.0
"""MIG slices on the node: as the driver tells of them, offered once, each for one container, with no limiter."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pynvml
import pytest
import yaml
from support.vcuda_programs import built

from nodeagent import plain_driver
from nodeagent.arbiter_client import ArbiterGpu
from nodeagent.fake_driver import FakeDevices, parse
from nodeagent.gpu_health_events import GpuHealthWatch
from nodeagent.gpu_publisher import wanted
from nodeagent.host_cdi import HostCdi
from nodeagent.nvml_gpus import NvmlGpus
from nodeagent.other_plugin_gpus import OfferedGpus
from nodeagent.plain_driver import PlainDriver
from nodeagent.process_audit import Stray, judge
from nodeagent.seat_refused import SeatRefused
from nodeagent.seat_store import Seat
from nodeagent.whole_gpu_usage import WholeGpus
from slicekeeper import names
from slicekeeper.config.settings import Resources
from slicekeeper.errors import SettingsError
from slicekeeper.gpu.inventory import Gpu, MigSlice, decode, encode, is_slice

CORE, MEMORY = "tencent.com/vcuda-core", "tencent.com/vcuda-memory"


@pytest.fixture
def gpus(driver: Any, tmp_path: Path) -> Iterator[NvmlGpus]:
    """Four GPUs of 40 GiB; the second one is divided."""
    driver.mig(1, "3g.20gb+1g.5gb")
    yield NvmlGpus(tmp_path / "withdrawn", HostCdi([]))
    for gpu in range(4):
        driver.mig(gpu, None)
        driver.health(gpu)


def seen(gpus: NvmlGpus, number: int = 1) -> Gpu:
    gpus.look(0.01)
    return gpus.gpus()[number]


def test_slices_are_told_with_what_they_have(gpus: NvmlGpus) -> None:
    gpu = gpus.gpus()[1]
    assert not gpu.healthy, "nothing but its slices is given out"
    assert "MIG mode: only its slices" in gpu.trouble
    found = [(one.profile, one.compute, one.of, one.core, one.memory_mib, one.healthy) for one in gpu.mig]
    assert found == [("3g.20gb", 3, 7, 42, 19968, True), ("1g.5gb", 1, 7, 14, 4608, True)]
    assert all(is_slice(one.uuid) for one in gpu.mig)
    assert not is_slice(gpu.uuid)
    assert [other.mig for other in gpus.gpus() if other.uuid != gpu.uuid] == [()] * 3
    assert decode(encode(gpus.gpus())) == gpus.gpus()


def test_slices_that_come_go_and_change_are_followed(gpus: NvmlGpus, driver: Any) -> None:
    kept = seen(gpus).mig[0]
    driver.mig(1, "3g.20gb+2g.10gb+2g.10gb")
    after = seen(gpus).mig
    assert sorted(one.profile for one in after) == ["2g.10gb", "2g.10gb", "3g.20gb"]
    assert kept in after, "a slice that is not touched is the same one"
    driver.mig(1, "")
    assert seen(gpus).mig == ()
    assert not seen(gpus).healthy
    driver.mig(1, None)
    assert (seen(gpus).mig, seen(gpus).healthy) == ((), True)


def test_slices_that_share_their_memory_are_not_offered(
    gpus: NvmlGpus, driver: Any, caplog: pytest.LogCaptureFixture
) -> None:
    driver.mig(1, "1c.3g.20gb+1c.3g.20gb+2g.10gb")
    assert [one.profile for one in seen(gpus).mig] == ["2g.10gb"]
    assert seen(gpus).mig
    assert sum("share their memory" in record.message for record in caplog.records) == 1
    driver.mig(1, "1c.3g.20gb+2g.10gb")
    assert [(one.profile, one.core) for one in seen(gpus).mig] == [("1c.3g.20gb", 14), ("2g.10gb", 28)], "alone now"


def test_what_the_driver_does_not_describe_is_not_offered(
    gpus: NvmlGpus, driver: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver.mig(1, "1c.3g.20gb+1c.3g.20gb+1g.5gb")
    plain = pynvml.nvmlDeviceGetAttributes

    def refuse(handle: Any) -> Any:
        if pynvml.nvmlDeviceGetComputeInstanceId(handle) == 1:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return plain(handle)

    monkeypatch.setattr(pynvml, "nvmlDeviceGetAttributes", refuse)
    assert [one.profile for one in seen(gpus).mig] == ["1g.5gb"], "the other one shares its memory all the same"

    def silent(*_: Any) -> Any:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)

    monkeypatch.setattr(pynvml, "nvmlDeviceGetGpuInstanceProfileInfo", silent)
    assert seen(gpus).mig == (), "what part of its GPU a slice is, is not known"


def test_a_gpu_that_fails_takes_its_slices_along(gpus: NvmlGpus, driver: Any, tmp_path: Path) -> None:
    slices = [one.uuid for one in gpus.gpus()[1].mig]

    def healthy() -> list[bool]:
        return [one.healthy for one in seen(gpus).mig]

    for ill, why in (
        ({"lost": 1}, "lost"),
        ({"failed": 1}, "remapped"),
        ({"mig_flips": 1}, "its next reset ends MIG mode"),
    ):
        driver.health(1, mig=1, **ill)
        assert healthy() == [False, False]
        assert all(why in gpus.troubles()[uuid] for uuid in slices)
        driver.health(1, mig=1)
        assert healthy() == [True, True]
    (tmp_path / "withdrawn" / slices[1]).touch()
    assert healthy() == [True, False], "an operator may withdraw one slice"
    driver.xid(1, 79)
    assert healthy() == [False, False]


def test_the_node_counts_what_slices_can_hold() -> None:
    mig = (MigSlice("MIG-a", 19968, 3, 7), MigSlice("MIG-b", 4736, 1, 7), MigSlice("MIG-c", 4736, 1, 7, healthy=False))
    gpus = [Gpu("GPU-a", "A100", 40960), Gpu("GPU-b", "A100", 40960, healthy=False, mig=mig)]
    status = wanted(gpus, Resources())["status"]
    assert status["capacity"] == {CORE: str(100 + 42 + 14 + 14), MEMORY: str(160 + 78 + 18 + 18)}
    assert status["allocatable"] == {CORE: str(100 + 42 + 14), MEMORY: str(160 + 78 + 18)}


@pytest.mark.parametrize("name", ["uuid", "index", "type-index"])
def test_devices_come_from_nvidias_specification_by_all_its_names(
    gpus: NvmlGpus, tmp_path: Path, name: str, driver: Any
) -> None:
    second = gpus.gpus()[1].mig[1].uuid
    called = {"uuid": second, "index": "1:1", "type-index": "mig1:1"}[name]
    nodes = [{"path": "/dev/nvidia1"}, {"path": "/dev/nvidia-caps/nvidia-cap30"}]
    spec = {"kind": "nvidia.com/gpu", "devices": [{"name": called, "containerEdits": {"deviceNodes": nodes}}]}
    (tmp_path / "nvidia.yaml").write_text(yaml.safe_dump(spec))
    cdi = NvmlGpus(tmp_path / "withdrawn", HostCdi([tmp_path]))
    assert cdi.edits([second]).content == {"deviceNodes": nodes}
    with pytest.raises(SeatRefused, match=r"has GPU MIG-.*; make one by .*, after each change of MIG slices"):
        cdi.edits([cdi.gpus()[1].mig[0].uuid])
    with pytest.raises(SeatRefused, match="does not list GPU MIG-gone"):
        cdi.edits(["MIG-gone"])


def test_devices_of_the_plain_driver_are_named_by_its_list_of_minors(gpus: NvmlGpus, tmp_path: Path) -> None:
    root, minors = tmp_path / "host", tmp_path / "mig-minors"
    folder = root / plain_driver.FOLDERS[0]
    folder.mkdir(parents=True)
    (folder / "libcuda.so.580.1").touch()
    (folder / "libcuda.so.1").symlink_to("libcuda.so.580.1")
    (root / "dev/nvidia-caps").mkdir(parents=True)
    for device in ("nvidiactl", "nvidia-uvm", "nvidia1", "nvidia-caps/nvidia-cap30"):
        (root / "dev" / device).symlink_to("/dev/null")
    made = NvmlGpus(tmp_path / "withdrawn", PlainDriver(root, HostCdi([]), minors))
    second = made.gpus()[1].mig[1].uuid
    with pytest.raises(SeatRefused, match=f"mig-minors does not say which device files MIG slice {second} has"):
        made.edits([second])
    minors.write_text("config 1\nmonitor 2\ngpu1/gi2/access 30\ngpu1/gi2/ci0/access 31\n")
    with pytest.raises(SeatRefused, match=r"no device /dev/nvidia-caps/nvidia-cap31; .*gpu1/mig/gi2/ci0/access` makes"):
        made.edits([second])
    (root / "dev/nvidia-caps/nvidia-cap31").symlink_to("/dev/null")
    paths = [node["path"] for node in made.edits([second]).content["deviceNodes"]]
    assert paths == [
        "/dev/nvidiactl",
        "/dev/nvidia-uvm",
        "/dev/nvidia1",
        "/dev/nvidia-caps/nvidia-cap30",
        "/dev/nvidia-caps/nvidia-cap31",
    ]


def test_fake_gpus_can_be_divided(driver: Any, gpus: NvmlGpus, tmp_path: Path) -> None:
    wanted_ = parse("2:A100-SXM4-80GB:3g.40gb+4g.40gb/7g.80gb")
    assert wanted_.environ("n", Path("/w"))["SLICEKEEPER_FAKE_MIG"] == "3g.40gb+4g.40gb/7g.80gb"
    for text in ("1:A100-SXM4-80GB:3g.40gb/3g.40gb", "1:A100-SXM4-80GB:half", "1::3g"):
        with pytest.raises(SettingsError, match=r"MIG slices are named by their profiles"):
            parse(text)
    world = Path(driver.environ["SLICEKEEPER_FAKE_WORLD"])
    made = NvmlGpus(tmp_path / "withdrawn", FakeDevices(built(), tmp_path / "lib", world))
    uuid = made.gpus()[1].mig[0].uuid
    assert f"CUDA_VISIBLE_DEVICES={uuid}" in made.edits([uuid]).content["env"]


@pytest.mark.parametrize("device", ["{uuid}", "{uuid}::3", "MIG-{gpu}/3/0", "1:0", "1:0::2"])
def test_a_gpu_of_which_another_plugin_has_a_slice_is_offered_by_that_alone(gpus: NvmlGpus, device: str) -> None:
    gpu = gpus.gpus()[1]
    taken = {device.format(uuid=gpu.mig[1].uuid, gpu=gpu.uuid)}
    own = OfferedGpus(gpus, (), Resources().devices, lambda: taken)
    own.look_at({"status": {}})
    assert [one.uuid for one in own.gpus()] == [one.uuid for one in gpus.gpus() if one.uuid != gpu.uuid]
    listed = OfferedGpus(gpus, ("1",), Resources().devices, set)
    listed.look_at({"status": {"capacity": {"nvidia.com/mig-1g.5gb": "1"}}})
    assert [one.uuid for one in listed.gpus()] == [gpu.uuid], "a divided node serves both"


def bound(name: str, uuid: str, container: str = "train", core: int = 10, **annotations: str) -> dict[str, Any]:
    limits = {CORE: str(core), MEMORY: "4"}
    annotations = {names.gpu_annotation(container): uuid, **annotations}
    return {
        "metadata": {"namespace": "team", "name": name, "uid": name, "annotations": annotations},
        "spec": {"containers": [{"name": container, "resources": {"limits": limits}}]},
        "status": {},
    }


def test_pods_on_a_slice_that_fails_or_is_gone_are_told(gpus: NvmlGpus, driver: Any) -> None:
    first, second = (one.uuid for one in gpus.gpus()[1].mig)
    there, told = [bound("one", first), bound("two", second)], []

    class Pods:
        def all(self) -> list[Any]:
            return there

    changed = threading.Event()
    watch = GpuHealthWatch(
        gpus,
        gpus,
        Pods(),
        Resources(),
        0.01,
        changed.set,  # type: ignore[arg-type]
        lambda pod, why: told.append((pod["metadata"]["name"], why)),
    )
    watch.look()
    assert told == [], "MIG mode is no trouble for who has a slice"
    driver.mig(1, "3g.20gb")
    watch.look()
    gone = "this MIG slice is gone, or shares its memory with another one"
    assert told == [("two", f"GPU {second}, which this pod holds, gets no new pods: {gone}")]
    assert changed.is_set()
    driver.health(1, mig=1, failed=1)
    watch.look()
    watch.look()
    assert [name for name, _ in told] == ["two", "one"]


SLICES = (MigSlice("MIG-a", 19968, 3, 7), MigSlice("MIG-b", 4608, 1, 7), MigSlice("MIG-c", 4608, 1, 7, healthy=False))


@pytest.fixture
def divided(bench: Any, made: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A bench whose second GPU is divided."""
    source = bench.seats._source
    mig = Gpu("GPU-1", "A100-SXM4-80GB", 81920, healthy=False, trouble="MIG", mig=SLICES)
    monkeypatch.setattr(source, "known", [source.known[0], mig])
    return bench


def start(bench: Any, seat: str, name: str, container: str = "train") -> dict[str, Any]:
    bench.kubelet.owners[seat] = [("team", name, container)]
    bench.kubelet.allocate(seat)
    bench.kubelet.pre_start(seat)
    [file] = [file for file in bench.specs() if seat in file.name]
    edits: dict[str, Any] = json.loads(file.read_text())["devices"][0]["containerEdits"]
    return edits


def on_slice(bench: Any, name: str, uuid: str, **more: Any) -> dict[str, Any]:
    pod: dict[str, Any] = bench.pods.add(name, gpu=None, **{"core": 14, "blocks": 8, **more})
    pod["metadata"]["annotations"] |= {names.gpu_annotation("train"): uuid, names.SHARING_MODE: "mig: asked for"}
    return pod


def test_a_container_gets_its_slice_and_no_limiter(divided: Any) -> None:
    on_slice(divided, "one", "MIG-a")
    edits = start(divided, "seat-0000", "one")
    assert edits["deviceNodes"] == [{"path": "/dev/MIG-a"}]
    assert edits["env"] == ["NVIDIA_VISIBLE_DEVICES=void"]
    assert [mount["containerPath"] for mount in edits["mounts"]] == ["/run/slicekeeper"]
    seat = divided.store.get("seat-0000")
    assert (seat.core, seat.limit, seat.memory_mib, seat.limited, seat.is_fraction) == (14, 42, 19968, False, False)


@pytest.mark.parametrize(
    ("value", "rest"),
    [(names.LIBRARY_PATH, ""), (f"{names.LIBRARY_PATH}:/opt/a.so /b.so", "/opt/a.so:/b.so"), ("/opt/a.so", None)],
)
def test_a_limiter_that_an_adaptive_pod_brought_to_a_slice_is_not_loaded(divided: Any, value: str, rest: str) -> None:
    pod = on_slice(divided, "one", "MIG-b")
    pod["spec"]["containers"][0]["env"] = [{"name": "LD_PRELOAD", "value": value}]
    edits = start(divided, "seat-0000", "one")
    expected = [] if rest is None else [f"LD_PRELOAD={rest}"]
    assert edits["env"] == ["NVIDIA_VISIBLE_DEVICES=void", *expected]
    assert [mount["containerPath"] for mount in edits["mounts"]] == ["/run/slicekeeper"]


@pytest.mark.parametrize(
    ("uuid", "more", "why"),
    [
        ("MIG-gone", {}, "MIG slice MIG-gone is not offered on this node"),
        ("MIG-c", {}, "MIG slice MIG-c must get no container"),
        ("MIG-b", {"core": 15}, "MIG-b has 14% compute and 4608 MiB, and 15% and 2048 MiB are asked for"),
        ("MIG-b", {"blocks": 19}, "MIG-b has 14% compute and 4608 MiB, and 14% and 4864 MiB are asked for"),
        ("GPU-1", {}, "GPU GPU-1 is not healthy"),
    ],
)
def test_a_slice_that_cannot_be_held_gives_no_seat(divided: Any, uuid: str, more: dict[str, int], why: str) -> None:
    on_slice(divided, "one", uuid, **more)
    with pytest.raises(grpc.RpcError, match=why):
        start(divided, "seat-0000", "one")


def test_a_slice_is_for_one_container(divided: Any) -> None:
    on_slice(divided, "early", "MIG-a")
    on_slice(divided, "late", "MIG-a", at="11:00:00")
    with pytest.raises(grpc.RpcError, match="MIG-a is booked twice: team/early has it"):
        start(divided, "seat-0000", "late")
    start(divided, "seat-0001", "early")
    twins = on_slice(divided, "twins", "MIG-b")
    twins["spec"]["containers"].append({**twins["spec"]["containers"][0], "name": "other"})
    twins["metadata"]["annotations"][names.gpu_annotation("other")] = "MIG-b"
    with pytest.raises(grpc.RpcError, match="MIG-b is booked twice: another container of this pod"):
        start(divided, "seat-0002", "twins")


def test_the_arbiter_holds_no_slice(divided: Any) -> None:
    on_slice(divided, "one", "MIG-a")
    start(divided, "seat-0000", "one")
    assert divided.seats._shares.as_pod_says(divided.pods.all()[0], divided.store.get("seat-0000")).limit == 42
    assert [seat.name for seat in divided.store.all() if seat.taken and seat.is_fraction] == []


def test_what_is_in_a_slice_is_no_finding_and_what_is_beside_it_is() -> None:
    ours = {"GPU-0": frozenset[str](), "GPU-1": frozenset(("MIG-a", "MIG-b"))}

    def found(pod: Any, gpu: int) -> str:
        return judge(Stray(ArbiterGpu(gpu, f"GPU-{gpu}"), "x", "without the limiter", pod=pod), ours, Resources())

    assert found(bound("one", "MIG-a"), 1) == ""
    assert found(bound("one", "MIG-a"), 0) == "which was not given to it"
    assert found(bound("one", "GPU-0"), 1) == "which was not given to it"
    assert found(None, 1) == "without a slice of it"


def test_of_a_slice_the_driver_tells_memory_and_no_time(gpus: NvmlGpus, tmp_path: Path) -> None:
    uuid = gpus.gpus()[1].mig[0].uuid
    seat = Seat(id="seat-1", nonce="a", uid="u", container="c", gpus=(uuid,), core=14, limit=42)

    class Files:
        def read_file(self, _seat: Seat, _name: str) -> bytes:
            raise OSError

    [count] = WholeGpus(gpus, Files()).count([seat])  # type: ignore[arg-type]
    assert (count.gpu, count.busy_ns, count.memory) == (uuid, None, 0)
