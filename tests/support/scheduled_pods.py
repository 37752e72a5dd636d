# SPDX-License-Identifier: Apache-2.0
"""Managed pods as the scheduler reads them: waiting, or on a node."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from slicekeeper import names


def container(core: int, blocks: int = 4, name: str = "c") -> dict[str, Any]:
    """Return a container that asks for percents of a GPU, and for blocks of memory unless there are none."""
    memory = {"tencent.com/vcuda-memory": str(blocks)} if blocks else {}
    return {"name": name, "resources": {"limits": {"tencent.com/vcuda-core": str(core), **memory}}}


def managed(
    name: str,
    *containers: Mapping[str, Any],
    on: str = "",
    phase: str = "",
    namespace: str = "team-a",
    annotations: Mapping[str, str] | None = None,
    metadata: Mapping[str, Any] | None = None,
    **spec: Any,
) -> dict[str, Any]:
    """Return a pod; `metadata` are fields in addition to its name, label and annotations."""
    return {
        "metadata": {
            "name": name,
            "namespace": namespace,
            "uid": f"uid-{name}",
            "labels": {names.MANAGED_LABEL: names.MANAGED_VALUE},
            "annotations": {**(annotations or {})},
            **(metadata or {}),
        },
        "spec": {"containers": [*containers], **({"nodeName": on} if on else {}), **spec},
        "status": {"phase": phase or ("Running" if on else "Pending")},
    }
