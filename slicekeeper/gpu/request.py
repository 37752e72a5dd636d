# SPDX-License-Identifier: Apache-2.0
"""A pod's GPU request, in exact integers. `pod_request` reads it from the manifest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from slicekeeper import names
from slicekeeper.units import CORES_PER_GPU, MIB_PER_BLOCK


@dataclass(frozen=True)
class GpuRequest:
    """One container's request.

    `core` is percent of one GPU, 1…99, or n × 100 for n whole GPUs. `memory_blocks` counts blocks of 256 MiB and is
    None if whole GPUs were requested without it. `limit` is the elastic ceiling in percent, None for whole GPUs and if
    neither the user nor the webhook has set one.
    """

    container: str
    core: int
    memory_blocks: int | None
    limit: int | None = None

    @property
    def is_fraction(self) -> bool:
        """Whether this is a share of one GPU and not one or more whole ones."""
        return self.core < CORES_PER_GPU

    @property
    def gpus(self) -> int:
        """The number of GPUs that the container holds; a shared one counts as one."""
        return 1 if self.is_fraction else self.core // CORES_PER_GPU

    @property
    def memory_mib(self) -> int:
        """Requested memory in MiB, 0 if none was given."""
        return (self.memory_blocks or 0) * MIB_PER_BLOCK


@dataclass(frozen=True)
class PodRequest:
    """A pod's request: its containers' requests in the manifest's order, and the pod-wide options."""

    requests: tuple[GpuRequest, ...] = ()
    gpu_class: str = names.STANDARD
    sharing: str = names.ADAPTIVE
    affinity: str = ""
    anti_affinity: str = ""
    exclusion: str = ""
    gpu_uuid: str = ""
    gpu_models: tuple[str, ...] = ()
    gang: str = ""
    """The name of the pod's gang; empty with a size: the pods of its controller."""
    gang_size: int = 0
    """How many pods of the gang must exist before any gets a place, 0 without a gang."""
    devices: Mapping[str, Mapping[str, int]] = field(default_factory=dict, hash=False)
    """How many devices of NVIDIA's own plugin each container requests: container → resource → number."""
    held_devices: Mapping[str, int] = field(default_factory=dict, hash=False)
    """How many the pod holds, by resource: an init container's devices are passed on (`effective_request`)."""

    @property
    def holds_gpus(self) -> bool:
        """Whether the pod requests GPUs of any kind."""
        return bool(self.requests or self.devices)

    @property
    def core(self) -> int:
        """Sum of the containers' `vcuda-core`."""
        return sum(r.core for r in self.requests)

    @property
    def memory_blocks(self) -> int:
        """Sum of the containers' `vcuda-memory`."""
        return sum(r.memory_blocks or 0 for r in self.requests)

    @property
    def has_fraction(self) -> bool:
        """Whether any container asks for a share of a GPU."""
        return any(r.is_fraction for r in self.requests)

    def is_limited(self, request: GpuRequest) -> bool:
        """Whether the limiter limits a container to its share: not on a MIG slice, which the hardware limits."""
        return request.is_fraction and self.sharing != names.MIG
