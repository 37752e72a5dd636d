# SPDX-License-Identifier: Apache-2.0
"""A node without NVIDIA's container toolkit: devices and libraries as the driver's installer leaves them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pynvml
import pytest
import yaml
from support.vcuda_programs import built
from support.waiting import wait_for

from nodeagent import plain_driver
from nodeagent.arbiter_client import Arbiter, ArbiterAway
from nodeagent.arbiter_keeper import ArbiterKeeper
from nodeagent.host_cdi import HostCdi
from nodeagent.nvml_gpus import NvmlGpus
from nodeagent.plain_driver import PlainDriver, libraries, links
from nodeagent.seat_refused import SeatRefused

VERSION = "580.65.06"
LINKS = {
    "libcuda.so": "libcuda.so.1",
    "libcuda.so.1": f"libcuda.so.{VERSION}",
    "libnvidia-ml.so.1": f"libnvidia-ml.so.{VERSION}",
    "libnvidia-nvvm.so.4": f"libnvidia-nvvm.so.{VERSION}",
}
NVVM70 = "libnvidia-nvvm70.so.4"
"""Has no version of the driver's in its name."""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A node's file system; a test may make no device files, so each leads to one that is there."""
    made = tmp_path / "host"
    folder = made / plain_driver.FOLDERS[0]
    folder.mkdir(parents=True)
    for name in ("libcuda", "libnvidia-ml"):
        shutil.copy(built() / "fake" / f"{name}.so.1", folder / f"{name}.so.{VERSION}")
    for name in (f"libnvidia-nvvm.so.{VERSION}", NVVM70):
        (folder / name).touch()
    for name, target in LINKS.items():
        (folder / name).symlink_to(target)
    (folder / "libnvidia-ptxjitcompiler.so.535.54.03").touch()  # left by the driver before
    (folder / "libnvidia-glcore.so.580.65.06").touch()
    (made / "dev").mkdir()
    for name in ("nvidiactl", "nvidia-uvm", "nvidia0", "nvidia1", "nvidia2", "nvidia3"):
        (made / "dev" / name).symlink_to("/dev/null")
    (made / "usr/bin").mkdir()
    (made / "usr/bin/nvidia-smi").touch()
    return made


def test_a_folder_of_libraries_may_be_a_link_to_another_of_the_node(root: Path) -> None:
    folder = root / plain_driver.FOLDERS[0]
    before = libraries(root)
    folder.rename(root / "drivers")
    folder.symlink_to("/drivers")
    assert libraries(root) == {name: root / "drivers" / file.name for name, file in before.items()}


def test_libraries_of_the_drivers_version_are_known_under_all_their_names(root: Path) -> None:
    found = {name: file.name for name, file in libraries(root).items()}
    versions = {name: name for name in LINKS.values() if name.endswith(VERSION)}
    assert found == {**versions, **LINKS, "libcuda.so": f"libcuda.so.{VERSION}", NVVM70: NVVM70}
    assert libraries(root / "nothing") == {}


@pytest.mark.parametrize(
    "steps",
    [
        pytest.param(["/usr/lib/nvidia/current/libcuda.so.1"], id="a link into another folder"),
        pytest.param([f"/usr/lib/nvidia/current/libcuda.so.{VERSION}"], id="a link to the file in another folder"),
        pytest.param(["../nvidia/current/libcuda.so.1"], id="a link that goes up"),
        pytest.param(
            ["/etc/alternatives/glx--libcuda.so.1", "/usr/lib/nvidia/current/libcuda.so.1"], id="Debian's alternatives"
        ),
        pytest.param(["/lib/nvidia/current/libcuda.so.1"], id="a folder that is a link"),
    ],
)
def test_libraries_are_found_where_links_of_the_node_lead(root: Path, steps: list[str]) -> None:
    folder, there = root / plain_driver.FOLDERS[0], root / "usr/lib/nvidia/current"
    there.parent.mkdir()
    folder.rename(there)
    folder.mkdir()
    gpucomp = folder / f"libnvidia-gpucomp.so.{VERSION}"
    gpucomp.touch()
    (root / "etc/alternatives").mkdir(parents=True)
    (root / "lib").symlink_to("usr/lib")
    link = folder / "libcuda.so.1"
    for step in steps:
        link.symlink_to(step)
        link = root / step.lstrip("/")
    found = libraries(root)
    assert found["libcuda.so.1"] == there / f"libcuda.so.{VERSION}"
    assert found[gpucomp.name] == gpucomp, "not all of them are there"
    assert {"libnvidia-ml.so.1", "libnvidia-nvvm.so.4"} <= found.keys()


def test_a_folder_whose_links_lead_nowhere_is_passed_over(root: Path) -> None:
    other = root / plain_driver.FOLDERS[2]
    (root / plain_driver.FOLDERS[0]).rename(root / "usr/driver")
    other.mkdir(exist_ok=True)
    (other / "libcuda.so.1").symlink_to(f"/usr/removed/libcuda.so.{VERSION}")
    assert libraries(root) == {}
    (root / "usr/local/nvidia").mkdir(parents=True)
    (root / "usr/driver").rename(root / "usr/local/nvidia/lib64")
    assert libraries(root)["libcuda.so.1"] == root / f"usr/local/nvidia/lib64/libcuda.so.{VERSION}"


def test_devices_and_libraries_are_named_by_their_places_on_the_node(driver: Any, root: Path, tmp_path: Path) -> None:
    gpus = NvmlGpus(tmp_path / "withdrawn", PlainDriver(root, HostCdi([tmp_path / "cdi"])))
    second = gpus.gpus()[1].uuid
    edits = gpus.edits([second]).content
    assert [node["path"] for node in edits["deviceNodes"]] == ["/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia1"]
    there = {mount["containerPath"]: mount["hostPath"] for mount in edits["mounts"]}
    for folder in plain_driver.IN_CONTAINER:
        assert there[f"{folder}/libcuda.so.1"] == f"/{plain_driver.FOLDERS[0]}/libcuda.so.{VERSION}"
        assert f"{folder}/libnvidia-nvvm.so.4" in there
    assert there["/usr/bin/nvidia-smi"] == "/usr/bin/nvidia-smi"
    assert not [path for path in there if "glcore" in path or "535" in path]


def test_nvidia_smi_is_found_beside_the_libraries(driver: Any, root: Path, tmp_path: Path) -> None:
    (root / "usr/local/nvidia/bin").mkdir(parents=True)
    (root / "usr/bin/nvidia-smi").rename(root / "usr/local/nvidia/bin/nvidia-smi")
    gpus = NvmlGpus(tmp_path / "withdrawn", PlainDriver(root, HostCdi([])))
    mounts = gpus.edits([gpus.gpus()[0].uuid]).content["mounts"]
    [smi] = [mount for mount in mounts if mount["containerPath"].endswith("nvidia-smi")]
    assert (smi["hostPath"], smi["containerPath"]) == ("/usr/local/nvidia/bin/nvidia-smi", "/usr/bin/nvidia-smi")


def test_nvidias_specification_goes_first(driver: Any, root: Path, tmp_path: Path) -> None:
    device = {"name": "0", "containerEdits": {"deviceNodes": [{"path": "/dev/from-cdi"}]}}
    (tmp_path / "nvidia.yaml").write_text(yaml.safe_dump({"kind": "nvidia.com/gpu", "devices": [device]}))
    gpus = NvmlGpus(tmp_path / "withdrawn", PlainDriver(root, HostCdi([tmp_path])))
    first, second = (gpu.uuid for gpu in gpus.gpus()[:2])
    assert gpus.edits([first]).content == {"deviceNodes": [{"path": "/dev/from-cdi"}]}
    assert gpus.edits([second]).content["deviceNodes"][-1] == {"path": "/dev/nvidia1"}, "which it does not have"


def test_what_is_missing_is_said(driver: Any, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gpus = NvmlGpus(tmp_path / "withdrawn", PlainDriver(root, HostCdi([])))
    first = gpus.gpus()[0].uuid

    def refuse(handle: Any) -> int:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)

    with monkeypatch.context() as patch:
        patch.setattr(pynvml, "nvmlDeviceGetMinorNumber", refuse)
        with pytest.raises(SeatRefused, match=f"which device file GPU {first} has"):
            gpus.edits([first])
    (root / "dev/nvidia-uvm").unlink()
    with pytest.raises(SeatRefused, match="nvidia-ctk cdi generate.* no device /dev/nvidia-uvm; `nvidia-modprobe -u"):
        gpus.edits([first])
    (root / plain_driver.FOLDERS[0] / "libcuda.so.1").unlink()
    with pytest.raises(SeatRefused, match=r"no libcuda\.so\.1 that leads to a driver's version"):
        gpus.edits([first])


def test_a_link_that_leads_in_a_circle_is_no_library(root: Path) -> None:
    file = root / plain_driver.FOLDERS[0] / "libcuda.so.1"
    file.unlink()
    file.symlink_to("libcuda.so")
    assert libraries(root) == {}


def test_agent_and_arbiter_load_the_nodes_own_library(
    driver: Any, root: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    environ = {**os.environ, **driver.environ}
    script = (
        "import sys, pathlib, pynvml; from nodeagent.plain_driver import load; load(pathlib.Path(sys.argv[1]));"
        "pynvml.nvmlInit(); print(pynvml.nvmlDeviceGetCount())"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(root)], env=environ, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "4"

    folder, stop = tmp_path_factory.mktemp("r"), threading.Event()
    found = links(root, folder / "driver")
    keeper = ArbiterKeeper(built() / "arbiter", folder, [], lambda: {**environ, "LD_LIBRARY_PATH": str(found)})
    running = threading.Thread(target=keeper.run, args=(stop,), daemon=True)
    running.start()

    def gpus() -> int:
        try:
            return len(Arbiter(folder).read().gpus)
        except ArbiterAway:
            return 0

    try:
        wait_for(lambda: gpus() == 4, "the arbiter has the node's GPUs")
    finally:
        stop.set()
        running.join(30)
    assert not running.is_alive()
