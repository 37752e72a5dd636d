# SPDX-License-Identifier: Apache-2.0
"""Keep the newest version of each object that a watch has shown."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable

from slicekeeper.kube.client import Object


class Seen:
    """A watch's handler: keeps objects by namespace and name, and reports every change."""

    def __init__(self) -> None:
        self.changed: Callable[[], None] = lambda: None
        self._lock = threading.Lock()
        self._objects: dict[tuple[str, str], Object] = {}

    def on_list(self, objects: Iterable[Object]) -> None:
        """Replace all objects."""
        there = {_key(obj): obj for obj in objects}
        with self._lock:
            self._objects = there
        self.changed()

    def on_event(self, kind: str, obj: Object) -> None:
        """Store an object, or remove it."""
        with self._lock:
            if kind == "DELETED":
                self._objects.pop(_key(obj), None)
            else:
                self._objects[_key(obj)] = obj
        self.changed()

    def all(self) -> list[Object]:
        """Return all objects."""
        with self._lock:
            return list(self._objects.values())

    def find(self, namespace: str, name: str) -> Object | None:
        """Return an object, None if there is none."""
        with self._lock:
            return self._objects.get((namespace, name))


def _key(obj: Object) -> tuple[str, str]:
    return obj["metadata"].get("namespace", ""), obj["metadata"]["name"]
