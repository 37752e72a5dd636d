# SPDX-License-Identifier: Apache-2.0
"""The GPU pods of this node, by a watch that asks the API server for no others."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from slicekeeper import names
from slicekeeper.kube.client import PODS, KubeClient, Object
from slicekeeper.kube.pod import has_ended
from slicekeeper.kube.watch import Watch

PodKey = tuple[str, str]

LIST_SECONDS: Final = 60.0
"""A list of pods takes less: one that arrives so much later was begun after a pod was asked for."""


class NodePods:
    """Pods that were bound to the node, as the watch last showed them."""

    def __init__(
        self, client: KubeClient, node: str, on_gone: Callable[[], None], on_change: Callable[[], None]
    ) -> None:
        self._client = client
        self._node = node
        self._on_gone = on_gone
        self._on_change = on_change
        self._pods: dict[PodKey, Object] = {}
        self._ahead: dict[str, tuple[float, Object]] = {}
        """By UID, pods that the watch has not shown yet, and when they were asked for."""
        self._changed = threading.Condition()
        self._watch = Watch(
            client, PODS, self, label_selector=names.MANAGED_SELECTOR, field_selector=f"spec.nodeName={node}"
        )

    @property
    def synced(self) -> bool:
        """Whether the pods of the node are known."""
        return self._watch.synced.is_set()

    def start(self) -> None:
        """Start watching."""
        self._watch.start()

    def stop(self) -> None:
        """Stop watching."""
        self._watch.stop()

    def all(self) -> list[Object]:
        """Return all pods."""
        with self._changed:
            return [*self._pods.values(), *(pod for _, pod in self._ahead.values())]

    def arriving(self) -> bool:
        """Whether there is a pod that kubelet has neither admitted nor refused, as far as the API server knows."""
        return any(may_start(pod) and not pod.get("status", {}).get("startTime") for pod in self.all())

    def find(self, namespace: str, name: str, seconds: float) -> Object | None:
        """Return a pod that kubelet already knows; wait until the watch shows it too."""
        with self._changed:
            self._changed.wait_for(lambda: (namespace, name) in self._pods, seconds)
            return self._pods.get((namespace, name))

    def ask(self, namespace: str, name: str) -> Object | None:
        """Return the node's GPU pod of that name as the API server has it now, None if it has none.

        Raises ServiceError if it does not answer.
        """
        here = f"metadata.name={name},spec.nodeName={self._node}"
        began = time.monotonic()
        found, _ = self._client.list(
            PODS, namespace=namespace, label_selector=names.MANAGED_SELECTOR, field_selector=here
        )
        if not found:
            return None
        uid = found[0]["metadata"]["uid"]
        with self._changed:
            if all(pod["metadata"]["uid"] != uid for pod in self._pods.values()):
                self._ahead[uid] = began, found[0]
        return found[0]

    def on_list(self, objects: list[Object]) -> None:
        """Replace all pods."""
        with self._changed:
            self._pods = {_key(pod): pod for pod in objects}
            shown, oldest = {pod["metadata"]["uid"] for pod in objects}, time.monotonic() - LIST_SECONDS
            # One that is not in the list was created after it, or has ended while the watch was down.
            self._ahead = {uid: (at, pod) for uid, (at, pod) in self._ahead.items() if uid not in shown and at > oldest}
            self._changed.notify_all()
        self._on_change()
        self._on_gone()

    def on_event(self, kind: str, obj: Object) -> None:
        """Store the new state of one pod, or remove it; report if it has gone."""
        with self._changed:
            self._ahead.pop(obj["metadata"]["uid"], None)
            if kind == "DELETED":
                self._pods.pop(_key(obj), None)
            else:
                self._pods[_key(obj)] = obj
            self._changed.notify_all()
        self._on_change()
        if kind == "DELETED":
            self._on_gone()


def _key(pod: Object) -> PodKey:
    return pod["metadata"]["namespace"], pod["metadata"]["name"]


def may_start(pod: Mapping[str, Any]) -> bool:
    """Whether kubelet may still start a container of the pod."""
    return not has_ended(pod) and not pod["metadata"].get("deletionTimestamp")
