# SPDX-License-Identifier: Apache-2.0
"""Convert requests for another system into ours, if the namespace's policy says so.

Resources that no node offers any more are removed from the containers. Annotations and labels stay, because they do no
harm. A container that already uses our resources is left unchanged, so a second pass changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from slicekeeper import names
from slicekeeper.config.foreign_dialects import DIALECTS
from slicekeeper.config.policy import NamespacePolicy
from slicekeeper.config.settings import Resources
from slicekeeper.errors import Violation
from slicekeeper.gpu import kubeshare
from slicekeeper.gpu.foreign_request import ConvertedShare, Reading, ReferenceGpu
from slicekeeper.kube.objects import Pod, PodSpec
from slicekeeper.units import is_zero
from slicekeeper.wire.json_patch import JsonPatch, escape
from webhook.foreign import gpu_manager, gpushare, hami, kai, volcano_vgpu
from webhook.json_patch import PatchBuilder
from webhook.manifest import Manifest

_READ: Final[dict[str, Callable[[Pod, ReferenceGpu, Reading], None]]] = {
    "gpu-manager": gpu_manager.read,
    "gpushare": gpushare.read,
    "hami": hami.read,
    "kai": kai.read,
    "kubeshare": kubeshare.read,
    "volcano-vgpu": volcano_vgpu.read,
}


@dataclass(frozen=True)
class Conversion:
    """The patch that converts a foreign request, the warnings for the user, and what could not be converted."""

    patch: JsonPatch
    warnings: tuple[str, ...] = ()
    violations: tuple[Violation, ...] = ()


NOTHING: Final = Conversion([])


def convert(pod: Manifest, policy: NamespacePolicy, resources: Resources, scheduler: str) -> Conversion:
    """Return the conversion of a pod or a pod template; `NOTHING` if it has no foreign request.

    Only in mode `enforce`, because the pod changes. A pod that uses several of the policy's dialects is read in the
    first of them.
    """
    if not policy.foreign.dialects or policy.mode != "enforce":
        return NOTHING
    gpu = ReferenceGpu(policy.foreign.gpu_memory_mib)
    for dialect in policy.foreign.dialects:
        reading = Reading()
        _READ[dialect](pod.pod, gpu, reading)
        if reading.violations:
            return Conversion([], violations=tuple(reading.violations))
        ours = _asking_in_our_terms(pod.spec, resources) if dialect != "gpu-manager" else frozenset()
        shares = {name: share for name, share in reading.shares.items() if name not in ours}
        if not shares:
            continue
        if pod.malformed:
            return Conversion([], violations=tuple(pod.malformed))
        patch = PatchBuilder()
        _containers(patch, pod, shares, dialect, resources)
        _annotations(patch, pod, shares, reading, policy.ceiling)
        foreign = [name for spoken in policy.foreign.dialects for name in DIALECTS[spoken].schedulers]
        if pod.spec.scheduler_name in foreign:  # several dialects request whole GPUs in the same way
            patch.replace("/spec/schedulerName", scheduler)
        if not patch.operations:
            continue
        asked = (f"{name}: {_in_words(share, resources)}" for name, share in shares.items())
        warnings = (f"converted from {dialect}: {', '.join(asked)}", *reading.notes)
        return Conversion(patch.operations, warnings)
    return NOTHING


def _asking_in_our_terms(spec: PodSpec, resources: Resources) -> frozenset[str]:
    return frozenset(
        container.name
        for container in (*spec.init_containers, *spec.containers)
        if not is_zero(container.resources.limits.get(resources.core, 0))
    )


def _containers(
    patch: PatchBuilder,
    pod: Manifest,
    shares: Mapping[str, ConvertedShare],
    dialect: str,
    resources: Resources,
) -> None:
    foreign = DIALECTS[dialect].resources
    for slot in pod.slots:
        share = shares.get(slot.name)
        if share is None or slot.kind == "ephemeral":
            continue
        pointer, declared, sent = f"{slot.pointer}/resources", slot.container.resources, slot.sent.get("resources")
        if sent is None:
            patch.add(pointer, {})
            sent = {}
        amounts = {resources.core: str(share.core)}
        if share.blocks is not None:
            amounts[resources.memory] = str(share.blocks)
        for section, there in (("limits", declared.limits), ("requests", declared.requests)):
            gone = [name for name in foreign if name in there and name not in amounts]
            for name in gone:
                patch.remove(f"{pointer}/{section}/{escape(name)}")
            if section == "limits" or gone:  # omitted requests equal the limits
                different = {name: amount for name, amount in amounts.items() if str(there.get(name)) != amount}
                patch.members(sent.get(section), f"{pointer}/{section}", different)


def _annotations(
    patch: PatchBuilder, pod: Manifest, shares: Mapping[str, ConvertedShare], reading: Reading, ceiling: int
) -> None:
    present = pod.metadata.annotations
    wanted = {key: value for key, value in reading.annotations.items() if key not in present}
    for name, share in shares.items():
        key = names.limit_annotation(name)
        if share.limit is not None and key not in present:
            wanted[key] = str(min(share.limit, max(ceiling, share.core)))
    sent = pod.sent.get("metadata")
    if wanted and sent is None:
        patch.add("/metadata", {})
    patch.members((sent or {}).get("annotations"), "/metadata/annotations", wanted)


def _in_words(share: ConvertedShare, resources: Resources) -> str:
    memory = "" if share.blocks is None else f" {resources.memory}={share.blocks}"
    limit = "" if share.limit is None else f" limit {share.limit}"
    return f"{resources.core}={share.core}{memory}{limit}"
