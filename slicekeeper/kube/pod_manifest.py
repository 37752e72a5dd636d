# SPDX-License-Identifier: Apache-2.0
"""Accessors for a pod's manifest: its containers, annotations and resources, whatever else is wrong."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from slicekeeper import names
from slicekeeper.config.resource_names import any_named
from slicekeeper.untyped_json import as_list, as_map

_KIND_OF_LIST: Final = (("initContainers", ""), ("containers", "app"), ("ephemeralContainers", "ephemeral"))


def is_native_sidecar(container: Mapping[str, Any]) -> bool:
    """Whether an init container runs beside the app containers (KEP-753)."""
    return container.get("restartPolicy") == "Always"


def containers(spec: Mapping[str, Any]) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    """Yield `(field path, kind, container)` of every container: kind is `init`, `sidecar`, `app`, `ephemeral`."""
    for key, kind in _KIND_OF_LIST:
        for index, entry in enumerate(as_list(spec.get(key))):
            container = as_map(entry)
            yield f"spec.{key}[{index}]", kind or ("sidecar" if is_native_sidecar(container) else "init"), container


def container_name(container: Mapping[str, Any]) -> str:
    """Return a container's name; empty if the manifest has none, or not a string."""
    name = container.get("name")
    return name if isinstance(name, str) else ""


def annotations_of(pod: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the annotations of a pod or of another object, empty if it has none."""
    return as_map(as_map(pod.get("metadata")).get("annotations"))


def sharing_mode(pod: Mapping[str, Any]) -> str:
    """Return the mode that the scheduler chose for a pod, without its reason; empty if ours has not bound it."""
    value = annotations_of(pod).get(names.SHARING_MODE)
    return value.partition(":")[0] if isinstance(value, str) else ""


def asks_for(pod: Mapping[str, Any], resources: tuple[str, ...]) -> bool:
    """Whether any container names one of `resources`, in requests or limits, with any value at all.

    A name that ends in `*` matches all names with that prefix.
    """
    # Every event of a pod comes here: without field paths, which `containers` makes, it takes half the time.
    spec = as_map(pod.get("spec"))
    return any(_names_any(as_map(entry), resources) for key, _ in _KIND_OF_LIST for entry in as_list(spec.get(key)))


def _names_any(container: Mapping[str, Any], resources: tuple[str, ...]) -> bool:
    declared = as_map(container.get("resources"))
    limits, requests = as_map(declared.get("limits")), as_map(declared.get("requests"))
    return any_named(limits, resources) or any_named(requests, resources)
