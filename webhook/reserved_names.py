# SPDX-License-Identifier: Apache-2.0
"""Check our reserved names in a pod: labels, annotations, gate, seat, variables, container, volumes.

A reserved name is refused only if its value differs from what we would write: in a second pass, or in a manifest from
`kubectl get -o yaml`, our own values are present.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from typing import Any, Final

from slicekeeper import names
from slicekeeper.errors import Violation
from slicekeeper.gpu.pod_manifest import annotations_of
from slicekeeper.gpu.request import PodRequest
from slicekeeper.kube.pod import gate_index
from slicekeeper.untyped_json import as_list, as_map, show
from webhook.limiter_preload import BESIDE_OWN
from webhook.review_inputs import Case, ClusterContext
from webhook.sidecar_container import covers, is_ours

_MIRROR: Final = "kubernetes.io/config.mirror"


def is_mirror(pod: Mapping[str, Any]) -> bool:
    """Whether kubelet created this object to show a static pod, which runs regardless of our answer."""
    return _MIRROR in annotations_of(pod)


def not_by_kubelet(pod: Mapping[str, Any]) -> Violation:
    """Return the violation of a mirror pod that no kubelet created: nothing in it would be checked."""
    return Violation(
        code="reserved-annotation",
        field=f"metadata.annotations[{_MIRROR}]",
        value=show(annotations_of(pod).get(_MIRROR)),
        rule="only a kubelet creates mirrors of its static pods",
        example="no such annotation",
    )


def forged(pod: Mapping[str, Any], case: Case) -> Iterator[Violation]:
    """Yield annotations that make other parts treat GPUs as allocated.

    They are refused in namespaces with mode `observe` or `off` too, because they would harm all others. In mode
    `enforce` they are among the rules.
    """
    if case.policy.mode == "enforce":
        return
    for key, value in annotations_of(pod).items():
        if key in names.NEVER_ON_NEW_PODS or key.startswith(names.GPU_PREFIX):
            yield _reserved_annotation(key, value)


def is_written_by_us(annotation: str) -> bool:
    """Whether only Slicekeeper writes an annotation."""
    return (
        annotation == names.BUDGET_STATE
        or annotation in names.NEVER_ON_NEW_PODS
        or annotation.startswith(names.GPU_PREFIX)
    )


def unknown_annotations(pod: Mapping[str, Any]) -> Iterator[str]:
    """Yield a warning for each annotation under our domain that no part reads.

    They cause no refusals, because other releases may know more of them.
    """
    for key in annotations_of(pod):
        domain = key.rpartition("/")[0]
        if domain != names.GROUP and not domain.endswith(f".{names.GROUP}"):
            continue
        if key in names.USER_ANNOTATIONS or is_written_by_us(key) or key in (names.ROOM_SEEN_AT, names.RUN_SECONDS):
            continue
        if not key.startswith(names.CONTAINER_LIMIT_PREFIX):
            similar = difflib.get_close_matches(key, names.USER_ANNOTATIONS, 1, 0.8)
            meant = f"; did you mean {similar[0]}?" if similar else ""
            yield f"annotation {show(key)} has no effect in Slicekeeper{meant}"


def of_metadata(pod: Mapping[str, Any], request: PodRequest) -> Iterator[Violation]:
    """Yield what is wrong with labels, finalizers and annotations that are ours."""
    metadata = as_map(pod.get("metadata"))
    on_gpu_pod = request.holds_gpus
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
        if not is_written_by_us(key):
            continue
        if key == names.BUDGET_STATE and on_gpu_pod and value in (names.IN_BUDGET, names.OVER_BUDGET):
            continue
        yield _reserved_annotation(key, value)


def _reserved_annotation(key: str, value: object) -> Violation:
    return Violation(
        code="reserved-annotation",
        field=f"metadata.annotations[{key}]",
        value=show(value),
        rule="the annotation is reserved; Slicekeeper writes it when the pod is admitted or bound",
        example="no such annotation",
    )


def of_gate(pod: Mapping[str, Any], request: PodRequest, case: Case) -> Iterator[Violation]:
    """Check our gate: it would never be removed from a pod that has nothing to wait for."""
    waits = case.policy.reserves and request.holds_gpus
    if gate_index(pod) is not None and not waits:
        yield Violation(
            code="reserved-gate",
            field="spec.schedulingGates",
            value=show(names.GATE),
            rule="the gate is reserved; the webhook writes it on GPU pods of namespaces whose budget is enforced safe",
            example="no such gate",
        )


def of_seat(
    path: str, name: str, container: Mapping[str, Any], cluster: ClusterContext, *, allowed: bool
) -> Iterator[Violation]:
    """Yield a seat that the webhook would not give; `allowed` says whether the container gets one."""
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


def of_env(path: str, name: str, container: Mapping[str, Any], *, limited: bool) -> Iterator[Violation]:
    """Yield variables that are ours, except those of a container that gets the limiter."""
    for index, entry in enumerate(as_list(container.get("env"))):
        variable = entry.get("name")
        if variable.startswith(names.ENV_PREFIX) and not (limited and entry == BESIDE_OWN):
            yield Violation(
                code="reserved-env",
                container=name,
                field=f"{path}.env[{index}]",
                value=show(variable),
                rule=f"variables that begin with {names.ENV_PREFIX} are reserved",
                example="no such variable",
            )


def of_sidecar(
    path: str, kind: str, container: Mapping[str, Any], case: Case, cluster: ClusterContext, *, holds_gpu: bool
) -> Iterator[Violation]:
    """Yield a container with our sidecar's name that is not our sidecar."""
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
            rule="the name is reserved; the webhook adds this container itself, and this one is different",
            example="no container of this name",
        )


def of_volumes(spec: Mapping[str, Any], cluster: ClusterContext) -> Iterator[Violation]:
    """Yield volumes with our names that are not ours."""
    ours = {volume["name"]: volume for volume in cluster.volumes}
    for index, entry in enumerate(as_list(spec.get("volumes"))):
        own = ours.get(entry.get("name"))
        if own is not None and not covers(entry, own):
            yield Violation(
                code="reserved-volume",
                field=f"spec.volumes[{index}]",
                value=show(entry),
                rule="the name is reserved; the webhook adds this volume itself, and this one is different",
                example="no volume of this name",
            )
