# SPDX-License-Identifier: Apache-2.0
"""Pods that lost the label that all parts watch: find them by our other marks, follow them, and restore the label.

The API server's guards do not let users remove the label. But a guard may be missing or newer than the pod, an
administrator may override it, and since Kubernetes 1.35 a Binding's labels replace the pod's. Charges must not depend
on any of that. A pod whose label has another value is still watched: the watches select on the label's presence.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable
from concurrent.futures import Executor
from typing import Final

from slicekeeper import names
from slicekeeper.errors import ServiceError
from slicekeeper.kube.client import PODS, KubeClient, Object
from slicekeeper.kube.pod import full_name
from slicekeeper.kube.pod_manifest import annotations_of
from slicekeeper.untyped_json import as_list, as_map
from timekeeper.cluster import pod_patch
from timekeeper.cluster.pod_patch import Each
from timekeeper.cluster.watches import Pods

log = logging.getLogger(__name__)

SWEEP_SECONDS: Final = 300.0
"""Interval between searches for our other marks on all pods without our label (real seconds)."""

AGAIN_SECONDS: Final = 10.0
"""Pause after a search that failed (real seconds)."""


class StrayPods:
    """The pods that no watch shows; `look` is called by the leading controller alone."""

    def __init__(self, client: KubeClient, pods: Pods, executor: Executor) -> None:
        self._client = client
        self._pods = pods
        self._executor = executor
        self._lock = threading.Lock()
        self._known: dict[str, Object] = {}
        self._visited = 0.0
        self._swept = float("-inf")

    def add(self, pod: Object) -> None:
        """Follow a pod that no watch shows any more; only its metadata is needed."""
        with self._lock:
            self._known.setdefault(pod["metadata"]["uid"], pod)

    def start_over(self) -> None:
        """Sweep at the next look: another process may have led in the meantime, or none."""
        self._swept = float("-inf")

    def look(self, pause: float) -> None:
        """Request each stray pod, at most every `pause` real seconds; start a sweep in the background when due."""
        now = time.monotonic()
        if now - self._swept >= SWEEP_SECONDS:
            self._swept = now
            self._executor.submit(self._sweep_and_log)
        with self._lock:
            known = dict(self._known)
        if known and now - self._visited >= pause:
            self._visited = now
            for uid, last in known.items():
                self._visit(uid, last)

    def sweep(self) -> None:
        """Find pods that have a mark of ours, but not the label.

        Raises ServiceError if the API server does not answer.
        """
        found, _ = self._client.list(PODS, label_selector=f"!{names.MANAGED_LABEL}", metadata_only=True)
        for pod in filter(has_our_marks, found):
            log.warning("pod %s has lost the label %s", full_name(pod), names.MANAGED_LABEL)
            self.add(pod)

    def label(self, pods: Iterable[Object], each: Each) -> None:
        """Restore our label on pods that the watch shows with another value of it."""
        each([pod for pod in pods if not _is_labelled(pod)], lambda pod: pod_patch.label(self._client, pod))

    def _sweep_and_log(self) -> None:
        try:
            self.sweep()
        except ServiceError as error:
            log.info("pods without our label will be looked for again later: %s", error)
            self._swept = time.monotonic() - SWEEP_SECONDS + AGAIN_SECONDS

    def _visit(self, uid: str, last: Object) -> None:
        try:
            pod = self._client.find(PODS, last["metadata"]["name"], last["metadata"]["namespace"], uid=uid)
        except ServiceError as error:
            log.info("pod %s is asked for again later: %s", full_name(last), error)
            return
        if pod is None:
            self._drop(uid)
            self._pods.on_event("DELETED", {**last, "metadata": {**last["metadata"], "finalizers": []}})
            return
        with self._lock:
            self._known[uid] = pod
        if _is_labelled(pod):
            self._drop(uid)  # the watch shows it again, and is newer than this answer
            return
        self._pods.on_event("MODIFIED", pod)
        try:
            pod_patch.label(self._client, pod)
        except ServiceError as error:
            log.info("pod %s is followed without the label %s: %s", full_name(pod), names.MANAGED_LABEL, error)

    def _drop(self, uid: str) -> None:
        with self._lock:
            self._known.pop(uid, None)


def has_our_marks(pod: Object) -> bool:
    """Whether admission or a Binding of ours wrote something on the pod."""
    written = (names.BUDGET_STATE, *names.NEVER_ON_NEW_PODS)
    return names.FINALIZER in as_list(pod["metadata"].get("finalizers")) or any(
        key in written or key.startswith(names.GPU_PREFIX) for key in annotations_of(pod)
    )


def _is_labelled(pod: Object) -> bool:
    return as_map(pod["metadata"].get("labels")).get(names.MANAGED_LABEL) == names.MANAGED_VALUE
