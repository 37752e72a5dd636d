# SPDX-License-Identifier: Apache-2.0
"""What a seat puts into its container: NVIDIA's edits, the limiter for fractions, the fake driver where it is used."""

from __future__ import annotations

import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.vcuda_programs import built

from nodeagent.cdi_spec_read import FirstRead, Inotify
from nodeagent.fake_driver import FakeDevices
from nodeagent.host_cdi import Edits, HostCdi, joined
from nodeagent.mounted_programs import limiter
from nodeagent.nvml_gpus import NvmlGpus
from nodeagent.seat_files import SeatFiles
from nodeagent.seat_refused import SeatRefused
from nodeagent.seat_store import Seat

NVIDIA = {
    "cdiVersion": "0.5.0",
    "kind": "nvidia.com/gpu",
    "devices": [
        {"name": "0", "containerEdits": {"deviceNodes": [{"path": "/dev/nvidia0"}, {"path": "/dev/dri/card0"}]}},
        {"name": "GPU-b", "containerEdits": {"deviceNodes": [{"path": "/dev/nvidia1"}]}},
        {"name": "all", "containerEdits": {"deviceNodes": [{"path": "/dev/nvidia0"}, {"path": "/dev/nvidia1"}]}},
    ],
    "containerEdits": {
        "env": ["NVIDIA_VISIBLE_DEVICES=void"],
        "deviceNodes": [{"path": "/dev/nvidiactl"}, {"path": "/dev/nvidia-uvm"}],
        "hooks": [{"hookName": "createContainer", "path": "/usr/bin/nvidia-cdi-hook", "args": ["update-ldcache"]}],
        "mounts": [{"hostPath": "/lib/libcuda.so.1", "containerPath": "/lib/libcuda.so.1"}],
    },
}


def nodes(edits: Edits) -> list[str]:
    return [node["path"] for node in edits.content["deviceNodes"]]


@pytest.fixture
def folders(tmp_path: Path) -> list[Path]:
    made = [tmp_path / name for name in ("etc", "run")]
    for folder in made:
        folder.mkdir()
    (made[0] / "nvidia.yaml").write_text(yaml.safe_dump(NVIDIA))
    (made[0] / "broken.yaml").write_text("{")
    (made[1] / "other.json").write_text(json.dumps({**NVIDIA, "kind": "example.com/gpu"}))
    return made


def test_a_gpu_is_found_by_its_uuid_or_its_index(folders: list[Path]) -> None:
    host = HostCdi(folders)
    assert nodes(host.edits([(0, "GPU-a")])) == ["/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia0", "/dev/dri/card0"]
    assert nodes(host.edits([(1, "GPU-b")])) == ["/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia1"]
    both = host.edits([(0, "GPU-a"), (1, "GPU-b")])
    assert nodes(both).count("/dev/nvidiactl") == 1
    assert len(both.content["hooks"]) == len(both.content["mounts"]) == 1
    assert both.version == "0.6.0"


def test_a_specification_that_is_written_anew_is_read_again(folders: list[Path]) -> None:
    host = HostCdi(folders)
    host.edits([(0, "GPU-a")])
    newer = {**NVIDIA, "cdiVersion": "0.7.0", "containerEdits": {"additionalGids": [44]}}
    (folders[1] / "nvidia.yaml").write_text(yaml.safe_dump(newer))
    found = host.edits([(0, "GPU-a")])
    assert found.version == "0.7.0"
    assert found.content["additionalGids"] == [44]


def test_a_specification_is_read_once_for_all_containers_that_start_together(
    folders: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reading takes tenths of a second of CPU time for a machine's whole driver."""
    host, together, load, loaded = HostCdi(folders), threading.Barrier(20), yaml.safe_load, []

    def slow(data: bytes) -> Any:
        loaded.append(data)
        time.sleep(0.05)
        return load(data)

    def edits(_number: int) -> list[str]:
        together.wait(60)
        return nodes(host.edits([(1, "GPU-b")]))

    monkeypatch.setattr("nodeagent.host_cdi.yaml.safe_load", slow)
    with ThreadPoolExecutor(20) as pool:
        found = list(pool.map(edits, range(20)))
    assert found == [["/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia1"]] * 20
    assert len(loaded) == len(set(loaded)), "no file was read twice"


def test_our_own_specifications_are_not_opened(folders: list[Path]) -> None:
    """A reader that waits for a container runtime to open one must not see the agent's own access."""
    own = folders[1] / "slicekeeper.io-seat-probe.json"
    own.write_text("{}")
    with closing(FirstRead(Inotify())) as read:
        assert read.of(own)
        HostCdi(folders, ("slicekeeper.io-seat-",)).edits([(0, "GPU-a")])
        assert not read.wait(0)


def test_what_is_missing_is_said_with_how_to_make_it(folders: list[Path]) -> None:
    with pytest.raises(SeatRefused, match="has GPU GPU-c; make one by `nvidia-ctk cdi generate"):
        HostCdi(folders).edits([(2, "GPU-c")])
    with pytest.raises(SeatRefused, match="nvidia-ctk"):
        HostCdi([]).edits([(0, "GPU-a")])


@pytest.mark.parametrize(
    "text",
    [
        json.dumps({**NVIDIA, "devices": 1}), json.dumps({**NVIDIA, "devices": [{"name": []}]}),
        json.dumps({**NVIDIA, "devices": [{"name": "0", "containerEdits": [1]}]}),
        json.dumps({**NVIDIA, "devices": [{"name": "0", "containerEdits": {"deviceNodes": "x"}}]}),
        json.dumps({**NVIDIA, "containerEdits": "x"}), json.dumps({**NVIDIA, "cdiVersion": 0.5}),
        "a: 2024-13-45", "a: !!int x", "a: !!timestamp x", "\xff", "[" * 2000, "{[a]: b}", "",
    ],
)  # fmt: skip
def test_a_specification_that_is_damaged_is_passed_over(folders: list[Path], text: str) -> None:
    (folders[1] / "nvidia.yaml").write_bytes(text.encode("latin-1"))
    assert nodes(HostCdi(folders).edits([(0, "GPU-a")]))[0] == "/dev/nvidiactl", "there is another one"
    with pytest.raises(SeatRefused, match="no CDI specification"):
        HostCdi(folders[1:]).edits([(0, "GPU-a")])


def test_a_specification_may_be_json_with_tabs(folders: list[Path]) -> None:
    (folders[1] / "nvidia.json").write_text(json.dumps(NVIDIA, indent="\t"))
    assert nodes(HostCdi(folders[1:]).edits([(1, "GPU-b")]))[-1] == "/dev/nvidia1"


def test_versions_are_compared_as_numbers() -> None:
    assert joined([Edits(version="0.10.0"), Edits(version="0.9.0")]).version == "0.10.0"


def spec(made: Any, folder: Path, limited: bool, mounts: list[dict[str, Any]]) -> dict[str, Any]:
    for name in ("cdi", "run"):
        (folder / name).mkdir(exist_ok=True)
    files = SeatFiles(folder / "cdi", folder / "run", "slicekeeper.io/seat", made, mounts)
    seat = Seat(id=f"seat-{limited}", nonce="ab", uid="u", gpus=(made.gpus()[0].uuid,), core=40, limited=limited)
    with files.written(seat, new=True):
        pass
    [device] = json.loads((folder / f"cdi/slicekeeper.io-seat-{seat.name}.json").read_text())["devices"]
    edits: dict[str, Any] = device["containerEdits"]
    return edits


def test_only_a_container_that_is_limited_has_the_limiter(made: Any, tmp_path: Path) -> None:
    mounts = limiter(built(), tmp_path / "lib")
    limited, free = (spec(made(1), tmp_path, wanted, mounts) for wanted in (True, False))
    assert limited["deviceNodes"] == free["deviceNodes"] == [{"path": "/dev/GPU-0"}]
    there = {mount["containerPath"]: mount for mount in limited["mounts"]}
    preload = there["/etc/ld.so.preload"]
    library = there[Path(preload["hostPath"]).read_text().strip()]
    assert Path(library["hostPath"]).read_bytes() == (built() / "libvcuda.so").read_bytes()
    assert "ro" in library["options"]
    assert "noexec" not in library["options"]
    assert [mount["containerPath"] for mount in free["mounts"]] == ["/run/slicekeeper"]
    assert limiter(built(), tmp_path / "lib") == mounts, "the next agent of this release finds them there"


def test_a_container_that_is_to_be_limited_has_no_devices_without_the_limiter(made: Any, tmp_path: Path) -> None:
    with pytest.raises(SeatRefused, match="no limiter in nodeAgent.programsDir"):
        spec(made(1), tmp_path, True, limiter(tmp_path, tmp_path / "lib"))


def test_made_up_gpus_come_with_the_fake_driver(driver: Any, tmp_path: Path) -> None:
    world = Path(driver.environ["SLICEKEEPER_FAKE_WORLD"])
    gpus = NvmlGpus(tmp_path / "withdrawn", FakeDevices(built(), tmp_path / "lib", world))
    second = gpus.gpus()[1].uuid
    edits = gpus.edits([second]).content
    assert f"CUDA_VISIBLE_DEVICES={second}" in edits["env"]
    there = {mount["containerPath"]: Path(mount["hostPath"]) for mount in edits["mounts"]}
    assert there["/usr/lib/x86_64-linux-gnu/libcuda.so.1"].exists()
    assert there["/run/slicekeeper-fake/world"] == world
    assert world.stat().st_mode & 0o777 == 0o666, "users who are not root have GPUs too"
