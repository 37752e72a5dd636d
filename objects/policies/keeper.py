# SPDX-License-Identifier: Apache-2.0
"""Evaluate all GpuPolicies as the other parts do, and write the result into the status of each.

Nothing waits for that: a GpuPolicy applies as soon as webhook, timekeeper and node agents have seen it. Nothing is
remembered from one pass to the next.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from objects.policies.status import status_of
from objects.status_writes import write_status
from slicekeeper.clock import Clock
from slicekeeper.config.policy_file import PolicyFile
from slicekeeper.config.policy_objects import apply_policies, read
from slicekeeper.kube.client import NAMESPACES, KubeClient
from slicekeeper.kube.policy_watch import GPU_POLICIES


class PolicyKeeper:
    """Runs the passes. `acts` returns whether this process holds the lease; it is called before each write."""

    def __init__(self, client: KubeClient, policy: PolicyFile, clock: Clock, acts: Callable[[], bool]) -> None:
        """`policy` is only the file, which is checked in each pass."""
        self._client = client
        self._policy = policy
        self._clock = clock
        self._acts = acts

    def keep(self) -> None:
        """Run one pass. Raises ServiceError if the API server does not serve us; then retry."""
        objects, _ = self._client.list(GPU_POLICIES)
        if not objects:
            return
        namespaces, _ = self._client.list(NAMESPACES, metadata_only=True)
        self._policy.refresh()
        if self._policy.unread:  # the intended content of the file is unknown
            return
        applied = apply_policies(self._policy.book, map(read, objects))
        matched = (applied.book.match_of(namespace["metadata"]["name"]) for namespace in namespaces)
        counts = Counter(applied.holders[match].uid for match in matched if match in applied.holders)
        for obj in objects:
            if not self._acts():
                return
            status = status_of(obj, applied, counts[obj["metadata"]["uid"]], self._clock.now_ms())
            if status is not None:
                write_status(self._client, GPU_POLICIES, obj, status)
