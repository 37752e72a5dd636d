# SPDX-License-Identifier: Apache-2.0
"""The path of the pod template in each kind of workload."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from slicekeeper.untyped import as_map

_TEMPLATE: Final = ("spec", "template")
PATHS: Final[dict[tuple[str, str], tuple[str, ...]]] = {
    ("", "ReplicationController"): _TEMPLATE,
    ("apps", "Deployment"): _TEMPLATE,
    ("apps", "StatefulSet"): _TEMPLATE,
    ("apps", "DaemonSet"): _TEMPLATE,
    ("apps", "ReplicaSet"): _TEMPLATE,
    ("batch", "Job"): _TEMPLATE,
    ("batch", "CronJob"): ("spec", "jobTemplate", "spec", "template"),
}
"""By API group and kind."""


def template_path(group: object, kind: object) -> tuple[str, ...] | None:
    """Return the path of a kind's pod template; None for a kind that creates no pods."""
    return PATHS.get((group, kind)) if isinstance(group, str) and isinstance(kind, str) else None


def template_of(workload: Mapping[str, Any], path: tuple[str, ...]) -> Mapping[str, Any]:
    """Return the template, empty if there is none."""
    node: Mapping[str, Any] = workload
    for part in path:
        node = as_map(node.get(part))
    return node


def with_template(workload: Mapping[str, Any], path: tuple[str, ...], template: Mapping[str, Any]) -> dict[str, Any]:
    """Return the workload with another template."""
    head, *rest = path
    below = with_template(as_map(workload.get(head)), tuple(rest), template) if rest else dict(template)
    return {**workload, head: below}
