# SPDX-License-Identifier: Apache-2.0
"""Add the reporting sidecar to a pod: where it goes, and what an earlier pass or another mutator has left to update."""

from __future__ import annotations

from typing import Any, Final

from slicekeeper import names
from slicekeeper.config.resource_names import is_named
from slicekeeper.config.settings import Resources
from slicekeeper.gpu.request import PodRequest
from slicekeeper.kube.objects import PodSpec
from slicekeeper.units import is_zero
from slicekeeper.wire.json_patch import JsonPatch, escape
from webhook.json_patch import PatchBuilder
from webhook.legacy_runtime import VOID_VARIABLE
from webhook.manifest import Manifest, Slot
from webhook.review_inputs import Case, ClusterContext
from webhook.sidecar_amounts import fitted
from webhook.sidecar_container import CONTAINERS_VARIABLE

_API_TOKEN_PATH: Final = "/var/run/secrets/kubernetes.io/serviceaccount"  # noqa: S105 - a path
_API_TOKEN_VOLUME: Final = "kube-api-access-"  # noqa: S105 - the beginning of its name


def inject(patch: PatchBuilder, pod: Manifest, request: PodRequest, case: Case, cluster: ClusterContext) -> None:
    """Add what is missing of the sidecar and its volumes."""
    spec = pod.spec
    present = {volume.name for volume in spec.volumes}
    missing = [volume for volume in cluster.volumes if volume["name"] not in present]
    patch.append(spec.volumes, "/spec/volumes", missing)
    # Sorted, so that an injector that moves containers changes nothing here.
    reported = ",".join(sorted(r.container for r in request.requests))
    for slot in pod.slots[: len(spec.init_containers)]:
        if slot.name == names.SIDECAR:
            _reported_containers(patch, slot, reported)
            return
    # The last change, because it increments the positions of the others.
    sidecar = cluster.sidecar(case.policy.sidecar, reported)
    sidecar = fitted(sidecar, spec, cluster.limit_ranges.of(case.namespace))
    if case.policy.mode == "enforce":
        sidecar = {**sidecar, "env": [*sidecar["env"], VOID_VARIABLE]}
    token = _token_mount(spec)
    if token is not None:
        sidecar = {**sidecar, "volumeMounts": [*sidecar["volumeMounts"], token]}
    if spec.init_containers:
        patch.add("/spec/initContainers/0", sidecar)
    else:
        patch.add("/spec/initContainers", [sidecar])


def _token_mount(spec: PodSpec) -> dict[str, Any] | None:
    """Return the mount that the API server's ServiceAccount plugin has added to the other containers, if any.

    It would add it to the sidecar later, and call us a second time because of that change.
    """
    for container in (*spec.containers, *spec.init_containers):
        for mount in container.volume_mounts:
            if mount.mount_path == _API_TOKEN_PATH and mount.name.startswith(_API_TOKEN_VOLUME):
                return {"name": mount.name, "readOnly": True, "mountPath": mount.mount_path}
    return None


def _reported_containers(patch: PatchBuilder, sidecar: Slot, reported: str) -> None:
    """Update the list of GPU containers: since the previous pass, another injector may have added one."""
    pointer, env = f"{sidecar.pointer}/env", sidecar.container.env
    found = False
    for index, entry in enumerate(env):
        if entry.name == CONTAINERS_VARIABLE:
            found = True
            patch.member(sidecar.sent["env"][index], f"{pointer}/{index}", "value", reported)
    if not found:
        patch.append(env, pointer, [{"name": CONTAINERS_VARIABLE, "value": reported}])


def without_gpu(spec: PodSpec, resources: Resources) -> JsonPatch:
    """Return the patch that removes a GPU that a LimitRange's defaults added to our sidecar after the previous pass.

    The amount becomes 0, because a LimitRange with a maximum requires some amount.
    """
    patch: JsonPatch = []
    for index, container in enumerate(spec.init_containers):
        if container.name != names.SIDECAR:
            continue
        for section, amounts in (("limits", container.resources.limits), ("requests", container.resources.requests)):
            for resource, amount in amounts.items():
                ours = is_named(resource, (resources.core, resources.memory, *resources.devices))
                if ours and not is_zero(amount):
                    pointer = f"/spec/initContainers/{index}/resources/{section}/{escape(resource)}"
                    patch.append({"op": "replace", "path": pointer, "value": "0"})
    return patch
