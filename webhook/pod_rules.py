# SPDX-License-Identifier: Apache-2.0
"""Check a pod against all rules except those of the request (`slicekeeper.gpu.pod_request`), and report all violations.

Rules with a subject of their own are in `reserved_names`, `pod_priority`, `host_access`, `legacy_runtime` and
`spent_budget`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from slicekeeper import names
from slicekeeper.config.resource_names import is_named
from slicekeeper.errors import RequestRefused, Violation
from slicekeeper.gpu.devices import part_of
from slicekeeper.gpu.pod_request import parse_admitted, parse_pod
from slicekeeper.gpu.request import PodRequest
from slicekeeper.kube.objects import Metadata, PodSpec
from slicekeeper.units import is_zero
from slicekeeper.untyped_json import show
from webhook import (
    host_access,
    legacy_runtime,
    limiter_preload,
    node_platform,
    pod_priority,
    reserved_names,
    sidecar_amounts,
)
from webhook.manifest import Manifest, Slot
from webhook.mutation import DEFAULT_SCHEDULER
from webhook.review_inputs import Case, ClusterContext

_ANNOTATION_BYTES: Final = 256 * 1024
"""The API server's limit for an object's keys and values together."""
_BINDING_BYTES: Final = 1024
"""Enough for what a Binding and admission write to a pod once."""
_GPU_BYTES: Final = 48
"""Enough for one GPU's UUID; twice that for the annotation's key."""
_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


def check_pod(pod: Manifest, case: Case, cluster: ClusterContext) -> tuple[PodRequest, list[Violation]]:
    """Return what a pod asks for, nothing if that cannot be read, and every rule that it breaks."""
    violations = pod.malformed
    if violations:
        return PodRequest(), violations
    policy = case.policy
    resources = cluster.without_device if policy.nvidia_gpu == "ignored" else cluster.resources
    try:
        request = parse_pod(pod.pod, resources, ceiling=policy.ceiling)
    except RequestRefused as error:
        # A wrong annotation must not avoid metering if pods are only observed.
        readable = parse_admitted(pod.pod, resources)[0] if policy.mode == "observe" else PodRequest()
        return readable, list(error.violations)
    violations += reserved_names.of_metadata(pod.metadata, request)
    violations += _room_for_binding(pod.metadata, request)
    violations += reserved_names.of_gate(pod.spec, request, case)
    violations += _containers(pod, request, case, cluster)
    if request.holds_gpus:
        violations += legacy_runtime.of_metadata(pod.metadata)
        violations += host_access.of_pod(pod.spec, cluster.webhook, cluster.protected_paths)
        violations += _spec(pod.spec, request, case, cluster)
    return request, violations


def may_name_node(case: Case, cluster: ClusterContext, *, ours: bool) -> bool:
    """Whether a `nodeName` on a GPU pod breaks no rule.

    kubelet allocates devices of NVIDIA's plugin no matter how the pod was bound, and pods of NVIDIA's operator name
    their node. It matters for our shares and GPUs only.
    """
    return (not ours or cluster.webhook.allow_node_name) and not case.policy.reserves


def gang_of_nobody(metadata: Metadata, request: PodRequest) -> Iterator[Violation]:
    """Yield a gang without a name whose pods no controller creates. A template's pods will have a controller."""
    if request.gang_size and not request.gang and metadata.controller is None:
        yield Violation(
            code="gang-without-name",
            container="",
            field=f"metadata.annotations[{names.GANG_SIZE}]",
            value=show(str(request.gang_size)),
            rule=f"no controller created this pod, so only {names.GANG} can say which pods are placed together with it",
            example=f"{names.GANG}: training",
        )


def _room_for_binding(metadata: Metadata, request: PodRequest) -> Iterator[Violation]:
    """Check that the annotations of a Binding fit beside the user's.

    The API server does not count them when it binds, but at every later write: such a pod could never be written
    again, not even by kubelet, nor lose its finalizer.
    """
    size = sum(len(key.encode()) + len(str(value).encode()) for key, value in metadata.annotations.items())
    needed = _BINDING_BYTES + sum(_GPU_BYTES * (r.gpus + 2) for r in request.requests)
    if request.requests and size + needed > _ANNOTATION_BYTES:
        yield Violation(
            code="annotations-too-large",
            field="metadata.annotations",
            value=f"{size} bytes long",
            rule=f"the scheduler adds up to {needed} bytes to them, and Kubernetes allows {_ANNOTATION_BYTES} in total",
            example="a ConfigMap for large values",
        )


def _containers(pod: Manifest, request: PodRequest, case: Case, cluster: ClusterContext) -> Iterator[Violation]:
    """Check each container: its name, and how it could reach GPUs or seats that are not its own."""
    by_name = {r.container: r for r in request.requests}
    preload = limiter_preload.is_wanted(case, cluster)
    seen: set[str] = set()
    for slot in pod.slots:
        name = slot.name
        gpu = by_name.get(name)
        if gpu is not None:
            yield from _gpu_container_name(slot, seen)
        seen.add(name)
        ours = name == names.SIDECAR and slot.kind == "sidecar" and bool(request.requests)
        yield from reserved_names.of_seat(slot, cluster, allowed=cluster.gives_seats and (gpu is not None or ours))
        if request.holds_gpus:
            yield from host_access.of_container(slot, cluster.webhook)
            yield from legacy_runtime.of_container(slot, gpu, cluster)
        if gpu is not None:
            yield from _other_gpus(slot, cluster)
        if name in request.devices and case.policy.nvidia_gpu == "refused":
            for device, count in request.devices[name].items():
                yield _device_refused(slot, device, count, cluster)
        if request.requests:
            if name == names.SIDECAR:
                yield from reserved_names.of_sidecar(slot, case, cluster, holds_gpu=gpu is not None)
            else:
                limited = preload and gpu is not None and request.is_limited(gpu)
                yield from reserved_names.of_env(slot, limited=limited)
    if request.requests:
        yield from reserved_names.of_volumes(pod, cluster)
        limits = cluster.limit_ranges.of(case.namespace)
        if limits:
            sidecar = cluster.sidecar(case.policy.sidecar, "")
            yield from sidecar_amounts.of_limit_ranges(pod.spec, sidecar, limits, cluster.resources)


def _other_gpus(slot: Slot, cluster: ClusterContext) -> Iterator[Violation]:
    """Yield the GPUs of other plugins for which a container asks beside ours."""
    declared = slot.container.resources
    for section, amounts in (("limits", declared.limits), ("requests", declared.requests)):
        for resource, amount in amounts.items():
            again = section == "requests" and resource in declared.limits
            if again or not is_named(resource, cluster.other_gpus) or is_zero(amount):
                continue
            yield Violation(
                code="gpus-of-two-plugins",
                container=slot.name,
                field=f"{slot.path}.resources.{section}[{resource}]",
                value=show(amount),
                rule=f"a container that requests {cluster.resources.core} sees only the GPU that Slicekeeper gives it, "
                "and would hold this one unused; request one of the two, or each in a container of its own",
                example=f"no {resource}",
            )


def _device_refused(slot: Slot, device: str, count: int, cluster: ClusterContext) -> Violation:
    resources = cluster.resources
    part = part_of(device, {})
    percent = max(int(part.core * count * 100), 1)
    percent = percent if percent < 100 else percent // 100 * 100
    memory = f" beside {resources.memory}: 15" if percent < 100 else ""
    return Violation(
        code="device-refused",
        container=slot.name,
        field=f"{slot.path}.resources.limits[{device}]",
        value=show(count),
        rule="this namespace may not request GPUs of NVIDIA's plugin, which bypass Slicekeeper's scheduler and "
        "the budget",
        example=f"{resources.core}: {percent}{memory}",
    )


def _gpu_container_name(slot: Slot, seen: set[str]) -> Iterator[Violation]:
    """Check a name that becomes part of an annotation's key, and must identify one container."""
    name = slot.name
    if name in seen or not _NAME.fullmatch(name):
        yield Violation(
            code="container-name-invalid",
            container=name,
            field=f"{slot.path}.name",
            value=show(name),
            rule="a container that holds a GPU needs a name of its own: up to 63 lower-case letters, digits and '-'",
            example="name: trainer",
        )


def _spec(spec: PodSpec, request: PodRequest, case: Case, cluster: ClusterContext) -> Iterator[Violation]:
    """Yield the fields of a GPU pod's spec that prevent its placement, metering or class according to the policy."""
    policy = case.policy
    yield from node_platform.of_spec(spec)
    if policy.reserves:
        yield from _deadline(spec)
    if spec.node_name and not may_name_node(case, cluster, ours=bool(request.requests)):
        yield Violation(
            code="node-name",
            field="spec.nodeName",
            value=show(spec.node_name),
            rule="a GPU pod is placed by the scheduler, which keeps GPUs from being allocated twice",
            example="nodeSelector: {kubernetes.io/hostname: NODE}",
        )
    scheduler = spec.scheduler_name
    if request.requests and scheduler not in ("", DEFAULT_SCHEDULER, *cluster.schedulers):
        yield Violation(
            code="scheduler-name",
            field="spec.schedulerName",
            value=show(scheduler),
            rule="shares of GPUs are placed only by Slicekeeper's scheduler",
            example=f"schedulerName: {' or '.join(cluster.schedulers)}",
        )
    if request.requests and request.sharing not in policy.sharing:
        allowed = ", ".join(policy.sharing)
        yield Violation(
            code="sharing-not-allowed",
            field=f"metadata.annotations[{names.SHARING}]",
            value=show(request.sharing),
            rule=f"this namespace's policy allows {allowed or 'no sharing mode at all'}",
            example=f"{names.SHARING}: {policy.sharing[0]}" if policy.sharing else "a namespace that allows one",
        )
    if policy.mode == "enforce":
        yield from pod_priority.of_spec(spec, case, cluster)


def _deadline(spec: PodSpec) -> Iterator[Violation]:
    """Check the field that bounds how long a pod holds its GPUs.

    A Job's own `activeDeadlineSeconds` is another thing: it ends the Job with all its pods, counts from the Job's
    start, begins again when a suspended Job is resumed, may be raised at any time, and is not copied to the pods. A
    pod's can only ever be lowered, so what is set aside for it is enough.
    """
    deadline = spec.active_deadline_seconds
    if deadline is None or deadline < 1:
        yield Violation(
            code="deadline-missing",
            field="spec.activeDeadlineSeconds",
            value=show(deadline),
            rule="this namespace's budget is enforced safe: a GPU pod starts when GPU time until its deadline is set "
            "aside, so the pod itself must have one (the same field of a Job's own spec bounds the Job and not its "
            "pods; pods of Deployments, StatefulSets and DaemonSets cannot have one)",
            example="activeDeadlineSeconds: 3600",
        )
