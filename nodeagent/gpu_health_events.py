# SPDX-License-Identifier: Apache-2.0
"""Watch the health of GPUs: one that fails is withdrawn at once, and its pods get an event."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from nodeagent.booked_gpus import holds
from nodeagent.gpu_source import GpuList, GpuSource
from nodeagent.node_pods import NodePods, may_start
from slicekeeper.config.settings import Resources
from slicekeeper.gpu.inventory import is_slice
from slicekeeper.kube.client import Object

log = logging.getLogger(__name__)

_GONE: Final = "this MIG slice is gone, or shares its memory with another one"


class GpuHealthWatch:
    """Compares the GPUs with those before, look by look."""

    def __init__(
        self,
        source: GpuSource,
        offered: GpuList,
        pods: NodePods,
        resources: Resources,
        pause_seconds: float,
        changed: Callable[[], None],
        ill: Callable[[Object, str], None],
    ) -> None:
        self._source = source
        self._offered = offered
        self._pods = pods
        self._resources = resources
        self._pause = pause_seconds
        self._changed = changed
        self._ill = ill
        self._seen = offered.gpus()
        self._reported: set[tuple[str, str]] = set()

    def look(self) -> None:
        """Wait for news and check once; pass on changes."""
        self._source.look(self._pause)
        gpus = self._offered.gpus()
        troubles = self._source.troubles()
        if gpus != self._seen:
            well_before = {part.uuid for gpu in self._seen for part in gpu.parts if part.healthy}
            for uuid, why in troubles.items():
                if uuid in well_before:
                    log.warning("GPU %s is withdrawn: %s", uuid, why)
            self._seen = gpus
            self._changed()
        self._tell(dict(troubles), set(self._source.indexes()))

    def _tell(self, troubles: dict[str, str], listed: set[str]) -> None:
        """Write one event for each pod on a GPU that fails, also for pods that the watch shows only later.

        A MIG slice that is not `listed` is gone: the driver lists all others.
        """
        there = set()
        for pod in self._pods.all():
            held = {uuid for hold in holds(pod, self._resources).values() for uuid in hold.gpus}
            if listed:
                troubles |= {uuid: _GONE for uuid in held if is_slice(uuid) and uuid not in listed}
            for uuid in sorted(held & troubles.keys()):
                key = (pod["metadata"]["uid"], uuid)
                there.add(key)
                if key not in self._reported and may_start(pod):
                    self._ill(pod, f"GPU {uuid}, which this pod holds, gets no new pods: {troubles[uuid]}")
        self._reported = there
