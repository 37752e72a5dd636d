# SPDX-License-Identifier: Apache-2.0
"""The webhook's changes of a pod, as the smallest patch: existing values are not written again.

`pod_rules` has checked the pod before, so a value under a reserved name is the one that we would write. Legitimate
changes of other mutators are kept: our sidecar is found by its name, at any position.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from slicekeeper import names
from slicekeeper.gpu.pod_manifest import container_name
from slicekeeper.gpu.request import GpuRequest, PodRequest
from slicekeeper.kube.pod import gate_index
from slicekeeper.untyped_json import as_list, as_map
from slicekeeper.wire.json_patch import JsonPatch, escape
from webhook import limiter_preload, pod_priority, sidecar_injection
from webhook.json_patch import PatchBuilder
from webhook.legacy_runtime import VISIBLE_DEVICES, VOID_VARIABLE, devices_variable, is_out_of_date, needs_void
from webhook.review_inputs import Case, ClusterContext

DEFAULT_SCHEDULER: Final = "default-scheduler"


def patch_pod(pod: Mapping[str, Any], request: PodRequest, case: Case, cluster: ClusterContext) -> JsonPatch:
    """Return what is missing in a pod that holds GPUs; empty if nothing is."""
    patch = PatchBuilder()
    _metadata(patch, pod, request, case)
    spec = as_map(pod.get("spec"))
    if case.policy.mode == "enforce":
        pod_priority.set_class(patch, spec, request, case, cluster)
    if case.policy.reserves and gate_index(pod) is None:
        patch.append(spec.get("schedulingGates"), "/spec/schedulingGates", [{"name": names.GATE}])
    _containers(patch, spec, request, case, cluster)
    if request.requests:
        if not spec.get("nodeName") and spec.get("schedulerName") in (None, "", DEFAULT_SCHEDULER):
            patch.member(spec, "/spec", "schedulerName", cluster.webhook.scheduler_name)
        sidecar_injection.inject(patch, spec, request, case, cluster)
    return patch.operations


def _metadata(patch: PatchBuilder, pod: Mapping[str, Any], request: PodRequest, case: Case) -> None:
    metadata = pod.get("metadata")
    if not isinstance(metadata, dict):
        patch.add("/metadata", {})
        metadata = {}
    annotations = {}
    if case.policy.mode == "enforce":
        annotations[names.BUDGET_STATE] = names.OVER_BUDGET if case.over_budget else names.IN_BUDGET
        if any(request.is_limited(r) and r.limit is None for r in request.requests):
            annotations[names.CORE_LIMIT] = str(case.policy.ceiling)
    patch.members(metadata.get("labels"), "/metadata/labels", {names.MANAGED_LABEL: names.MANAGED_VALUE})
    patch.members(metadata.get("annotations"), "/metadata/annotations", annotations)
    finalizers = metadata.get("finalizers")
    if names.FINALIZER not in as_list(finalizers):
        patch.append(finalizers, "/metadata/finalizers", [names.FINALIZER])


def _containers(
    patch: PatchBuilder, spec: Mapping[str, Any], request: PodRequest, case: Case, cluster: ClusterContext
) -> None:
    """Give each container its GPUs, and keep NVIDIA's runtime from giving any to those without one.

    That runtime reads the variable from the image and `envFrom`, too, unless the container itself sets it.
    """
    by_name = {r.container: r for r in request.requests}
    preload = limiter_preload.is_wanted(case, cluster)
    for key in ("initContainers", "containers"):
        for index, entry in enumerate(as_list(spec.get(key))):
            container, pointer = as_map(entry), f"/spec/{key}/{index}"
            gpu = by_name.get(container_name(container))
            if gpu is not None:
                if cluster.gives_seats:
                    _seat(patch, container["resources"], f"{pointer}/resources", cluster.resources.seat)
                devices = devices_variable(gpu, cluster)
                _env(patch, container, f"{pointer}/env", gpu, devices, preload=preload and request.is_limited(gpu))
            elif case.policy.mode == "enforce" and needs_void(container, cluster):
                patch.append(container.get("env"), f"{pointer}/env", [VOID_VARIABLE])


def _seat(patch: PatchBuilder, resources: Mapping[str, Any], pointer: str, seat: str) -> None:
    for section in ("limits", "requests"):
        declared = resources.get(section)
        if not isinstance(declared, dict):
            patch.add(f"{pointer}/{section}", {seat: "1"})
        elif seat not in declared:
            patch.add(f"{pointer}/{section}/{escape(seat)}", "1")


def _env(
    patch: PatchBuilder,
    container: Mapping[str, Any],
    pointer: str,
    gpu: GpuRequest,
    devices: Mapping[str, Any],
    *,
    preload: bool,
) -> None:
    entries = as_list(container.get("env"))
    added: list[Mapping[str, Any]] = []
    has_devices = False
    for index, entry in enumerate(entries):
        if entry.get("name") == VISIBLE_DEVICES:
            has_devices = True
            if is_out_of_date(entry, gpu, devices):
                patch.replace(f"{pointer}/{index}", devices)
    if not has_devices:
        added.append(devices)
    if preload:
        added += limiter_preload.variables(entries)
    patch.append(container.get("env"), pointer, added)
