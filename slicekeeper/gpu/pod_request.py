# SPDX-License-Identifier: Apache-2.0
"""Read a pod's GPU request from its manifest, in exact integers, or the rules that it breaks.

Every part that needs a pod's request calls `parse_pod`: the webhook to refuse, the scheduler to place, the timekeeper
to charge. The rules are those of `docs/requests.md`.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

from msgspec.structs import replace

from slicekeeper.config.settings import Resources
from slicekeeper.errors import RequestRefused
from slicekeeper.gpu.container_request import ContainerReader
from slicekeeper.gpu.request import GpuRequest, PodRequest
from slicekeeper.gpu.request_annotations import AnnotationReader
from slicekeeper.gpu.share_ceiling import CeilingReader, without_ceilings
from slicekeeper.gpu.violations import Violations
from slicekeeper.kube.effective_request import effective_request
from slicekeeper.kube.objects import Pod
from slicekeeper.units import CORES_PER_GPU


def parse_pod(pod: Pod, resources: Resources, *, ceiling: int = CORES_PER_GPU) -> PodRequest:
    """Return the request of `pod`; `ceiling` is the namespace's elastic maximum in percent.

    Raises RequestRefused with every rule that the manifest breaks.
    """
    violations = Violations()
    found: list[tuple[GpuRequest, str]] = []
    devices: list[tuple[str, Mapping[str, int]]] = []
    by_container: dict[str, Mapping[str, int]] = {}
    known: list[str] = []
    for placed in pod.spec.placed():
        reader = ContainerReader(resources, violations, placed)
        known.append(reader.name)
        asked = reader.request()
        if asked is not None:
            found.append((asked, placed.path))
        counts = reader.devices()
        if counts:
            devices.append((placed.kind, counts))
            by_container[reader.name] = counts
    annotations = pod.metadata.annotations
    ceilings = CeilingReader(annotations, ceiling, violations)
    requests = tuple(ceilings.with_ceiling(asked, path, resources.core) for asked, path in found)
    if requests:
        ceilings.check_names(requests, known)
    request = PodRequest(
        requests=requests,
        devices=by_container,
        held_devices=effective_request(devices),
        **(AnnotationReader(annotations, violations).options(requests) if requests or devices else {}),
    )
    if violations:
        raise RequestRefused(violations)
    return request


def parse_admitted(pod: Pod, resources: Resources) -> tuple[PodRequest, str]:
    """Return the request of an existing pod and, if its manifest breaks a rule, which one.

    Its containers' requests count even if an annotation is wrong: otherwise a user who can write annotations could use
    GPUs without a charge. A wrong ceiling, which the owner of an admitted pod may set, breaks no rule: the node's agent
    keeps a share within its range.
    """
    try:
        return parse_pod(pod, resources), ""
    except RequestRefused as error:
        refusal = str(error)
    for kept, broken in ((without_ceilings(pod.metadata.annotations), ""), ({}, refusal)):
        with suppress(RequestRefused):
            bare = replace(pod, metadata=replace(pod.metadata, annotations=kept))
            return parse_pod(bare, resources), broken
    return PodRequest(), refusal
