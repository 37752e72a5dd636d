# SPDX-License-Identifier: Apache-2.0
"""Read one container's request from its resources: compute, memory, and devices of NVIDIA's own plugin."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from slicekeeper import names
from slicekeeper.config.resource_names import is_named
from slicekeeper.config.settings import Resources
from slicekeeper.gpu.pod_manifest import is_zero, names_any
from slicekeeper.gpu.request import GpuRequest
from slicekeeper.gpu.violations import Violations
from slicekeeper.units import CORES_PER_GPU, MIB_PER_BLOCK, parse_quantity, whole_quantity
from slicekeeper.untyped_json import as_map

MAX_GPUS: Final = 64
"""No node has more GPUs; a larger count is a mistake in the unit."""

MAX_BLOCKS: Final = 1 << 20
"""256 TiB: far more than any GPU has, and far below any reader's integer overflow."""

_CORE_RULE: Final = f"compute is 1 to 99 percent of one GPU, or a multiple of {CORES_PER_GPU} for whole GPUs"


class ContainerReader:
    """Reads the containers of one manifest."""

    def __init__(self, resources: Resources, violations: Violations) -> None:
        self._resources = resources
        self._violations = violations

    def request(self, path: str, kind: str, name: str, container: Mapping[str, Any]) -> GpuRequest | None:
        """Return a container's request, None if there is none or if it is refused; `path` is its place in the pod."""
        if not names_any(container, (self._resources.core, self._resources.memory)):
            return None
        if kind == "sidecar" and name == names.SIDECAR and self._asks_none(container):
            return None
        core_field = f"{path}.resources.limits[{self._resources.core}]"
        if kind in ("init", "ephemeral"):
            self._refuse_kind(core_field, kind, name, container)
            return None
        # Both are read before either is checked, so that all errors are reported at once.
        core = self._quantity(path, name, container, self._resources.core, "50")
        blocks = self._quantity(path, name, container, self._resources.memory, "15")
        if not core:
            if blocks and self._declared(container, self._resources.core) is None:
                self._violations.add(
                    code="memory-without-core",
                    container=name,
                    field=f"{path}.resources.limits[{self._resources.memory}]",
                    value=blocks,
                    rule=f"GPU memory can be requested only together with compute: {self._resources.core} is missing",
                    example=f"{self._resources.core}: 50 beside {self._resources.memory}: {blocks}",
                )
            return None
        if not self._is_possible(core, core_field, name):
            return None
        if core < CORES_PER_GPU and not blocks:
            if self._declared(container, self._resources.memory) is None:
                self._violations.add(
                    code="memory-missing",
                    container=name,
                    field=f"{path}.resources.limits[{self._resources.memory}]",
                    value=None,
                    rule=f"a share of a GPU needs its share of memory too, in blocks of {MIB_PER_BLOCK} MiB",
                    example=f"{self._resources.memory}: 15 beside {self._resources.core}: {core}",
                )
            return None
        return GpuRequest(name, core, blocks)

    def _refuse_kind(self, field: str, kind: str, name: str, container: Mapping[str, Any]) -> None:
        """Refuse a request of a container that cannot hold a GPU."""
        if kind == "init":
            rule = (
                "a plain init container cannot hold a GPU, because kubelet passes its devices on to the app "
                "containers; move the work to an app container or make it a native sidecar"
            )
            example = "restartPolicy: Always"
        else:
            rule = "an ephemeral container cannot hold a GPU; ask for it in spec.containers"
            example = f"{self._resources.core}: 50 in spec.containers[0]"
        self._violations.add(
            code=f"gpu-in-{kind}-container",
            container=name,
            field=field,
            value=self._declared(container, self._resources.core),
            rule=rule,
            example=example,
        )

    def _is_possible(self, core: int, field: str, name: str) -> bool:
        """Return whether a container can have this much compute; refuse it otherwise."""
        if core > CORES_PER_GPU and core % CORES_PER_GPU:
            lower = core // CORES_PER_GPU * CORES_PER_GPU
            self._violations.add(
                code="core-not-whole",
                container=name,
                field=field,
                value=core,
                rule=_CORE_RULE,
                example=f"{self._resources.core}: {lower}",
            )
            return False
        if core > MAX_GPUS * CORES_PER_GPU:
            self._violations.add(
                code="core-too-large",
                container=name,
                field=field,
                value=core,
                rule=f"a container can hold at most {MAX_GPUS} GPUs",
                example=f"{self._resources.core}: {CORES_PER_GPU}",
            )
            return False
        return True

    def _declared(self, container: Mapping[str, Any], resource: str) -> object:
        """Return the manifest's value for a resource, limits first; None if there is none."""
        declared = as_map(container.get("resources"))
        return as_map(declared.get("limits")).get(resource, as_map(declared.get("requests")).get(resource))

    def _asks_none(self, container: Mapping[str, Any]) -> bool:
        """Whether a container has 0 of all named resources: the webhook writes this if a LimitRange has defaults."""
        named = (self._declared(container, resource) for resource in (self._resources.core, self._resources.memory))
        return all(amount is None or is_zero(amount) for amount in named)

    def devices(self, path: str, name: str, container: Mapping[str, Any]) -> dict[str, int]:
        """Return how many devices of NVIDIA's plugin a container requests, by resource; an amount of 0 is ignored."""
        found: dict[str, int] = {}
        if not names_any(container, self._resources.devices):
            return found
        declared = as_map(container.get("resources"))
        for device in dict.fromkeys((*as_map(declared.get("limits")), *as_map(declared.get("requests")))):
            if is_named(device, self._resources.devices) and not is_zero(self._declared(container, device)):
                count = self._quantity(path, name, container, device, "1")
                if count:
                    found[device] = count
        return found

    def _quantity(self, path: str, name: str, container: Mapping[str, Any], resource: str, example: str) -> int | None:
        """Return a resource's positive amount; None if it is absent or refused."""
        declared = as_map(container.get("resources"))
        limits, requests = as_map(declared.get("limits")), as_map(declared.get("requests"))
        if resource not in limits and resource not in requests:
            return None
        if resource not in limits:
            self._violations.add(
                code="limit-missing",
                container=name,
                field=f"{path}.resources.limits[{resource}]",
                value=None,
                rule="an extended resource is requested in limits; requests alone are not enough",
                example=f"{resource}: {example}",
            )
            return None
        value = limits[resource]
        maximum = MAX_BLOCKS if resource == self._resources.memory else 10**6
        amount = whole_quantity(value)
        if amount is None or not 0 < amount <= maximum:
            example = f"{resource}: {example}"
            rule = f"it must be a whole number from 1 to {maximum}"
            if resource == self._resources.core:
                rule = _CORE_RULE
            elif resource == self._resources.memory:
                rule = f"memory counts blocks of {MIB_PER_BLOCK} MiB, in whole numbers from 1 to {maximum}"
                example = self._in_blocks(value, example)
            self._violations.add(
                code="quantity-invalid",
                container=name,
                field=f"{path}.resources.limits[{resource}]",
                value=value,
                rule=rule,
                example=example,
            )
            return None
        if resource in requests and whole_quantity(requests[resource]) != amount:
            self._violations.add(
                code="request-differs",
                container=name,
                field=f"{path}.resources.requests[{resource}]",
                value=requests[resource],
                rule=f"requests and limits of an extended resource must be equal (limits say {amount})",
                example=f"{resource}: {amount} in both",
            )
            return None
        return amount

    def _in_blocks(self, value: object, example: str) -> str:
        """Return the example in blocks for an amount that was obviously meant in bytes."""
        try:
            amount = parse_quantity(value)
        except ValueError:
            return example
        blocks = -(-amount // (MIB_PER_BLOCK << 20))
        if amount < 1 << 20 or blocks > MAX_BLOCKS:
            return example
        return f"{self._resources.memory}: {blocks}"
