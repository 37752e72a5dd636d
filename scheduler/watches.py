# SPDX-License-Identifier: Apache-2.0
"""Keeps a state up to date: watches on nodes, on managed pods, and on all pods that take CPU and memory of nodes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from functools import partial
from typing import Final

from scheduler.state import SchedulerState
from slicekeeper import names
from slicekeeper.kube.client import NODES, PODS, KubeClient, Object
from slicekeeper.kube.watch import Watch

NEEDED: Final = ("nodes", "pods")
"""The lists without which nothing can be answered."""

BOUND: Final = "spec.nodeName!=,status.phase!=Succeeded,status.phase!=Failed"


class _Nodes:
    def __init__(self, state: SchedulerState) -> None:
        self._state = state

    def on_list(self, objects: Iterable[Object]) -> None:
        self._state.set_nodes(objects)

    def on_event(self, kind: str, obj: Object) -> None:
        if kind == "DELETED":
            self._state.drop_node(obj["metadata"]["name"])
        else:
            self._state.set_node(obj)


class _Pods:
    """One at a time reads and takes pods: an older list must not come after a newer one, and undo it."""

    def __init__(self, state: SchedulerState) -> None:
        self._state = state
        self._lock = threading.Lock()

    def on_list(self, objects: Iterable[Object]) -> None:
        with self._lock:  # the iterator begins to read now
            self._state.set_pods(objects)

    def on_event(self, kind: str, obj: Object) -> None:
        with self._lock:
            if kind == "DELETED":
                self._state.drop_pod(obj["metadata"]["uid"])
            else:
                self._state.set_pod(obj)


class _Bound:
    """What all pods on nodes take beside GPUs; prices rest on it, nothing else does, so nothing waits for it."""

    def __init__(self, state: SchedulerState) -> None:
        self._state = state

    def on_list(self, objects: Iterable[Object]) -> None:
        self._state.set_bound(objects)

    def on_event(self, kind: str, obj: Object) -> None:
        if kind == "DELETED":
            self._state.drop_bound_pod(obj["metadata"]["uid"])
        else:
            self._state.set_bound_pod(obj)


def _told(on_error: Callable[[str], None], name: str, _error: Exception) -> None:
    on_error(name)


class Watches:
    """The watches of a scheduler: two without which it cannot answer, and one for better prices."""

    def __init__(self, client: KubeClient, state: SchedulerState, on_error: Callable[[str], None]) -> None:
        self._client = client
        self._pods = _Pods(state)
        self._watches = {
            name: Watch(
                client,
                resource,
                handler,
                label_selector=labels,
                field_selector=fields,
                on_error=partial(_told, on_error, name),
                by_page=True,
            )
            for name, resource, handler, labels, fields in (
                ("nodes", NODES, _Nodes(state), "", ""),
                ("pods", PODS, self._pods, names.MANAGED_SELECTOR, ""),
                ("bound-pods", PODS, _Bound(state), "", BOUND),
            )
        }

    @property
    def missing(self) -> list[str]:
        """What has not been listed yet."""
        return [name for name in NEEDED if not self._watches[name].synced.is_set()]

    @property
    def synced(self) -> bool:
        """Whether the state is whole: both lists have been read."""
        return not self.missing

    def wait(self, stopped: threading.Event) -> None:
        """Wait until the state is whole, or `stopped`."""
        for name in NEEDED:
            watch = self._watches[name]
            while not stopped.is_set() and not watch.synced.wait(0.2):
                pass

    def catch_up(self) -> None:
        """Take the managed pods as the API server has them now; the watch may lag behind. Raises ServiceError."""
        pages = self._client.pages(PODS, label_selector=names.MANAGED_SELECTOR)
        self._pods.on_list(pod for page, _ in pages for pod in page)

    def start(self) -> None:
        """Start following."""
        for watch in self._watches.values():
            watch.start()

    def stop(self) -> None:
        """Stop following."""
        for watch in self._watches.values():
            watch.stop()
