# SPDX-License-Identifier: Apache-2.0
"""Publish the node's GPUs: the annotation that the scheduler reads, and the capacity that kube-scheduler counts.

With them go the address at which the agent answers whether it is ready, and facts about the machine. All are in one
patch of the node's status, so no reader sees one without the others. They are compared repeatedly, because a node
object that is created again has none.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any

from nodeagent.gpu_source import GpuList
from slicekeeper import names, threads
from slicekeeper.config.settings import Resources
from slicekeeper.errors import ServiceError
from slicekeeper.gpu import inventory, node_setup
from slicekeeper.gpu.inventory import Gpu
from slicekeeper.gpu.node_setup import NodeSetup
from slicekeeper.kube import agent_address
from slicekeeper.kube.client import NODES, KubeClient, Object

log = logging.getLogger(__name__)


def wanted(gpus: list[Gpu], resources: Resources, address: str = "", found: NodeSetup | None = None) -> dict[str, Any]:
    """Return the merge patch that publishes these GPUs; unhealthy ones are capacity but not allocatable."""
    annotations = {
        names.NODE_GPUS: inventory.encode(gpus),
        names.NODE_AGENT: address or None,
        names.NODE_MACHINE: node_setup.encode(found) if found else None,
    }
    return {
        "metadata": {"annotations": annotations},
        "status": {"capacity": _amounts(gpus, resources), "allocatable": _amounts(gpus, resources, only_healthy=True)},
    }


def _amounts(gpus: list[Gpu], resources: Resources, *, only_healthy: bool = False) -> dict[str, str]:
    core, blocks = inventory.amounts(gpus, only_healthy=only_healthy)
    return {resources.core: str(core), resources.memory: str(blocks)}


def differs(have: Any, want: Any) -> bool:
    """Whether a merge patch `want` would change `have`."""
    if isinstance(want, dict):
        return not isinstance(have, dict) or any(differs(have.get(key), value) for key, value in want.items())
    return bool(have != want)


class GpuPublisher:
    """Keeps one node's published GPUs up to date, in a daemon thread."""

    def __init__(
        self,
        client: KubeClient,
        node: str,
        source: GpuList,
        resources: Resources,
        pause_seconds: float,
        address: str = "",
        on_node: Callable[[Object], None] = lambda _node: None,
        node_setup: Callable[[], NodeSetup | None] = lambda: None,
    ) -> None:
        """`on_node` gets the node each time it is read; `node_setup` returns what else to publish."""
        self._client = client
        self._node = node
        self._source = source
        self._on_node = on_node
        self._node_setup = node_setup
        self._resources = resources
        self._pause = pause_seconds
        self._address = address
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._wake = threading.Event()
        self.published = threading.Event()
        """Set once the node has shown our data."""

    def start(self) -> None:
        """Start publishing."""
        threads.keep("publisher", self._run, self._stop.is_set)

    def stop(self) -> None:
        """Stop; what is published stays, so running pods keep their capacity; the address says that the agent stops."""
        self._stop.set()
        self._wake.set()
        if self._address:
            self._address = agent_address.STOPPING
            try:
                self.reconcile()
            except ServiceError as error:
                log.warning("node %s does not say that its agent stops: %s", self._node, error)

    def changed(self) -> None:
        """Publish now, because the GPUs have changed."""
        self._wake.set()

    def reconcile(self) -> bool:
        """Publish if the node shows other data; return whether it did.

        Raises ServiceError if the API server does not answer or refuses.
        """
        with self._lock:
            node: Object = self._client.get(NODES, self._node)
            self._on_node(node)
            patch = wanted(self._source.gpus(), self._resources, self._address, self._node_setup())
            changed = differs(node, patch)
            if changed:
                self._client.patch(NODES, self._node, patch, subresource="status")
                log.info("published the GPUs of node %s", self._node)
        self.published.set()
        return changed

    def _run(self) -> None:
        while not self._stop.is_set():
            self._wake.clear()
            try:
                self.reconcile()
            except ServiceError as error:
                log.warning("GPUs of node %s not published: %s", self._node, error)
            self._wake.wait(self._pause)
