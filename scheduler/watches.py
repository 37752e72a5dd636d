# SPDX-License-Identifier: Apache-2.0
"""Keep a state up to date: watches on nodes, on managed pods, and on other pods that use CPU and memory of nodes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

from scheduler.watch_intake import Intake
from slicekeeper import names
from slicekeeper.kube.client import NODES, PODS, KubeClient, Object, Resource
from slicekeeper.kube.watch import Watch

NEEDED: Final = ("nodes", "pods")
"""The lists that are required for answers."""

BOUND: Final = "spec.nodeName!=,status.phase!=Succeeded,status.phase!=Failed"


@dataclass
class _StateUpdater:
    """Takes what one watch brings into the state. `key` is the field of the metadata by which objects are dropped.

    One thread at a time reads and takes objects: an older list must not come after a newer one, and undo it.
    """

    replace: Callable[[Iterable[Object]], None]
    put: Callable[[Object], None]
    drop: Callable[[str], None]
    key: str = "uid"
    lock: threading.Lock = field(default_factory=threading.Lock)

    def on_list(self, objects: Iterable[Object]) -> None:
        with self.lock:  # the iterator begins to read now
            self.replace(objects)

    def on_event(self, kind: str, obj: Object) -> None:
        with self.lock:
            if kind == "DELETED":
                self.drop(obj["metadata"][self.key])
            else:
                self.put(obj)


class Watches:
    """The watches of a scheduler: two without which it cannot answer, and one for better prices."""

    def __init__(
        self, client: KubeClient, intake: Intake, on_error: Callable[[str], None], *, node_selector: str = ""
    ) -> None:
        """Follow the nodes of a label selector, and the pods of all."""
        self._client = client
        nodes = _StateUpdater(intake.set_nodes, intake.set_node, intake.drop_node, "name")
        # What other pods on nodes take of CPU and memory: only prices depend on it, so nothing waits for this list.
        others = _StateUpdater(intake.set_others, intake.set_other, intake.drop_other)
        self._pods = _StateUpdater(intake.set_pods, intake.set_pod, intake.drop_pod)

        def watch(name: str, resource: Resource, handler: _StateUpdater, labels: str, fields: str = "") -> Watch:
            return Watch(
                client,
                resource,
                handler,
                label_selector=labels,
                field_selector=fields,
                on_error=lambda _: on_error(name),
                by_page=True,
            )

        self._watches = {
            "nodes": watch("nodes", NODES, nodes, node_selector),
            "pods": watch("pods", PODS, self._pods, names.MANAGED_SELECTOR),
            "other-pods": watch("other-pods", PODS, others, f"!{names.MANAGED_LABEL}", BOUND),
        }

    @property
    def missing(self) -> list[str]:
        """The resources that have not been listed yet."""
        return [name for name in NEEDED if not self._watches[name].synced.is_set()]

    @property
    def synced(self) -> bool:
        """Whether the state is complete: both lists have been read."""
        return not self.missing

    def wait(self, stopped: threading.Event) -> None:
        """Wait until the state is complete, or `stopped`."""
        for name in NEEDED:
            watch = self._watches[name]
            while not stopped.is_set() and not watch.synced.wait(0.2):
                pass

    def catch_up(self) -> None:
        """Read the managed pods from the API server now, because the watch may lag behind. Raises ServiceError."""
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
