# SPDX-License-Identifier: Apache-2.0
"""The webhook's changes of a pod, as the smallest patch: existing values are not written again.

`pod_rules` has checked the pod before, so a value under a reserved name is the one that we would write. Legitimate
changes of other mutators are kept: our sidecar is found by its name, at any position.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from slicekeeper import names
from slicekeeper.gpu.request import GpuRequest, PodRequest
from slicekeeper.kube.objects import Container, ResourceAmounts
from slicekeeper.wire.json_patch import JsonPatch, escape
from webhook import limiter_preload, pod_priority, sidecar_injection
from webhook.json_patch import PatchBuilder
from webhook.legacy_runtime import VISIBLE_DEVICES, VOID_VARIABLE, devices_variable, is_out_of_date, needs_void
from webhook.manifest import Manifest
from webhook.review_inputs import Case, ClusterContext

DEFAULT_SCHEDULER: Final = "default-scheduler"


def patch_pod(pod: Manifest, request: PodRequest, case: Case, cluster: ClusterContext) -> JsonPatch:
    """Return what is missing in a pod that holds GPUs; empty if nothing is."""
    patch = PatchBuilder()
    _metadata(patch, pod, request, case)
    spec = pod.spec
    if case.policy.mode == "enforce":
        pod_priority.set_class(patch, pod, request, case, cluster)
    if case.policy.reserves and not spec.is_gated:
        patch.append(spec.scheduling_gates, "/spec/schedulingGates", [{"name": names.GATE}])
    _containers(patch, pod, request, case, cluster)
    if request.requests:
        if not spec.node_name and spec.scheduler_name in ("", DEFAULT_SCHEDULER):
            patch.member(pod.sent["spec"], "/spec", "schedulerName", cluster.webhook.scheduler_name)
        sidecar_injection.inject(patch, pod, request, case, cluster)
    return patch.operations


def _metadata(patch: PatchBuilder, pod: Manifest, request: PodRequest, case: Case) -> None:
    metadata, sent = pod.metadata, pod.sent.get("metadata")
    if sent is None:
        patch.add("/metadata", {})
        sent = {}
    annotations = {}
    if case.policy.mode == "enforce":
        annotations[names.BUDGET_STATE] = names.OVER_BUDGET if case.over_budget else names.IN_BUDGET
        if any(request.is_limited(r) and r.limit is None for r in request.requests):
            annotations[names.CORE_LIMIT] = str(case.policy.ceiling)
    patch.members(sent.get("labels"), "/metadata/labels", {names.MANAGED_LABEL: names.MANAGED_VALUE})
    patch.members(sent.get("annotations"), "/metadata/annotations", annotations)
    if names.FINALIZER not in metadata.finalizers:
        patch.append(metadata.finalizers, "/metadata/finalizers", [names.FINALIZER])


def _containers(patch: PatchBuilder, pod: Manifest, request: PodRequest, case: Case, cluster: ClusterContext) -> None:
    """Give each container its GPUs, and keep NVIDIA's runtime from giving any to those without one.

    That runtime reads the variable from the image and `envFrom`, too, unless the container itself sets it.
    """
    by_name = {r.container: r for r in request.requests}
    preload = limiter_preload.is_wanted(case, cluster)
    for slot in pod.slots:
        container, pointer = slot.container, f"{slot.pointer}/env"
        if slot.kind == "ephemeral":
            continue
        gpu = by_name.get(slot.name)
        if gpu is not None:
            if cluster.gives_seats:
                _seat(patch, container.resources, f"{slot.pointer}/resources", cluster.resources.seat)
            devices = devices_variable(gpu, cluster)
            _env(patch, container, pointer, gpu, devices, preload=preload and request.is_limited(gpu))
        elif case.policy.mode == "enforce" and needs_void(container, cluster):
            patch.append(container.env, pointer, [VOID_VARIABLE])


def _seat(patch: PatchBuilder, resources: ResourceAmounts, pointer: str, seat: str) -> None:
    for section, declared in (("limits", resources.limits), ("requests", resources.requests)):
        if not declared:
            patch.add(f"{pointer}/{section}", {seat: "1"})
        elif seat not in declared:
            patch.add(f"{pointer}/{section}/{escape(seat)}", "1")


def _env(
    patch: PatchBuilder,
    container: Container,
    pointer: str,
    gpu: GpuRequest,
    devices: Mapping[str, Any],
    *,
    preload: bool,
) -> None:
    added: list[Mapping[str, Any]] = []
    has_devices = False
    for index, entry in enumerate(container.env):
        if entry.name == VISIBLE_DEVICES:
            has_devices = True
            if is_out_of_date(entry, gpu, devices):
                patch.replace(f"{pointer}/{index}", devices)
    if not has_devices:
        added.append(devices)
    if preload:
        added += msgspec.to_builtins(limiter_preload.variables(container.env))
    patch.append(container.env, pointer, added)
