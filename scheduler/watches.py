# SPDX-License-Identifier: Apache-2.0
"""Keeps a state up to date: one watch on nodes, one on managed pods."""

from __future__ import annotations

import threading
from collections.abc import Callable

from scheduler.state import State
from slicekeeper import names
from slicekeeper.kube.client import NODES, PODS, KubeClient, Object
from slicekeeper.kube.watch import Watch


class _Nodes:
    def __init__(self, state: State) -> None:
        self._state = state

    def on_list(self, objects: list[Object]) -> None:
        self._state.set_nodes(objects)

    def on_event(self, kind: str, obj: Object) -> None:
        if kind == "DELETED":
            self._state.drop_node(obj["metadata"]["name"])
        else:
            self._state.set_node(obj)


class _Pods:
    def __init__(self, state: State) -> None:
        self._state = state

    def on_list(self, objects: list[Object]) -> None:
        self._state.set_pods(objects)

    def on_event(self, kind: str, obj: Object) -> None:
        if kind == "DELETED":
            self._state.drop_pod(obj["metadata"]["uid"])
        else:
            self._state.set_pod(obj)


class Watches:
    """The two watches of a scheduler."""

    def __init__(self, client: KubeClient, state: State, on_error: Callable[[str], None]) -> None:
        pods, managed = _Pods(state), names.MANAGED_SELECTOR
        self._watches = {
            "nodes": Watch(client, NODES, _Nodes(state), on_error=lambda _: on_error("nodes")),
            "pods": Watch(client, PODS, pods, label_selector=managed, on_error=lambda _: on_error("pods")),
        }

    @property
    def missing(self) -> list[str]:
        """What has not been listed yet."""
        return [name for name, watch in self._watches.items() if not watch.synced.is_set()]

    @property
    def synced(self) -> bool:
        """Whether the state is whole: both lists have been read."""
        return not self.missing

    def wait(self, stopped: threading.Event) -> None:
        """Wait until the state is whole, or `stopped`."""
        for watch in self._watches.values():
            while not stopped.is_set() and not watch.synced.wait(0.2):
                pass

    def start(self) -> None:
        """Start following."""
        for watch in self._watches.values():
            watch.start()

    def stop(self) -> None:
        """Stop following."""
        for watch in self._watches.values():
            watch.stop()
