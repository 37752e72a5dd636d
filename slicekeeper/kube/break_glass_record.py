# SPDX-License-Identifier: Apache-2.0
"""The record of pods that were released without a charge: written by `check --break-glass`, booked by the timekeeper.

It is kept in ConfigMaps of the installation's namespace, because the database may be broken. A record has everything
that determines a charge: the pods' last state, their namespaces' UIDs, and their nodes' GPUs, because none of these may
exist any more when it is read. A ConfigMap's name is a digest of its content, so no record is written twice.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from slicekeeper import names
from slicekeeper.kube.client import Object
from slicekeeper.units import parse_instant

LABEL: Final = "slicekeeper.io/released-pods"
PREFIX: Final = "slicekeeper-released-"
NAMESPACE_UID: Final = "namespaceUid"
"""Key of the UID of a recorded pod's namespace, beside the pod's metadata."""

SEEN_AT: Final = "seenAt"
"""Key beside it: when it was recorded, by the API server's clock. An end long after that is wrong."""

_KEY: Final = "record.json"
_MOST_BYTES: Final = 512 << 10
"""Of one ConfigMap, which may have 1 MiB."""

_NOT_CHARGED_BY: Final = frozenset(
    (
        "env",
        "envFrom",
        "command",
        "args",
        "volumeMounts",
        "livenessProbe",
        "readinessProbe",
        "startupProbe",
        "lifecycle",
        "securityContext",
    )
)
"""Fields of containers that are left out: they can be long, and may contain secrets."""


@dataclass(frozen=True)
class Record:
    """The content of one ConfigMap."""

    pods: list[Object]
    nodes: list[Object]


def records(
    pods: Iterable[Object], namespaces: Mapping[str, str], nodes: Mapping[str, Object]
) -> Iterator[tuple[Object, list[Object]]]:
    """Yield ConfigMaps that record pods, each with the pods that it records.

    `namespaces` are the UIDs by name, `nodes` the nodes by name.
    """
    chunk: list[tuple[Object, Object]] = []
    size = 0
    for pod in pods:
        bare = {**_bare(pod), NAMESPACE_UID: namespaces.get(pod["metadata"]["namespace"], "")}
        needed = len(msgspec.json.encode(bare))
        if chunk and size + needed > _MOST_BYTES:
            yield _config_map(chunk, nodes)
            chunk, size = [], 0
        chunk.append((pod, bare))
        size += needed
    if chunk:
        yield _config_map(chunk, nodes)


def read(config_map: Object) -> Record:
    """Return the content of a ConfigMap.

    Raises ValueError if it cannot be read.
    """
    found = msgspec.json.decode((config_map.get("data") or {}).get(_KEY, ""), type=dict[str, list[dict[str, Any]]])
    pods, nodes = found.get("pods", []), found.get("nodes", [])
    for obj in (*pods, *nodes):
        wanted = ("uid", "name", "namespace") if NAMESPACE_UID in obj else ("name",)
        metadata = obj.get("metadata")
        if not isinstance(metadata, dict) or not all(isinstance(metadata.get(key), str) for key in wanted):
            raise ValueError("a pod or node in it has no name")
    made = config_map["metadata"].get("creationTimestamp")
    seen = {SEEN_AT: parse_instant(made)} if isinstance(made, str) else {}
    return Record([{**pod, **seen} for pod in pods], nodes)


def version_of(pod: Object) -> int:
    """Return a recorded pod's resource version: of several records of a pod, the greatest is the newest."""
    version = str(pod["metadata"].get("resourceVersion", ""))
    return int(version) if version.isascii() and version.isdecimal() else 0


def _config_map(chunk: list[tuple[Object, Object]], nodes: Mapping[str, Object]) -> tuple[Object, list[Object]]:
    pods = [bare for _, bare in chunk]
    needed = sorted({str(pod["spec"]["nodeName"]) for pod in pods if pod["spec"].get("nodeName")})
    content = {"pods": pods, "nodes": [_bare_node(nodes[name]) for name in needed if name in nodes]}
    data = msgspec.json.encode(content, order="sorted")
    name = PREFIX + hashlib.sha256(data).hexdigest()[:20]
    made = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "immutable": True,
        "metadata": {"name": name, "labels": {LABEL: "true"}, "annotations": {LABEL: str(len(pods))}},
        "data": {_KEY: data.decode()},
    }
    return made, [pod for pod, _ in chunk]


def _bare(pod: Object) -> Object:
    metadata = {key: value for key, value in pod["metadata"].items() if key not in ("managedFields", "ownerReferences")}
    metadata["annotations"] = {
        key: value
        for key, value in (metadata.get("annotations") or {}).items()
        if names.GROUP in key or "/vcuda-" in key
    }
    spec = {key: value for key, value in pod["spec"].items() if key != "volumes"}
    for key in ("containers", "initContainers", "ephemeralContainers"):
        if key in spec:
            spec[key] = [{k: v for k, v in one.items() if k not in _NOT_CHARGED_BY} for one in spec[key] or []]
    return {"metadata": metadata, "spec": spec, "status": pod.get("status") or {}}


def _bare_node(node: Object) -> Object:
    annotations = node["metadata"].get("annotations") or {}
    kept = {key: annotations[key] for key in (names.NODE_GPUS,) if key in annotations}
    labels = node["metadata"].get("labels") or {}
    charged_by = {key: value for key, value in labels.items() if key.startswith("nvidia.com/")}
    return {"metadata": {"name": node["metadata"]["name"], "annotations": kept, "labels": charged_by}}
