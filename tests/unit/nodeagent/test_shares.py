# SPDX-License-Identifier: Apache-2.0
"""What the real arbiter holds for fractions, as their pods' annotations change and as it is killed."""

from __future__ import annotations

import errno
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from support.small_cluster import wait_for
from support.vcuda_programs import built

from nodeagent import arbiter_keeper as module_of_keeper
from nodeagent import shares as module
from nodeagent.arbiter import CONNECTIONS, Arbiter, ArbiterAway, ArbiterRefused
from nodeagent.arbiter_keeper import ArbiterKeeper
from nodeagent.container_usage import Count
from nodeagent.host_cdi import HostCdi
from nodeagent.live_seats import Live
from nodeagent.metrics import SeatMetrics, ShareMetrics
from nodeagent.node_pods import NodePods
from nodeagent.nvml_gpus import NvmlGpus
from nodeagent.run_folder import RunFolderRemoved, check_run_folder
from nodeagent.seat_store import Seat, SeatStore
from nodeagent.shares import Shares, policy
from slicekeeper import names
from slicekeeper.config.settings import KubernetesSettings
from slicekeeper.kube.client import KubeClient

GIB = 1 << 30


class Bench:
    """One agent's shares, without the rest of it."""

    def __init__(self, running: Any, folder: Path) -> None:
        self.running, self.folder = running, folder
        self.ceiling: int | None = 100
        self.pods: list[dict[str, Any]] = []
        wait_for(running.read, "the arbiter answers")
        self.gpus = NvmlGpus(folder / "withdrawn", HostCdi([]))
        self.gpu = self.gpus.gpus()[1].uuid
        self.agent()

    def agent(self) -> None:
        """Start as another process would: only the folders are the same."""
        self.store = SeatStore(self.folder / "state")
        self.shares = Shares(Arbiter(self.running.folder), self.store, limits=True, ceiling_of=lambda _: self.ceiling)

    def all(self) -> list[dict[str, Any]]:
        return list(self.pods)

    def seat(self, number: int, core: int = 40, limit: str = "70", **annotations: str) -> Seat:
        """Start a container as `Seats` does."""
        uid = f"c0ffee00-0000-4000-8000-00000000000{number}"
        limits = {"tencent.com/vcuda-core": str(core), "tencent.com/vcuda-memory": "8"}
        pod = {
            "metadata": {
                "namespace": "team",
                "name": f"p{number}",
                "uid": uid,
                "annotations": {names.CORE_LIMIT: limit, **annotations},
            },
            "spec": {"containers": [{"name": "train", "resources": {"limits": limits}}]},
            "status": {"phase": "Running"},
        }
        self.pods.append(pod)
        seat = self.shares.said(
            pod,
            Seat(
                id=f"seat-000{number}",
                nonce="ab",
                namespace="team",
                pod=f"p{number}",
                uid=uid,
                container="train",
                gpus=(self.gpu,),
                core=core,
                memory_mib=2048,
                limited=True,
            ),
        )
        self.store.put(seat)
        self.shares.give(seat)
        return seat

    def annotate(self, **annotations: str) -> None:
        """Change the first pod as a watch shows it: by another object."""
        metadata = self.pods[0]["metadata"]
        metadata = {**metadata, "annotations": metadata["annotations"] | annotations}
        self.pods[0] = {**self.pods[0], "metadata": metadata}
        self.shares.changed()

    def held(self) -> dict[str, tuple[int, int, int, str]]:
        told = self.running.read()
        if told is None:
            return {}
        return {s.seat: (s.gpu, s.core, s.limit, s.vclass) for s in told.seats}


@pytest.fixture
def bench(arbiter: Any, tmp_path: Path) -> Iterator[Bench]:
    made = Bench(arbiter, tmp_path)
    yield made
    made.shares.stop()


def test_a_fraction_is_held_before_its_container_starts(bench: Bench) -> None:
    seat = bench.seat(1)
    assert bench.held() == {"seat-0001-ab": (1, 40, 70, "in-budget")}
    told = bench.running.read().seats[0]
    assert (told.memory_limit, told.processes) == (2 * GIB, 0)
    assert (bench.running.folder / "seats" / seat.name / "seat.sock").is_socket()


def test_containers_that_start_together_are_all_held(bench: Bench) -> None:
    """The arbiter hangs up on some of more than 64 who ask at once, and the kernel refuses others."""
    first = bench.seat(1)
    together = threading.Barrier(200)

    def give(number: int) -> None:
        together.wait(60)
        bench.shares.give(replace(first, id=f"seat-{number}", core=1))
        bench.running.arbiter.read()

    with ThreadPoolExecutor(200) as pool:
        list(pool.map(give, range(200)))
    assert bench.held().keys() == {first.name, *(f"seat-{number}-ab" for number in range(200))}


def test_who_finds_others_waiting_for_an_arbiter_that_hangs_gives_up_before_kubelet_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nodeagent.arbiter.ANSWER_SECONDS", 60.0)
    arbiter = Arbiter(tmp_path)
    with socket.socket(socket.AF_UNIX) as hangs, ThreadPoolExecutor(CONNECTIONS) as pool:
        hangs.bind(str(tmp_path / "control.sock"))
        hangs.listen(CONNECTIONS)
        others = [pool.submit(arbiter.read) for _ in range(CONNECTIONS)]
        connections = [hangs.accept()[0] for _ in others]
        monkeypatch.setattr("nodeagent.arbiter.TURN_SECONDS", 0.1)
        with pytest.raises(ArbiterAway, match=f"has not answered {CONNECTIONS} others for 0.1 s"):
            arbiter.read()
        for connection in connections:
            connection.close()
        for other in others:
            with pytest.raises(ArbiterAway, match="does not answer"):
                other.result(30)


def test_a_whole_gpu_has_no_seat_at_the_arbiter(bench: Bench) -> None:
    bench.shares.give(Seat(id="seat-0009", nonce="ab", uid="u", gpus=(bench.gpu,), core=100))
    assert bench.held() == {}


def test_a_process_in_the_seat_meets_its_caps(bench: Bench, driver: Any) -> None:
    seat = bench.seat(1)
    build = built()
    environ = {
        **os.environ,
        **driver.environ,
        "LD_PRELOAD": str(build / "libvcuda.so"),
        "CUDA_VISIBLE_DEVICES": bench.gpu,
        "LD_LIBRARY_PATH": str(build / "fake"),
        "SLICEKEEPER_SEAT": str(bench.running.folder / "seats" / seat.name / "seat.sock"),
    }
    asked = (
        "import ctypes;c=ctypes.CDLL('libcuda.so.1');c.cuInit(0);n=ctypes.c_size_t();"
        "c.cuDeviceTotalMem_v2(ctypes.byref(n),0);print(n.value)"
    )
    done = subprocess.run(
        ["python3", "-c", asked], env=environ, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout.strip() == str(2 * GIB), done.stderr


def test_a_change_of_budget_or_ceiling_reaches_the_arbiter_at_once(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "COMPARE_SECONDS", 600.0)
    for number in (1, 2):
        bench.seat(number)
    bench.shares.start(bench)
    for state, limit, expected in (
        (names.OVER_BUDGET, "70", (70, "background")),
        (names.OVER_BUDGET, "50", (50, "background")),
        (names.IN_BUDGET, "90", (90, "in-budget")),
    ):
        bench.annotate(**{names.BUDGET_STATE: state, names.CORE_LIMIT: limit})
        wait_for(lambda want=expected: bench.held()["seat-0001-ab"][2:] == want, "the arbiter has it")
        assert bench.held()["seat-0002-ab"][2:] == (70, "in-budget"), "the other stays as it was"
        bench.shares.compare()  # now it has nothing more to say
    bench.annotate(**{names.CORE_LIMIT: "nonsense", names.GPU_CLASS: names.BACKGROUND})
    wait_for(
        lambda: bench.held()["seat-0001-ab"][2:] == (90, "background"), "what cannot be read keeps the last ceiling"
    )


def test_of_changes_that_follow_at_once_the_last_one_reaches_the_arbiter(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A state that is reverted before the next look is not seen, but the last state is never missed."""
    monkeypatch.setattr(module, "COMPARE_SECONDS", 600.0)
    client, chance = KubeClient(KubernetesSettings(server="http://localhost:1")), random.Random(7)
    watch = NodePods(client, "node-1", lambda _left: None, bench.shares.changed)
    bench.seat(1)
    bench.shares.start(watch)
    for turn in range(40):
        for state in chance.choices((names.OVER_BUDGET, names.IN_BUDGET), k=chance.randint(1, 5)):
            limit = 40 + chance.randint(0, 60)
            bench.annotate(**{names.BUDGET_STATE: state, names.CORE_LIMIT: str(limit)})
            watch.on_event("MODIFIED", bench.pods[0])
            time.sleep(chance.choice((0, 0, 0.001, 0.004)))
        last = (limit, "background" if state == names.OVER_BUDGET else "in-budget")
        wait_for(lambda want=last: bench.held()["seat-0001-ab"][2:] == want, f"change {turn}: {last}")


def test_no_ceiling_is_above_the_namespaces(bench: Bench) -> None:
    bench.shares._pods = bench  # without the thread: whoever compares beside it may see the half of what it does
    bench.ceiling = None
    bench.seat(1)
    assert bench.held()["seat-0001-ab"][2] == 70, "before the policy is known, what the webhook let pass"
    for ceiling, limit, expected in ((60, "70", 60), (60, "90", 60), (60, "50", 50), (30, "50", 40), (80, "75", 75)):
        bench.ceiling = ceiling
        bench.annotate(**{names.CORE_LIMIT: limit})
        bench.shares.compare()
        assert bench.held()["seat-0001-ab"][2] == expected, f"{limit} under {ceiling}"
    bench.shares.compare()  # now the pod has nothing more to say, its policy may have
    bench.ceiling = 65
    bench.shares.compare()
    assert bench.held()["seat-0001-ab"][2] == 65, "the policy alone has changed"
    bench.ceiling = None
    bench.annotate(**{names.CORE_LIMIT: "100"})
    bench.shares.compare()
    assert bench.held()["seat-0001-ab"][2] == 65, "while the policy cannot be read the last ceiling holds"
    for ceiling, limit, expected in ((80, "10", 40), (80, "75", 75), (80, "nonsense", 75), (50, "nonsense", 50)):
        bench.ceiling = ceiling
        bench.annotate(**{names.CORE_LIMIT: limit})
        bench.shares.compare()
        assert bench.held()["seat-0001-ab"][2] == expected, f"a request of 40 with {limit} under {ceiling}"


def test_a_ceiling_below_one_containers_request_still_holds_for_the_others(bench: Bench) -> None:
    bench.shares._pods = bench  # without the thread
    small = bench.seat(1, core=20)
    [container] = bench.pods[0]["spec"]["containers"]
    limits = {"tencent.com/vcuda-core": "60", "tencent.com/vcuda-memory": "8"}
    container_beside = {"name": "beside", "resources": {"limits": limits}}
    bench.pods[0] = {**bench.pods[0], "spec": {"containers": [container, container_beside]}}
    large = replace(small, id="seat-0002", container="beside", core=60)
    bench.store.put(large)
    for said, expected in (
        ({names.CORE_LIMIT: "50"}, (50, 60)),
        ({names.CORE_LIMIT: "90", names.limit_annotation("beside"): "70"}, (90, 70)),
        ({names.limit_annotation("beside"): "1"}, (90, 60)),
    ):
        bench.annotate(**said)
        bench.shares.compare()
        held = bench.held()
        assert (held[small.name][2], held[large.name][2]) == expected


def test_a_full_disk_keeps_no_slice_from_its_class(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    bench.shares._pods = bench  # without the thread
    seats = [bench.seat(number) for number in (1, 2)]

    def full(*_file: object, **_options: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr("nodeagent.seat_store.replace_file", full)
        over = {names.BUDGET_STATE: names.OVER_BUDGET}
        bench.pods[:] = [
            {**pod, "metadata": {**pod["metadata"], "annotations": {**pod["metadata"]["annotations"], **over}}}
            for pod in bench.pods
        ]
        for _ in range(2):
            bench.shares.compare()
        assert {seat.name: bench.held()[seat.name][3] for seat in seats} == dict.fromkeys(
            (seat.name for seat in seats), "background"
        )
    assert caplog.text.count("No space left on device") == 1
    bench.shares.compare()
    assert all(seat.background for seat in SeatStore(bench.folder / "state").all()), "saved when there is room again"


def test_the_last_policy_holds_while_nobody_tells_of_the_pods(bench: Bench) -> None:
    bench.seat(1)
    bench.annotate(**{names.BUDGET_STATE: names.OVER_BUDGET})
    bench.shares.start(bench)
    wait_for(lambda: bench.held()["seat-0001-ab"][3] == "background", "the arbiter has it")
    wait_for(lambda: bench.store.get("seat-0001").background, "and the next agent will")
    bench.shares.stop()
    bench.pods.clear()
    bench.agent()
    bench.shares.start(bench)
    bench.running.stop()
    shutil.rmtree(bench.running.folder / "state")  # as a reboot does
    bench.running.start()
    wait_for(lambda: bench.held() == {"seat-0001-ab": (1, 40, 70, "background")}, "it is what it was")


def test_the_nodes_label_says_by_which_rule_time_is_shared(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    bench.shares.compare()
    assert bench.running.read().rule == "slicekeeper", "nobody has said which yet"
    for label, expected in (
        ("gemini", "gemini"),
        ("nonsense", "slicekeeper"),
        ("kubegpu", "kubegpu"),
        ("", "slicekeeper"),
    ):
        bench.shares.look_at({"metadata": {"labels": {names.RULE: label} if label else {}}})
        bench.shares.compare()
        assert bench.running.read().rule == expected
    assert "'nonsense': it must be one of slicekeeper, kubegpu, gemini" in caplog.text
    bench.shares.look_at({"metadata": {"labels": {names.RULE: "gemini"}}})
    bench.running.stop()
    bench.running.start()
    wait_for(bench.running.read, "the arbiter answers")
    bench.shares.compare()
    assert bench.running.read().rule == "gemini", "an arbiter that starts is told again"


def test_a_pod_that_is_gone_leaves_no_seat(bench: Bench) -> None:
    seats = [bench.seat(number) for number in (1, 2)]
    bench.store.drop(seats[0])
    bench.shares.compare()
    assert list(bench.held()) == ["seat-0002-ab"]


def test_metrics_name_the_container(bench: Bench) -> None:
    bench.seat(1, **{names.GPU_CLASS: names.BACKGROUND})
    metrics = ShareMetrics(Arbiter(bench.running.folder), bench.store, bench.gpus, Live(bench.store), "node-1")
    found = {sample.name: sample for metric in metrics.collect() for sample in metric.samples}
    assert found["DCGM_FI_DEV_FB_USED"].labels == {
        "gpu": "1",
        "UUID": bench.gpu,
        "modelName": "A100-SXM4-40GB",
        "Hostname": "node-1",
        "namespace": "team",
        "pod": "p1",
        "container": "train",
    }
    assert found["slicekeeper_gpu_busy_seconds_total"].value == 0
    assert found["slicekeeper_gpu_memory_limit_bytes"].value == 2 * GIB
    assert (found["slicekeeper_gpu_request_ratio"].value, found["slicekeeper_gpu_background"].value) == (0.4, 1)
    assert [sample.value for metric in SeatMetrics(bench.store).collect() for sample in metric.samples] == [1]
    bench.store.put(replace(bench.store.get("seat-0001"), limited=False))
    assert all(not metric.samples for metric in metrics.collect()), "without the limiter nothing is counted"
    bench.running.stop()
    assert all(not metric.samples for metric in metrics.collect()), "a scrape does not fail"
    bench.running.start()


def test_metrics_have_whole_gpus_by_the_drivers_word_without_an_arbiter(made: Any, tmp_path: Path) -> None:
    gpus, store = made(2), SeatStore(tmp_path / "state")
    now = [100.0]
    live = Live(store, now=lambda: now[0])
    for name in ("whole", "silent"):
        store.put(
            Seat(id=name, nonce="1", namespace="team", pod=name, uid=name, container="c", gpus=("GPU-1",), core=100)
        )
    metrics = ShareMetrics(Arbiter(tmp_path), store, gpus, live, "node-1")
    for seconds in (1, 2):
        live.take(
            [
                Count(
                    seat="whole-1",
                    gpu="GPU-1",
                    life="1",
                    by="1",
                    wall_ns=seconds * 10**9,
                    busy_ns=seconds * 4 * 10**8,
                    granted_ns=seconds * 10**9,
                    memory=3 << 30,
                )
            ]
        )
    found = {sample.name: (sample.value, sample.labels) for metric in metrics.collect() for sample in metric.samples}
    labels = {
        "gpu": "1",
        "UUID": "GPU-1",
        "modelName": "A100-SXM4-80GB",
        "Hostname": "node-1",
        "namespace": "team",
        "pod": "whole",
        "container": "c",
    }
    assert found == {
        "slicekeeper_gpu_busy_seconds_total": (0.8, labels),
        "DCGM_FI_DEV_FB_USED": (3072, labels),
        "DCGM_FI_DEV_GPU_UTIL": (40, labels),
    }
    now[0] += 60
    assert all(not metric.samples for metric in metrics.collect()), "what is old is left out"


def test_an_arbiter_that_is_killed_comes_back_with_its_seats(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    bench.seat(1)
    before = bench.held()
    pid = bench.running.read().pid
    for _ in range(6):
        os.kill(pid, signal.SIGKILL)
        told = wait_for(lambda old=pid: (t := bench.running.read()) and t.pid != old and t, "another one answers")
        pid = told.pid
        assert bench.held() == before
    pauses = re.findall(r"the next one starts in ([0-9.]+) s", caplog.text)
    assert len(pauses) == 6
    assert max(map(float, pauses)) <= 0.5, "however often it is killed"


class Counted(threading.Event):
    """Tells after so many pauses to stop, and pauses for no time."""

    def __init__(self, pauses: int) -> None:
        super().__init__()
        self.left, self.waited = pauses, list[float]()

    def wait(self, timeout: float | None = None) -> bool:
        if timeout != module_of_keeper.LOOK_SECONDS:
            self.waited.append(timeout or 0.0)
            self.left -= 1
        if self.left == 0:
            self.set()
        return super().wait(0.001)


@pytest.mark.parametrize(("end", "longest"), [("kill -9 $$", 0.5), ("exit 1", 5.0)])
def test_an_arbiter_that_says_why_it_cannot_run_is_tried_less_often_than_one_that_is_killed(
    tmp_path: Path, end: str, longest: float
) -> None:
    program = tmp_path / "arbiter"
    program.write_text(f"#!/bin/sh\n{end}\n")
    program.chmod(0o755)
    stop = Counted(12)
    ArbiterKeeper(program, tmp_path, []).run(stop)
    assert (stop.waited[0], stop.waited[-1]) == (0.05, longest)


def test_a_keeper_whose_folder_was_removed_ends_with_its_arbiter(tmp_path: Path) -> None:
    """The folder is a mount in its pod, where nothing can be made again: only another container has another one."""
    program, folder = tmp_path / "arbiter", tmp_path / "run"
    program.write_text(f'#!/bin/sh\necho $$ > {tmp_path}/pid\nrm -r "$3"\nexec sleep 600\n')
    program.chmod(0o755)
    with pytest.raises(RunFolderRemoved, match="was removed"):
        ArbiterKeeper(program, folder, []).run(threading.Event())
    assert not Path(f"/proc/{(tmp_path / 'pid').read_text().strip()}").exists()


def test_a_removed_folder_is_noticed_through_its_mount_too(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    open_folder = os.open(folder, os.O_PATH)
    mounted = Path(f"/proc/self/fd/{open_folder}")  # goes on to lead to the folder, as a mount does
    check_run_folder(mounted)
    folder.rmdir()
    folder.mkdir()
    with pytest.raises(RunFolderRemoved):
        check_run_folder(mounted)
    os.close(open_folder)


def test_a_second_keeper_waits_and_takes_over(bench: Bench) -> None:
    bench.seat(1)
    before, pid = bench.held(), bench.running.read().pid
    other = type(bench.running)(bench.running.folder)
    other.start()
    bench.shares.compare()
    assert bench.running.read().pid == pid
    bench.running.stop()
    wait_for(lambda: (told := bench.running.read()) and told.pid != pid, "the other one answers")
    assert bench.held() == before
    bench.running.start()
    other.stop()


def test_without_an_arbiter_no_container_with_the_limiter_starts(bench: Bench) -> None:
    seat = bench.seat(1)
    bench.running.stop()
    with pytest.raises(ArbiterAway, match="does not answer"):
        bench.shares.give(seat)
    bench.shares.give(replace(seat, limited=False))
    assert not bench.shares.ready
    bench.running.start()
    wait_for(bench.running.read, "the arbiter answers")
    bench.shares.start(bench)
    wait_for(lambda: bench.shares.ready, "it was asked")
    with pytest.raises(ArbiterRefused, match="does not know GPU"):
        bench.shares.give(replace(seat, gpus=("GPU-none",)))
    with pytest.raises(ArbiterRefused, match="memory must be given"):
        bench.shares.give(replace(seat, memory_mib=0))


def test_a_control_group_is_known_by_what_both_drivers_write_of_a_uid() -> None:
    uid = "12345678-1234-4234-8234-0123456789ab"
    part = policy(Seat(id="s", nonce="n", uid=uid, gpus=("g",), core=1)).cgroup
    for path in (f"/kubepods/burstable/pod{uid}/c", f"/kubepods-pod{uid.replace('-', '_')}.slice/c"):
        assert part in path
