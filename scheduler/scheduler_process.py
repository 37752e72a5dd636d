# SPDX-License-Identifier: Apache-2.0
"""The scheduler's objects that live as long as its process: client, state, watches, threads, metrics."""

from __future__ import annotations

import gc
import logging
import os
import socket
import threading
import uuid
from typing import Final

from scheduler.agent_readiness import NodeAgents
from scheduler.bind_lease import BINDER_LEASE, BindLease
from scheduler.binder import REQUEST_SECONDS, Binder
from scheduler.gangs import Gangs
from scheduler.job_progress import JobProgress
from scheduler.metrics import Metrics
from scheduler.placement.best_fit import BestFit
from scheduler.placement.learner import Learner
from scheduler.reclaim.eviction import Evictor
from scheduler.reclaim.reclaimer import Reclaimer
from scheduler.reclaim.retry_trigger import RetryTrigger
from scheduler.scheduler_state import SchedulerState
from scheduler.wait_events import WaitEvents
from scheduler.watches import Watches
from slicekeeper import threads
from slicekeeper.clock import Clock
from slicekeeper.config.settings import Settings
from slicekeeper.errors import SlicekeeperError
from slicekeeper.kube.client import KubeClient
from slicekeeper.kube.leader import LEADS, LeaderElection

log = logging.getLogger(__name__)

LEASE: Final = "slicekeeper-reclaimer"
RENEWALS: Final = 7.5
"""How often a lease is renewed in the time after which it expires."""

REAL_SECONDS: Final = 2.0
"""A hold lasts at least this long in real time, however fast the clock runs: HTTP calls don't run faster with it."""


LEARN_SECONDS: Final = 1.0
"""Real seconds between two checks whether enough pods have arrived to learn from."""


class NotSynced(SlicekeeperError):
    """A call arrived before both lists were read."""


class Scheduler:
    """The parts of a scheduler, created from its settings and started together."""

    def __init__(self, settings: Settings, clock: Clock) -> None:
        self.settings = settings
        self.clock = clock
        self.client = KubeClient(settings.kubernetes)
        self.stopped = threading.Event()
        shard = settings.scheduler.shard
        reporter = settings.scheduler_name(shard)
        learner = Learner(settings.scheduler.policy)
        hold = max(settings.scheduler.assume_seconds, REAL_SECONDS * settings.clock.speed)
        lost = max(settings.scheduler.assume_seconds, REQUEST_SECONDS * settings.clock.speed)
        fresh = REAL_SECONDS * settings.clock.speed
        self.state = SchedulerState(
            settings.resources, learner, clock, hold_seconds=hold, lost_seconds=lost, fresh_seconds=fresh
        )
        self.metrics = Metrics(self.state)
        self.watches = Watches(
            self.client,
            self.state.intake,
            lambda name: self.metrics.watch_errors.labels(name).inc(),
            node_selector=settings.scheduler.node_selector(shard),
        )
        agents = NodeAgents(clock, lambda answer: self.metrics.agent_answers.labels(answer).inc())
        # Only this process can listen on this address, so after a crash it has its lease again at once.
        lease = self._lease(BINDER_LEASE, f"{socket.gethostname()}/{settings.scheduler.bind}")
        renew_seconds = settings.scheduler.lease_seconds / RENEWALS
        self.bind_lease = BindLease(lease, self.watches.catch_up, idle_seconds=renew_seconds)
        after = settings.scheduler.reclaim_after_seconds
        trigger = RetryTrigger(self.client, clock, pause_seconds=after)
        jobs = JobProgress(self.client, clock)
        self.gangs = Gangs(self.state, clock, trigger, jobs, hold_seconds=hold)
        # When a holder stops, half of the rest of its lease is for connecting, and half for delivering.
        delivery_seconds = settings.scheduler.lease_seconds * (1 - LEADS) / 2
        binding = KubeClient(settings.kubernetes, delivery_seconds=delivery_seconds)
        self.binder = Binder(binding, self.state, clock, agents, self.bind_lease, self.gangs)
        self.leader = self._lease(LEASE, f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}")
        evictor = Evictor(
            self.client,
            clock,
            settings.resources,
            reporter=reporter,
            hold_seconds=hold,
            count=lambda outcome: self.metrics.evictions.labels(outcome).inc(),
        )
        retry_trigger = RetryTrigger(self.client, clock, pause_seconds=after)
        # Room is made for one given pod, so what usually arrives does not matter here.
        self.reclaimer = Reclaimer(
            settings, clock, self.state, BestFit(), self.leader, evictor, retry_trigger, hold_seconds=hold
        )
        self.notices = WaitEvents(self.client, clock, self.state, lambda: self.leader.is_leader, reporter=reporter)

    def _lease(self, name: str, identity: str) -> LeaderElection:
        mine = self.settings.scheduler
        return LeaderElection(
            self.client,
            self.clock,
            namespace=mine.lease_namespace,
            name=f"{name}-{mine.shard}" if mine.shard else name,
            identity=identity,
            duration_seconds=mine.lease_seconds,
            renew_seconds=mine.lease_seconds / RENEWALS,
        )

    def start(self) -> None:
        """Start the watches, the threads that look after bindings and their lease, and the reclaimer."""
        self.watches.start()
        threads.keep("binder-lease", lambda: self.bind_lease.run(self.stopped), self.stopped.is_set)
        threads.keep("overdue", self._look, self.stopped.is_set)
        threads.keep("gangs", lambda: self.gangs.run(self.stopped), self.stopped.is_set)
        threads.keep("reclaimer", self._reclaim, self.stopped.is_set)
        threads.keep("notices", lambda: self.notices.run(self.stopped), self.stopped.is_set)
        threads.keep("learner", self._learn, self.stopped.is_set)

    def check_synced(self) -> None:
        """Raise NotSynced if the state is not complete yet."""
        if not self.watches.synced:
            raise NotSynced("the scheduler has not read the cluster's state yet; try again")

    def stop(self) -> None:
        """Stop all threads, and let another process reclaim and bind at once."""
        self.stopped.set()
        self.gangs.stop()
        self.bind_lease.stop()
        self.watches.stop()
        self.leader.stop()
        self.binder.stop()

    def _reclaim(self) -> None:
        # A process that does not know all pods evicts none.
        self.watches.wait(self.stopped)
        self.leader.start()
        self.reclaimer.run(self.stopped)

    def _learn(self) -> None:
        self.watches.wait(self.stopped)
        # Objects of the first lists stay. If the collector examined them again, calls would wait for it.
        gc.collect()
        gc.freeze()
        while not self.stopped.wait(LEARN_SECONDS):
            try:
                self.state.learn()
            except Exception:
                log.exception("the policy could not be made again; the old one stays")

    def _look(self) -> None:
        pause = max(1.0, 0.05 * self.settings.clock.speed)
        while not self.clock.wait(self.stopped, pause):
            try:
                self.binder.look_at_overdue()
            except Exception:
                log.exception("overdue bindings could not be looked at")
