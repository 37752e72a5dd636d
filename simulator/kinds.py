# SPDX-License-Identifier: Apache-2.0
"""The kinds that the cluster supports: their paths and names, and the types of fields that the simulator reads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import msgspec

from simulator.api_errors import Malformed
from slicekeeper import typed_json
from slicekeeper.kube import client
from slicekeeper.kube.client import Object, Resource


@dataclass(frozen=True)
class ObjectKind:
    """One kind of object."""

    name: str
    resource: Resource

    @property
    def group(self) -> str:
        """The API group, empty for the core's."""
        return self.resource.prefix.split("/")[2] if self.resource.prefix.startswith("/apis/") else ""

    @property
    def version(self) -> str:
        """The version within the group."""
        return self.resource.prefix.rpartition("/")[2]

    @property
    def api_version(self) -> str:
        """The `apiVersion` that manifests name."""
        return f"{self.group}/{self.version}" if self.group else self.version


KINDS: Final = (
    ObjectKind("Pod", client.PODS),
    ObjectKind("Node", client.NODES),
    ObjectKind("Namespace", client.NAMESPACES),
    ObjectKind("Event", client.EVENTS),
    ObjectKind("ConfigMap", client.CONFIG_MAPS),
    ObjectKind("ResourceQuota", client.RESOURCE_QUOTAS),
    ObjectKind("LimitRange", client.LIMIT_RANGES),
    ObjectKind("PriorityClass", client.PRIORITY_CLASSES),
    ObjectKind("Deployment", client.DEPLOYMENTS),
    ObjectKind("Job", client.JOBS),
    ObjectKind("Lease", client.LEASES),
)

BY_RESOURCE: Final = {kind.resource: kind for kind in KINDS}
BY_PATH: Final = {(kind.resource.prefix, kind.resource.plural): kind for kind in KINDS}
_BY_MANIFEST: Final = {(kind.api_version, kind.name): kind for kind in KINDS}


def of_manifest(obj: Object) -> ObjectKind | None:
    """Return the kind of a manifest, None for one that the cluster does not support."""
    return _BY_MANIFEST.get((str(obj.get("apiVersion")), str(obj.get("kind"))))


class _TypedMetadata(msgspec.Struct):
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    finalizers: list[str] | None = None


class _TypedSpec(msgspec.Struct, rename="camel"):
    priority: int | None = None
    active_deadline_seconds: int | None = None
    termination_grace_period_seconds: int | None = None
    replicas: int | None = None
    parallelism: int | None = None
    completions: int | None = None
    backoff_limit: int | None = None


class _TypedObject(msgspec.Struct):
    metadata: _TypedMetadata
    spec: _TypedSpec | None = None


def check_types(resource: Resource, obj: Object) -> None:
    """Raise Malformed if a field has another type than in the API: whatever reads the object would stop at it."""
    try:
        typed_json.convert(obj, _TypedObject)
    except msgspec.ValidationError as error:
        kind = BY_RESOURCE[resource]
        text = f'{kind.name} in version "{kind.version}" cannot be handled as a {kind.name}: {error}'
        raise Malformed(text) from error
