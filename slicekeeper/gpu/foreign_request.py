# SPDX-License-Identifier: Apache-2.0
"""The result of reading requests for other GPU sharing systems, and the arithmetic that all such dialects share.

A part of a GPU is rounded down, so that parts that fill a GPU still do; an amount of memory is rounded up, so that a
program gets what it was written for. A warning names each rounding.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from slicekeeper.gpu.container_request import MAX_BLOCKS
from slicekeeper.gpu.violations import Violations
from slicekeeper.kube.objects import Pod
from slicekeeper.units import CORES_PER_GPU, MIB_PER_BLOCK, parse_quantity, whole_quantity


@dataclass(frozen=True)
class ConvertedShare:
    """One container's request in our terms.

    `core` is percent of one GPU or n × 100; `blocks` counts 256 MiB, None for whole GPUs; `limit` is the elastic
    ceiling in percent, None for the namespace's.
    """

    core: int
    blocks: int | None = None
    limit: int | None = None


@dataclass
class Reading:
    """The reading of a pod in one dialect: shares by container, our annotations, warnings for the user, refusals."""

    shares: dict[str, ConvertedShare] = field(default_factory=dict)
    annotations: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    violations: Violations = field(default_factory=Violations)

    def refuse(self, container: str, path: str, value: object, rule: str, example: str) -> None:
        """Record why a request cannot be converted."""
        self.violations.add(
            code="not-convertible", container=container, field=path, value=value, rule=rule, example=example
        )

    def refuse_annotation(self, annotations: Mapping[str, Any], key: str, rule: str, example: str) -> None:
        """Record why an annotation of the pod cannot be converted."""
        self.refuse("", f"metadata.annotations[{key}]", annotations[key], rule, example)

    def ignores(self, fields: Mapping[str, Any], keys: Mapping[str, str]) -> None:
        """Note for each of `keys` in a map why it has no effect here; one that ends in `/` is a prefix."""
        reasons = ((key, keys.get(key) or keys.get(f"{key.partition('/')[0]}/")) for key in fields)
        self.notes.extend(f"{key} is ignored: {reason}" for key, reason in reasons if reason)


@dataclass(frozen=True)
class ReferenceGpu:
    """Memory of the GPU for fractions: the policy's `foreign.gpuMemory` in MiB, None if it is not set."""

    memory_mib: int | None = None

    def share(
        self,
        reading: Reading,
        container: str,
        path: str,
        *,
        core: int | None = None,
        part: Fraction | None = None,
        mib: Fraction | None = None,
    ) -> ConvertedShare | None:
        """Return the share of a container that names compute in percent, and memory as a part of a GPU or in MiB.

        If one is missing, it follows the other: half of the memory has half of the compute. None if it is refused.
        """
        if mib is not None and mib > MAX_BLOCKS * MIB_PER_BLOCK:
            rule = f"a GPU has at most {MAX_BLOCKS} blocks of {MIB_PER_BLOCK} MiB"
            reading.refuse(container, path, f"{mib.numerator // mib.denominator} MiB", rule, "8192 MiB")
            return None
        if self.memory_mib is None and (mib is None or core is None):
            reading.refuse(
                container,
                path,
                _short(mib if part is None else part),
                "a part of a GPU's memory is computed from the policy's foreign.gpuMemory, which is not set",
                "foreign: {dialects: [kai], gpuMemory: 80Gi}",
            )
            return None
        blocks = None if mib is None else _blocks(reading, container, mib)
        if core is None:
            memory_mib = self.memory_mib or 1
            whole = part if part is not None else Fraction(mib or 0) / memory_mib
            if whole >= 1:
                reading.notes.append(f"{container}: all of a GPU's memory is a whole GPU")
                return ConvertedShare(CORES_PER_GPU, blocks if whole > 1 else None)
            core = _percent(reading, container, whole)
        if blocks is None:
            follows = (self.memory_mib or 0) * (Fraction(core, 100) if part is None else part)
            blocks = max(int(follows / MIB_PER_BLOCK), 1)
            rounded = "" if blocks * MIB_PER_BLOCK == follows else f", rounded from {_short(follows)} MiB"
            reading.notes.append(f"{container}: memory is {blocks} blocks of {MIB_PER_BLOCK} MiB{rounded}")
        return ConvertedShare(core, blocks)


def _blocks(reading: Reading, container: str, mib: Fraction) -> int:
    """Return memory in blocks, at least 1, rounded up; note the rounding."""
    blocks = max(-(-mib // MIB_PER_BLOCK), 1)
    if blocks * MIB_PER_BLOCK != mib:
        reading.notes.append(f"{container}: {_short(mib)} MiB are rounded up to {blocks} blocks of {MIB_PER_BLOCK} MiB")
    return blocks


def _percent(reading: Reading, container: str, part: Fraction) -> int:
    """Return a fraction of a GPU in percent, at least 1, rounded down; note the rounding."""
    core = max(int(part * 100), 1)
    if core != part * 100:
        reading.notes.append(f"{container}: {_short(part * 100)} percent of a GPU are rounded to {core}")
    return core


def percent_of(reading: Reading, container: str, path: str, text: object, example: str) -> int | None:
    """Return a number of GPUs such as `0.5` or `2` in percent of one; None if it is refused, as 1.5 is."""
    try:
        part = parse_quantity(text)
    except ValueError:
        part = Fraction(-1)
    if part <= 0 or (part > 1 and part.denominator != 1):
        reading.refuse(container, path, text, "it must be a part of one GPU, or whole GPUs", example)
        return None
    return _percent(reading, container, part)


def gpu_containers(pod: Pod, resources: tuple[str, ...]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield `(field path, name, amounts)` of containers that ask for one of `resources`; limits go before requests."""
    for placed in pod.spec.placed():
        both = placed.container.resources.amounts
        amounts = {name: both[name] for name in resources if name in both}
        if amounts:
            yield f"{placed.path}.resources.limits", placed.container.name, amounts


def whole(reading: Reading, container: str, path: str, amounts: Mapping[str, Any], name: str) -> int | None:
    """Return an amount that must be a whole number; None if it is absent, or refused."""
    if name not in amounts:
        return None
    found = whole_quantity(amounts[name])
    if found is None or found < 0:
        reading.refuse(container, f"{path}[{name}]", amounts[name], "it must be a whole number", f"{name}: 1")
        return None
    return found


def _short(value: Fraction | None) -> str:
    if value is None:
        return ""
    if value.denominator == 1:
        return str(value.numerator)
    return f"{float(value):.4g}" if value < 1000 else f"{float(value):.0f}"
