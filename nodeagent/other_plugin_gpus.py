# SPDX-License-Identifier: Apache-2.0
"""Leave GPUs to another device plugin that allocates whole GPUs, such as NVIDIA's, and offer the others.

If the node has such a plugin, only GPUs that the settings name are offered, and none of them that kubelet lists for
another plugin. kubelet shows a plugin's resource with the amount 0 while the plugin is away, and forever after it is
gone: only an amount that stays 0 for longer than a plugin's absence means that there is none.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import grpc

from nodeagent.gpu_source import GpuSource
from slicekeeper.config.resource_names import is_named
from slicekeeper.gpu.inventory import Gpu
from slicekeeper.units import is_zero
from slicekeeper.untyped_json import as_map

log = logging.getLogger(__name__)

AWAY_SECONDS: Final = 600.0
"""Twice the 5 minutes after which kubelet forgets the devices of an absent plugin, for plugins that start slowly."""


class OfferedGpus:
    """The GPUs of the machine that Slicekeeper offers."""

    def __init__(
        self, source: GpuSource, listed: Sequence[str], resources: tuple[str, ...], handed_out: Callable[[], set[str]]
    ) -> None:
        """Offer the `listed` GPUs beside plugins for these `resources`; `handed_out` returns the plugins' devices."""
        self._source = source
        self._listed = frozenset(listed)
        self._resources = resources
        self._handed_out = handed_out
        self._lock = threading.Lock()
        self._seen: dict[str, float] = {}
        """By resource, when another plugin was last seen to allocate it here."""
        self._taken: frozenset[str] = frozenset()
        self._other_resources: tuple[str, ...] = ()
        """Those that another plugin allocates here now."""
        self._logged = ""

    def look_at(self, node: Mapping[str, Any]) -> None:
        """Record what other plugins allocate on this node."""
        now = time.monotonic()
        status = as_map(node.get("status"))
        there: dict[str, bool] = {}
        for part in ("capacity", "allocatable"):
            for name, amount in as_map(status.get(part)).items():
                if is_named(name, self._resources):
                    there[name] = there.get(name, False) or not is_zero(amount)
        try:
            taken = frozenset(map(gpu_of, self._handed_out()))
        except (grpc.RpcError, OSError) as error:
            log.debug("kubelet does not say which GPUs other plugins have: %s", error)
            taken = self._taken
        with self._lock:
            for name, some in there.items():
                if some or name not in self._seen:
                    self._seen[name] = now
            self._other_resources = tuple(sorted(name for name in there if now - self._seen[name] < AWAY_SECONDS))
            self._taken = taken
        self._tell()

    def gpus(self) -> list[Gpu]:
        """Return the last known GPUs to offer, in the source's order."""
        every, indexes = self._source.gpus(), self._source.indexes()
        names = {
            gpu.uuid: {gpu.uuid, str(indexes.get(gpu.uuid, "")), *(gpu_of(mig.uuid) for mig in gpu.mig)}
            for gpu in every
        }
        with self._lock:
            listed = [gpu for gpu in every if self._listed & names[gpu.uuid]]
            offered = listed or ([] if self._other_resources else every)
            return [gpu for gpu in offered if not self._taken & names[gpu.uuid]]

    def _tell(self) -> None:
        every, own = self._source.gpus(), {gpu.uuid for gpu in self.gpus()}
        others = [gpu.uuid for gpu in every if gpu.uuid not in own]
        if self._other_resources and others:
            hint = "" if own else "; name by nodeAgent.gpus those that another plugin does not have"
            text = (
                f"{', '.join(self._other_resources)} is given out here: GPUs {', '.join(others)} are not offered{hint}"
            )
        elif others:
            text = (
                f"GPUs {', '.join(others)} are not offered: nodeAgent.gpus leaves them out, or another plugin has them"
            )
        else:
            text = ""
        if text != self._logged:
            log.warning("%s", text or "all GPUs are offered")
            self._logged = text


def gpu_of(device: str) -> str:
    """Return the GPU's UUID or index in a device's name as NVIDIA's plugin makes it, for replicas and MIG slices too.

    A slice is named by its own UUID today, which does not show its GPU.
    """
    return device.partition(":")[0].removeprefix("MIG-").partition("/")[0]
