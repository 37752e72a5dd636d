# SPDX-License-Identifier: Apache-2.0
"""Ephemeral containers that are added to a running pod, as by `kubectl debug`: they must not reach its GPUs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from slicekeeper.errors import Violation
from slicekeeper.gpu.pod_manifest import container_name
from slicekeeper.untyped_json import as_list, as_map, show
from slicekeeper.wire.json_patch import JsonPatch
from webhook import host_access, legacy_runtime, reserved_names
from webhook.field_types import malformed
from webhook.json_patch import PatchBuilder
from webhook.relevant_pods import is_gpu_pod
from webhook.review_inputs import Case, ClusterContext


def missing(pod: Mapping[str, Any], old: Mapping[str, Any], case: Case, cluster: ClusterContext) -> JsonPatch:
    """Return the patch for containers that a running GPU pod has not had before; `check` says what is wrong."""
    patch = PatchBuilder()
    if case.policy.mode == "enforce" and not any(malformed(pod)) and is_gpu_pod(pod, case, cluster):
        for index, container in _added(pod, old):
            if legacy_runtime.needs_void(container, cluster):
                pointer = f"/spec/ephemeralContainers/{index}/env"
                patch.append(container.get("env"), pointer, [legacy_runtime.VOID_VARIABLE])
    return patch.operations


def check(pod: Mapping[str, Any], old: Mapping[str, Any], case: Case, cluster: ClusterContext) -> Iterator[Violation]:
    """Yield violations of the containers that are not in `old`."""
    if case.policy.mode != "enforce":
        return
    violations = list(malformed(pod))
    yield from violations
    if violations:
        return
    on_gpu_pod = is_gpu_pod(pod, case, cluster)
    for index, container in _added(pod, old):
        path, name = f"spec.ephemeralContainers[{index}]", container_name(container)
        if is_gpu_pod({"spec": {"containers": [container]}}, case, cluster):
            yield Violation(
                code="gpu-in-ephemeral-container",
                container=name,
                field=f"{path}.resources",
                value=show(container.get("resources")),
                rule="an ephemeral container cannot hold a GPU",
                example=f"{cluster.resources.core}: 50 in spec.containers[0]",
            )
        if on_gpu_pod:
            yield from host_access.of_container(path, name, container, cluster.webhook)
            yield from legacy_runtime.of_container(path, name, container, None, cluster)
            yield from reserved_names.of_env(path, name, container, limited=False)
            if legacy_runtime.needs_void(container, cluster):
                yield Violation(
                    code="not-as-admitted",
                    container=name,
                    field=f"{path}.env",
                    value=show(container.get("env")),
                    rule="an ephemeral container of a GPU pod must be as the mutating webhook makes it; "
                    "it was bypassed",
                    example=f"{{name: {legacy_runtime.VISIBLE_DEVICES}, value: {legacy_runtime.VOID}}}",
                )


def _added(pod: Mapping[str, Any], old: Mapping[str, Any]) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Yield the position of each container that is not in `old`, and the container."""
    there = {container_name(as_map(c)) for c in as_list(as_map(old.get("spec")).get("ephemeralContainers"))}
    for index, entry in enumerate(as_list(as_map(pod.get("spec")).get("ephemeralContainers"))):
        if container_name(as_map(entry)) not in there:
            yield index, as_map(entry)
