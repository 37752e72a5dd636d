# SPDX-License-Identifier: Apache-2.0
"""What the real arbiter holds for fractions, as their pods' annotations change and as it is killed."""

from __future__ import annotations

import errno
import os
import random
import shutil
import socket
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from support.sharing import GIB, Sharing
from support.vcuda_programs import built
from support.waiting import wait_for

from nodeagent import shares as module
from nodeagent.arbiter_client import CONNECTIONS, Arbiter, ArbiterAway, ArbiterRefused
from nodeagent.node_pods import NodePods
from nodeagent.seat_store import Seat, SeatStore
from nodeagent.shares import policy
from slicekeeper import names
from slicekeeper.config.settings import KubernetesSettings
from slicekeeper.kube.client import KubeClient


def test_a_fraction_is_held_before_its_container_starts(sharing: Sharing) -> None:
    seat = sharing.seat(1)
    assert sharing.held() == {"seat-0001-ab": (1, 40, 70, "in-budget")}
    told = sharing.running.read().seats[0]
    assert (told.memory_limit, told.processes) == (2 * GIB, 0)
    assert (sharing.running.folder / "seats" / seat.name / "seat.sock").is_socket()


def test_containers_that_start_together_are_all_held(sharing: Sharing) -> None:
    """The arbiter hangs up on some of more than 64 who ask at once, and the kernel refuses others."""
    first = sharing.seat(1)
    together = threading.Barrier(200)

    def give(number: int) -> None:
        together.wait(60)
        sharing.shares.give(replace(first, id=f"seat-{number}", core=1))
        sharing.running.arbiter.read()

    with ThreadPoolExecutor(200) as pool:
        list(pool.map(give, range(200)))
    assert sharing.held().keys() == {first.name, *(f"seat-{number}-ab" for number in range(200))}


def test_who_finds_others_waiting_for_an_arbiter_that_hangs_gives_up_before_kubelet_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nodeagent.arbiter_client.ANSWER_SECONDS", 60.0)
    arbiter = Arbiter(tmp_path)
    with socket.socket(socket.AF_UNIX) as hangs, ThreadPoolExecutor(CONNECTIONS) as pool:
        hangs.bind(str(tmp_path / "control.sock"))
        hangs.listen(CONNECTIONS)
        others = [pool.submit(arbiter.read) for _ in range(CONNECTIONS)]
        connections = [hangs.accept()[0] for _ in others]
        monkeypatch.setattr("nodeagent.arbiter_client.TURN_SECONDS", 0.1)
        with pytest.raises(ArbiterAway, match=f"has not answered {CONNECTIONS} others for 0.1 s"):
            arbiter.read()
        for connection in connections:
            connection.close()
        for other in others:
            with pytest.raises(ArbiterAway, match="does not answer"):
                other.result(30)


def test_a_whole_gpu_has_no_seat_at_the_arbiter(sharing: Sharing) -> None:
    sharing.shares.give(Seat(id="seat-0009", nonce="ab", uid="u", gpus=(sharing.gpu,), core=100))
    assert sharing.held() == {}


def test_a_process_in_the_seat_meets_its_caps(sharing: Sharing, driver: Any) -> None:
    seat = sharing.seat(1)
    build = built()
    environ = {
        **os.environ,
        **driver.environ,
        "LD_PRELOAD": str(build / "libvcuda.so"),
        "CUDA_VISIBLE_DEVICES": sharing.gpu,
        "LD_LIBRARY_PATH": str(build / "fake"),
        "SLICEKEEPER_SEAT": str(sharing.running.folder / "seats" / seat.name / "seat.sock"),
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
    sharing: Sharing, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "COMPARE_SECONDS", 600.0)
    for number in (1, 2):
        sharing.seat(number)
    sharing.shares.start(sharing)
    for state, limit, expected in (
        (names.OVER_BUDGET, "70", (70, "background")),
        (names.OVER_BUDGET, "50", (50, "background")),
        (names.IN_BUDGET, "90", (90, "in-budget")),
    ):
        sharing.annotate(**{names.BUDGET_STATE: state, names.CORE_LIMIT: limit})
        wait_for(lambda want=expected: sharing.held()["seat-0001-ab"][2:] == want, "the arbiter has it")
        assert sharing.held()["seat-0002-ab"][2:] == (70, "in-budget"), "the other stays as it was"
        sharing.shares.compare()  # now it has nothing more to say
    sharing.annotate(**{names.CORE_LIMIT: "nonsense", names.GPU_CLASS: names.BACKGROUND})
    wait_for(
        lambda: sharing.held()["seat-0001-ab"][2:] == (90, "background"), "what cannot be read keeps the last ceiling"
    )


def test_of_changes_that_follow_at_once_the_last_one_reaches_the_arbiter(
    sharing: Sharing, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A state that is reverted before the next look is not seen, but the last state is never missed."""
    monkeypatch.setattr(module, "COMPARE_SECONDS", 600.0)
    client, chance = KubeClient(KubernetesSettings(server="http://localhost:1")), random.Random(7)
    watch = NodePods(client, "node-1", lambda _left: None, sharing.shares.changed)
    sharing.seat(1)
    sharing.shares.start(watch)
    for turn in range(40):
        for state in chance.choices((names.OVER_BUDGET, names.IN_BUDGET), k=chance.randint(1, 5)):
            limit = 40 + chance.randint(0, 60)
            sharing.annotate(**{names.BUDGET_STATE: state, names.CORE_LIMIT: str(limit)})
            watch.on_event("MODIFIED", sharing.pods[0])
            time.sleep(chance.choice((0, 0, 0.001, 0.004)))
        last = (limit, "background" if state == names.OVER_BUDGET else "in-budget")
        wait_for(lambda want=last: sharing.held()["seat-0001-ab"][2:] == want, f"change {turn}: {last}")


def test_no_ceiling_is_above_the_namespaces(sharing: Sharing) -> None:
    sharing.shares._pods = sharing  # without the thread: whoever compares beside it may see the half of what it does
    sharing.ceiling = None
    sharing.seat(1)
    assert sharing.held()["seat-0001-ab"][2] == 70, "before the policy is known, what the webhook let pass"
    for ceiling, limit, expected in ((60, "70", 60), (60, "90", 60), (60, "50", 50), (30, "50", 40), (80, "75", 75)):
        sharing.ceiling = ceiling
        sharing.annotate(**{names.CORE_LIMIT: limit})
        sharing.shares.compare()
        assert sharing.held()["seat-0001-ab"][2] == expected, f"{limit} under {ceiling}"
    sharing.shares.compare()  # now the pod has nothing more to say, its policy may have
    sharing.ceiling = 65
    sharing.shares.compare()
    assert sharing.held()["seat-0001-ab"][2] == 65, "the policy alone has changed"
    sharing.ceiling = None
    sharing.annotate(**{names.CORE_LIMIT: "100"})
    sharing.shares.compare()
    assert sharing.held()["seat-0001-ab"][2] == 65, "while the policy cannot be read the last ceiling holds"
    for ceiling, limit, expected in ((80, "10", 40), (80, "75", 75), (80, "nonsense", 75), (50, "nonsense", 50)):
        sharing.ceiling = ceiling
        sharing.annotate(**{names.CORE_LIMIT: limit})
        sharing.shares.compare()
        assert sharing.held()["seat-0001-ab"][2] == expected, f"a request of 40 with {limit} under {ceiling}"


def test_a_ceiling_below_one_containers_request_still_holds_for_the_others(sharing: Sharing) -> None:
    sharing.shares._pods = sharing  # without the thread
    small = sharing.seat(1, core=20)
    [container] = sharing.pods[0]["spec"]["containers"]
    limits = {"tencent.com/vcuda-core": "60", "tencent.com/vcuda-memory": "8"}
    container_beside = {"name": "beside", "resources": {"limits": limits}}
    sharing.pods[0] = {**sharing.pods[0], "spec": {"containers": [container, container_beside]}}
    large = replace(small, id="seat-0002", container="beside", core=60)
    sharing.store.put(large)
    for said, expected in (
        ({names.CORE_LIMIT: "50"}, (50, 60)),
        ({names.CORE_LIMIT: "90", names.limit_annotation("beside"): "70"}, (90, 70)),
        ({names.limit_annotation("beside"): "1"}, (90, 60)),
    ):
        sharing.annotate(**said)
        sharing.shares.compare()
        held = sharing.held()
        assert (held[small.name][2], held[large.name][2]) == expected


def test_a_full_disk_keeps_no_slice_from_its_class(
    sharing: Sharing, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    sharing.shares._pods = sharing  # without the thread
    seats = [sharing.seat(number) for number in (1, 2)]

    def full(*_file: object, **_options: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr("nodeagent.seat_store.replace_file", full)
        over = {names.BUDGET_STATE: names.OVER_BUDGET}
        sharing.pods[:] = [
            {**pod, "metadata": {**pod["metadata"], "annotations": {**pod["metadata"]["annotations"], **over}}}
            for pod in sharing.pods
        ]
        for _ in range(2):
            sharing.shares.compare()
        assert {seat.name: sharing.held()[seat.name][3] for seat in seats} == dict.fromkeys(
            (seat.name for seat in seats), "background"
        )
    assert caplog.text.count("No space left on device") == 1
    sharing.shares.compare()
    assert all(seat.background for seat in SeatStore(sharing.folder / "state").all()), "saved when there is room again"


def test_the_last_policy_holds_while_nobody_tells_of_the_pods(sharing: Sharing) -> None:
    sharing.seat(1)
    sharing.annotate(**{names.BUDGET_STATE: names.OVER_BUDGET})
    sharing.shares.start(sharing)
    wait_for(lambda: sharing.held()["seat-0001-ab"][3] == "background", "the arbiter has it")
    wait_for(lambda: sharing.store.get("seat-0001").background, "and the next agent will")
    sharing.shares.stop()
    sharing.pods.clear()
    sharing.agent()
    sharing.shares.start(sharing)
    sharing.running.stop()
    shutil.rmtree(sharing.running.folder / "state")  # as a reboot does
    sharing.running.start()
    wait_for(lambda: sharing.held() == {"seat-0001-ab": (1, 40, 70, "background")}, "it is what it was")


def test_the_nodes_label_says_by_which_rule_time_is_shared(sharing: Sharing, caplog: pytest.LogCaptureFixture) -> None:
    sharing.shares.compare()
    assert sharing.running.read().rule == "slicekeeper", "nobody has said which yet"
    for label, expected in (
        ("gemini", "gemini"),
        ("nonsense", "slicekeeper"),
        ("kubegpu", "kubegpu"),
        ("", "slicekeeper"),
    ):
        sharing.shares.look_at({"metadata": {"labels": {names.RULE: label} if label else {}}})
        sharing.shares.compare()
        assert sharing.running.read().rule == expected
    assert "'nonsense': it must be one of slicekeeper, kubegpu, gemini" in caplog.text
    sharing.shares.look_at({"metadata": {"labels": {names.RULE: "gemini"}}})
    sharing.running.stop()
    sharing.running.start()
    wait_for(sharing.running.read, "the arbiter answers")
    sharing.shares.compare()
    assert sharing.running.read().rule == "gemini", "an arbiter that starts is told again"


def test_a_pod_that_is_gone_leaves_no_seat(sharing: Sharing) -> None:
    seats = [sharing.seat(number) for number in (1, 2)]
    sharing.store.drop(seats[0])
    sharing.shares.compare()
    assert list(sharing.held()) == ["seat-0002-ab"]


def test_without_an_arbiter_no_container_with_the_limiter_starts(sharing: Sharing) -> None:
    seat = sharing.seat(1)
    sharing.running.stop()
    with pytest.raises(ArbiterAway, match="does not answer"):
        sharing.shares.give(seat)
    sharing.shares.give(replace(seat, limited=False))
    assert not sharing.shares.ready
    sharing.running.start()
    wait_for(sharing.running.read, "the arbiter answers")
    sharing.shares.start(sharing)
    wait_for(lambda: sharing.shares.ready, "it was asked")
    with pytest.raises(ArbiterRefused, match="does not know GPU"):
        sharing.shares.give(replace(seat, gpus=("GPU-none",)))
    with pytest.raises(ArbiterRefused, match="memory must be given"):
        sharing.shares.give(replace(seat, memory_mib=0))


def test_a_control_group_is_known_by_the_pods_whole_uid() -> None:
    uid = "12345678-1234-4234-8234-0123456789ab"
    assert policy(Seat(id="s", nonce="n", uid=uid, gpus=("g",), core=1)).cgroup == f"pod{uid}"
