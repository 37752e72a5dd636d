# SPDX-License-Identifier: Apache-2.0
"""The inputs of a review: the settings, what the cluster has, the namespace's policy and its budget's standing.

`ClusterContext` is the same for all reviews and computes once what each would need; `Case` belongs to one review.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from slicekeeper.config.foreign_dialects import DIALECTS, HAMI_PRIORITY
from slicekeeper.config.policy import NamespacePolicy, SidecarPolicy
from slicekeeper.config.settings import Settings
from slicekeeper.wire.timekeeper import NO_GPUS, ClusterGpus
from webhook.budget_standing import IN_BUDGET, Standing
from webhook.host_access import protected_paths
from webhook.limit_range_watch import LimitRanges
from webhook.priority_class_watch import PriorityClasses
from webhook.sidecar_container import CONTAINERS_VARIABLE, sidecar_container, volumes


@dataclass(frozen=True)
class Case:
    """One review's facts."""

    namespace: str
    policy: NamespacePolicy
    standing: Standing = IN_BUDGET
    gpus: ClusterGpus = NO_GPUS
    """The GPUs of the cluster, as far as they are known."""

    @property
    def over_budget(self) -> bool:
        """Whether new pods get the lower class; one that waits for its reservation starts in budget or not at all."""
        return self.standing.over_budget and not self.policy.reserves


class ClusterContext:
    """The settings, PriorityClasses and LimitRanges, with what follows from them."""

    def __init__(self, settings: Settings, classes: PriorityClasses, limit_ranges: LimitRanges) -> None:
        self.webhook = settings.webhook
        self.schedulers = tuple(settings.schedulers)
        self.resources = settings.resources
        self.gives_seats = settings.webhook.injection != "meter"
        self.classes = classes
        self.limit_ranges = limit_ranges
        self.without_device = msgspec.structs.replace(settings.resources, device=())
        """For namespaces that ignore NVIDIA's plugin: no container asks for a resource without a name."""
        self.ours = (settings.resources.core, settings.resources.memory)
        self.asked = (*self.ours, *settings.resources.devices)
        self.plugin_devices = ("nvidia.com/gpu*", "nvidia.com/mig-*", *settings.resources.devices)
        """GPUs of NVIDIA's plugin, those that the settings do not name included. Its network adapters are none."""
        foreign = {name for dialect in DIALECTS.values() for name in dialect.resources}
        self.other_gpus = (*self.plugin_devices, *sorted(foreign - {*self.ours, HAMI_PRIORITY}))
        """GPUs of any other plugin: NVIDIA's, and those of the systems whose manifests are converted."""
        self.default_classes = settings.classes
        self._settings = settings
        self._sidecars: dict[SidecarPolicy, dict[str, Any]] = {}
        self.volumes = volumes(settings)
        self.protected_paths = protected_paths(settings.node_agent)

    def sidecar(self, policy: SidecarPolicy, containers: str) -> dict[str, Any]:
        """Return the sidecar that reports for `containers`; everything but its `env` is shared by all pods."""
        template = self._sidecars.get(policy)
        if template is None:
            template = self._sidecars[policy] = sidecar_container(self._settings, policy)
        reported = {"name": CONTAINERS_VARIABLE, "value": containers}
        return {**template, "env": [*template["env"], reported]}
