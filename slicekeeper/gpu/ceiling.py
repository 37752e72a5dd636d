# SPDX-License-Identifier: Apache-2.0
"""Read the ceilings in a pod's annotations: how far the share of a container may grow while the GPU is idle."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping
from typing import Any

from slicekeeper import names
from slicekeeper.gpu.refusals import Refusals
from slicekeeper.gpu.request import GpuRequest


class CeilingReader:
    """Reads the ceilings of one pod; `ceiling` is the namespace's own, in percent of a GPU."""

    def __init__(self, annotations: Mapping[str, Any], ceiling: int, refusals: Refusals) -> None:
        self._annotations = annotations
        self._ceiling = ceiling
        self._refusals = refusals

    def with_ceiling(self, request: GpuRequest, path: str, core: str) -> GpuRequest:
        """Return the request with its ceiling: the container's own annotation, else the pod's.

        `path` is the container's place in the pod, `core` the name of the resource for compute.
        """
        if not request.is_fraction:
            return request
        own = names.limit_annotation(request.container)
        key = own if own in self._annotations else names.CORE_LIMIT
        if request.core > self._ceiling:
            self._refusals.add(
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
        where = f"metadata.annotations[{key}]"
        example = f'{key}: "{self._ceiling}"'
        if not (isinstance(value, str) and value.isascii() and value.isdecimal() and len(value) <= 3):
            self._refusals.add(
                code="limit-invalid",
                container=request.container,
                field=where,
                value=value,
                rule="the ceiling is a whole number of percent of one GPU, as a string",
                example=example,
            )
            return request
        limit = int(value)
        if not request.core <= limit <= self._ceiling:
            self._refusals.add(
                code="limit-out-of-range",
                container=request.container,
                field=where,
                value=value,
                rule=f"the ceiling must be between the container's request ({request.core}) "
                f"and the namespace's ceiling ({self._ceiling})",
                example=example,
            )
            return request
        return GpuRequest(request.container, request.core, request.memory_blocks, limit)

    def check_names(self, requests: Collection[GpuRequest], known: Collection[str]) -> None:
        """Refuse a ceiling for a container that does not exist or holds whole GPUs: it would have no effect."""
        fractions = {r.container for r in requests if r.is_fraction}
        for key, value in self._annotations.items():
            container = key.removeprefix(names.CONTAINER_LIMIT_PREFIX)
            if container == key or container in fractions:
                continue
            near = difflib.get_close_matches(container, sorted(fractions), 1, 0.0)
            self._refusals.add(
                code="limit-without-share",
                container=container if container in known else "",
                field=f"metadata.annotations[{key}]",
                value=value,
                rule="the ceiling belongs to a container that asks for a share of a GPU (1 to 99 percent)",
                example=f'{names.limit_annotation(near[0])}: "{self._ceiling}"' if near else "no such annotation",
            )
