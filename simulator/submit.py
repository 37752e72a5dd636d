# SPDX-License-Identifier: Apache-2.0
"""Send manifests to the API as `kubectl create -f` does: several documents, Lists, in the file's order."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import yaml

from simulator.kinds import KINDS, ObjectKind, of_manifest
from slicekeeper.errors import ServiceError, SettingsError, Unavailable
from slicekeeper.kube.client import NAMESPACES, KubeClient, Object


class SubmitOutcome(msgspec.Struct, frozen=True, rename="camel"):
    """The result of one manifest."""

    kind: str
    namespace: str
    name: str
    admitted: bool
    priority_class: str = ""
    message: str = ""
    """Why it was refused."""
    warnings: tuple[str, ...] = ()

    def __str__(self) -> str:
        where = f"{self.namespace}/{self.name}" if self.namespace else self.name
        if not self.admitted:
            return f"{self.kind} {where} refused: {self.message}"
        return f"{self.kind} {where} admitted" + (f" with class {self.priority_class}" if self.priority_class else "")


def documents(text: str, where: str) -> Iterator[Object]:
    """Yield every object of a YAML or JSON text, Lists taken apart.

    Raises SettingsError if it is not valid, or of a kind that local mode does not support.
    """
    try:
        loaded: list[Any] = list(yaml.safe_load_all(text))
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise SettingsError(f"{where}: not valid YAML: {error}") from error
    for document in loaded:
        yield from _expand(document, where)


def _expand(document: Any, where: str) -> Iterator[Object]:
    if document is None:
        return
    if not isinstance(document, dict):
        raise SettingsError(f"{where}: {str(document)[:40]!r} is not an object; begin it with apiVersion: and kind:")
    if str(document.get("kind", "")).endswith("List") and isinstance(document.get("items"), list):
        for item in document["items"]:
            yield from _expand(item, where)
        return
    if of_manifest(document) is None:
        known = ", ".join(f"{kind.name} ({kind.api_version})" for kind in KINDS)
        raise SettingsError(
            f"{where}: kind is {document.get('kind')!r} of {document.get('apiVersion')!r}, which local mode and "
            f"`submit` do not take; they take {known}"
        )
    yield document


def create(client: KubeClient, manifest: Object, namespace: str, where: str, usual: str = "default") -> SubmitOutcome:
    """Create one object, in its own namespace, or else in `namespace`, or else in the usual one.

    Raises Unavailable if the API gives no answer, SettingsError if the two namespaces differ.
    """
    kind: ObjectKind | None = of_manifest(manifest)
    metadata = manifest.get("metadata")
    if kind is None or not isinstance(metadata, dict):
        raise SettingsError(f"{where}: metadata is missing; for example metadata: {{name: my-pod}}")
    own = str(metadata.get("namespace") or "")
    if own and namespace and own != namespace:
        raise SettingsError(f"{where}: metadata.namespace is {own!r} but -n says {namespace!r}; leave one of them out")
    place = (own or namespace or usual) if kind.resource.namespaced else ""
    name = str(metadata.get("name") or metadata.get("generateName", ""))
    try:
        made, warnings = client.create_with_warnings(kind.resource, manifest, place)
    except Unavailable as error:
        if error.status == 0:
            raise
        return SubmitOutcome(kind.name, place, name, admitted=False, message=_message(error))
    except ServiceError as error:
        return SubmitOutcome(kind.name, place, name, admitted=False, message=_message(error))
    return SubmitOutcome(
        kind.name,
        place,
        made["metadata"]["name"],
        admitted=True,
        priority_class=str((made.get("spec") or {}).get("priorityClassName", "")) if kind.name == "Pod" else "",
        warnings=warnings,
    )


def create_namespace(client: KubeClient, name: str) -> None:
    """Create a namespace unless it is there."""
    try:
        client.create(NAMESPACES, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    except ServiceError as error:
        if error.reason != "AlreadyExists":
            raise


def _message(error: ServiceError) -> str:
    """Return what the server said, without the request line that the client puts before it."""
    _, _, message = str(error).partition(": ")
    return message or str(error)
