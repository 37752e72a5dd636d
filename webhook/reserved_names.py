# SPDX-License-Identifier: Apache-2.0
"""Check our reserved names in a pod: labels, annotations, gate, seat, variables, container, volumes.

A reserved name is refused only if its value differs from what we would write: in a second pass, or in a manifest from
`kubectl get -o yaml`, our own values are present.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from typing import Final

from slicekeeper import names
from slicekeeper.errors import Violation
from slicekeeper.gpu.request import PodRequest
from slicekeeper.kube.objects import Metadata, PodSpec
from slicekeeper.untyped_json import show
from webhook.limiter_preload import BESIDE_OWN
from webhook.manifest import Manifest, Slot
from webhook.review_inputs import Case, ClusterContext
from webhook.sidecar_container import covers, is_ours

_MIRROR: Final = "kubernetes.io/config.mirror"


def is_mirror(metadata: Metadata) -> bool:
    """Whether kubelet created this object to show a static pod, which runs regardless of our answer."""
    return _MIRROR in metadata.annotations


def not_by_kubelet(metadata: Metadata) -> Violation:
    """Return the violation of a mirror pod that no kubelet created: nothing in it would be checked."""
    return Violation(
        code="reserved-annotation",
        field=f"metadata.annotations[{_MIRROR}]",
        value=show(metadata.annotations.get(_MIRROR)),
        rule="only a kubelet creates mirrors of its static pods",
        example="no such annotation",
    )


def forged(metadata: Metadata, case: Case) -> Iterator[Violation]:
    """Yield annotations that make other parts treat GPUs as allocated.

    They are refused in namespaces with mode `observe` or `off` too, because they would harm all others. In mode
    `enforce` they are among the rules.
    """
    if case.policy.mode == "enforce":
        return
    for key, value in metadata.annotations.items():
        if key in names.NEVER_ON_NEW_PODS or key.startswith(names.GPU_PREFIX):
            yield _reserved_annotation(key, value)


def is_written_by_us(annotation: str) -> bool:
    """Whether only Slicekeeper writes an annotation."""
    return (
        annotation == names.BUDGET_STATE
        or annotation in names.NEVER_ON_NEW_PODS
        or annotation.startswith(names.GPU_PREFIX)
    )


def unknown_annotations(metadata: Metadata) -> Iterator[str]:
    """Yield a warning for each annotation under our domain that no part reads.

    They cause no refusals, because other releases may know more of them.
    """
    for key in metadata.annotations:
        domain = key.rpartition("/")[0]
        if domain != names.GROUP and not domain.endswith(f".{names.GROUP}"):
            continue
        if key in names.USER_ANNOTATIONS or is_written_by_us(key) or key in (names.ROOM_SEEN_AT, names.RUN_SECONDS):
            continue
        if not key.startswith(names.CONTAINER_LIMIT_PREFIX):
            similar = difflib.get_close_matches(key, names.USER_ANNOTATIONS, 1, 0.8)
            meant = f"; did you mean {similar[0]}?" if similar else ""
            yield f"annotation {show(key)} has no effect in Slicekeeper{meant}"


def of_metadata(metadata: Metadata, request: PodRequest) -> Iterator[Violation]:
    """Yield what is wrong with labels, finalizers and annotations that are ours."""
    on_gpu_pod = request.holds_gpus
    only = "" if on_gpu_pod else " only on pods that ask for GPUs"
    label = metadata.labels.get(names.MANAGED_LABEL)
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
    if not on_gpu_pod and names.FINALIZER in metadata.finalizers:
        yield Violation(
            code="reserved-finalizer",
            field="metadata.finalizers",
            value=show(names.FINALIZER),
            rule=f"the finalizer is reserved; the webhook writes it{only}",
            example="no such finalizer",
        )
    for key, value in metadata.annotations.items():
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


def of_gate(spec: PodSpec, request: PodRequest, case: Case) -> Iterator[Violation]:
    """Check our gate: it would never be removed from a pod that has nothing to wait for."""
    waits = case.policy.reserves and request.holds_gpus
    if spec.is_gated and not waits:
        yield Violation(
            code="reserved-gate",
            field="spec.schedulingGates",
            value=show(names.GATE),
            rule="the gate is reserved; the webhook writes it on GPU pods of namespaces whose budget is enforced safe",
            example="no such gate",
        )


def of_seat(slot: Slot, cluster: ClusterContext, *, allowed: bool) -> Iterator[Violation]:
    """Yield a seat that the webhook would not give; `allowed` says whether the container gets one."""
    seat = cluster.resources.seat
    resources = slot.container.resources
    for section, amounts in (("limits", resources.limits), ("requests", resources.requests)):
        value = amounts.get(seat)
        if value is None or (allowed and str(value) == "1"):
            continue
        yield Violation(
            code="reserved-resource",
            container=slot.name,
            field=f"{slot.path}.resources.{section}[{seat}]",
            value=show(value),
            rule="the webhook gives one seat to each container that holds a GPU, and to its own sidecar",
            example=f"no {seat}",
        )


def of_env(slot: Slot, *, limited: bool) -> Iterator[Violation]:
    """Yield variables that are ours, except those of a container that gets the limiter."""
    for index, entry in enumerate(slot.container.env):
        variable = entry.name
        if variable.startswith(names.ENV_PREFIX) and not (limited and entry == BESIDE_OWN):
            yield Violation(
                code="reserved-env",
                container=slot.name,
                field=f"{slot.path}.env[{index}]",
                value=show(variable),
                rule=f"variables that begin with {names.ENV_PREFIX} are reserved",
                example="no such variable",
            )


def of_sidecar(slot: Slot, case: Case, cluster: ClusterContext, *, holds_gpu: bool) -> Iterator[Violation]:
    """Yield a container with our sidecar's name that is not our sidecar."""
    ours = cluster.sidecar(case.policy.sidecar, "")
    known = {entry["name"] for entry in ours["env"]}
    container = slot.container
    variables = [entry.name for entry in container.env]
    strange = [name for name in variables if name.startswith(names.ENV_PREFIX) and name not in known]
    if slot.kind != "sidecar" or holds_gpu or strange or container.env_from or not is_ours(slot.sent, ours):
        yield Violation(
            code="reserved-container",
            container=names.SIDECAR,
            field=slot.path,
            value=show(strange[0] if strange else slot.sent),
            rule="the name is reserved; the webhook adds this container itself, and this one is different",
            example="no container of this name",
        )


def of_volumes(pod: Manifest, cluster: ClusterContext) -> Iterator[Violation]:
    """Yield volumes with our names that are not ours."""
    ours = {volume["name"]: volume for volume in cluster.volumes}
    for index, volume in enumerate(pod.spec.volumes):
        own = ours.get(volume.name)
        if own is not None and not covers(entry := pod.sent["spec"]["volumes"][index], own):
            yield Violation(
                code="reserved-volume",
                field=f"spec.volumes[{index}]",
                value=show(entry),
                rule="the name is reserved; the webhook adds this volume itself, and this one is different",
                example="no volume of this name",
            )
