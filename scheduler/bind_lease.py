# SPDX-License-Identifier: Apache-2.0
"""Let one extender bind at a time, by a Lease: two could allocate a GPU twice before their watches show it.

Each kube-scheduler asks the extender beside it, and for some seconds two may believe that they lead. So an extender
takes the lease when a bind comes, lists the pods again if another may have held it since, and keeps it while binds
come. Then it releases the lease, but not while the result of a Binding is unknown. Without the lease a bind fails, and
kube-scheduler tries again.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from slicekeeper.errors import ServiceError, SlicekeeperError
from slicekeeper.kube.leader import LeaderElection

log = logging.getLogger(__name__)

BINDER_LEASE: Final = "slicekeeper-binder"

PAUSE_SECONDS: Final = 0.25
"""While another has the lease, it is requested at most this often."""


class NotHolder(SlicekeeperError):
    """Another process has the lease, or the lease cannot be taken; the message says why."""


class BindLease:
    """The right to bind. `catch_up` reads all pods from the API server. Thread-safe."""

    def __init__(self, lease: LeaderElection, catch_up: Callable[[], None], *, idle_seconds: float) -> None:
        self._lease = lease
        self._catch_up = catch_up
        self._idle = idle_seconds
        self._asking = threading.Lock()
        """Held while the lease is requested, renewed or released."""
        self._catching_up = threading.Lock()
        self._caught_up = 0
        """The term in which the pods were read."""
        self._ask_again = float("-inf")
        self._counting = threading.Lock()
        """Protects the following fields, for short times."""
        self._under_way = 0
        """How many pods are being bound."""
        self._needed_until = float("-inf")
        """Until when a Binding that was sent may be executed, or a next one is expected (monotonic seconds)."""
        self._giving_up = False
        """The lease is being released: a bind that begins now must take it again."""

    @contextmanager
    def held(self) -> Iterator[int]:
        """Hold the lease while a pod is bound; yield its term. Raises NotHolder, or what `catch_up` raises."""
        with self._counting:
            self._under_way += 1
        try:
            if not self._is_held():
                self._take()
            yield self._caught_up
        finally:
            self.need(self._idle)
            with self._counting:
                self._under_way -= 1

    def is_still_held(self, term: int) -> bool:
        """Whether the lease is still that of `term`: the process may have been suspended for a while."""
        return term == self._lease.term and self._is_held()

    def need(self, seconds: float) -> None:
        """Keep the lease for at least that long, if it is held: a request that was sent may still be executed."""
        with self._counting:
            self._needed_until = max(self._needed_until, time.monotonic() + seconds)

    def run(self, stopped: threading.Event) -> None:
        """Renew the lease while it is needed, release it otherwise, until `stopped`."""
        while not stopped.wait(self._idle):
            try:
                self.look()
            except ServiceError as error:
                log.warning("lease %s: %s", self._lease.name, error)

    def look(self) -> None:
        """Renew the lease, release it, or check whether its holder is alive."""
        with self._asking:
            with self._counting:
                needed = self._under_way > 0 or time.monotonic() < self._needed_until
                self._giving_up = not needed
            try:
                if needed:
                    self._lease.campaign()
                elif self._lease.is_leader:
                    self._lease.resign()
                else:
                    self._lease.observe()
            finally:
                self._giving_up = False

    def stop(self) -> None:
        """Let another process bind at once, or when the lease expires if a Binding may still be executed."""
        with self._counting:
            unsure = self._under_way or self._needed_until - time.monotonic() > self._idle
        if not unsure:
            with self._asking:
                self._lease.stop()

    def _is_held(self) -> bool:
        return not self._giving_up and self._lease.is_leader and self._caught_up == self._lease.term

    def _take(self) -> None:
        """Take the lease if it is free, and in a new term read first what others have bound. Raises NotHolder."""
        with self._asking:
            if not self._lease.is_leader and time.monotonic() >= self._ask_again:
                try:
                    self._lease.campaign()
                except ServiceError as error:
                    raise NotHolder(f"lease {self._lease.name} cannot be taken: {error}") from error
                if not self._lease.is_leader:
                    self._ask_again = time.monotonic() + PAUSE_SECONDS
        if self._lease.is_leader:
            with self._catching_up:
                term = self._lease.term
                if self._caught_up != term:
                    self._catch_up()
                    self._caught_up = term
        if not self._is_held():
            holder = self._lease.holder or "another scheduler"
            raise NotHolder(f"only {holder}, which has the lease {self._lease.name}, may bind now")
