# SPDX-License-Identifier: Apache-2.0
"""How GPUs are published."""

from __future__ import annotations

from typing import Any

from nodeagent.gpu_publisher import GpuPublisher, wanted
from slicekeeper import names
from slicekeeper.config.settings import Resources
from slicekeeper.errors import Unavailable
from slicekeeper.gpu import inventory, node_setup
from slicekeeper.gpu.inventory import Gpu
from slicekeeper.gpu.node_setup import NodeSetup
from slicekeeper.kube import agent_address


def test_an_unhealthy_gpu_is_capacity_but_not_allocatable() -> None:
    gpus = [Gpu("a", "T4", 1024), Gpu("b", "T4", 2048, healthy=False)]
    status = wanted(gpus, Resources())["status"]
    assert status["capacity"] == {"tencent.com/vcuda-core": "200", "tencent.com/vcuda-memory": "12"}
    assert status["allocatable"] == {"tencent.com/vcuda-core": "100", "tencent.com/vcuda-memory": "4"}


class _Api:
    """The one object of the API server that the publisher touches."""

    def __init__(self) -> None:
        self.node: dict[str, Any] = {"metadata": {"name": "node-1"}, "status": {"capacity": {"cpu": "2"}}}
        self.patches = 0
        self.down = False

    def get(self, _resource: Any, _name: str) -> dict[str, Any]:
        if self.down:
            raise Unavailable("no answer")
        return self.node

    def patch(self, _resource: Any, _name: str, patch: dict[str, Any], *, subresource: str) -> None:
        assert subresource == "status"
        self.patches += 1
        self.node["metadata"].setdefault("annotations", {}).update(patch["metadata"]["annotations"])
        for key, value in patch["status"].items():
            self.node["status"].setdefault(key, {}).update(value)


def test_it_publishes_once_and_again_when_the_node_is_created_anew(made: Any) -> None:
    api, source = _Api(), made(2)
    publisher = GpuPublisher(api, "node-1", source, Resources(), 1.0)  # type: ignore[arg-type]
    assert publisher.reconcile()
    assert not publisher.reconcile()
    assert inventory.of_node(api.node) == source.gpus()
    api.node = {"metadata": {"name": "node-1"}, "status": {"capacity": {"tencent.com/vcuda-core": "0"}}}
    assert publisher.reconcile()
    assert api.patches == 2


def test_it_says_where_it_is_asked_and_that_it_stops(made: Any) -> None:
    api = _Api()
    publisher = GpuPublisher(api, "node-1", made(1), Resources(), 1.0, "[fd00::1]:8446")  # type: ignore[arg-type]
    publisher.reconcile()
    assert agent_address.of_node(api.node) == "[fd00::1]:8446"
    assert not publisher.reconcile()
    publisher.stop()
    assert agent_address.of_node(api.node) == agent_address.STOPPING
    assert not publisher.reconcile(), "what is under way does not take it back"


def test_it_says_what_it_finds_of_the_machine(made: Any) -> None:
    api, found = _Api(), [NodeSetup(driver_trouble="Driver Not Loaded")]
    publisher = GpuPublisher(api, "node-1", made(0), Resources(), 1.0, node_setup=lambda: found[0])  # type: ignore[arg-type]
    publisher.reconcile()
    assert node_setup.of_node(api.node) == found[0]
    assert not publisher.reconcile()
    found[0] = NodeSetup(driver="550.54.14", cdi_read=False)
    assert publisher.reconcile()
    assert node_setup.of_node(api.node) == found[0]


def test_what_no_agent_writes_is_not_read() -> None:
    for value in ("", "{", "[]", '{"driver": 1}', None, 7):
        assert node_setup.of_node({"metadata": {"annotations": {names.NODE_MACHINE: value}}}) is None


def test_one_that_is_not_asked_takes_an_address_away_and_leaves_nothing_when_it_stops(made: Any) -> None:
    api = _Api()
    api.node["metadata"]["annotations"] = {names.NODE_AGENT: "10.0.0.1:8446"}
    publisher = GpuPublisher(api, "node-1", made(1), Resources(), 1.0)  # type: ignore[arg-type]
    assert publisher.reconcile()
    assert not agent_address.of_node(api.node)
    publisher.stop()
    assert not agent_address.of_node(api.node)


def test_it_stops_without_an_api_server_too(made: Any) -> None:
    api = _Api()
    publisher = GpuPublisher(api, "node-1", made(1), Resources(), 1.0, "10.0.0.1:8446")  # type: ignore[arg-type]
    publisher.reconcile()
    api.down = True
    publisher.stop()
