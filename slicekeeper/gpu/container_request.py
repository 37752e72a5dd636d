# SPDX-License-Identifier: Apache-2.0
"""Read one container's request from its resources: compute, memory, and devices of NVIDIA's own plugin."""

from __future__ import annotations

from typing import Final

from slicekeeper.config.resource_names import is_named
from slicekeeper.config.settings import Resources
from slicekeeper.gpu.request import GpuRequest
from slicekeeper.gpu.violations import Violations
from slicekeeper.kube.objects import PlacedContainer
from slicekeeper.units import CORES_PER_GPU, MIB_PER_BLOCK, is_zero, parse_quantity, whole_quantity

MAX_GPUS: Final = 64
"""No node has more GPUs; a larger count is a mistake in the unit."""

MAX_BLOCKS: Final = 1 << 20
"""256 TiB: far more than any GPU has, and far below any reader's integer overflow."""

_CORE_RULE: Final = f"compute is 1 to 99 percent of one GPU, or a multiple of {CORES_PER_GPU} for whole GPUs"


class ContainerReader:
    """Reads one container of a pod."""

    def __init__(self, resources: Resources, violations: Violations, placed: PlacedContainer) -> None:
        self.name = placed.container.name
        self._resources = resources
        self._violations = violations
        self._placed = placed
        self._amounts = placed.container.resources
        self._limits, self._requests = placed.container.resources.limits, placed.container.resources.requests

    def request(self) -> GpuRequest | None:
        """Return the container's request; None if there is none, or if it is refused."""
        core_name, memory_name = self._resources.core, self._resources.memory
        if not self._amounts.names_any((core_name, memory_name)) or self._asks_none():
            return None
        if self._placed.kind in ("init", "ephemeral"):
            self._refuse_kind()
            return None
        # Both are read before either is checked, so that all errors are reported at once.
        core = self._quantity(core_name, "50")
        blocks = self._quantity(memory_name, "15")
        if not core:
            if blocks and self._declared(core_name) is None:
                self._refuse(
                    "memory-without-core",
                    memory_name,
                    value=blocks,
                    rule=f"GPU memory can be requested only together with compute: {core_name} is missing",
                    example=f"{core_name}: 50 beside {memory_name}: {blocks}",
                )
            return None
        if not self._is_possible(core):
            return None
        if core < CORES_PER_GPU and not blocks:
            if self._declared(memory_name) is None:
                self._refuse(
                    "memory-missing",
                    memory_name,
                    value=None,
                    rule=f"a share of a GPU needs its share of memory too, in blocks of {MIB_PER_BLOCK} MiB",
                    example=f"{memory_name}: 15 beside {core_name}: {core}",
                )
            return None
        return GpuRequest(self.name, core, blocks)

    def devices(self) -> dict[str, int]:
        """Return how many devices of NVIDIA's plugin the container requests, by resource, without amounts of 0."""
        found: dict[str, int] = {}
        if not self._amounts.names_any(self._resources.devices):
            return found
        for device in dict.fromkeys((*self._limits, *self._requests)):
            if is_named(device, self._resources.devices) and not is_zero(self._declared(device)):
                count = self._quantity(device, "1")
                if count:
                    found[device] = count
        return found

    def _refuse_kind(self) -> None:
        """Refuse a request of a container that cannot hold a GPU."""
        core = self._resources.core
        rule = "an ephemeral container cannot hold a GPU; ask for it in spec.containers"
        example = f"{core}: 50 in spec.containers[0]"
        if self._placed.kind == "init":
            rule = (
                "a plain init container cannot hold a GPU, because kubelet passes its devices on to the app "
                "containers; move the work to an app container or make it a native sidecar"
            )
            example = "restartPolicy: Always"
        self._refuse(f"gpu-in-{self._placed.kind}-container", core, self._declared(core), rule, example)

    def _is_possible(self, core: int) -> bool:
        """Return whether a container can have this much compute; refuse it otherwise."""
        if core > CORES_PER_GPU and core % CORES_PER_GPU:
            whole = core // CORES_PER_GPU * CORES_PER_GPU
            self._refuse("core-not-whole", self._resources.core, core, _CORE_RULE, f"{self._resources.core}: {whole}")
            return False
        if core > MAX_GPUS * CORES_PER_GPU:
            rule = f"a container can hold at most {MAX_GPUS} GPUs"
            self._refuse("core-too-large", self._resources.core, core, rule, f"{self._resources.core}: {CORES_PER_GPU}")
            return False
        return True

    def _declared(self, resource: str) -> object:
        """Return the manifest's value for a resource, limits first; None if there is none."""
        return self._limits.get(resource, self._requests.get(resource))

    def _asks_none(self) -> bool:
        """Whether the container has 0 of both resources, as the webhook writes it if a LimitRange has defaults."""
        both = (self._resources.core, self._resources.memory)
        return all(is_zero(given.get(name, 0)) for given in (self._limits, self._requests) for name in both)

    def _quantity(self, resource: str, example: str) -> int | None:
        """Return a resource's positive amount; None if it is absent or refused."""
        if resource not in self._limits:
            if resource in self._requests:
                rule = "an extended resource is requested in limits; requests alone are not enough"
                self._refuse("limit-missing", resource, None, rule, f"{resource}: {example}")
            return None
        value = self._limits[resource]
        amount = whole_quantity(value)
        if amount is None or not 0 < amount <= self._maximum(resource):
            self._refuse("quantity-invalid", resource, value, *self._rule_and_example(resource, value, example))
            return None
        if resource in self._requests and whole_quantity(self._requests[resource]) != amount:
            self._refuse(
                "request-differs",
                resource,
                value=self._requests[resource],
                rule=f"requests and limits of an extended resource must be equal (limits say {amount})",
                example=f"{resource}: {amount} in both",
                where="requests",
            )
            return None
        return amount

    def _maximum(self, resource: str) -> int:
        return MAX_BLOCKS if resource == self._resources.memory else 10**6

    def _rule_and_example(self, resource: str, value: object, example: str) -> tuple[str, str]:
        """Return what an amount must be, and an example that passes."""
        numbers = f"from 1 to {self._maximum(resource)}"
        if resource == self._resources.core:
            return _CORE_RULE, f"{resource}: {example}"
        if resource == self._resources.memory:
            rule = f"memory counts blocks of {MIB_PER_BLOCK} MiB, in whole numbers {numbers}"
            return rule, f"{resource}: {_in_blocks(value) or example}"
        return f"it must be a whole number {numbers}", f"{resource}: {example}"

    def _refuse(self, code: str, resource: str, value: object, rule: str, example: str, where: str = "limits") -> None:
        field = f"{self._placed.path}.resources.{where}[{resource}]"
        self._violations.add(code=code, container=self.name, field=field, value=value, rule=rule, example=example)


def _in_blocks(value: object) -> int | None:
    """Return an amount in blocks if it was obviously meant in bytes."""
    try:
        amount = parse_quantity(value)
    except ValueError:
        return None
    blocks = -(-amount // (MIB_PER_BLOCK << 20))
    return blocks if amount >= 1 << 20 and blocks <= MAX_BLOCKS else None
