# SPDX-License-Identifier: Apache-2.0
"""Ephemeral containers that are added to a running pod, as by `kubectl debug`: they must not reach its GPUs."""

from __future__ import annotations

from collections.abc import Iterator

from slicekeeper.errors import Violation
from slicekeeper.kube.objects import PodSpec
from slicekeeper.untyped_json import show
from slicekeeper.wire.json_patch import JsonPatch
from webhook import host_access, legacy_runtime, reserved_names
from webhook.json_patch import PatchBuilder
from webhook.manifest import Manifest, Slot
from webhook.relevant_pods import asks_for_gpus
from webhook.review_inputs import Case, ClusterContext


def missing(pod: Manifest, old: PodSpec, case: Case, cluster: ClusterContext) -> JsonPatch:
    """Return the patch for containers that a running GPU pod has not had before; `check` says what is wrong."""
    patch = PatchBuilder()
    if case.policy.mode == "enforce" and not pod.malformed and asks_for_gpus(pod.spec, case, cluster):
        for slot in _added(pod, old):
            if legacy_runtime.needs_void(slot.container, cluster):
                patch.append(slot.container.env, f"{slot.pointer}/env", [legacy_runtime.VOID_VARIABLE])
    return patch.operations


def check(pod: Manifest, old: PodSpec, case: Case, cluster: ClusterContext) -> Iterator[Violation]:
    """Yield violations of the containers that are not in `old`."""
    if case.policy.mode != "enforce":
        return
    if pod.malformed:
        yield from pod.malformed
        return
    on_gpu_pod = asks_for_gpus(pod.spec, case, cluster)
    for slot in _added(pod, old):
        path, name, container = slot.path, slot.name, slot.container
        if asks_for_gpus(container.resources, case, cluster):
            yield Violation(
                code="gpu-in-ephemeral-container",
                container=name,
                field=f"{path}.resources",
                value=show(slot.sent["resources"]),
                rule="an ephemeral container cannot hold a GPU",
                example=f"{cluster.resources.core}: 50 in spec.containers[0]",
            )
        if on_gpu_pod:
            yield from host_access.of_container(slot, cluster.webhook)
            yield from legacy_runtime.of_container(slot, None, cluster)
            yield from reserved_names.of_env(slot, limited=False)
            if legacy_runtime.needs_void(container, cluster):
                yield Violation(
                    code="not-as-admitted",
                    container=name,
                    field=f"{path}.env",
                    value=show(slot.sent.get("env")),
                    rule="an ephemeral container of a GPU pod must be as the mutating webhook makes it; "
                    "it was bypassed",
                    example=f"{{name: {legacy_runtime.VISIBLE_DEVICES}, value: {legacy_runtime.VOID}}}",
                )


def _added(pod: Manifest, old: PodSpec) -> list[Slot]:
    """Return the ephemeral containers that are not in `old`."""
    there = {container.name for container in old.ephemeral_containers}
    return [slot for slot in pod.slots if slot.kind == "ephemeral" and slot.name not in there]
