# SPDX-License-Identifier: Apache-2.0
"""Add the reporting sidecar to a pod: where it goes, and what an earlier pass or another mutator has left to update."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from slicekeeper import names
from slicekeeper.config.resource_names import is_named
from slicekeeper.config.settings import Resources
from slicekeeper.gpu.pod_manifest import container_name, is_zero
from slicekeeper.gpu.request import PodRequest
from slicekeeper.untyped_json import as_list, as_map
from slicekeeper.wire.json_patch import JsonPatch, escape
from webhook.json_patch import PatchBuilder
from webhook.legacy_runtime import VOID_VARIABLE
from webhook.review_inputs import Case, ClusterContext
from webhook.sidecar_amounts import fitted
from webhook.sidecar_container import CONTAINERS_VARIABLE

_API_TOKEN_PATH: Final = "/var/run/secrets/kubernetes.io/serviceaccount"  # noqa: S105 - a path
_API_TOKEN_VOLUME: Final = "kube-api-access-"  # noqa: S105 - the beginning of its name


def inject(
    patch: PatchBuilder, spec: Mapping[str, Any], request: PodRequest, case: Case, cluster: ClusterContext
) -> None:
    """Add what is missing of the sidecar and its volumes."""
    present = {as_map(volume).get("name") for volume in as_list(spec.get("volumes"))}
    missing = [volume for volume in cluster.volumes if volume["name"] not in present]
    patch.append(spec.get("volumes"), "/spec/volumes", missing)
    # Sorted, so that an injector that moves containers changes nothing here.
    reported = ",".join(sorted(r.container for r in request.requests))
    init = as_list(spec.get("initContainers"))
    for index, container in enumerate(init):
        if container_name(as_map(container)) == names.SIDECAR:
            _reported_containers(patch, container, f"/spec/initContainers/{index}/env", reported)
            return
    # The last change, because it increments the positions of the others.
    sidecar = cluster.sidecar(case.policy.sidecar, reported)
    sidecar = fitted(sidecar, spec, cluster.limit_ranges.of(case.namespace))
    if case.policy.mode == "enforce":
        sidecar = {**sidecar, "env": [*sidecar["env"], VOID_VARIABLE]}
    token = _token_mount(spec)
    if token is not None:
        sidecar = {**sidecar, "volumeMounts": [*as_list(sidecar.get("volumeMounts")), token]}
    if init:
        patch.add("/spec/initContainers/0", sidecar)
    else:
        patch.add("/spec/initContainers", [sidecar])


def _token_mount(spec: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the mount that the API server's ServiceAccount plugin has added to the other containers, if any.

    It would add it to the sidecar later, and call us a second time because of that change.
    """
    for key in ("containers", "initContainers"):
        for container in as_list(spec.get(key)):
            for mount in as_list(as_map(container).get("volumeMounts")):
                name, path = as_map(mount).get("name"), as_map(mount).get("mountPath")
                if path == _API_TOKEN_PATH and isinstance(name, str) and name.startswith(_API_TOKEN_VOLUME):
                    return {"name": name, "readOnly": True, "mountPath": path}
    return None


def _reported_containers(patch: PatchBuilder, sidecar: Mapping[str, Any], pointer: str, reported: str) -> None:
    """Update the list of GPU containers: since the previous pass, another injector may have added one."""
    entries = as_list(sidecar.get("env"))
    found = False
    for index, entry in enumerate(entries):
        if entry.get("name") == CONTAINERS_VARIABLE:
            found = True
            patch.member(entry, f"{pointer}/{index}", "value", reported)
    if not found:
        patch.append(entries, pointer, [{"name": CONTAINERS_VARIABLE, "value": reported}])


def without_gpu(pod: Mapping[str, Any], resources: Resources) -> JsonPatch:
    """Return the patch that removes a GPU that a LimitRange's defaults added to our sidecar after the previous pass.

    The amount becomes 0, because a LimitRange with a maximum requires some amount.
    """
    patch: JsonPatch = []
    for index, container in enumerate(as_list(as_map(pod.get("spec")).get("initContainers"))):
        if container_name(as_map(container)) != names.SIDECAR:
            continue
        for section, amounts in as_map(as_map(container).get("resources")).items():
            for resource, amount in as_map(amounts).items():
                ours = is_named(resource, (resources.core, resources.memory, *resources.devices))
                if ours and not is_zero(amount):
                    pointer = f"/spec/initContainers/{index}/resources/{section}/{escape(resource)}"
                    patch.append({"op": "replace", "path": pointer, "value": "0"})
    return patch
