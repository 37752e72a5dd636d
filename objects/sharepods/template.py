# SPDX-License-Identifier: Apache-2.0
"""The pod of a SharePod: its labels, annotations and spec, with its GPU request in our terms.

A node is a constraint and never set: a pod with `spec.nodeName` would bypass the scheduler, and its GPU would be
counted nowhere.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, Final

from objects.sharepods.request import read
from slicekeeper import names
from slicekeeper.config.settings import Resources
from slicekeeper.errors import Violation
from slicekeeper.gpu.foreign_request import ConvertedShare
from slicekeeper.kube.client import Object, Resource
from slicekeeper.kube.pod_manifest import container_name, containers
from slicekeeper.untyped_json import as_list, as_map

SHAREPODS: Final = Resource("/apis/kubeshare.nthu/v1", "sharepods")
SHAREPOD_LABEL: Final = "kubeshare.nthu/sharepod"
"""The label, with the value `true`, of pods that were created for SharePods; watches and the search for orphans select
by it."""
DIGEST_ANNOTATION: Final = "kubeshare.nthu/template-hash"
"""The annotation that shows whether a pod has the SharePod's current template."""

_NOT_THE_PODS: Final = "kubectl.kubernetes.io/last-applied-configuration"
_REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"


@dataclass(frozen=True)
class Template:
    """The pod to create, notes of what was rounded, and why none may be created."""

    pod: Object
    notes: tuple[str, ...] = ()
    violations: tuple[Violation, ...] = ()

    @property
    def digest(self) -> str:
        """The digest that distinguishes this pod from one with another spec."""
        return str(self.pod["metadata"]["annotations"][DIGEST_ANNOTATION])


def template_of(sharepod: Object, resources: Resources) -> Template:
    """Return the pod for a SharePod."""
    metadata = sharepod["metadata"]
    spec = deepcopy(dict(as_map(sharepod.get("spec"))))
    annotations = {k: v for k, v in as_map(metadata.get("annotations")).items() if k != _NOT_THE_PODS}
    labels = dict(as_map(metadata.get("labels")))
    content = json.dumps([spec, labels, annotations], sort_keys=True).encode()
    first = next(iter(as_list(spec.get("containers"))), None)
    reading = read(sharepod, container_name(as_map(first)))
    if reading.shares:
        for path, _, container in containers(spec):
            asked = as_map(as_map(container.get("resources")).get("limits"))
            twice = next((name for name in (resources.core, resources.memory) if name in asked), None)
            if twice is not None:
                rule = "KubeShare's labels already say what the SharePod requests; leave one of the two out"
                where = f"{path}.resources.limits[{twice}]"
                reading.refuse(container_name(container), where, asked[twice], rule, "limits: {cpu: 1}")
    for name, share in reading.shares.items():
        if isinstance(first, dict):
            _set_limits(first, share, resources)
        if share.limit is not None:
            annotations.setdefault(names.limit_annotation(name), str(share.limit))
    node = spec.pop("nodeName", "")
    if node:
        _require_node(spec, node)
    return Template(
        pod={
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": metadata["name"],
                "namespace": metadata["namespace"],
                "labels": {**labels, SHAREPOD_LABEL: "true"},
                "annotations": {
                    **annotations,
                    **reading.annotations,
                    DIGEST_ANNOTATION: hashlib.sha256(content).hexdigest()[:16],
                },
                "ownerReferences": [owner_reference(sharepod)],
            },
            "spec": spec,
        },
        notes=tuple(reading.notes),
        violations=tuple(reading.violations),
    )


def owner_reference(sharepod: Object) -> Object:
    """Return the owner reference that makes a SharePod a pod's controller."""
    return {
        "apiVersion": "kubeshare.nthu/v1",
        "kind": "SharePod",
        "name": sharepod["metadata"]["name"],
        "uid": sharepod["metadata"]["uid"],
        "controller": True,
        "blockOwnerDeletion": True,
    }


def _set_limits(container: Object, share: ConvertedShare, resources: Resources) -> None:
    declared = dict(as_map(container.get("resources")))
    amounts = {resources.core: str(share.core)}
    if share.blocks is not None:
        amounts[resources.memory] = str(share.blocks)
    container["resources"] = {**declared, "limits": {**as_map(declared.get("limits")), **amounts}}


def _require_node(spec: Object, node: str) -> None:
    """Add the node to each term of the pod's node affinity, as the DaemonSet controller does."""
    affinity = as_map(spec.get("affinity"))
    of_nodes = as_map(affinity.get("nodeAffinity"))
    required = as_map(of_nodes.get(_REQUIRED))
    here = {"key": "metadata.name", "operator": "In", "values": [node]}
    terms = [_with_field(as_map(term), here) for term in as_list(required.get("nodeSelectorTerms"))]
    wanted = {**required, "nodeSelectorTerms": terms if required else [{"matchFields": [here]}]}
    spec["affinity"] = {**affinity, "nodeAffinity": {**of_nodes, _REQUIRED: wanted}}


def _with_field(term: Mapping[str, Any], field: Object) -> Object:
    """Return a term with another field to match; an empty term matches no node, and stays empty."""
    return {**term, "matchFields": [*as_list(term.get("matchFields")), field]} if term else {}
