# SPDX-License-Identifier: Apache-2.0
"""Leader election on a Lease (`coordination.k8s.io/v1`), by the algorithm of client-go's leaderelection.

A candidate measures another's lease only with its own clock: the lease has expired if the candidate has not seen it
change for the lease's duration. So clocks need not agree. A leader that cannot renew in time stops leading before any
other may take over.
"""

from __future__ import annotations

import logging
import threading
from typing import Final

from slicekeeper import threads
from slicekeeper.clock import Clock, real_seconds
from slicekeeper.errors import Conflict, NotFound, ServiceError
from slicekeeper.kube.client import LEASES, KubeClient, Object
from slicekeeper.units import format_micro_time

log = logging.getLogger(__name__)

LEADS: Final = 2 / 3
"""The part of a lease's duration after its last renewal for which its holder leads."""


class LeaderElection:
    """Holds, or waits for, one named lease. Durations are real seconds, whatever the clock's speed."""

    def __init__(
        self,
        client: KubeClient,
        clock: Clock,
        *,
        namespace: str,
        name: str,
        identity: str,
        duration_seconds: float = 15.0,
        renew_seconds: float = 2.0,
    ) -> None:
        self._client = client
        self._clock = clock
        self.namespace = namespace
        self.name = name
        self._identity = identity
        self._duration = duration_seconds
        self._renew = renew_seconds
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._renewed_at = float("-inf")
        """When the request of the last successful renewal was sent: its answer may have taken long."""
        self._seen: tuple[str, float] = ("", 0.0)
        """The lease's last version, and when this process first saw it."""
        self._written = ""
        """The lease's version as this process wrote it last."""
        self.term = 0
        """How often this process has taken the lease when another may have had it since its own last term."""
        self.holder = ""
        """The holder of the lease when it was last read."""

    @property
    def is_leader(self) -> bool:
        """Whether this process may act now; two thirds of the duration leave room for a slow action."""
        return not self._stop.is_set() and real_seconds() - self._renewed_at < self._duration * LEADS

    def start(self) -> None:
        """Start trying to lead, in a daemon thread."""
        self._thread = threads.keep("leader-election", self._run, self._stop.is_set)

    def stop(self) -> None:
        """Stop, and let the lease expire at once if it is ours."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(self._duration)  # otherwise a renewal in progress would take the lease again
        self.resign()

    def resign(self) -> None:
        """Let the lease expire at once if it is ours. Must not run concurrently with `campaign`."""
        self._renewed_at = float("-inf")
        try:
            lease = self._client.get(LEASES, self.name, self.namespace)
            spec = lease.get("spec") or {}
            if spec.get("holderIdentity") == self._identity:
                unbroken = _version(lease) == self._written
                written = self._client.replace(LEASES, {**lease, "spec": {**spec, "holderIdentity": ""}})
                # If no other process takes the lease until this process does again, its term goes on.
                self._written = _version(written) if unbroken else ""
        except ServiceError as error:
            log.info("lease %s was not released, it expires: %s", self.name, error)

    def observe(self) -> None:
        """Read the lease, so that the end of another's is noticed sooner."""
        self._look(real_seconds())

    def campaign(self) -> None:
        """Take or renew the lease if it is free, ours, or expired."""
        asked_at = real_seconds()
        lease = self._look(asked_at)
        if lease is None:
            lease = {"metadata": {"name": self.name, "namespace": self.namespace}}
            self._write(lease, asked_at, transitions=0, create=True)
            return
        expired = asked_at - self._seen[1] >= self._duration
        if self.holder in ("", self._identity) or expired:
            changed = self.holder != self._identity
            transitions = int((lease.get("spec") or {}).get("leaseTransitions") or 0)
            self._write(lease, asked_at, transitions=transitions + changed)

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self.campaign()
            except ServiceError as error:
                log.warning("lease %s: %s", self.name, error)
            self._stop.wait(self._renew)

    def _look(self, asked_at: float) -> Object | None:
        """Return the lease, None if there is none, and note since when it has not changed."""
        try:
            lease = self._client.get(LEASES, self.name, self.namespace)
        except NotFound:
            return None
        if _version(lease) != self._seen[0]:
            self._seen = (_version(lease), asked_at)
        self.holder = (lease.get("spec") or {}).get("holderIdentity") or ""
        return lease

    def _write(self, lease: Object, asked_at: float, *, transitions: int, create: bool = False) -> None:
        now = format_micro_time(self._clock.now_ms())
        before = lease.get("spec") or {}
        mine = before.get("holderIdentity") == self._identity
        spec = {
            "holderIdentity": self._identity,
            "leaseDurationSeconds": max(int(self._duration), 1),
            "acquireTime": before.get("acquireTime") if mine else now,
            "renewTime": now,
            "leaseTransitions": transitions,
        }
        body = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": lease["metadata"], "spec": spec}
        try:
            written = (
                self._client.create(LEASES, body, self.namespace) if create else self._client.replace(LEASES, body)
            )
        except Conflict:
            return  # another was faster
        # Any version but our own last one means that another process may have led since.
        self.term += create or _version(lease) != self._written
        self._seen = (_version(written), asked_at)
        self._written, self.holder = _version(written), self._identity
        self._renewed_at = asked_at


def _version(lease: Object) -> str:
    return str(lease["metadata"].get("resourceVersion", ""))
