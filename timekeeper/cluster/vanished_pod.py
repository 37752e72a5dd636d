# SPDX-License-Identifier: Apache-2.0
"""Close the intervals of pods that vanished unseen: our finalizer was removed, or the cluster was restored.

No event shows such an end. After each list of all pods, the API server is asked for each missing pod with an open
interval; the interval of one that is gone ends when the watch was last known to be up.
"""

from __future__ import annotations

from collections.abc import Callable

from slicekeeper.errors import ServiceError
from slicekeeper.kube.client import PODS, KubeClient
from slicekeeper.units import Instant
from timekeeper.cluster.charge_booking import Intervals, last_confirmed
from timekeeper.cluster.lost_label import StrayPods
from timekeeper.cluster.watches import Pods
from timekeeper.core.interval import LAST_CONFIRMED
from timekeeper.ledger.books import Books
from timekeeper.ledger.workload import Closing
from timekeeper.store import workloads


class VanishedPods:
    """Looks for vanished pods after each list; `fail` notes an error that the controller's look reports."""

    def __init__(
        self,
        client: KubeClient,
        books: Books,
        pods: Pods,
        intervals: Intervals,
        strays: StrayPods,
        fail: Callable[[str, Exception], None],
    ) -> None:
        self._client = client
        self._books = books
        self._pods = pods
        self._intervals = intervals
        self._strays = strays
        self._fail = fail
        self._lists = 0

    @property
    def due(self) -> bool:
        """Whether all pods were listed since the last look."""
        return self._lists != self._pods.lists

    def look(self, now: Instant) -> None:
        """Close the intervals whose pod is in no list, and that the API server does not know."""
        lists = self._pods.lists
        with self._books.database.reading() as session:
            still_open = workloads.open_intervals(session, self._books.cluster)
        closings: dict[str, Closing] = {}
        all_seen = True
        for uid, (namespace, name) in still_open.items():
            if self._pods.find(uid) is not None:
                continue
            try:
                pod = self._client.find(PODS, name, namespace, uid=uid)
            except ServiceError as error:
                self._fail(f"pod {namespace}/{name}", error)
                all_seen = False
                continue
            if pod is not None:
                self._strays.add(pod)
                continue
            closings[uid] = Closing(uid, last_confirmed(self._books, now), LAST_CONFIRMED, (f"end-{LAST_CONFIRMED}",))
        refused = self._intervals.apply({}, closings, now)
        if all_seen and not refused:
            self._lists = lists
