# SPDX-License-Identifier: Apache-2.0
"""A node whose GPUs another plugin gives out too: none is offered twice."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.small_cluster import SmallCluster, small_cluster

from nodeagent import other_plugin_gpus as module
from nodeagent.gpu_publisher import GpuPublisher
from nodeagent.other_plugin_gpus import OfferedGpus
from nodeagent.pod_resources import PodResources
from slicekeeper.config.settings import Resources
from slicekeeper.gpu import inventory
from slicekeeper.kube.client import NODES

NVIDIA = "nvidia.com/gpu"


class Bench:
    """A node of three GPUs, its kubelet, and our publisher."""

    def __init__(self, small: SmallCluster, kubelet: Any, made: Any) -> None:
        self.small, self.kubelet, self.source = small, kubelet, made(3)
        small.client.create(NODES, {"metadata": {"name": "node-1"}, "status": {}})

    def agent(self, *listed: str) -> None:
        devices = Resources().devices
        kubelet = PodResources(self.kubelet.folder / "pods.sock", "slicekeeper.io/seat")
        self.own = OfferedGpus(self.source, listed, devices, lambda: kubelet.devices(devices))
        self.publisher = GpuPublisher(self.small.client, "node-1", self.own, Resources(), 1.0, on_node=self.own.look_at)

    def plugin(self, amount: str, resource: str = NVIDIA) -> None:
        status = {"status": {"capacity": {resource: amount}, "allocatable": {resource: amount}}}
        self.small.client.patch(NODES, "node-1", status, subresource="status")

    def offered(self) -> list[str]:
        self.publisher.reconcile()
        node = self.small.client.get(NODES, "node-1")
        gpus = [gpu.uuid for gpu in inventory.of_node(node)]
        assert node["status"]["capacity"]["tencent.com/vcuda-core"] == str(100 * len(gpus))
        return gpus


@pytest.fixture
def bench(fake_kubelet: type[Any], made: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    kubelet = fake_kubelet(tmp_path_factory.mktemp("k"))
    kubelet.start()
    with small_cluster() as small:
        yield Bench(small, kubelet, made)
    kubelet.stop()


def test_alone_on_a_node_all_gpus_are_offered_or_those_that_are_named(bench: Bench) -> None:
    bench.agent()
    assert bench.offered() == ["GPU-0", "GPU-1", "GPU-2"]
    bench.agent("2", "GPU-1")
    assert bench.offered() == ["GPU-1", "GPU-2"]
    bench.agent("GPU-of-another-node")
    assert bench.offered() == ["GPU-0", "GPU-1", "GPU-2"]


@pytest.mark.parametrize("resource", [NVIDIA, "nvidia.com/gpu.shared", "nvidia.com/mig-1g.10gb"])
def test_beside_another_plugin_nothing_is_offered_but_what_is_named(
    bench: Bench, resource: str, caplog: pytest.LogCaptureFixture
) -> None:
    bench.agent()
    assert len(bench.offered()) == 3
    bench.plugin("1", resource)
    assert bench.offered() == []
    assert (
        f"{resource} is given out here: GPUs GPU-0, GPU-1, GPU-2 are not offered; name by nodeAgent.gpus" in caplog.text
    )
    bench.agent("GPU-1", "GPU-of-another-node")
    assert bench.offered() == ["GPU-1"]
    bench.agent("GPU-of-another-node")
    assert bench.offered() == []


def test_what_kubelet_lists_for_another_plugin_is_not_offered_although_it_is_named(bench: Bench) -> None:
    bench.agent("0", "1", "2")
    bench.plugin("2")
    bench.kubelet.others = {NVIDIA: ["GPU-0"], "other.example/gpu": ["GPU-2"]}
    assert bench.offered() == ["GPU-1", "GPU-2"]
    bench.kubelet.others = {
        "nvidia.com/gpu.shared": ["GPU-0::0", "GPU-0::1"],
        "nvidia.com/mig-1g.5gb": ["MIG-GPU-1/7/0"],
    }
    assert bench.offered() == ["GPU-2"]
    bench.kubelet.others, bench.kubelet.held = {NVIDIA: ["2"]}, {NVIDIA: ["GPU-0"]}
    assert bench.offered() == ["GPU-1"], "one is named by its index, one is held by a pod"
    bench.kubelet.stop()
    assert bench.offered() == ["GPU-1"], "the last answer holds"


def test_a_plugin_that_is_away_for_a_while_is_still_there(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.agent()
    bench.plugin("3")
    assert bench.offered() == []
    bench.plugin("0")
    assert bench.offered() == []
    bench.agent()
    assert bench.offered() == [], "an agent that has just started cannot know"
    monkeypatch.setattr(module, "AWAY_SECONDS", 0.0)
    assert bench.offered() == ["GPU-0", "GPU-1", "GPU-2"]


def test_the_node_of_an_agent_that_offers_nothing_yet_is_left_alone(bench: Bench, tmp_path: Path) -> None:
    kubelet = PodResources(tmp_path / "none.sock", "slicekeeper.io/seat")
    own = OfferedGpus(bench.source, (), Resources().devices, lambda: kubelet.devices(Resources().devices))
    own.look_at({"status": {}})
    assert len(own.gpus()) == 3, "a kubelet that does not answer yet has no other plugin either"
