# SPDX-License-Identifier: Apache-2.0
"""The usage that sidecars get of their pods, from the real arbiter and work on the fake driver."""

from __future__ import annotations

import os
import shutil
import signal
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support.vcuda_programs import built
from support.waiting import wait_for

from nodeagent.arbiter_client import Arbiter
from nodeagent.host_cdi import HostCdi
from nodeagent.live_seats import LiveSeats
from nodeagent.nvml_gpus import NvmlGpus
from nodeagent.seat_files import SeatFiles
from nodeagent.seat_store import Seat, SeatStore
from nodeagent.shares import Shares
from nodeagent.usage_files import UsageFiles
from nodeagent.whole_gpu_usage import WholeGpus
from sidecar.epoch import EpochCounter
from sidecar.usage_file import FileUsage, UsageReading
from slicekeeper import names

UNKNOWN = UsageReading(None, "unknown")


class Bench:
    """An agent's counters, the containers that work, and one pod's sidecar beside them."""

    def __init__(self, running: Any, driver: Any, made: Any, folder: Path) -> None:
        self.running, self.driver, self.made, self.folder = running, driver, made, folder
        self.processes: list[subprocess.Popen[bytes]] = []
        self.gpu = wait_for(running.read, "the arbiter answers").gpus[1].uuid
        self.gpus: Any = made(1)
        self.agent()

    def agent(self) -> None:
        """Start as another process would: only the folders are the same."""
        self.store = SeatStore(self.folder / "state")
        files = SeatFiles(self.folder / "cdi", self.running.folder, "slicekeeper.io/seat", self.made(1))
        arbiter = Arbiter(self.running.folder)
        self.shares = Shares(arbiter, self.store, limits=True)
        self.live = LiveSeats(self.store)
        self.usage = UsageFiles(arbiter, WholeGpus(self.gpus, files), self.store, files, self.live)
        for seat in self.store.all():
            files.make_folder(seat)

    def pod(self, number: int, core: int = 40) -> Path:
        """Give the seats of a pod and return the folder that its sidecar sees."""
        uid = f"c0ffee00-0000-4000-8000-00000000000{number}"
        train = Seat(
            id=f"seat-000{number}",
            nonce="ab",
            namespace="team",
            pod=f"p{number}",
            uid=uid,
            container="train",
            gpus=(self.gpu,),
            core=core,
            memory_mib=2048,
            limited=core < 100,
        )
        sidecar = Seat(
            id=f"seat-100{number}", nonce="ab", namespace="team", pod=f"p{number}", uid=uid, container=names.SIDECAR
        )
        for seat in (train, sidecar):
            self.store.put(seat)
            self.shares.give(seat)
            (self.running.folder / "seats" / seat.name).mkdir(exist_ok=True)
        return Path(self.running.folder / "seats" / sidecar.name)

    def work(self, number: int, seconds: float) -> subprocess.Popen[bytes]:
        """Keep a pod's slice busy."""
        return self.run(number, "tenant", "--kernel-us", "500", "--seconds", str(seconds))

    def run(self, number: int, program: str, *arguments: str) -> subprocess.Popen[bytes]:
        """Start a program in a pod's slice."""
        build = built()
        seat = self.running.folder / f"seats/seat-000{number}-ab/seat.sock"
        environ = {
            **os.environ,
            **self.driver.environ,
            "SLICEKEEPER_SEAT": str(seat),
            "CUDA_VISIBLE_DEVICES": self.gpu,
            "LD_PRELOAD": str(build / "libvcuda.so"),
            "LD_LIBRARY_PATH": str(build / "fake"),
        }
        command = [str(build / "fake" / program), *arguments]
        self.processes.append(subprocess.Popen(command, env=environ, stdout=subprocess.DEVNULL))
        return self.processes[-1]

    def read(self, folder: Path) -> UsageReading:
        """Return what the sidecar reads now."""
        self.usage.write()
        return FileUsage(folder / "usage.json").read("train")


@pytest.fixture
def bench(arbiter: Any, driver: Any, made: Any, tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(arbiter, driver, made, tmp_path)
    yield bench
    for process in bench.processes:
        process.kill()
        process.wait()


def test_each_sidecar_is_told_its_own_pods_time_and_no_others(bench: Bench) -> None:
    folders = [bench.pod(number) for number in (1, 2)]
    assert [bench.read(folder).used_ms for folder in folders] == [0, 0]
    assert bench.work(1, 0.5).wait(60) == 0
    used = [bench.read(folder) for folder in folders]
    held = {seat.seat: seat.busy_ns // 1_000_000 for seat in bench.running.read().seats}
    assert used[0].used_ms == held["seat-0001-ab"] > 0
    assert used[0].source == "node"
    assert used[1].used_ms == 0
    for folder, own in zip(folders, ("p1", "p2"), strict=True):
        text = (folder / "usage.json").read_text()
        assert list(msgspec.json.decode(text)["containers"]) == ["train"], own
        assert (folder / "usage.json").stat().st_mode & 0o777 == 0o644, "the sidecar is not root"


def test_a_sidecar_is_told_the_memory_that_its_pod_holds_now(bench: Bench) -> None:
    folder = bench.pod(1)
    assert bench.read(folder).memory_mib == 0
    holder = bench.run(1, "memory", "hold", "256")
    wait_for(lambda: bench.read(folder).memory_mib == 256, "it is held", seconds=60)
    holder.kill()
    wait_for(lambda: bench.read(folder).memory_mib == 0, "it is given back")


def test_memory_of_several_gpus_is_added_up_and_unknown_if_one_of_them_does_not_tell(bench: Bench) -> None:
    bench.gpus = bench.made(2)
    bench.gpus.busy = {"GPU-0": [(1, 0)], "GPU-1": [(1, 0)]}
    bench.agent()
    folder = bench.pod(1, core=100)
    train = bench.store.get("seat-0001")
    bench.store.put(msgspec.structs.replace(train, gpus=("GPU-0", "GPU-1")))
    assert (bench.read(folder).used_ms, bench.read(folder).memory_mib) == (0, 2048)
    bench.gpus.silent = {"GPU-1"}
    assert (bench.read(folder).used_ms, bench.read(folder).memory_mib) == (0, None)


def test_of_a_fraction_without_the_limiter_nothing_is_known(bench: Bench) -> None:
    folder = bench.pod(1)
    bench.store.put(msgspec.structs.replace(bench.store.get("seat-0001"), limited=False))
    for _ in range(2):
        assert bench.read(folder) == UNKNOWN
    [shown] = bench.live.seats().seats
    assert (shown.given_percent, shown.used_percent, shown.memory_mib) == (None, None, None)


def test_a_restarted_agent_counts_on(bench: Bench) -> None:
    folder = bench.pod(1)
    bench.work(1, 0.3).wait(60)
    before = bench.read(folder)
    bench.agent()
    assert bench.read(folder) == before
    bench.work(1, 0.3).wait(60)
    after = bench.read(folder)
    assert (after.life, after.used_ms > before.used_ms) == (before.life, True)


def test_usage_is_unknown_while_the_arbiter_is_away(bench: Bench) -> None:
    folder = bench.pod(1)
    assert bench.read(folder).used_ms == 0
    bench.running.stop()
    assert bench.read(folder) == UNKNOWN
    bench.running.start()
    wait_for(lambda: bench.read(folder) != UNKNOWN, "it is known again")


def test_a_whole_gpu_is_counted_by_the_driver(bench: Bench, driver: Any, tmp_path: Path) -> None:
    bench.gpus = NvmlGpus(tmp_path / "withdrawn", HostCdi([]))
    bench.agent()
    folder = bench.pod(1, core=100)
    wait_for(lambda: bench.read(folder) != UNKNOWN, "there is a first sample")
    index = [gpu.uuid for gpu in bench.gpus.gpus()].index(bench.gpu)
    before = driver.library.skfBusy(index, 0)
    build = built()
    environ = {
        **os.environ,
        **driver.environ,
        "CUDA_VISIBLE_DEVICES": bench.gpu,
        "LD_LIBRARY_PATH": str(build / "fake"),
    }
    command = [str(build / "fake/tenant"), "--kernel-us", "500", "--seconds", "0.6"]
    bench.processes.append(subprocess.Popen(command, env=environ, stdout=subprocess.DEVNULL))
    wait_for(lambda: bench.read(folder) and bench.processes[-1].poll() is not None, "it has ended", seconds=60)
    busy_ms = (driver.library.skfBusy(index, 0) - before) // 1_000_000
    assert busy_ms > 100
    # Percentages are whole ones, rounded down, of stretches of at least a sixth of a second.
    wait_for(lambda: 0.9 * busy_ms - 50 <= bench.read(folder).used_ms <= busy_ms, "all of it is counted")
    assert bench.live.seats().seats[0].memory_mib == 0


def test_pods_that_are_gone_are_unknown(bench: Bench) -> None:
    assert bench.read(bench.pod(1, core=100)) == UNKNOWN, "made-up GPUs have no driver"
    folder = bench.pod(2)
    bench.store.drop(bench.store.get("seat-1002"))
    assert bench.read(folder) == UNKNOWN


def test_another_arbiter_counts_on_and_nothing_twice(bench: Bench, tmp_path: Path) -> None:
    folder = bench.pod(1)
    counter, newest = EpochCounter(tmp_path / "spool", "train"), dict[int, int]()

    def report() -> UsageReading:
        reading = bench.read(folder)
        epoch, _, used = counter.next(reading.used_ms, reading.life)
        if used is not None:
            newest[epoch] = used
        return reading

    begin = report()
    bench.work(1, 0.3).wait(60)
    pid, first = bench.running.read().pid, report()
    wait_for(lambda: _kept(bench) == first.used_ms, "it is kept")
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: bench.running.read() is not None and bench.running.read().pid != pid, "there is another one")
    assert report() == first
    bench.work(1, 0.3).wait(60)
    last = report()
    assert (last.life, last.used_ms > first.used_ms) == (begin.life, True)
    assert newest == {min(newest): last.used_ms}


def test_a_reboot_begins_a_new_counter(bench: Bench) -> None:
    folder = bench.pod(1)
    bench.work(1, 0.3).wait(60)
    before = bench.read(folder)
    bench.running.stop()
    shutil.rmtree(bench.running.folder / "state")
    bench.running.start()
    wait_for(bench.running.read, "the arbiter answers")
    bench.shares.compare()
    after = bench.read(folder)
    assert after.used_ms == 0
    assert after.life != before.life


def _kept(bench: Bench) -> int:
    """Return the milliseconds that the next arbiter would count on from."""
    record = (bench.running.folder / "state/seat-0001-ab.held").read_bytes()[:24]
    kind, _, _, busy = struct.unpack("=iiQQ", record)
    assert kind == -2
    return int(busy) // 1_000_000
