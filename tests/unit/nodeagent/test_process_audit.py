# SPDX-License-Identifier: Apache-2.0
"""Processes that use a GPU outside their slice: their pods, the events about them, and evictions."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.small_cluster import NAMESPACE, SmallCluster, protected, small_cluster
from support.vcuda_programs import built
from support.waiting import wait_for

from nodeagent import process_audit as module
from nodeagent.arbiter_client import ArbiterAway, ArbiterGpu, AuditFinding, Telemetry
from nodeagent.host_cdi import HostCdi
from nodeagent.metrics import StrayMetrics
from nodeagent.nvml_gpus import NvmlGpus
from nodeagent.process_audit import Audit, owner
from slicekeeper import names, threads
from slicekeeper.config.policy import NamespacePolicy
from slicekeeper.config.settings import Resources
from slicekeeper.kube import events
from slicekeeper.kube.client import EVENTS, PODS, Object

MIB = 1 << 20
CONTAINER = "c0" * 32
LIMITED = [{"name": "LD_PRELOAD", "value": names.LIBRARY_PATH}]


class Bench:
    """An audit over a small cluster, with an arbiter that finds what it is told to."""

    def __init__(self, small: SmallCluster, made: Any) -> None:
        self.small = small
        self.source = made(2)
        self.findings: list[AuditFinding] = []
        self.away = False
        self.policy = NamespacePolicy()
        self.watched: list[Object] = []
        self.now = 0.0
        self.audit = Audit(
            small.client,
            "node-1",
            self,
            self,
            self.source,
            Resources(),
            lambda _namespace: self.policy,  # type: ignore[arg-type]
            self._say,
            lambda: self.now,
        )

    def read(self) -> Telemetry:
        if self.away:
            raise ArbiterAway("gone")
        gpus = [ArbiterGpu(number, f"GPU-{number}") for number in range(3)]
        return Telemetry(pid=1, now_ns=0, gpus=gpus, seats=[], audit=self.findings)

    def all(self) -> list[Object]:
        return self.watched

    def _say(self, reason: str, action: str, pod: Object, note: str) -> None:
        events.write(
            self.small.client,
            self.small.clock,
            pod,
            kind="Warning",
            reason=reason,
            action=action,
            note=note,
            reporter="test",
        )

    def pod(
        self, name: str, core: int = 50, gpu: str = "GPU-0", *, watched: bool = True, container: str = "", **more: Any
    ) -> Object:
        annotations = {names.gpu_annotation("c"): gpu} if gpu else {}
        made = self.small.pod(name, core, 8 if core else 0, annotations=annotations, managed=watched)
        self.small.client.create(
            PODS,
            {"metadata": {"name": name}, "target": {"kind": "Node", "name": "node-1"}},
            NAMESPACE,
            name=name,
            subresource="binding",
        )
        made = self.small.get(name)
        made["spec"]["containers"][0] |= more
        if container:
            status = {"containerStatuses": [{"name": "c", "containerID": f"containerd://{container}"}]}
            self.small.client.patch(PODS, name, {"status": status}, NAMESPACE, subresource="status")
            made["status"] = {**made.get("status", {}), **status}
        if watched:
            self.watched.append(made)
        return made

    def finds(self, pod: Object | None, memory: int = 100, gpu: int = 0, cgroup: str = "", **more: Any) -> None:
        if pod is not None:
            cgroup = f"0::/kubepods/burstable/pod{pod['metadata']['uid']}/x"
        self.findings.append(AuditFinding(len(self.findings) + 1, gpu, memory * MIB, cgroup, **more))

    def looks(self, times: int = 2) -> list[str]:
        for _ in range(times):
            self.now += module.AUDIT_SECONDS
            self.audit.look()
        return [stray.note for stray in self.audit.strays]

    def notes(self) -> list[str]:
        return sorted(f"{e['reason']}: {e['message']}" for e in self.small.client.list(EVENTS)[0])


@pytest.fixture
def bench(made: Any) -> Iterator[Bench]:
    with small_cluster() as small:
        yield Bench(small, made)


def test_a_process_without_a_slice_is_told_of_once_with_its_pod(bench: Bench) -> None:
    pod = bench.pod("sly", core=0, gpu="", watched=False, container=CONTAINER)
    bench.finds(None, 300, cgroup=f"0::/../{CONTAINER}")
    bench.finds(None, 400, cgroup=f"0::/../{CONTAINER}")
    assert bench.looks(1) == [], "at the first look it may be about to end"
    assert bench.looks(3) == ["container c uses GPU GPU-0 without a slice of it: 2 processes, 700 MiB"]
    assert bench.notes() == [f"OutsideSlice: {bench.audit.strays[0].note}"]
    about = bench.small.client.list(EVENTS)[0][0]["involvedObject"]
    assert (about["name"], about["uid"]) == ("sly", pod["metadata"]["uid"])
    bench.findings.clear()
    assert bench.looks(1) == []
    bench.finds(None, 400, cgroup=f"0::/../{CONTAINER}")
    bench.looks()
    assert len(bench.notes()) == 1, "it was told of a moment ago"


def test_what_is_as_it_should_be_is_no_finding(bench: Bench) -> None:
    bench.finds(bench.pod("whole", core=100), 70000)
    bench.finds(bench.pod("observed", gpu="GPU-1"), 2000, gpu=1)
    alone = bench.pod("alone")
    alone["metadata"]["annotations"][names.SHARING_MODE] = "exclusive: asked for"
    bench.finds(alone, 70000)
    bench.finds(bench.pod("nvidias", core=0, gpu=""), 70000, gpu=2)
    bench.finds(None, 70000, gpu=2, cgroup="/user.slice")
    assert bench.looks() == []


@pytest.mark.parametrize(
    ("gpu", "memory", "how", "expected"),
    [
        (0, 100, "without the limiter", "GPU-0 without the limiter; its slice has 2048 MiB: 1 process, 100 MiB"),
        (0, 9000, "beyond its seat's memory", "its seat's memory; its slice has 2048 MiB: 1 process, 9000 MiB"),
        (1, 100, "without the limiter", "GPU-1 which was not given to it: 1 process, 100 MiB"),
        (2, 100, "without the limiter", "GPU-2 which was not given to it: 1 process, 100 MiB"),
    ],
)
def test_a_limited_slice_is_left(bench: Bench, gpu: int, memory: int, how: str, expected: str) -> None:
    pod = bench.pod("sly", env=LIMITED)
    bench.finds(pod, memory, gpu, how=how)
    (note,) = bench.looks()
    assert note.endswith(expected)


def test_a_slice_that_nobody_limits_is_left_when_its_memory_is_not_enough(bench: Bench) -> None:
    pod = bench.pod("observed")
    bench.finds(pod, 1500)
    assert bench.looks() == []
    bench.finds(pod, 600)
    (note,) = bench.looks()
    assert note.endswith("GPU-0 beyond its slice of 2048 MiB: 2 processes, 2100 MiB")


def test_a_process_of_no_pod_is_in_the_log_and_the_metrics(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    bench.finds(None, 5, cgroup="0::/user.slice/session-1")
    bench.looks()
    assert "in no pod: 0::/user.slice/session-1 uses GPU GPU-0" in caplog.text
    samples = {
        sample.name: sample
        for metric in StrayMetrics(bench.audit, bench.source, "node-1").collect()
        for sample in metric.samples
    }
    assert samples["slicekeeper_gpu_stray_memory_bytes"].value == 5 * MIB
    assert samples["slicekeeper_gpu_stray_processes"].labels == {
        "gpu": "0",
        "UUID": "GPU-0",
        "modelName": "A100-SXM4-80GB",
        "Hostname": "node-1",
        "namespace": "",
        "pod": "",
        "container": "",
    }


def test_memory_left_by_processes_that_ended_is_told_and_no_reason_to_evict(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    bench.policy = NamespacePolicy(audit="evict")
    pod = bench.pod("loads", env=LIMITED)
    bench.findings.append(AuditFinding(0, 0, 900 * MIB, f"pod{pod['metadata']['uid']}", how=module.LEFT_BEHIND))
    bench.looks()
    [note] = bench.notes()
    assert note.startswith("MemoryLeftBehind: ")
    assert "900 MiB of GPU GPU-0" in note
    assert f"audit: pod {NAMESPACE}/loads: " in caplog.text
    assert not [s for m in StrayMetrics(bench.audit, bench.source, "node-1").collect() for s in m.samples]
    bench.now += module.EVICT_SECONDS
    bench.looks()
    assert "deletionTimestamp" not in bench.small.get("loads")["metadata"]


def test_memory_left_beyond_the_cap_is_a_reason_to_evict(bench: Bench) -> None:
    bench.policy = NamespacePolicy(audit="evict")
    pod = bench.pod("leaks", env=LIMITED)
    cgroup = f"pod{pod['metadata']['uid']}"
    bench.findings.append(AuditFinding(0, 0, 9000 * MIB, cgroup, how="beyond its seat's memory"))
    assert "processes that have ended, 9000 MiB" in bench.looks()[0]
    bench.now += module.EVICT_SECONDS
    bench.looks()
    assert bench.small.get("leaks")["metadata"]["deletionTimestamp"]


def test_a_container_that_kubelet_has_not_told_of_yet_is_waited_for(bench: Bench) -> None:
    bench.finds(None, 5, cgroup=f"0::/{CONTAINER}")
    assert bench.looks(5) == []
    assert len(bench.looks(1)) == 1
    bench.pod("late", core=0, gpu="", watched=False, container=CONTAINER)
    bench.looks()
    assert bench.audit.strays[0].container == "c"


@pytest.mark.parametrize("phase", [0.0, 0.01, 0.25, 0.49])
@pytest.mark.parametrize(
    ("owner_is_known", "arbiter_seconds"),
    [(True, 3.5), (False, 1.2)],
    # Time past the limiter, 2.5 s at most for the arbiter (vcuda/test/unit/unlimited_processes.c) and one for samples
    # of the driver that are a second old; a process in no seat, which the arbiter names at its second look.
    ids=["a slice", "a container that the API server does not know"],
)
def test_from_its_first_act_to_the_word_of_it_are_less_than_five_seconds(
    bench: Bench, owner_is_known: bool, arbiter_seconds: float, phase: float
) -> None:
    pod = bench.pod("sly", env=LIMITED) if owner_is_known else None
    bench.looks(3)
    began = bench.now + phase - arbiter_seconds
    bench.finds(pod, cgroup=f"0::/{CONTAINER}")
    while not bench.looks(1):
        assert bench.now < 60
    assert bench.now - began < 5


def test_the_policy_says_whose_pods_go(bench: Bench) -> None:
    pod = bench.pod("sly", env=LIMITED)
    bench.finds(pod)
    bench.policy = NamespacePolicy(audit="evict")
    bench.looks(3)
    assert "deletionTimestamp" not in bench.small.get("sly")["metadata"], "it may be just about to end"
    bench.now += module.EVICT_SECONDS
    for policy in (NamespacePolicy(), NamespacePolicy(audit="evict", mode="observe")):
        bench.policy = policy
        bench.looks()
        assert "deletionTimestamp" not in bench.small.get("sly")["metadata"]
    bench.policy = NamespacePolicy(audit="evict")
    bench.small.api.faults["eviction"] = protected("sly")
    bench.looks(3)
    assert [note.partition(":")[0] for note in bench.notes()] == ["EvictionPutOff", "OutsideSlice"]
    bench.small.api.faults.clear()
    bench.now += module.AGAIN_SECONDS
    bench.looks()
    assert bench.small.get("sly")["metadata"]["deletionTimestamp"]
    bench.looks()
    assert [note.partition(":")[0] for note in bench.notes()] == ["AuditEviction", "EvictionPutOff", "OutsideSlice"]


def test_a_pod_of_the_same_name_is_not_evicted_in_its_place(bench: Bench) -> None:
    bench.policy = NamespacePolicy(audit="evict")
    pod = bench.pod("sly", env=LIMITED)
    pod["metadata"]["uid"] = "12345678-1234-4234-8234-0123456789ab"
    bench.finds(pod)
    bench.looks()
    bench.now += module.EVICT_SECONDS
    bench.looks()
    assert "deletionTimestamp" not in bench.small.get("sly")["metadata"]


def test_an_arbiter_that_is_away_ends_what_was_seen(bench: Bench) -> None:
    bench.finds(bench.pod("sly", env=LIMITED))
    assert len(bench.looks()) == 1
    bench.away = True
    assert bench.looks(1) == []
    bench.away = False
    assert bench.looks(1) == [], "it is looked at again"


@pytest.mark.parametrize(
    ("cgroup", "expected"),
    [
        (f"0::/kubepods/pod12345678-1234-4234-8234-0123456789ab/{CONTAINER}", "main"),
        (
            f"0::/kubepods.slice/kubepods-pod12345678_1234_4234_8234_0123456789ab.slice/cri-containerd-{CONTAINER}.scope",
            "main",
        ),
        (f"5:devices:/k8s.io/{CONTAINER}", "main"),
        ("0::/../../pod12345678-1234-4234-8234-0123456789ab/not-told-yet", ""),
        ("11:pids:/kubepods/besteffort/podaabbccddeeff00112233445566778899/x", None),
        ("0::/system.slice/sshd.service", None),
        ("0::/kubepods/pod12345678-1234-4234-8234-0123456789abcd/x", None),
        ("0::/kubepods/xpod12345678-1234-4234-8234-0123456789ab/x", None),
        (f"0::/system.slice/{CONTAINER}0", None),
        (f"0::/kubepods/pod12345678-1234-4234-8234-0123456789ab/{CONTAINER}/{'a' * 64}", "main"),
        ("0::/kubepods/pod12345678-1234-4234-8234-0123456789ab/x/pod22345678-1234-4234-8234-0123456789ab", ""),
    ],
)
def test_whose_a_control_group_is(cgroup: str, expected: str | None) -> None:
    pod = {
        "metadata": {"name": "p", "namespace": "n", "uid": "12345678-1234-4234-8234-0123456789ab"},
        "status": {"containerStatuses": [{"name": "main", "containerID": f"cri-o://{CONTAINER}"}, {"name": "waits"}]},
    }
    other = {
        "metadata": {"name": "o", "namespace": "n", "uid": "22345678-1234-4234-8234-0123456789ab"},
        "status": {"containerStatuses": [{"name": "other", "containerID": f"cri-o://{'a' * 64}"}]},
    }
    found, container = owner(cgroup, [other, pod])
    assert (found is pod, container) == ((False, "") if expected is None else (True, expected))


def test_a_static_pod_is_known_by_the_hash_in_its_mirror() -> None:
    config = "aabbccddeeff00112233445566778899"
    mirror = {
        "metadata": {
            "name": "p",
            "uid": "12345678-1234-4234-8234-0123456789ab",
            "annotations": {"kubernetes.io/config.hash": config},
        },
    }
    assert owner(f"0::/kubepods/pod{config}/x", [mirror]) == (mirror, "")


def test_what_the_arbiter_finds_is_named(bench: Bench, arbiter: Any, driver: Any, tmp_path: Path) -> None:
    wait_for(arbiter.read, "the arbiter answers")
    gpus = NvmlGpus(tmp_path / "withdrawn", HostCdi([]))
    audit = Audit(
        bench.small.client, "node-1", arbiter.arbiter, bench, gpus, Resources(), lambda _: bench.policy, bench._say
    )
    environ = {**os.environ, **driver.environ, "LD_LIBRARY_PATH": str(built() / "fake")}
    tenant = subprocess.Popen(
        [str(built() / "fake" / "tenant"), "--seconds", "600"], env=environ, stdout=subprocess.DEVNULL
    )
    stopped = threading.Event()
    try:
        threads.repeat("audit", audit.look, stopped, module.AUDIT_SECONDS)
        (stray,) = wait_for(lambda: audit.strays, "it is named")
        assert stray.processes == 1
        assert "without a slice of it" in stray.note
    finally:
        stopped.set()
        tenant.kill()
        tenant.wait()
