# SPDX-License-Identifier: Apache-2.0
"""Check a pod against all rules except those of the request (`slicekeeper.gpu.parse`), and report all violations.

Rules with a subject of their own are in `reserved_names`, `pod_fields`, `host_access` and `legacy_runtime`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from slicekeeper import names
from slicekeeper.errors import RequestRefused, Violation
from slicekeeper.gpu.devices import part_of
from slicekeeper.gpu.parse import parse_admitted, parse_pod
from slicekeeper.gpu.pod_manifest import annotations_of, asks_for, container_name, containers
from slicekeeper.gpu.request import PodRequest
from slicekeeper.kube.pod import controller_of, gate_index
from slicekeeper.untyped import as_list, as_map, show
from webhook import host_access, legacy_runtime, pod_fields, reserved_names
from webhook.pod_shape import malformed
from webhook.review_inputs import Case, ClusterContext

_ANNOTATION_BYTES: Final = 256 * 1024
"""The API server's limit for an object's keys and values together."""
_BINDING_BYTES: Final = 1024
"""Enough for what a Binding and admission write to a pod once."""
_GPU_BYTES: Final = 48
"""Enough for one GPU's UUID; twice that for the annotation's key."""
_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


def concerns(pod: Mapping[str, Any], case: Case, cluster: ClusterContext) -> bool:
    """Whether a pod asks for GPUs, or carries a name that only GPU pods have."""
    if asks_for(pod, (*_asked(case, cluster), cluster.resources.seat)):
        return True
    metadata = as_map(pod.get("metadata"))
    return (
        names.MANAGED_LABEL in as_map(metadata.get("labels"))
        or names.FINALIZER in as_list(metadata.get("finalizers"))
        or gate_index(pod) is not None
        or any(reserved_names.is_written_by_us(key) for key in as_map(metadata.get("annotations")))
    )


def is_gpu_pod(pod: Mapping[str, Any], case: Case, cluster: ClusterContext) -> bool:
    """Whether a pod asks for GPUs that are ours, or metered."""
    return asks_for(pod, _asked(case, cluster))


def _asked(case: Case, cluster: ClusterContext) -> tuple[str, ...]:
    return cluster.ours if case.policy.nvidia_gpu == "ignored" else cluster.asked


def check_pod(pod: Mapping[str, Any], case: Case, cluster: ClusterContext) -> tuple[PodRequest | None, list[Violation]]:
    """Return what a pod asks for, None if that cannot be read, and every rule that it breaks."""
    violations = list(malformed(pod))
    if violations:
        return None, violations
    policy = case.policy
    resources = cluster.without_device if policy.nvidia_gpu == "ignored" else cluster.resources
    try:
        request = parse_pod(pod, resources, ceiling=policy.ceiling)
    except RequestRefused as error:
        # A wrong annotation must not avoid metering if pods are only observed.
        readable = parse_admitted(pod, resources)[0] if policy.mode == "observe" else None
        return readable, list(error.violations)
    violations += reserved_names.of_metadata(pod, request)
    violations += _room_for_binding(pod, request)
    violations += reserved_names.of_gate(pod, request, case)
    violations += _containers(pod, request, case, cluster)
    if request.requests or request.whole_device_gpus:
        violations += legacy_runtime.of_pod(pod)
        violations += host_access.of_pod(as_map(pod.get("spec")), cluster.webhook, cluster.protected_paths)
        violations += pod_fields.of_spec(as_map(pod.get("spec")), request, case, cluster)
    return request, violations


def check_ephemeral(
    pod: Mapping[str, Any], old: Mapping[str, Any], case: Case, cluster: ClusterContext
) -> Iterator[Violation]:
    """Yield violations of ephemeral containers that are not in `old`: they must not reach a running pod's GPUs."""
    violations = list(malformed(pod))
    yield from violations
    if violations:
        return
    there = {container_name(as_map(c)) for c in as_list(as_map(old.get("spec")).get("ephemeralContainers"))}
    asked = _asked(case, cluster)
    on_gpu_pod = is_gpu_pod(pod, case, cluster)
    for path, kind, container in containers(as_map(pod.get("spec"))):
        name = container_name(container)
        if kind != "ephemeral" or name in there:
            continue
        if asks_for({"spec": {"containers": [container]}}, asked):
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
            yield from reserved_names.of_env(path, name, container, preload=False)
            if legacy_runtime.needs_void(container, None, cluster):
                yield Violation(
                    code="not-as-admitted",
                    container=name,
                    field=f"{path}.env",
                    value=show(container.get("env")),
                    rule="an ephemeral container of a GPU pod must be as the mutating webhook makes it; "
                    "it was bypassed",
                    example=f"{{name: {legacy_runtime.VISIBLE_DEVICES}, value: {legacy_runtime.VOID}}}",
                )


def gang_of_nobody(pod: Mapping[str, Any], request: PodRequest) -> Iterator[Violation]:
    """Yield a gang without a name whose pods no controller creates. A template's pods will have a controller."""
    if request.gang_size and not request.gang and controller_of(pod) is None:
        yield Violation(
            code="gang-without-name",
            container="",
            field=f"metadata.annotations[{names.GANG_SIZE}]",
            value=show(str(request.gang_size)),
            rule=f"no controller created this pod, so only {names.GANG} can say which pods are placed together with it",
            example=f"{names.GANG}: training",
        )


def _room_for_binding(pod: Mapping[str, Any], request: PodRequest) -> Iterator[Violation]:
    """Check that the annotations of a Binding fit beside the user's.

    The API server does not count them when it binds, but at every later write: such a pod could never be written
    again, not even by kubelet, nor lose its finalizer.
    """
    size = sum(len(key.encode()) + len(str(value).encode()) for key, value in annotations_of(pod).items())
    needed = _BINDING_BYTES + sum(_GPU_BYTES * (r.gpus + 2) for r in request.requests)
    if request.requests and size + needed > _ANNOTATION_BYTES:
        yield Violation(
            code="annotations-too-large",
            field="metadata.annotations",
            value=f"{size} bytes long",
            rule=f"the scheduler adds up to {needed} bytes to them, and Kubernetes allows {_ANNOTATION_BYTES} in total",
            example="a ConfigMap for large values",
        )


def _containers(
    pod: Mapping[str, Any], request: PodRequest, case: Case, cluster: ClusterContext
) -> Iterator[Violation]:
    """Check each container: its name, and how it could reach GPUs or seats that are not its own."""
    spec = as_map(pod.get("spec"))
    by_name = {r.container: r for r in request.requests}
    preload = cluster.wants_preload(case)
    seen: set[str] = set()
    for path, kind, container in containers(spec):
        name = container_name(container)
        gpu = by_name.get(name)
        if gpu is not None:
            yield from _gpu_container_name(path, name, seen)
        seen.add(name)
        ours = name == names.SIDECAR and kind == "sidecar" and bool(request.requests)
        yield from reserved_names.of_seat(
            path, name, container, cluster, allowed=cluster.gives_seats and (gpu is not None or ours)
        )
        if request.requests or request.whole_device_gpus:
            yield from host_access.of_container(path, name, container, cluster.webhook)
            yield from legacy_runtime.of_container(path, name, container, gpu, cluster)
        if name in request.whole_device_gpus and case.policy.nvidia_gpu == "refused":
            for device, count in request.devices[name].items():
                yield _device_refused(path, name, device, count, cluster)
        if request.requests:
            if name == names.SIDECAR:
                yield from reserved_names.of_sidecar(path, kind, container, case, cluster, holds_gpu=gpu is not None)
            else:
                limited = preload and gpu is not None and request.is_limited(gpu)
                yield from reserved_names.of_env(path, name, container, preload=limited)
    if request.requests:
        yield from reserved_names.of_volumes(spec, cluster)


def _device_refused(path: str, name: str, device: str, count: int, cluster: ClusterContext) -> Violation:
    resources = cluster.resources
    part = part_of(device, {})
    percent = max(int(part.core * count * 100), 1)
    percent = percent if percent < 100 else percent // 100 * 100
    memory = f" beside {resources.memory}: 15" if percent < 100 else ""
    return Violation(
        code="device-refused",
        container=name,
        field=f"{path}.resources.limits[{device}]",
        value=show(count),
        rule="this namespace may not request GPUs of NVIDIA's plugin, which bypass Slicekeeper's scheduler and "
        "the budget",
        example=f"{resources.core}: {percent}{memory}",
    )


def _gpu_container_name(path: str, name: str, seen: set[str]) -> Iterator[Violation]:
    """Check a name that becomes part of an annotation's key, and must identify one container."""
    if name in seen or not _NAME.fullmatch(name):
        yield Violation(
            code="container-name-invalid",
            container=name,
            field=f"{path}.name",
            value=show(name),
            rule="a container that holds a GPU needs a name of its own: up to 63 lower-case letters, digits and '-'",
            example="name: trainer",
        )
