# SPDX-License-Identifier: Apache-2.0
"""The cluster's LimitRanges, as a watch has shown them: the sidecar fits into those of its namespace.

Kubernetes applies a LimitRange to the completed pod, and its refusal names neither the sidecar nor a remedy.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from slicekeeper.kube.client import Object
from slicekeeper.units import parse_quantity
from slicekeeper.untyped_json import as_list, as_map


@dataclass(frozen=True)
class Limits:
    """One entry of a LimitRange: amounts by resource, for each `Container` or each `Pod`."""

    limit_range: str
    kind: str
    least: Mapping[str, Any]
    most: Mapping[str, Any]
    ratio: Mapping[str, Any]


class LimitRanges:
    """The limits of each namespace; none until a watch has shown some."""

    def __init__(self) -> None:
        self._by_namespace: dict[str, dict[str, tuple[Limits, ...]]] = {}

    def of(self, namespace: str) -> list[Limits]:
        """Return the limits of a namespace."""
        return [limits for found in self._by_namespace.get(namespace, {}).values() for limits in found]

    def on_list(self, objects: list[Object]) -> None:
        """Replace the whole state."""
        found: dict[str, dict[str, tuple[Limits, ...]]] = {}
        for obj in objects:
            namespace, name = _key(obj)
            found.setdefault(namespace, {})[name] = _read(obj)
        self._by_namespace = found

    def on_event(self, kind: str, obj: Object) -> None:
        """Apply one change."""
        namespace, name = _key(obj)
        others = {key: found for key, found in self._by_namespace.get(namespace, {}).items() if key != name}
        self._by_namespace[namespace] = others if kind == "DELETED" else {**others, name: _read(obj)}


def _key(obj: Object) -> tuple[str, str]:
    metadata = as_map(obj.get("metadata"))
    return str(metadata.get("namespace") or ""), str(metadata.get("name") or "")


def _read(obj: Object) -> tuple[Limits, ...]:
    return tuple(
        Limits(
            _key(obj)[1],
            str(entry.get("type")),
            _amounts(entry.get("min")),
            _amounts(entry.get("max")),
            _amounts(entry.get("maxLimitRequestRatio")),
        )
        for entry in map(as_map, as_list(as_map(obj.get("spec")).get("limits")))
    )


def _amounts(declared: object) -> Mapping[str, Any]:
    """Return the amounts that are quantities: the API server has no others, but a file under review may."""
    return {resource: amount for resource, amount in as_map(declared).items() if _is_quantity(amount)}


def _is_quantity(amount: object) -> bool:
    try:
        parse_quantity(amount)
    except ValueError:
        return False
    return True
