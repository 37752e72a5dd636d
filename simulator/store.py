# SPDX-License-Identifier: Apache-2.0
"""The cluster's objects, as etcd and the API server's registry keep them together.

One counter gives every write its resource version; a ring of the last writes serves watches and answers `Expired`
beyond its end. Objects are never changed in place, so callers can keep them.
"""

from __future__ import annotations

import secrets
import threading
import uuid
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import msgspec

from simulator.api_errors import Expired, Invalid, ObjectConflict, ObjectNotFound
from simulator.kinds import check_types
from simulator.object_names import check_names
from simulator.patch import clone
from slicekeeper.clock import Clock
from slicekeeper.kube.client import PODS, Object, Resource
from slicekeeper.kube.pod import has_ended
from slicekeeper.units import format_seconds, parse_instant

ObjectKey = tuple[Resource, str, str]

KEPT_BY_SERVER: Final = (
    "name",
    "namespace",
    "uid",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "generateName",
)
"""Metadata that an update cannot change."""


@dataclass(frozen=True)
class Change:
    """One write: the object after it, and before it if there was one."""

    version: int
    kind: str
    resource: Resource
    obj: Object
    old: Object | None

    @cached_property
    def encoded(self) -> bytes:
        """The object as JSON, encoded once for all watches."""
        return msgspec.json.encode(self.obj)


def phase(pod: Object) -> str:
    """Return a pod's phase."""
    return str((pod.get("status") or {}).get("phase", "Pending"))


class Store:
    """Objects by resource, namespace and name. Safe for any number of threads."""

    def __init__(self, clock: Clock, history: int = 20_000) -> None:
        self.clock = clock
        self.changed = threading.Condition(threading.RLock())
        """Notified after every write; its lock guards everything here."""
        self._objects: dict[ObjectKey, Object] = {}
        self._history: deque[Change] = deque(maxlen=history)
        self._version = 0
        self.removed_pods: list[Object] = []
        """The last state of every pod that is gone, in the order of their removal."""

    @property
    def version(self) -> int:
        """The resource version of the last write."""
        return self._version

    def find(self, resource: Resource, name: str, namespace: str = "") -> Object | None:
        """Return an object, None if there is none."""
        with self.changed:
            return self._objects.get((resource, namespace, name))

    def get(self, resource: Resource, name: str, namespace: str = "") -> Object:
        """Return an object; raises ObjectNotFound."""
        found = self.find(resource, name, namespace)
        if found is None:
            raise ObjectNotFound(resource, name)
        return found

    def collection(self, resource: Resource, namespace: str = "") -> tuple[list[Object], int]:
        """Return a collection's objects, in the order of their creation, and the version they are of."""
        with self.changed:
            found = [
                obj
                for (kind, place, _), obj in self._objects.items()
                if kind == resource and (not namespace or place == namespace)
            ]
            return found, self._version

    def create(self, resource: Resource, body: Object, namespace: str = "") -> Object:
        """Store a new object with the server's own metadata; raises ObjectConflict if the name is taken."""
        obj = clone(body)
        metadata = obj.setdefault("metadata", {})
        if not metadata.get("name"):
            if not metadata.get("generateName"):
                raise Invalid(f"{resource.plural}: metadata.name: Required value: name or generateName is required")
            metadata["name"] = f"{metadata['generateName'][:58]}{secrets.token_hex(3)[:5]}"
        if resource.namespaced:
            metadata["namespace"] = namespace
        metadata |= {"uid": str(uuid.uuid4()), "creationTimestamp": format_seconds(self.clock.now_ms())}
        for key in ("deletionTimestamp", "deletionGracePeriodSeconds", "resourceVersion", "managedFields"):
            metadata.pop(key, None)
        with self.changed:
            place = (resource, namespace, metadata["name"])
            if place in self._objects:
                raise ObjectConflict(f'{resource.plural} "{metadata["name"]}" already exists', "AlreadyExists")
            return self._write("ADDED", place, obj, None)

    def update(
        self,
        resource: Resource,
        name: str,
        namespace: str,
        change: Callable[[Object], Object],
        *,
        subresource: str = "",
    ) -> Object:
        """Write what `change` makes of a copy of the object, as one step.

        Writes to the object leave its status alone, writes to its status everything but that and the metadata.
        A write that changes nothing gets no version. A last finalizer taken from an object under deletion removes it.
        """
        with self.changed:
            old = self.get(resource, name, namespace)
            new = change(clone(old))
            _check_precondition(resource, old, new)
            for key in KEPT_BY_SERVER:
                new["metadata"].pop(key, None)
                if key in old["metadata"]:
                    new["metadata"][key] = old["metadata"][key]
            new["metadata"]["resourceVersion"] = old["metadata"]["resourceVersion"]
            new = _with_subresource(resource, old, new, subresource)
            if old["metadata"].get("deletionTimestamp"):
                added = set(new["metadata"].get("finalizers") or []) - set(old["metadata"].get("finalizers") or [])
                if added:
                    raise Invalid(
                        f'{resource.plural} "{name}": metadata.finalizers: Forbidden: no new finalizers can be added '
                        f"if the object is being deleted, found new finalizers {sorted(added)}"
                    )
            if new == old:
                return old
            check_types(resource, new)
            check_names(resource, new)
            written = self._write("MODIFIED", (resource, namespace, name), new, old)
            return self._remove_if_done(resource, written)

    def delete(
        self, resource: Resource, name: str, namespace: str = "", *, uid: str = "", grace: int | None = None
    ) -> Object:
        """Delete as the API server does: gracefully for a running pod, held back by finalizers for all.

        Raises ObjectConflict if `uid` is given and the object is another one.
        """
        with self.changed:
            old = self.get(resource, name, namespace)
            if uid and uid != old["metadata"]["uid"]:
                raise ObjectConflict(
                    f'{resource.plural} "{name}": the UID in the precondition ({uid}) does not match the UID '
                    f"in record ({old['metadata']['uid']})"
                )
            seconds = _grace(old, grace) if resource == PODS else 0
            before = old["metadata"].get("deletionGracePeriodSeconds")
            if before is not None and seconds >= before:
                return self._remove_if_done(resource, old)
            asked_ms = (
                parse_instant(old["metadata"]["deletionTimestamp"]) - before * 1000
                if before is not None
                else self.clock.now_ms()
            )
            new = clone(old)
            new["metadata"] |= {
                "deletionTimestamp": format_seconds(asked_ms + seconds * 1000),
                "deletionGracePeriodSeconds": seconds,
            }
            if not seconds and not old["metadata"].get("finalizers"):
                return self._remove(resource, new, old)
            return self._write("MODIFIED", (resource, namespace, name), new, old)

    def since(self, version: int) -> list[Change]:
        """Return the writes after `version`; raises Expired if the ring no longer has them all."""
        with self.changed:
            if version == self._version:
                return []
            oldest = self._history[0].version - 1 if self._history else self._version
            if not oldest <= version <= self._version:
                raise Expired(f"too old resource version: {version} ({oldest})")
            newest: list[Change] = []
            for change in reversed(self._history):
                if change.version <= version:
                    break
                newest.append(change)
            return newest[::-1]

    def wait(self, version: int, seconds: float) -> None:
        """Wait up to `seconds` of real time for a write after `version`."""
        with self.changed:
            self.changed.wait_for(lambda: self._version > version, seconds)

    def follow(self, version: int, stop: threading.Event, pause: float = 0.5) -> Iterator[list[Change]]:
        """Yield the writes after `version` as they come, and an empty list every `pause` real seconds without."""
        while not stop.is_set():
            self.wait(version, pause)
            changes = self.since(version)
            if changes:
                version = changes[-1].version
            yield changes

    def _remove_if_done(self, resource: Resource, obj: Object) -> Object:
        metadata = obj["metadata"]
        held = metadata.get("finalizers") or metadata.get("deletionGracePeriodSeconds")
        return self._remove(resource, obj, obj) if metadata.get("deletionTimestamp") and not held else obj

    def _remove(self, resource: Resource, obj: Object, old: Object) -> Object:
        key = (resource, obj["metadata"].get("namespace", ""), obj["metadata"]["name"])
        last = self._write("DELETED", key, clone(obj), old)
        del self._objects[key]
        if resource == PODS:
            self.removed_pods.append(last)
        return last

    def _write(self, kind: str, key: ObjectKey, obj: Object, old: Object | None) -> Object:
        self._version += 1
        obj["metadata"]["resourceVersion"] = str(self._version)
        self._objects[key] = obj
        self._history.append(Change(self._version, kind, key[0], obj, old))
        self.changed.notify_all()
        return obj


def _check_precondition(resource: Resource, old: Object, new: Object) -> None:
    metadata, before = new.setdefault("metadata", {}), old["metadata"]
    if metadata.get("uid", before["uid"]) != before["uid"]:
        raise ObjectConflict(f'{resource.plural} "{before["name"]}": the UID in the body is another object\'s')
    if metadata.get("resourceVersion", before["resourceVersion"]) != before["resourceVersion"]:
        raise ObjectConflict(
            f'Operation cannot be fulfilled on {resource.plural} "{before["name"]}": the object has been modified; '
            "please apply your changes to the latest version and try again"
        )


def _with_subresource(resource: Resource, old: Object, new: Object, subresource: str) -> Object:
    """Return what a write may change: status and the rest apart, a pod's spec hardly at all; a Binding both."""
    if subresource == "binding":
        return new
    kept = "spec" if subresource == "status" else "status"
    if resource.plural in ("pods", "nodes", "deployments", "jobs", "namespaces"):
        new.pop(kept, None)
        if kept in old:
            new[kept] = old[kept]
    if resource == PODS and not subresource and _fixed(new) != _fixed(old):
        raise Invalid(
            f'pods "{old["metadata"]["name"]}": spec: Forbidden: pod updates may not change fields other than '
            "`spec.containers[*].image`, `spec.initContainers[*].image` and `spec.schedulingGates`"
        )
    return new


def _fixed(pod: Object) -> Any:
    """Return the part of a pod's spec that never changes."""
    spec = clone(pod.get("spec") or {})
    spec.pop("schedulingGates", None)
    for container in [*(spec.get("initContainers") or []), *spec.get("containers", [])]:
        container.pop("image", None)
    return spec


def _grace(pod: Object, asked: int | None) -> int:
    """Return the grace that a pod gets: none if nothing runs."""
    if has_ended(pod) or not (pod.get("spec") or {}).get("nodeName"):
        return 0
    own: int = pod["spec"].get("terminationGracePeriodSeconds", 30)
    return max(own if asked is None else asked, 0)
