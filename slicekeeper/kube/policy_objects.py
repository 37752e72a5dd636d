# SPDX-License-Identifier: Apache-2.0
"""Follows the cluster's GpuPolicies and lays them over a part's policy file.

While the API server is away the last ones hold. Which come before which, `slicekeeper.config.policy_objects` says.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Final

from slicekeeper import names
from slicekeeper.config.policy import PolicyBook, PolicyFile
from slicekeeper.config.policy_objects import GpuPolicy, lay, read
from slicekeeper.errors import NotFound
from slicekeeper.kube.client import KubeClient, Object, Resource
from slicekeeper.kube.watch import Watch

log = logging.getLogger(__name__)

GPU_POLICIES: Final = Resource(f"/apis/{names.GROUP}/v1alpha1", "gpupolicies", namespaced=False)


class PolicyObjects:
    """Keeps the GpuPolicies laid over a policy file, in a daemon thread."""

    def __init__(self, client: KubeClient, policy: PolicyFile) -> None:
        self._policy = policy
        self._known: dict[str, GpuPolicy] = {}
        self._watch = Watch(client, GPU_POLICIES, self, on_error=self._failed)

    def start(self) -> None:
        """Start following."""
        self._watch.start()

    def stop(self) -> None:
        """Stop following."""
        self._watch.stop()

    def on_list(self, objects: Iterable[Object]) -> None:
        """Take the whole state."""
        self._take({policy.uid: policy for policy in map(read, objects)})

    def on_event(self, kind: str, obj: Object) -> None:
        """Take one change."""
        policy = read(obj)
        known = {uid: other for uid, other in self._known.items() if uid != policy.uid}
        self._take(known if kind == "DELETED" else {**known, policy.uid: policy})

    def _take(self, known: dict[str, GpuPolicy]) -> None:
        if known == self._known and self._policy.complete.is_set():  # a status was written
            return
        self._known = known
        self._policy.lay_over(lambda book: _laid(book, known))
        log.info("GpuPolicies in force: %s", ", ".join(sorted(policy.name for policy in known.values())) or "none")

    def _failed(self, error: Exception) -> None:
        # The kind is not served, so there is none; once there were some, the last ones hold.
        if isinstance(error, NotFound) and not self._policy.complete.is_set():
            self._take({})


def _laid(book: PolicyBook, known: dict[str, GpuPolicy]) -> PolicyBook:
    laid = lay(book, known.values())
    for uid, error in laid.errors.items():
        log.error("GpuPolicy %s is left out: %s", known[uid].name, error)
    return laid.book
