# SPDX-License-Identifier: Apache-2.0
"""Read the clocks of nodes if a pod's end cannot be right, or was reported late.

Leases are read only in this case: a watch would bring a renewal of every node every 10 s.
"""

from __future__ import annotations

import logging
import time
from typing import Final

from slicekeeper.errors import Forbidden, NotFound, Unavailable
from slicekeeper.kube import node_lease
from slicekeeper.kube.client import LEASES, KubeClient, Object
from slicekeeper.kube.node_lease import ClockReading
from slicekeeper.units import Instant

log = logging.getLogger(__name__)

RENEWAL_SECONDS: Final = 40.0
"""How long a Lease is valid: a node that does not renew it for this long is unreachable (real seconds)."""

SAME_SECONDS: Final = 1.0
"""How long a reading is used for all pods of its node (real seconds)."""


class NodeClocks:
    """The readings that are needed for pods' ends; used only by the leading controller."""

    def __init__(self, client: KubeClient) -> None:
        self._client = client
        self._last: dict[str, tuple[float, ClockReading | None]] = {}
        """The last reading of each node, and when it was made (monotonic seconds)."""
        self._first: dict[str, tuple[float, ClockReading]] = {}
        """The first reading for each pod's end, by UID, and when it was made (monotonic seconds)."""
        self._ahead: dict[str, tuple[int, int]] = {}
        """The answer for each pod, by UID: it stays the same until the pod's end is booked."""

    def ahead(self, pod: Object, reported: Instant) -> tuple[int, ...] | None:
        """Return by how many milliseconds the node's clock was ahead when a pod's end was reported; None if unknown.

        There are two readings: when the end was first seen, and after the next renewal, because the clock may have been
        set since the previous one. Raises Unavailable until then.
        """
        node, uid = pod["spec"]["nodeName"], pod["metadata"]["uid"]
        if uid in self._ahead:
            return self._ahead[uid]
        found = self._read(node)
        if found is None:
            return None
        since, first = self._first.setdefault(uid, (time.monotonic(), found))
        if found.at <= reported and time.monotonic() - since < RENEWAL_SECONDS:
            raise Unavailable(f"its end is compared with the clock of node {node} when that renews its Lease")
        self._ahead[uid] = first.ahead_ms, found.ahead_ms
        return self._ahead[uid]

    def forget(self, uid: str) -> None:
        """Drop what is kept for a pod whose end is booked."""
        self._first.pop(uid, None)
        self._ahead.pop(uid, None)

    def _read(self, node: str) -> ClockReading | None:
        now = time.monotonic()
        self._last = {name: one for name, one in self._last.items() if now - one[0] < SAME_SECONDS}
        if node not in self._last:
            self._last[node] = now, self._ask(node)
        return self._last[node][1]

    def _ask(self, node: str) -> ClockReading | None:
        try:
            return node_lease.reading(self._client.get(LEASES, node, node_lease.NAMESPACE))
        except NotFound:
            return None
        except Forbidden as error:
            log.error("the Lease of node %s cannot be read, apply the manifests again: %s", node, error)
            return None
