# SPDX-License-Identifier: Apache-2.0
"""A watch that does not end: it lists, follows, resumes after a break or silence, and lists again after `410 Gone`.

A handler gets the state of objects, not their history: after a gap `on_list` brings the whole state, so a handler must
cope with an object that changed or vanished unseen.
"""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol

from slicekeeper import threads
from slicekeeper.errors import Gone, ServiceError
from slicekeeper.kube.client import KubeClient, Object, Resource, Selection

log = logging.getLogger(__name__)


class Handler(Protocol):
    """The receiver of a watch's objects; it is always called from the same thread, in order."""

    def on_list(self, objects: Any) -> None:
        """All objects that exist, at the start and after a gap."""

    def on_event(self, kind: str, obj: Object) -> None:
        """One object was ADDED, MODIFIED or DELETED."""


class Watch:
    """Keeps one handler up to date, in a daemon thread."""

    def __init__(
        self,
        client: KubeClient,
        resource: Resource,
        handler: Handler,
        *,
        label_selector: str = "",
        field_selector: str = "",
        retry_seconds: float = 0.2,
        longest_retry_seconds: float = 10.0,
        longest_seconds: int = 120,
        grace_seconds: float = 10.0,
        on_error: Callable[[Exception], None] | None = None,
        by_page: bool = False,
    ) -> None:
        """With `by_page`, `on_list` gets an iterator, which fetches a page at a time and may raise."""
        self._by_page = by_page
        self._client = client
        self._resource = resource
        self._handler = handler
        self._selection = Selection(label_selector=label_selector, field_selector=field_selector)
        self._retry = retry_seconds
        self._longest_retry = longest_retry_seconds
        self._longest = longest_seconds
        self._grace = grace_seconds
        self._on_error = on_error
        self._stop = threading.Event()
        self._random = random.Random()  # noqa: S311 - spreads retries, keeps no secret
        self._version = ""
        self.synced = threading.Event()
        """Set once the first list has been handled, and never cleared."""
        self.failures = 0
        """Tries in a row that ended in an error; 0 while the watch is up."""

    def start(self) -> None:
        """Start following."""
        threads.keep(f"watch-{self._resource.plural}", self.run, self._stop.is_set)

    def stop(self) -> None:
        """Stop after the current event."""
        self._stop.set()

    def run(self) -> None:
        """Follow until `stop`."""
        while not self._stop.is_set():
            try:
                if not self._version:
                    self._list()
                self._follow()
                self.failures = 0  # also if nothing happened
                pause = self._retry
            except Gone:
                self._version = ""
                pause = self._retry
            except Exception as error:  # noqa: BLE001 - a watch outlives every error of one event
                pause = self._failed(error)
            self._stop.wait(pause * self._random.uniform(0.5, 1.0))

    def _failed(self, error: Exception) -> float:
        """Log an error; return how long to wait."""
        self.failures += 1
        level = logging.WARNING if isinstance(error, ServiceError) else logging.ERROR
        log.log(level, "watch %s broke: %s", self._resource.plural, error, exc_info=level == logging.ERROR)
        if self._on_error is not None:
            self._on_error(error)
        return float(min(self._retry * (1 << min(self.failures - 1, 10)), self._longest_retry))

    def _list(self) -> None:
        """Hand all objects to the handler, and remember from which version to follow: that of the last page."""
        version = ""

        def by_page() -> Iterator[Object]:
            nonlocal version
            for page, at in self._client.pages(self._resource, **self._selection):
                version = at
                yield from page

        if self._by_page:
            self._handler.on_list(by_page())
        else:
            objects, version = self._client.list(self._resource, **self._selection)
            self._handler.on_list(objects)
        self._version = version
        self.failures = 0
        self.synced.set()

    def _follow(self) -> None:
        """Follow one connection until it ends."""
        with self._client.watch(
            self._resource,
            self._version,
            # If nothing happens, nothing comes, not even a bookmark. So a frozen server or a dead connection shows only
            # when the watch does not end in time. The time is random so that clients do not all reconnect at once.
            seconds=self._random.randint((self._longest + 1) // 2, self._longest),
            grace_seconds=self._grace,
            **self._selection,
        ) as events:
            for kind, obj in events:
                if self._stop.is_set():
                    return
                if kind != "BOOKMARK":
                    # If the handler fails, its state is unknown: without a version, everything is listed again.
                    self._version = ""
                    self._handler.on_event(kind, obj)
                self._version = obj["metadata"]["resourceVersion"]
                self.failures = 0


class Seen:
    """A handler that keeps the newest version of each object, and reports every change."""

    def __init__(self, changed: Callable[[], object] = lambda: None) -> None:
        self.changed = changed
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
