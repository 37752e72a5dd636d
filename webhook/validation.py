# SPDX-License-Identifier: Apache-2.0
"""What a user may not write on a GPU pod, beyond the request itself (`slicekeeper.gpu.parse`).

A name that is ours is refused only if its value is not the one that we would write: a second pass, or a
manifest from `kubectl get -o yaml`, brings our own values back. Every broken rule is reported, not only the first.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from slicekeeper import names
from slicekeeper.errors import RequestRefused, Violation
from slicekeeper.gpu.devices import part_of
from slicekeeper.gpu.parse import parse_admitted, parse_pod
from slicekeeper.gpu.pod_manifest import annotations_of, asks_for, container_name, containers
from slicekeeper.gpu.request import PodRequest
from slicekeeper.kube.pod import controller_of
from slicekeeper.untyped import as_list, as_map, show
from webhook import host_access, legacy_runtime
from webhook.context import Case, ClusterContext
from webhook.mutation import DEFAULT_SCHEDULER, PRELOAD
from webhook.pod_shape import malformed
from webhook.sidecar_container import covers, is_ours

_MIRROR: Final = "kubernetes.io/config.mirror"
_ANNOTATION_BYTES: Final = 256 * 1024
"""What the API server takes of an object's keys and values together."""
_BINDING_BYTES: Final = 1024
"""Enough for what a Binding and admission write once on a pod."""
_GPU_BYTES: Final = 48
"""Enough for one GPU's UUID; twice that for the annotation's key."""
_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


def is_mirror(pod: Mapping[str, Any]) -> bool:
    """Whether kubelet made this object to show a static pod: it runs whatever the answer is."""
    return _MIRROR in annotations_of(pod)


def not_by_kubelet(pod: Mapping[str, Any]) -> Violation:
    """Return what is wrong with a mirror pod that no kubelet made: nothing of it would be checked."""
    return Violation(
        code="reserved-annotation",
        field=f"metadata.annotations[{_MIRROR}]",
        value=show(annotations_of(pod).get(_MIRROR)),
        rule="only a kubelet makes mirrors of its static pods",
        example="no such annotation",
    )


def forged(pod: Mapping[str, Any]) -> Iterator[Violation]:
    """Yield annotations by which other parts take GPUs for given out.

    They are refused in namespaces that are only observed, or off, as well: they would harm all others.
    """
    for key, value in annotations_of(pod).items():
        if key in names.NEVER_ON_NEW_PODS or key.startswith(names.GPU_PREFIX):
            yield _reserved_annotation(key, value)


def concerns(pod: Mapping[str, Any], case: Case, cluster: ClusterContext) -> bool:
    """Whether a pod asks for GPUs, or carries a name that only GPU pods have."""
    if asks_for(pod, (*_asked(case, cluster), cluster.resources.seat)):
        return True
    metadata = as_map(pod.get("metadata"))
    return (
        names.MANAGED_LABEL in as_map(metadata.get("labels"))
        or names.FINALIZER in as_list(metadata.get("finalizers"))
        or _bears_gate(pod)
        or any(_is_written_by_us(key) for key in as_map(metadata.get("annotations")))
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
        # A wrong annotation is no way round the meter if pods are only observed.
        readable = parse_admitted(pod, resources)[0] if policy.mode == "observe" else None
        return readable, list(error.violations)
    violations += _reserved_metadata(pod, request)
    violations += _room_for_binding(pod, request)
    violations += _reserved_gate(pod, request, case)
    violations += _containers(pod, request, case, cluster)
    if request.requests or request.whole_device_gpus:
        violations += legacy_runtime.of_pod(pod)
        violations += host_access.of_pod(as_map(pod.get("spec")), cluster.webhook, cluster.protected_paths)
        violations += _pod_fields(as_map(pod.get("spec")), request, case, cluster)
    return request, violations


def check_ephemeral(
    pod: Mapping[str, Any], old: Mapping[str, Any], case: Case, cluster: ClusterContext
) -> Iterator[Violation]:
    """Yield what is wrong with ephemeral containers that `old` has not: they must not reach a running pod's GPUs."""
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
            yield from _env(path, name, container, preload=False)
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


def may_name_node(case: Case, cluster: ClusterContext, *, ours: bool) -> bool:
    """Whether a `nodeName` on a GPU pod breaks no rule.

    kubelet gives out devices of NVIDIA's plugin no matter who bound the pod, and pods of NVIDIA's operator name their
    node. It matters for our shares and GPUs only.
    """
    return (not ours or cluster.webhook.allow_node_name) and not case.policy.reserves


def unknown_annotations(pod: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield annotations under our domain that no part reads, each with the one that was likely meant, or nothing.

    Told and not refused: other releases may know more of them. Once the pod is there, nobody can correct it.
    """
    for key in annotations_of(pod):
        domain = key.rpartition("/")[0]
        if domain != names.GROUP and not domain.endswith(f".{names.GROUP}"):
            continue
        if key in names.USER_ANNOTATIONS or _is_written_by_us(key) or key == names.ROOM_SEEN_AT:
            continue
        if not key.startswith(names.CONTAINER_LIMIT_PREFIX):
            yield show(key), next(iter(difflib.get_close_matches(key, names.USER_ANNOTATIONS, 1, 0.8)), "")


def gang_of_nobody(pod: Mapping[str, Any], request: PodRequest) -> Iterator[Violation]:
    """Yield a gang without a name whose pods no controller makes. A template's pods will have a controller."""
    if request.gang_size and not request.gang and controller_of(pod) is None:
        yield Violation(
            code="gang-without-name",
            container="",
            field=f"metadata.annotations[{names.GANG_SIZE}]",
            value=show(str(request.gang_size)),
            rule=f"no controller made this pod, so only {names.GANG} can say which pods are placed together with it",
            example=f"{names.GANG}: training",
        )


def named_class(pod: Mapping[str, Any]) -> str:
    """Return the PriorityClass that a pod names, empty if it names none."""
    name = as_map(pod.get("spec")).get("priorityClassName")
    return name if isinstance(name, str) else ""


def _bears_gate(pod: Mapping[str, Any]) -> bool:
    gates = as_list(as_map(pod.get("spec")).get("schedulingGates"))
    return any(as_map(gate).get("name") == names.GATE for gate in gates)


def _is_written_by_us(annotation: str) -> bool:
    return (
        annotation == names.BUDGET_STATE
        or annotation in names.NEVER_ON_NEW_PODS
        or annotation.startswith(names.GPU_PREFIX)
    )


def _reserved_metadata(pod: Mapping[str, Any], request: PodRequest) -> Iterator[Violation]:
    metadata = as_map(pod.get("metadata"))
    on_gpu_pod = bool(request.requests or request.whole_device_gpus)
    only = "" if on_gpu_pod else " only on pods that ask for GPUs"
    label = as_map(metadata.get("labels")).get(names.MANAGED_LABEL)
    if label is not None and not (on_gpu_pod and label == names.MANAGED_VALUE):
        yield Violation(
            code="reserved-label",
            field=f"metadata.labels[{names.MANAGED_LABEL}]",
            value=show(label),
            rule=f"the label is reserved; the webhook writes it{only}",
            example=f'{names.MANAGED_LABEL}: "{names.MANAGED_VALUE}", or no such label'
            if on_gpu_pod
            else "no such label",
        )
    if not on_gpu_pod and names.FINALIZER in as_list(metadata.get("finalizers")):
        yield Violation(
            code="reserved-finalizer",
            field="metadata.finalizers",
            value=show(names.FINALIZER),
            rule=f"the finalizer is reserved; the webhook writes it{only}",
            example="no such finalizer",
        )
    for key, value in as_map(metadata.get("annotations")).items():
        if not _is_written_by_us(key):
            continue
        if key == names.BUDGET_STATE and on_gpu_pod and value in (names.IN_BUDGET, names.OVER_BUDGET):
            continue
        yield _reserved_annotation(key, value)


def _room_for_binding(pod: Mapping[str, Any], request: PodRequest) -> Iterator[Violation]:
    """Check that the annotations of a Binding find room beside the user's.

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
            rule=f"the scheduler adds up to {needed} bytes to them, and Kubernetes takes {_ANNOTATION_BYTES} in all",
            example="a ConfigMap for what is large",
        )


def _reserved_annotation(key: str, value: object) -> Violation:
    return Violation(
        code="reserved-annotation",
        field=f"metadata.annotations[{key}]",
        value=show(value),
        rule="the annotation is reserved; Slicekeeper writes it when the pod is admitted or bound",
        example="no such annotation",
    )


def _reserved_gate(pod: Mapping[str, Any], request: PodRequest, case: Case) -> Iterator[Violation]:
    """Check our gate: it would never be lifted from a pod that has nothing to wait for."""
    waits = case.policy.reserves and bool(request.requests or request.whole_device_gpus)
    if _bears_gate(pod) and not waits:
        yield Violation(
            code="reserved-gate",
            field="spec.schedulingGates",
            value=show(names.GATE),
            rule="the gate is reserved; the webhook writes it on GPU pods of namespaces whose budget is enforced safe",
            example="no such gate",
        )


def _containers(
    pod: Mapping[str, Any], request: PodRequest, case: Case, cluster: ClusterContext
) -> Iterator[Violation]:
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
        yield from _seat(path, name, container, cluster, allowed=cluster.gives_seats and (gpu is not None or ours))
        if request.requests or request.whole_device_gpus:
            yield from host_access.of_container(path, name, container, cluster.webhook)
            yield from legacy_runtime.of_container(path, name, container, gpu, cluster)
        if name in request.whole_device_gpus and case.policy.nvidia_gpu == "refused":
            for device, count in request.devices[name].items():
                yield _device_refused(path, name, device, count, cluster)
        if request.requests:
            if name == names.SIDECAR:
                yield from _sidecar(path, kind, container, case, cluster, holds_gpu=gpu is not None)
            else:
                limited = preload and gpu is not None and request.is_limited(gpu)
                yield from _env(path, name, container, preload=limited)
    if request.requests:
        yield from _volumes(spec, cluster)


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
        rule="this namespace may not ask NVIDIA's plugin for GPUs, past Slicekeeper's scheduler and its budget",
        example=f"{resources.core}: {percent}{memory}",
    )


def _gpu_container_name(path: str, name: str, seen: set[str]) -> Iterator[Violation]:
    """Check a name that becomes part of an annotation's key, and must stand for one container."""
    if name in seen or not _NAME.fullmatch(name):
        yield Violation(
            code="container-name-invalid",
            container=name,
            field=f"{path}.name",
            value=show(name),
            rule="a container that holds a GPU needs a name of its own: up to 63 lower-case letters, digits and '-'",
            example="name: trainer",
        )


def _seat(
    path: str, name: str, container: Mapping[str, Any], cluster: ClusterContext, *, allowed: bool
) -> Iterator[Violation]:
    seat = cluster.resources.seat
    resources = as_map(container.get("resources"))
    for section in ("limits", "requests"):
        value = as_map(resources.get(section)).get(seat)
        if value is None or (allowed and str(value) == "1"):
            continue
        yield Violation(
            code="reserved-resource",
            container=name,
            field=f"{path}.resources.{section}[{seat}]",
            value=show(value),
            rule="the webhook gives one seat to each container that holds a GPU, and to its own sidecar",
            example=f"no {seat}",
        )


def _env(path: str, name: str, container: Mapping[str, Any], *, preload: bool) -> Iterator[Violation]:
    for index, entry in enumerate(as_list(container.get("env"))):
        variable = entry.get("name")
        if variable == PRELOAD:
            indirect = entry.get("valueFrom")
            if preload and indirect:
                yield Violation(
                    code="preload-not-literal",
                    container=name,
                    field=f"{path}.env[{index}].valueFrom",
                    value=show(indirect),
                    rule=f"the limiter is put before your {PRELOAD}, which needs a literal value",
                    example="value: /opt/lib/own.so",
                )
        elif variable.startswith(names.ENV_PREFIX):
            yield Violation(
                code="reserved-env",
                container=name,
                field=f"{path}.env[{index}]",
                value=show(variable),
                rule=f"variables that begin with {names.ENV_PREFIX} are reserved",
                example="no such variable",
            )


def _sidecar(
    path: str, kind: str, container: Mapping[str, Any], case: Case, cluster: ClusterContext, *, holds_gpu: bool
) -> Iterator[Violation]:
    ours = cluster.sidecar(case.policy.sidecar, "")
    known = {entry["name"] for entry in ours["env"]}
    strange = [
        entry["name"]
        for entry in as_list(container.get("env"))
        if entry["name"].startswith(names.ENV_PREFIX) and entry["name"] not in known
    ]
    if kind != "sidecar" or holds_gpu or strange or container.get("envFrom") or not is_ours(container, ours):
        yield Violation(
            code="reserved-container",
            container=names.SIDECAR,
            field=path,
            value=show(strange[0] if strange else container),
            rule="the name is reserved; the webhook adds this container itself, and here it is another one",
            example="no container of this name",
        )


def _volumes(spec: Mapping[str, Any], cluster: ClusterContext) -> Iterator[Violation]:
    ours = {volume["name"]: volume for volume in cluster.volumes}
    for index, entry in enumerate(as_list(spec.get("volumes"))):
        own = ours.get(entry.get("name"))
        if own is not None and not covers(entry, own):
            yield Violation(
                code="reserved-volume",
                field=f"spec.volumes[{index}]",
                value=show(entry),
                rule="the name is reserved; the webhook adds this volume itself, and here it is another one",
                example="no volume of this name",
            )


def _pod_fields(
    spec: Mapping[str, Any], request: PodRequest, case: Case, cluster: ClusterContext
) -> Iterator[Violation]:
    webhook, policy = cluster.webhook, case.policy
    if as_map(spec.get("os")).get("name") == "windows":
        yield Violation(
            code="os-windows",
            field="spec.os.name",
            value=show("windows"),
            rule="shares of GPUs, their meter and their limiter are there for Linux alone",
            example="no spec.os",
        )
    if policy.reserves:
        yield from _deadline(spec)
    if spec.get("nodeName") and not may_name_node(case, cluster, ours=bool(request.requests)):
        yield Violation(
            code="node-name",
            field="spec.nodeName",
            value=show(spec["nodeName"]),
            rule="a GPU pod is placed by the scheduler, which keeps GPUs from being given away twice",
            example="nodeSelector: {kubernetes.io/hostname: NODE}",
        )
    scheduler = spec.get("schedulerName")
    if request.requests and scheduler not in (None, "", DEFAULT_SCHEDULER, webhook.scheduler_name):
        yield Violation(
            code="scheduler-name",
            field="spec.schedulerName",
            value=show(scheduler),
            rule="shares of GPUs are placed by Slicekeeper's scheduler alone",
            example=f"schedulerName: {webhook.scheduler_name}",
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
        yield from _priority_class(spec, case, cluster)


def _deadline(spec: Mapping[str, Any]) -> Iterator[Violation]:
    """Check the field that bounds how long a pod holds its GPUs.

    A Job's own `activeDeadlineSeconds` is another thing: it ends the Job with all its pods, counts from the Job's
    start, begins again when a suspended Job is resumed, may be raised at any time, and is not copied to the pods. A
    pod's can only ever be lowered, so what is set aside for it is enough.
    """
    deadline = spec.get("activeDeadlineSeconds")
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


def _priority_class(spec: Mapping[str, Any], case: Case, cluster: ClusterContext) -> Iterator[Violation]:
    ours = (cluster.class_name(case, over=False), cluster.class_name(case, over=True))
    allowed = case.policy.allowed_priority_classes
    named = spec.get("priorityClassName")
    if named and named not in ours and named not in allowed and not cluster.classes.is_default(named):
        yield Violation(
            code="priority-class-not-allowed",
            field="spec.priorityClassName",
            value=show(named),
            rule="the webhook sets a GPU pod's priority class; this namespace's policy allows users "
            + (", ".join(allowed) if allowed else "no other"),
            example=f"priorityClassName: {allowed[0]}" if allowed else "no priorityClassName",
        )
    for name in ours:
        if cluster.classes.get(name) is None:
            yield Violation(
                code="priority-class-unknown",
                field="spec.priorityClassName",
                value=show(name),
                rule="the policy names a PriorityClass whose value the webhook does not know; an administrator must "
                "create it in the cluster or correct the policy",
                example=f"kubectl get priorityclass {name}",
            )
