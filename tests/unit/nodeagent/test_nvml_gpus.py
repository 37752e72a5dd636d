# SPDX-License-Identifier: Apache-2.0
"""GPUs as NVML tells of them, asked of the fake driver's own library."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pynvml
import pytest
from support.small_cluster import small_cluster
from support.waiting import wait_for

from nodeagent.fake_driver import DEFAULT_MODEL, MODELS, parse
from nodeagent.gpu_health_events import GpuHealthWatch
from nodeagent.gpu_health_rules import DriverReport, judge, judge_xid
from nodeagent.gpu_publisher import GpuPublisher
from nodeagent.host_cdi import HostCdi
from nodeagent.nvml_gpus import NvmlGpus
from nodeagent.other_plugin_gpus import OfferedGpus
from nodeagent.seat_refused import SeatRefused
from slicekeeper import names
from slicekeeper.config.settings import Resources
from slicekeeper.errors import SettingsError
from slicekeeper.gpu import inventory
from slicekeeper.kube.client import NODES


@pytest.fixture
def gpus(driver: Any, tmp_path: Path) -> Iterator[NvmlGpus]:
    yield NvmlGpus(tmp_path / "withdrawn", HostCdi([]))
    for gpu in range(4):
        driver.health(gpu)


def ill(gpus: NvmlGpus) -> dict[int, str]:
    gpus.look(0.01)
    known = [gpu.uuid for gpu in gpus.gpus()]
    assert [gpu.healthy for gpu in gpus.gpus()] == [uuid not in gpus.troubles() for uuid in known]
    assert [gpu.trouble for gpu in gpus.gpus()] == [gpus.troubles().get(uuid, "") for uuid in known]
    return {known.index(uuid): why for uuid, why in gpus.troubles().items()}


def test_the_library_tells_of_every_gpu(gpus: NvmlGpus) -> None:
    found = gpus.gpus()
    assert [(gpu.model, gpu.memory_mib) for gpu in found] == [("A100-SXM4-40GB", 40960)] * 4
    assert len({gpu.uuid for gpu in found}) == 4
    assert all(gpu.healthy and not gpu.links for gpu in found)


def test_the_driver_is_told_or_why_there_is_none(
    gpus: NvmlGpus, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    version, why = gpus.driver()
    assert (version.split(".")[0].isdecimal(), why) == (True, "")

    def fail() -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_DRIVER_NOT_LOADED)

    monkeypatch.setattr(pynvml, "nvmlInit", fail)
    assert NvmlGpus(tmp_path / "none", HostCdi([])).driver() == ("", "Driver Not Loaded")


def test_links_lead_from_each_gpu_to_each_other(
    gpus: NvmlGpus, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SLICEKEEPER_FAKE_NVLINKS", "2")
    found = NvmlGpus(tmp_path / "linked", HostCdi([])).gpus()
    for gpu in found:
        assert gpu.links == {other.uuid: 2 for other in found if other is not gpu}


def test_gpus_below_one_switch_have_its_number(gpus: NvmlGpus, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert [gpu.pcie_switch for gpu in gpus.gpus()] == [-1] * 4, "a driver that does not tell"
    for each, expected in ((2, [0, 0, 1, 1]), (3, [0, 0, 0, -1]), (1, [-1] * 4)):
        monkeypatch.setenv("SLICEKEEPER_FAKE_SWITCHED", str(each))
        found = NvmlGpus(tmp_path / str(each), HostCdi([])).gpus()
        assert [gpu.pcie_switch for gpu in found] == expected


@pytest.mark.parametrize("refuses", ["plain", "bare", "unknown", "silent"])
def test_what_a_driver_refuses_to_tell_stops_nothing(
    driver: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, refuses: str
) -> None:
    monkeypatch.setenv("SLICEKEEPER_FAKE_NVML", refuses)
    gpus = NvmlGpus(tmp_path, HostCdi([]))
    gpus.look(0.01)
    assert [gpu.healthy for gpu in gpus.gpus()] == [True] * 4
    memory = {gpu.memory_mib for gpu in gpus.gpus()}
    assert (memory == {40960}) == (refuses != "bare"), "one that does not tell its memory shares the machine's"
    assert min(memory) > 0


def test_a_gpu_that_fails_is_withdrawn_until_it_is_well(gpus: NvmlGpus, driver: Any) -> None:
    driver.health(0, ecc=3)
    driver.health(1, failed=1)
    driver.health(2, lost=1)
    driver.health(3, mig=1)
    told = ill(gpus)
    assert "3 errors" in told[0]
    assert "could not be remapped" in told[1]
    assert "lost" in told[2]
    assert "MIG" in told[3]
    for gpu in range(4):
        driver.health(gpu)
    driver.health(1, pending=1)
    assert list(ill(gpus)) == [1]


def refuse(monkeypatch: pytest.MonkeyPatch, error: Exception, *functions: str) -> None:
    def fail(*_: Any) -> None:
        raise error

    for function in functions:
        monkeypatch.setattr(pynvml, function, fail)


def test_a_gpu_that_tells_nothing_of_its_health_is_lost_all_the_same(
    gpus: NvmlGpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    kinds = ("nvmlDeviceGetTotalEccErrors", "nvmlDeviceGetRemappedRows", "nvmlDeviceGetMigMode")
    refuse(monkeypatch, pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED), *kinds)
    assert ill(gpus) == {}
    refuse(monkeypatch, pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST), "nvmlDeviceGetMemoryInfo")
    assert set(ill(gpus)) == {0, 1, 2, 3}


def test_memory_in_use_is_without_what_the_driver_keeps_for_itself(
    gpus: NvmlGpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = False

    def info(_handle: Any, version: int = 0) -> Any:
        if old and version:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)
        memory = pynvml.c_nvmlMemory_v2_t() if version else pynvml.c_nvmlMemory_t()
        memory.used = 100 if version else 700
        return memory

    monkeypatch.setattr(pynvml, "nvmlDeviceGetMemoryInfo", info)
    uuid = gpus.gpus()[0].uuid
    assert gpus.memory_used(uuid) == 100
    old = True
    assert gpus.memory_used(uuid) == 700, "a driver from before 510 does not tell it apart"
    assert gpus.memory_used("GPU-unknown") is None


def test_memory_that_the_driver_keeps_for_itself_is_not_published(
    driver: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def info(_handle: Any, version: int = 0) -> Any:
        memory = pynvml.c_nvmlMemory_v2_t() if version else pynvml.c_nvmlMemory_t()
        memory.total = 143771 << 20
        if version:
            memory.reserved = 615 << 20
        return memory

    monkeypatch.setattr(pynvml, "nvmlDeviceGetMemoryInfo", info)
    gpus = NvmlGpus(tmp_path / "withdrawn", HostCdi([])).gpus()
    assert {gpu.memory_mib for gpu in gpus} == {143156}


def test_words_that_are_no_text_stop_nothing(driver: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    garbled = UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte")
    refuse(monkeypatch, garbled, "nvmlDeviceGetName", "nvmlSystemGetDriverVersion")
    gpus = NvmlGpus(tmp_path, HostCdi([]))
    assert [gpu.model for gpu in gpus.gpus()] == ["unknown"] * 4
    assert gpus.driver() == ("unknown", "")


def test_a_library_that_counts_no_gpus_is_closed_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    open_, refused = [0], pynvml.NVMLError(pynvml.NVML_ERROR_UNKNOWN)
    monkeypatch.setattr(pynvml, "nvmlInit", lambda: open_.append(open_[-1] + 1))
    monkeypatch.setattr(pynvml, "nvmlShutdown", lambda: open_.append(open_[-1] - 1))
    refuse(monkeypatch, refused, "nvmlDeviceGetCount")
    gpus = NvmlGpus(tmp_path, HostCdi([]))
    gpus.look(0.01)
    assert open_ == [0, 1, 0, 1, 0]


def test_a_gpu_that_the_driver_does_not_list_is_in_no_container(gpus: NvmlGpus) -> None:
    """As after a reboot, while the driver is not loaded yet: a container would start without its GPU."""
    with pytest.raises(SeatRefused, match="does not list GPU GPU-gone; kubelet tries again"):
        gpus.edits(["GPU-gone"])


def test_a_gpu_that_is_left_out_gives_no_other_its_number(
    driver: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """NVIDIA's specification may know GPUs by their numbers alone."""
    find = pynvml.nvmlDeviceGetHandleByIndex

    def lost(index: int) -> Any:
        if index == 0:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)
        return find(index)

    monkeypatch.setattr(pynvml, "nvmlDeviceGetHandleByIndex", lost)
    devices = [{"name": str(n), "containerEdits": {"deviceNodes": [{"path": f"/dev/nvidia{n}"}]}} for n in range(4)]
    (tmp_path / "nvidia.json").write_text(json.dumps({"kind": "nvidia.com/gpu", "devices": devices}))
    gpus = NvmlGpus(tmp_path / "withdrawn", HostCdi([tmp_path]))
    found = [gpu.uuid for gpu in gpus.gpus()]
    assert [gpus.indexes()[uuid] for uuid in found] == [1, 2, 3]
    assert gpus.edits(found[:1]).content == {"deviceNodes": [{"path": "/dev/nvidia1"}]}
    listed = OfferedGpus(gpus, ["1"], (), set)
    assert [gpu.uuid for gpu in listed.gpus()] == found[:1]


def test_an_xid_withdraws_at_once_and_for_the_next_agent_too(gpus: NvmlGpus, driver: Any, tmp_path: Path) -> None:
    first = gpus.gpus()[0].uuid
    waiting = threading.Thread(target=gpus.look, args=(60,))
    waiting.start()
    driver.xid(0, 79)
    waiting.join(30)
    assert not waiting.is_alive()
    assert gpus.troubles() == {first: "the driver reported Xid 79"}
    after = NvmlGpus(tmp_path / "withdrawn", HostCdi([]))
    assert after.troubles() == gpus.troubles()
    (tmp_path / "withdrawn" / first).unlink()
    assert ill(after) == {}


def test_a_gpu_that_falls_off_the_bus_is_named_although_the_driver_tells_nothing_of_it(
    gpus: NvmlGpus, driver: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    second = gpus.gpus()[1].uuid
    refuse(monkeypatch, pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST), "nvmlDeviceGetUUID")
    driver.xid(1, 79)
    gpus.look(10)
    assert (tmp_path / "withdrawn" / second).read_text() == "the driver reported Xid 79\n"


def test_a_full_disk_keeps_no_gpu_from_being_withdrawn(gpus: NvmlGpus, driver: Any, tmp_path: Path) -> None:
    (tmp_path / "withdrawn").rmdir()
    driver.xid(2, 48)
    gpus.look(10)
    assert ill(gpus) == {2: "the driver reported Xid 48"}


def test_an_xid_of_a_programs_own_making_withdraws_nothing(gpus: NvmlGpus, driver: Any) -> None:
    driver.xid(1, 31)
    assert ill(gpus) == {}


def test_an_operator_withdraws_a_gpu_by_a_file(gpus: NvmlGpus, tmp_path: Path) -> None:
    (tmp_path / "withdrawn" / gpus.gpus()[2].uuid).touch()
    assert ill(gpus) == {2: "an operator withdrew it"}


def test_remapped_rows_count_and_not_the_errors_that_led_to_them() -> None:
    assert judge(DriverReport(rows=(0, 0), uncorrected=5)) == ""
    assert judge(DriverReport(uncorrected=5))
    assert judge(DriverReport()) == ""
    assert "next reset" in judge(DriverReport(mig=False, mig_next=True))
    assert not judge_xid(13)
    assert judge_xid(48)


def test_a_failing_gpu_leaves_the_node_and_its_pods_are_told(gpus: NvmlGpus, driver: Any) -> None:
    first, second = (gpu.uuid for gpu in gpus.gpus()[:2])

    class Pods:
        def all(self) -> list[Any]:
            limits = {"tencent.com/vcuda-core": "50", "tencent.com/vcuda-memory": "4"}
            return [
                {
                    "metadata": {
                        "namespace": "team",
                        "name": name,
                        "uid": name,
                        "annotations": {names.gpu_annotation("train"): uuid},
                    },
                    "spec": {"containers": [{"name": "train", "resources": {"limits": limits}}]},
                    "status": {},
                }
                for name, uuid in (("one", first), ("two", second))
            ]

    told = []
    with small_cluster() as small:
        small.client.create(NODES, {"metadata": {"name": "node-1"}, "status": {}})
        publisher = GpuPublisher(small.client, "node-1", gpus, Resources(), 600.0)
        watch = GpuHealthWatch(
            gpus,
            gpus,
            Pods(),
            Resources(),
            600.0,
            publisher.changed,  # type: ignore[arg-type]
            lambda pod, why: told.append((pod["metadata"]["name"], why)),
        )
        publisher.start()
        assert publisher.published.wait(30)
        looking = threading.Thread(target=watch.look)
        looking.start()
        driver.xid(0, 48)
        looking.join(30)

        def seen() -> bool:
            node = small.client.get(NODES, "node-1")
            healthy = {gpu.uuid: gpu.healthy for gpu in inventory.of_node(node)}
            return (
                not healthy[first] and healthy[second] and node["status"]["allocatable"] != node["status"]["capacity"]
            )

        wait_for(seen, "the node shows it long before the next comparison")
        publisher.stop()
    assert told == [("one", f"GPU {first}, which this pod holds, gets no new pods: the driver reported Xid 48")]
    watch._source.look = lambda _: None  # type: ignore[method-assign]
    watch.look()
    assert len(told) == 1, "a pod is told once"


def test_a_count_and_a_model_make_gpus() -> None:
    assert (parse("3:H200").count, parse("3:H200").model) == (3, "H200")
    assert parse("1").model == DEFAULT_MODEL
    environ = [parse("2").environ(node, Path("/w")) for node in ("a", "b")]
    assert environ[0] != environ[1]
    assert environ[0]["SLICEKEEPER_FAKE_MEMORY"] == f"{MODELS[DEFAULT_MODEL]}M"


@pytest.mark.parametrize("text", ["", "0", "9", "-1", "x", "2:Voodoo", "1000", "²"])
def test_nonsense_is_refused_with_what_is_allowed(text: str) -> None:
    with pytest.raises(SettingsError, match=r"fakeGpus.*(for example|known)"):
        parse(text)
