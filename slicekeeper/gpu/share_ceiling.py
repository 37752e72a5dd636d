# SPDX-License-Identifier: Apache-2.0
"""The ceiling of a share: how far it may grow while the GPU is idle, as a pod states it and as it is in force."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping
from typing import Any

from slicekeeper import names
from slicekeeper.gpu.request import GpuRequest
from slicekeeper.gpu.violations import Violations
from slicekeeper.kube.objects import Pod
from slicekeeper.units import CORES_PER_GPU


class CeilingReader:
    """Reads the ceilings of one pod; `ceiling` is the namespace's own, in percent of a GPU."""

    def __init__(self, annotations: Mapping[str, Any], ceiling: int, violations: Violations) -> None:
        self._annotations = annotations
        self._ceiling = ceiling
        self._violations = violations

    def with_ceiling(self, request: GpuRequest, path: str, core: str) -> GpuRequest:
        """Return the request with its ceiling: the container's own annotation, else the pod's.

        `path` is the container's place in the pod, `core` the name of the resource for compute.
        """
        if not request.is_fraction:
            return request
        key = _key(self._annotations, request.container)
        if request.core > self._ceiling:
            self._violations.add(
                code="core-above-ceiling",
                container=request.container,
                field=f"{path}.resources.limits[{core}]",
                value=request.core,
                rule=f"this namespace's ceiling for a share is {self._ceiling} percent of a GPU",
                example=f"{core}: {self._ceiling}",
            )
            return request
        if key not in self._annotations:
            return request
        value = self._annotations[key]
        limit = _percent(value)
        if limit is not None and request.core <= limit <= self._ceiling:
            return GpuRequest(request.container, request.core, request.memory_blocks, limit)
        code, rule = "limit-invalid", "the ceiling is a whole number of percent of one GPU, as a string"
        if limit is not None:
            code = "limit-out-of-range"
            rule = (
                f"the ceiling must be between the container's request ({request.core}) and the namespace's ceiling "
                f"({self._ceiling})"
            )
        self._violations.add(
            code=code,
            container=request.container,
            field=f"metadata.annotations[{key}]",
            value=value,
            rule=rule,
            example=f'{key}: "{self._ceiling}"',
        )
        return request

    def check_names(self, requests: Collection[GpuRequest], known: Collection[str]) -> None:
        """Refuse a ceiling for a container that does not exist or holds whole GPUs: it would have no effect."""
        fractions = {r.container for r in requests if r.is_fraction}
        for key, value in self._annotations.items():
            container = key.removeprefix(names.CONTAINER_LIMIT_PREFIX)
            if container == key or container in fractions:
                continue
            near = difflib.get_close_matches(container, sorted(fractions), 1, 0.0)
            self._violations.add(
                code="limit-without-share",
                container=container if container in known else "",
                field=f"metadata.annotations[{key}]",
                value=value,
                rule="the ceiling belongs to a container that asks for a share of a GPU (1 to 99 percent)",
                example=f'{names.limit_annotation(near[0])}: "{self._ceiling}"' if near else "no such annotation",
            )


def ceiling_in_force(pod: Pod, container: str, core: int, *, before: int, of_namespace: int | None) -> int:
    """Return how far the share of a running container may grow, in percent of a GPU; `core` is its request.

    It is never above its namespace's, `of_namespace`; while that is not known (None), what was in force `before`
    (0: nothing) stays. The owner of a running pod may state a ceiling outside of its range, or one that cannot be read.
    """
    if pod.metadata.sharing_mode == names.EXCLUSIVE:
        return CORES_PER_GPU  # it pays for all of its GPU, and no other may be there
    annotations, limit = pod.metadata.annotations, before
    stated = _percent(annotations.get(_key(annotations, container), str(CORES_PER_GPU)))
    if stated is not None and (of_namespace is not None or not before):
        limit = stated
    return max(min(limit, of_namespace or CORES_PER_GPU), core)


def without_ceilings(annotations: Mapping[str, Any]) -> dict[str, Any]:
    """Return annotations that state no ceiling."""
    return {
        key: value
        for key, value in annotations.items()
        if key != names.CORE_LIMIT and not key.startswith(names.CONTAINER_LIMIT_PREFIX)
    }


def _key(annotations: Mapping[str, Any], container: str) -> str:
    own = names.limit_annotation(container)
    return own if own in annotations else names.CORE_LIMIT


def _percent(value: object) -> int | None:
    readable = isinstance(value, str) and value.isascii() and value.isdecimal() and len(value) <= 3
    return int(str(value)) if readable else None
