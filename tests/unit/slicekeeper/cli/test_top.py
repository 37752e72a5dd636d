# SPDX-License-Identifier: Apache-2.0
"""What `top`, `nodes` and `pods` show of the agents' answers, and that they do without."""

from __future__ import annotations

import json
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from os import read
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner
from support.small_cluster import SmallCluster, small_cluster

from simulator.api import Api, ApiServer
from slicekeeper import names
from slicekeeper.cli.main import cli
from slicekeeper.gpu import inventory
from slicekeeper.kube.client import NODES, PODS
from slicekeeper.wire.live_seats import NodeSeats, SeatUse
from slicekeeper.wire.timekeeper import Workload

TEAM = "team-a"


def seat(pod: str, gpu: str, **known: Any) -> SeatUse:
    fields = {
        "namespace": TEAM,
        "pod": pod,
        "uid": f"uid-{pod}",
        "container": "c",
        "gpu": gpu,
        "vclass": "in-budget",
        "asked_percent": 40,
        "limit_percent": 100,
        "memory_limit_mib": 1024,
        **known,
    }
    return SeatUse(**fields)


class Site:
    """A cluster of two nodes whose agents answer as told."""

    def __init__(self, small: SmallCluster) -> None:
        self.small = small
        self.seats: dict[str, list[SeatUse]] = {"node-1": [], "node-2": []}
        path = "/api/v1/namespaces/slicekeeper-system/pods/agent-{}:8446/proxy/seats"
        extra = {path.format(n): lambda n=n: NodeSeats(seats=self.seats[f"node-{n}"]) for n in (1, 2)}
        self.server = ApiServer(Api(small.cluster), extra=extra)
        self.server.start()
        for number in (1, 2):
            small.node(f"node-{number}", gpus=number)
            self.address(number, f"10.0.0.{number}:8446")
            self.agent(f"agent-{number}", f"10.0.0.{number}")

    def address(self, number: int, value: str) -> None:
        patch = {"metadata": {"annotations": {names.NODE_AGENT: value}}}
        self.small.client.patch(NODES, f"node-{number}", patch)

    def agent(self, name: str, ip: str, namespace: str = "slicekeeper-system") -> None:
        labels = {"app.kubernetes.io/name": "nodeagent"}
        pod = {"metadata": {"name": name, "labels": labels}, "spec": {"containers": [{"name": "nodeagent"}]}}
        self.small.client.create(PODS, pod, namespace)
        self.small.client.patch(PODS, name, {"status": {"podIP": ip}}, namespace, subresource="status")

    def run(self, *args: str) -> Any:
        done = CliRunner().invoke(cli, args, env=self.environ())
        assert done.exit_code == 0, done.output
        return done

    def environ(self) -> dict[str, str]:
        return {"SLICEKEEPER_KUBERNETES_SERVER": self.server.url, "SLICEKEEPER_CONFIG": "/dev/null"}

    def top(self, *args: str) -> Any:
        return {gpu["gpu"]: gpu for gpu in json.loads(self.run("top", "-o", "json", *args).stdout)}


@pytest.fixture
def site() -> Iterator[Site]:
    with small_cluster() as small:
        made = Site(small)
        yield made
        made.server.stop()


def test_top_shows_each_gpu_and_who_shares_it(site: Site) -> None:
    site.seats["node-1"] = [
        seat("a", "node-1-0", given_percent=61.5, used_percent=60.0, memory_mib=512),
        seat("b", "node-1-0", given_percent=35.0, used_percent=30.3, memory_mib=100, vclass="background"),
    ]
    site.seats["node-2"] = [seat("w", "node-2-1", asked_percent=100, memory_limit_mib=0)]
    gpus = site.top()
    assert list(gpus) == ["node-1-0", "node-2-0", "node-2-1"]
    one = gpus["node-1-0"]
    assert (one["node"], one["model"], one["healthy"], one["memoryMib"]) == ("node-1", "A100", True, 8192)
    assert (one["askedPercent"], one["givenPercent"], one["usedPercent"], one["memoryUsedMib"]) == (80, 96.5, 90.3, 612)
    first, second = one["seats"]
    assert first == {
        "namespace": TEAM,
        "pod": "a",
        "container": "c",
        "class": "in-budget",
        "askedPercent": 40,
        "limitPercent": 100,
        "givenPercent": 61.5,
        "usedPercent": 60,
        "memoryUsedMib": 512,
        "memoryMib": 1024,
    }
    assert second["class"] == "background"
    assert (gpus["node-2-0"]["usedPercent"], gpus["node-2-0"]["seats"]) == (0, []), "nobody is there"
    assert gpus["node-2-1"]["usedPercent"] is None, "nobody counts whole GPUs"
    assert gpus["node-2-1"]["seats"][0]["memoryMib"] == 8192
    lines = [line.split() for line in site.run("top", "-o", "wide").stdout.splitlines()]
    assert lines[0][:5] == ["NODE", "GPU", "POD", "CONTAINER", "CLASS"]
    assert lines[0][5:] == ["ASKED", "LIMIT", "GIVEN", "USED", "MEMORY-USED", "OF"]
    assert lines[1] == ["node-1", "node-1-0", "A100", "80%", "96.5%", "90.3%", "612Mi", "8192Mi"]
    assert lines[2] == ["team-a/a", "c", "in-budget", "40%", "100%", "61.5%", "60%", "512Mi", "1024Mi"]
    assert list(site.top("--node", "node-2")) == ["node-2-0", "node-2-1"]


def test_a_node_that_there_is_not_is_a_mistake(site: Site) -> None:
    done = CliRunner().invoke(cli, ["top", "--node", "node-3"], env=site.environ())
    assert (done.exit_code, done.output) == (1, "Error: there is no node node-3\n")


def test_an_agent_that_is_away_leaves_its_gpus_unknown_and_is_named(site: Site) -> None:
    site.seats["node-1"] = [seat("a", "node-1-0", given_percent=1.0, used_percent=1.0, memory_mib=1)]
    for value in ("stopping", "10.9.9.9:8446", "10.0.0.2:8447"):
        site.address(2, value)
        done = site.run("top", "--once", "-o", "wide")
        assert "node node-2: its agent does not answer: " in done.stderr
        lines = [line.split() for line in done.stdout.splitlines()]
        assert lines[3] == ["node-2", "node-2-0", "A100", "-", "-", "-", "-", "8192Mi"]
        assert "1%" in lines[1]


def test_a_node_whose_gpus_cannot_be_read_hides_no_other(site: Site) -> None:
    damaged = {"metadata": {"annotations": {names.NODE_GPUS: '[{"uuid": 1}]'}}}
    site.small.client.patch(NODES, "node-1", damaged)
    assert list(site.top()) == ["node-2-0", "node-2-1"]
    assert "node-1" not in site.run("nodes").stdout


def test_a_pod_that_only_calls_itself_an_agent_is_not_asked(site: Site) -> None:
    site.agent("agent-1", "10.6.6.6", TEAM)
    site.seats["node-1"] = [seat("a", "node-1-0")]
    assert site.top()["node-1-0"]["seats"][0]["pod"] == "a"


def test_nodes_say_why_a_gpu_is_not_healthy(site: Site) -> None:
    node = site.small.client.get(NODES, "node-2")
    gpus = inventory.of_node(node)
    gpus[1] = msgspec.structs.replace(gpus[1], healthy=False, trouble="it is in MIG mode")
    site.small.client.patch(NODES, "node-2", {"metadata": {"annotations": {names.NODE_GPUS: inventory.encode(gpus)}}})
    lines = site.run("nodes", "-o", "wide").stdout.splitlines()
    assert [("no: it is in MIG mode" in line) for line in lines] == [False, False, False, True]
    assert "A100, not healthy" in site.run("nodes").stdout
    assert site.top()["node-2-1"]["trouble"] == "it is in MIG mode"


def test_nodes_and_pods_show_the_same_figures_where_they_are_known(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    known: list[Workload] = []
    monkeypatch.setattr("slicekeeper.cli.connection.TimekeeperClient.workloads", lambda *_: known)
    monkeypatch.setenv("SLICEKEEPER_TIMEKEEPER_CLIENT_URL", "http://127.0.0.1:9")
    for name, node in (("a", "node-1"), ("away", "node-2")):
        chosen = {names.gpu_annotation("c"): f"{node}-0"}
        site.small.pod(name, core=40, annotations=chosen, nodeName=node)
    uid = site.small.get("a")["metadata"]["uid"]
    site.seats["node-1"] = [seat("a", "node-1-0", uid=uid, given_percent=50.0, used_percent=20.5, memory_mib=7)]
    site.address(2, "stopping")
    keys = ("givenPercent", "usedPercent", "memoryUsedMib")
    pods = {pod["name"]: pod for pod in json.loads(site.run("pods", "-o", "json").stdout)}
    assert [pods["a"][key] for key in keys] == [50, 20.5, 7]
    assert [pods["away"][key] for key in keys] == [None, None, None]
    gone = Workload(
        namespace=TEAM,
        pod_name="gone",
        pod_uid="uid-gone",
        node="node-1",
        gpus=["node-1-0"],
        gpu_class="standard",
        state="closed",
        budget_state="in-budget",
        start="",
        end="",
        charged_ms=1,
        over_budget_ms=0,
        used_ms=None,
        peak_memory_mib=2_048,
    )
    known += [gone, msgspec.structs.replace(gone, pod_name="a", pod_uid=uid, peak_memory_mib=512)]
    pods = {pod["name"]: pod for pod in json.loads(site.run("pods", "-o", "json").stdout)}
    assert {name: pod["peakMemoryMib"] for name, pod in pods.items()} == {"a": 512, "away": None, "gone": 2_048}
    gpus = {gpu["gpu"]: gpu for gpu in json.loads(site.run("nodes", "-o", "json").stdout)}
    assert [gpus["node-1-0"][key] for key in keys] == [50, 20.5, 7]
    assert [gpus["node-2-0"][key] for key in keys] == [None, None, None]
    assert "20.5%" in site.run("pods").stdout
    assert "20.5%" in site.run("nodes").stdout


def test_on_a_terminal_it_is_shown_again_and_again_until_ctrl_c(site: Site) -> None:
    # Whoever is started in the background may have Ctrl-C ignored.
    main = (
        "import signal as s; s.signal(s.SIGINT, s.default_int_handler); from slicekeeper.cli.main import main; main()"
    )
    command = [sys.executable, "-c", main, "top", "--interval", "0.5"]
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        command,
        env={**site.environ(), "PATH": "/usr/bin"},
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
        close_fds=True,
    )
    try:
        seen, end = b"", time.monotonic() + 30
        while seen.count(b"\x1b[2J") < 3 and time.monotonic() < end:
            seen += read(ours, 4096)
        assert seen.count(b"node-1-0") >= 2
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.wait()


def test_tables_fit_80_columns_and_wide_ones_have_it_all(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    uuid = "GPU-01234567-89ab-cdef-0123-456789abcdef"
    gpu = inventory.Gpu(uuid, "NVIDIA A100-SXM4-80GB", 81_920)
    annotations = {names.NODE_GPUS: inventory.encode([gpu])}
    site.small.client.patch(NODES, "node-1", {"metadata": {"annotations": annotations}})
    chosen = {names.gpu_annotation("c"): uuid, names.BUDGET_STATE: "over-budget"}
    for number in range(3):
        site.small.pod(f"train-{number}-abcde", core=40, annotations=chosen, nodeName="node-1")
    held = [f"train-{number}-abcde" for number in range(3)]
    site.seats["node-1"] = [
        seat(pod, uuid, uid=site.small.get(pod)["metadata"]["uid"], given_percent=39.2, used_percent=39.1, memory_mib=8)
        for pod in held
    ]
    charged = Workload(
        namespace=TEAM,
        pod_name=held[0],
        pod_uid=site.seats["node-1"][0].uid,
        node="node-1",
        gpus=[uuid],
        gpu_class="standard",
        state="open",
        budget_state="over-budget",
        start="",
        end="",
        charged_ms=412_345_678,
        over_budget_ms=9,
        used_ms=None,
        peak_memory_mib=None,
    )
    monkeypatch.setattr("slicekeeper.cli.connection.TimekeeperClient.workloads", lambda *_: [charged])
    monkeypatch.setenv("SLICEKEEPER_TIMEKEEPER_CLIENT_URL", "http://127.0.0.1:9")
    for command in ("pods", "nodes", "top"):
        narrow, wide = site.run(command).stdout, site.run(command, "-o", "wide").stdout
        assert max(map(len, narrow.splitlines())) <= 80, narrow
        assert "GPU-01234567" in narrow
        assert uuid not in narrow
        assert uuid in wide
        assert all(pod in wide for pod in held)
    assert "114h" in site.run("pods").stdout
    assert "114h32m25.678s" in site.run("pods", "-o", "wide").stdout
    assert f"{TEAM}/{held[1]}" in site.run("pods", "-o", "name").stdout.splitlines()
    assert uuid in site.run("nodes", "-o", "csv").stdout


def test_mig_slices_are_shown_in_the_place_of_their_gpu(site: Site) -> None:
    uuids = [f"MIG-{n}{'a' * 7}-3b0c-4d9e-a1f7-5c2d90e4b6a8" for n in (1, 2)]
    mig = (
        inventory.MigSlice(uuids[0], 40_448, 3, 7, "3g.40gb"),
        inventory.MigSlice(uuids[1], 9_728, 1, 7, "1g.10gb", healthy=False),
    )
    gpu = inventory.Gpu(
        "GPU-a", "A100-SXM4-80GB", 81_920, healthy=False, trouble="its next reset ends MIG mode", mig=mig
    )
    patch = {"metadata": {"annotations": {names.NODE_GPUS: inventory.encode([gpu])}}}
    site.small.client.patch(NODES, "node-1", patch)
    chosen = {names.gpu_annotation("c"): uuids[0], names.SHARING_MODE: "mig: asked for"}
    site.small.pod("a", core=10, annotations=chosen, nodeName="node-1")
    limits = {"asked_percent": 10, "limit_percent": 42, "memory_limit_mib": 40_448}
    site.seats["node-1"] = [seat("a", uuids[0], memory_mib=7, **limits)]
    nodes = {gpu["gpu"]: gpu for gpu in json.loads(site.run("nodes", "-o", "json").stdout) if gpu["node"] == "node-1"}
    assert list(nodes) == uuids
    keys = ("model", "memoryMib", "healthy", "trouble", "coreAllocated", "memoryUsedMib", "usedPercent")
    assert [nodes[uuids[0]][key] for key in keys] == ["A100-SXM4-80GB MIG 3g.40gb", 40_448, True, "", 42, 7, None]
    assert [nodes[uuids[1]][key] for key in keys[2:5]] == [False, "its next reset ends MIG mode", 0]
    assert nodes[uuids[0]]["pods"] == [f"{TEAM}/a"]
    top = site.top("--node", "node-1")
    assert list(top) == uuids
    [one] = top[uuids[0]]["seats"]
    assert (one["askedPercent"], one["limitPercent"], one["memoryMib"]) == (10, 42, 40_448)
    assert "MIG-1aaaaaaa" in site.run("nodes").stdout
    assert uuids[0] not in site.run("nodes").stdout


def test_an_exclusive_pod_has_all_of_its_gpu_and_each_pod_is_named_once(site: Site) -> None:
    def bound(name: str, gpu: str, mode: str, core: int, *containers: str) -> None:
        limits = {"tencent.com/vcuda-core": str(core), "tencent.com/vcuda-memory": "4"}
        made = [{"name": name, "image": "cuda", "resources": {"limits": limits}} for name in containers]
        chosen = {names.gpu_annotation(container): gpu for container in containers}
        site.small.pod(
            name, annotations={**chosen, names.SHARING_MODE: f"{mode}: asked for"}, nodeName="node-2", containers=made
        )

    bound("alone", "node-2-0", "exclusive", 30, "c")
    bound("two", "node-2-1", "shared", 20, "c", "d")
    nodes = {gpu["gpu"]: gpu for gpu in json.loads(site.run("nodes", "-o", "json").stdout)}
    assert [nodes[f"node-2-{n}"]["coreAllocated"] for n in (0, 1)] == [100, 40]
    assert [nodes[f"node-2-{n}"]["pods"] for n in (0, 1)] == [[f"{TEAM}/alone"], [f"{TEAM}/two"]]


def test_a_gpu_is_never_used_for_longer_than_it_is_given(site: Site) -> None:
    site.seats["node-1"] = [
        seat("a", "node-1-0", given_percent=50.0, used_percent=60.5),
        seat("b", "node-1-0", given_percent=30.0, used_percent=10.0),
    ]
    one = site.top()["node-1-0"]
    assert [each["givenPercent"] for each in one["seats"]] == [60.5, 30]
    assert (one["givenPercent"], one["usedPercent"]) == (90.5, 70.5)
    head, gpu, *_ = site.run("top", "--once").stdout.splitlines()
    assert head.split() == ["NODE", "GPU", "CLASS", "ASKED", "GIVEN", "USED", "MEMORY-USED", "POD"]
    assert gpu.split()[2:5] == ["80%", "90.5%", "70.5%"]


def test_a_node_that_gets_no_pods_is_shown_as_such(site: Site) -> None:
    site.small.client.patch(NODES, "node-1", {"spec": {"unschedulable": True}})
    conditions = {"status": {"conditions": [{"type": "Ready", "status": "Unknown"}]}}
    site.small.client.patch(NODES, "node-2", conditions, subresource="status")
    for command in (("nodes",), ("nodes", "-o", "wide"), ("top", "--once"), ("top", "-o", "wide")):
        shown = site.run(*command).stdout
        assert "node-1 (cordoned)" in shown, command
        assert "node-2 (not ready)" in shown, command
    rows = json.loads(site.run("nodes", "-o", "json").stdout)
    assert [row["nodeTrouble"] for row in rows] == ["cordoned", "not ready", "not ready"]


def test_pods_shows_what_runs_or_waits_and_all_of_them_if_asked(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def workloads(_client: object, _namespace: str, _uid: str, state: str) -> list[Workload]:
        asked.append(state)
        return []

    monkeypatch.setattr("slicekeeper.cli.connection.TimekeeperClient.workloads", workloads)
    monkeypatch.setenv("SLICEKEEPER_TIMEKEEPER_CLIENT_URL", "http://127.0.0.1:9")
    for name in ("waits", "runs", "done"):
        site.small.pod(name, core=40, **({} if name == "waits" else {"nodeName": "node-1"}))
    site.small.client.patch(PODS, "done", {"status": {"phase": "Succeeded"}}, TEAM, subresource="status")
    assert site.run("pods", "-o", "name").stdout.split() == [f"{TEAM}/runs", f"{TEAM}/waits"]
    assert site.run("pods", "-a", "-o", "name").stdout.split() == [f"{TEAM}/{one}" for one in ("done", "runs", "waits")]
    assert asked == ["running", "all"]


def test_a_column_of_gpus_is_readable_beside_long_names(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slicekeeper.cli.connection.TimekeeperClient.workloads", lambda *_: [])
    monkeypatch.setenv("SLICEKEEPER_TIMEKEEPER_CLIENT_URL", "http://127.0.0.1:9")
    uuids = [f"GPU-{n}2345678-89ab-cdef-0123-456789abcdef" for n in (0, 1)]
    for number, uuid in enumerate(uuids):
        chosen = {names.gpu_annotation("c"): uuid, names.BUDGET_STATE: "over-budget"}
        name = f"language-model-pretraining-run-with-a-long-name-{number}"
        site.small.pod(name, core=40, annotations=chosen, nodeName="node-1")
    narrow = site.run("pods").stdout.splitlines()
    assert all(len(line) <= 80 for line in narrow)
    assert [line.split()[-2] for line in narrow[1:]] == ["GPU-02345678", "GPU-12345678"]
    monkeypatch.setenv("COLUMNS", "160")
    assert f"language-model-pretraining-run-with-a-long-name-{number}" in site.run("pods").stdout
