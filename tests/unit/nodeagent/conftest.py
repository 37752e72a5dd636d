# SPDX-License-Identifier: Apache-2.0
"""An agent's seats over a fake kubelet."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from support.sharing import Sharing
from support.vcuda_programs import built

from nodeagent.arbiter_client import Arbiter, ArbiterAway, Telemetry
from nodeagent.arbiter_keeper import ArbiterKeeper
from nodeagent.device_plugin import SeatPlugin
from nodeagent.fake_driver import install
from nodeagent.host_cdi import Edits
from nodeagent.pod_resources import PodResources
from nodeagent.seat_files import SeatFiles
from nodeagent.seat_store import SeatStore
from nodeagent.seats import Seats
from nodeagent.shares import Shares
from slicekeeper import names
from slicekeeper.config.settings import Resources
from slicekeeper.errors import Unavailable
from slicekeeper.gpu.inventory import Gpu

_SPEC = importlib.util.spec_from_file_location("fake_kubelet", Path(__file__).with_name("fake_kubelet.py"))
assert _SPEC is not None
assert _SPEC.loader is not None
_MODULE = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(_MODULE)
FakeKubelet = _MODULE.FakeKubelet


class Made:
    """GPUs that exist by name only, for what asks no driver."""

    def __init__(self, count: int) -> None:
        self.busy: dict[str, list[tuple[int, int]]] = {}
        """What `samples` tells, by UUID."""
        self.silent: set[str] = set()
        """GPUs of which the driver does not tell the memory in use."""
        self.known = [Gpu(f"GPU-{index}", "A100-SXM4-80GB", 81920) for index in range(count)]

    def gpus(self) -> list[Gpu]:
        return list(self.known)

    def indexes(self) -> dict[str, int]:
        return {gpu.uuid: int(gpu.uuid.removeprefix("GPU-")) for gpu in self.known}

    def driver(self) -> tuple[str, str]:
        return "550.54.14", ""

    def troubles(self) -> dict[str, str]:
        return {}

    def look(self, seconds: float) -> None:
        time.sleep(seconds)

    def samples(self, uuid: str, after_us: int) -> list[tuple[int, int]] | None:
        told = self.busy.get(uuid)
        return None if told is None else sorted(sample for sample in told if sample[0] > after_us)

    def memory_used(self, uuid: str) -> int | None:
        return None if uuid not in self.busy or uuid in self.silent else 1 << 30

    def edits(self, uuids: Sequence[str]) -> Edits:
        return Edits({"deviceNodes": [{"path": f"/dev/{uuid}"} for uuid in uuids]})


GPUS = Made(2)


class _Health(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_uint32) for name in ("xid", "xids", "pending", "failed", "mig", "lost")),
        ("ecc", ctypes.c_uint64),
        ("mig_flips", ctypes.c_uint32),
    )


class Driver:
    """What a test does to the fake driver's GPUs."""

    def __init__(self, library: ctypes.CDLL, folder: Path, environ: dict[str, str]) -> None:
        self.library, self.folder, self.environ = library, folder, environ
        library.skfBusy.restype = ctypes.c_uint64

    def xid(self, gpu: int, number: int) -> None:
        self.library.skfXid(gpu, number)

    def health(self, gpu: int, **values: int) -> None:
        self.library.skfHealth(gpu, ctypes.byref(_Health(**values)))

    def mig(self, gpu: int, profiles: str | None) -> None:
        """Divide a GPU, such as `3g.40gb+4g.40gb`; None: it leaves MIG mode."""
        self.library.skfMig(gpu, profiles.encode() if profiles is not None else None)


class Running:
    """An arbiter and its keeper."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.arbiter = Arbiter(folder)

    def start(self) -> None:
        self._told = threading.Event()
        keeper = ArbiterKeeper(built() / "arbiter", self.folder, ["--fake"])
        self._thread = threading.Thread(target=keeper.run, args=(self._told,), daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._told.set()
        self._thread.join(30)
        assert not self._thread.is_alive()

    def read(self) -> Telemetry | None:
        try:
            return self.arbiter.read()
        except ArbiterAway:
            return None


class Pods:
    """The node's pods, as a watch would have them."""

    def __init__(self) -> None:
        self.known: dict[tuple[str, str], dict[str, Any]] = {}
        self.server: dict[tuple[str, str], dict[str, Any]] | None = {}
        """What the API server would say that the watch has not shown yet; None: it does not answer."""

    def all(self) -> list[dict[str, Any]]:
        return list(self.known.values())

    def find(self, namespace: str, name: str, seconds: float) -> dict[str, Any] | None:
        return self.known.get((namespace, name))

    def ask(self, namespace: str, name: str) -> dict[str, Any] | None:
        if self.server is None:
            raise Unavailable("no answer")
        return self.server.get((namespace, name))

    def add(self, name: str, gpu: int | None, core: int = 50, blocks: int = 8, at: str = "10:00:00") -> dict[str, Any]:
        annotations = {names.BOUND_AT: f"2026-01-01T{at}.000Z"}
        if gpu is not None:
            annotations[names.gpu_annotation("train")] = GPUS.gpus()[gpu].uuid
        limits = {"tencent.com/vcuda-core": str(core), "tencent.com/vcuda-memory": str(blocks)}
        pod = {
            "metadata": {"namespace": "team", "name": name, "uid": f"uid-{name}", "annotations": annotations},
            "spec": {"containers": [{"name": "train", "resources": {"limits": limits}}]},
            "status": {"phase": "Pending"},
        }
        self.known["team", name] = pod
        return pod


class Bench:
    """Everything of one agent but its API client, and the kubelet beside it."""

    def __init__(self, folder: Path) -> None:
        for name in ("plugins", "cdi", "run", "state"):
            (folder / name).mkdir()
        self.folder = folder
        self.kubelet = FakeKubelet(folder / "plugins")
        self.pods = Pods()
        self.refused: list[str] = []
        self.kubelet.start()
        self.agent()

    def agent(self, seats: int = 4) -> None:
        """Start an agent as if it were another process: only the folders are the same."""
        self.store = SeatStore(self.folder / "state")
        mounts = [{"hostPath": "/lib/libvcuda.so", "containerPath": names.LIBRARY_PATH}]
        files = SeatFiles(self.folder / "cdi", self.folder / "run", "slicekeeper.io/seat", GPUS, mounts)
        self.files = files
        owners = PodResources(self.folder / "plugins/pods.sock", "slicekeeper.io/seat").owners
        shares = Shares(Arbiter(self.folder / "run"), self.store, limits=False)
        self.seats = Seats(
            self.store,
            files,
            self.pods,
            GPUS,
            Resources(),
            owners,  # type: ignore[arg-type]
            lambda _pod, why: self.refused.append(why),
            shares,
        )
        self.seats.restore()
        ids = [f"seat-{number:04}" for number in range(seats)]
        self.plugin = SeatPlugin(self.folder / "plugins", "slicekeeper.io/seat", ids, self.seats)
        self.kubelet.came.clear()
        self.plugin.start()
        assert self.kubelet.came.wait(60)

    def start(self, seat: str, name: str) -> str:
        """Have kubelet start a pod's container with a seat; return its device."""
        self.kubelet.owners[seat] = [("team", name, "train")]
        [device] = self.kubelet.allocate(seat)
        self.kubelet.pre_start(seat)
        return str(device)

    def start_sidecar(self, seat: str, name: str) -> None:
        self.kubelet.owners[seat] = [("team", name, names.SIDECAR)]
        self.kubelet.allocate(seat)
        self.kubelet.pre_start(seat)

    def specs(self) -> list[Path]:
        every = (self.folder / "cdi").glob("*.json")
        return sorted(file for file in every if not file.name.endswith("-probe.json"))


class Arrivals:
    """Counts who has come to a CoalescedCall, by its lock: each takes it once, and whoever makes the call once more."""

    def __init__(self, shared: Any) -> None:
        self._lock, self._taken = shared._lock, 0
        shared._lock = self

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._taken += 1
        self._lock.release()

    def callers(self, calls: int) -> int:
        """Return how many have come, after so many calls have begun."""
        return self._taken - calls


@pytest.fixture
def arrivals() -> type[Arrivals]:
    """Give the class."""
    return Arrivals


@pytest.fixture(autouse=True)
def _no_container_runtime(monkeypatch: pytest.MonkeyPatch) -> None:
    """No process here reads specifications, except in one test, so do not wait for any."""
    monkeypatch.setattr("nodeagent.cdi_probe.READ_SECONDS", 0.0)


@pytest.fixture
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    made = Bench(tmp_path_factory.mktemp("n"))
    yield made
    made.plugin.stop()
    made.kubelet.stop()
    made.files.probe.stop()


@pytest.fixture
def fake_kubelet() -> type[Any]:
    """The fake kubelet's class: a folder of tests is no package to import it from."""
    return FakeKubelet  # type: ignore[no-any-return]


@pytest.fixture
def made() -> type[Made]:
    """GPUs of no driver."""
    return Made


@pytest.fixture(scope="session")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Driver:
    """The fake driver with four GPUs, in place of NVIDIA's for this whole process."""
    folder = tmp_path_factory.mktemp("driver")
    install("4:A100-SXM4-40GB", "node-1", built(), folder)
    library = ctypes.CDLL("libnvidia-ml.so.1")
    library.nvmlInit_v2()  # here the driver reads its variables, which no other test is to see
    prefix = "SLICEKEEPER_FAKE_"
    return Driver(library, folder, {name: os.environ.pop(name) for name in [*os.environ] if name.startswith(prefix)})


@pytest.fixture
def arbiter(driver: Driver, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The real arbiter over the fake driver, kept by its keeper."""
    for name, value in driver.environ.items():
        monkeypatch.setenv(name, value)
    folder = tmp_path_factory.mktemp("r")
    running = Running(folder)
    running.start()
    yield running
    running.stop()


@pytest.fixture
def sharing(arbiter: Any, tmp_path: Path) -> Iterator[Sharing]:
    """One agent's shares."""
    made = Sharing(arbiter, tmp_path)
    yield made
    made.shares.stop()


@pytest.fixture
def switching() -> Iterator[None]:
    """Let threads take turns as often as they can."""
    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(usual)
