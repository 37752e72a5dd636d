# SPDX-License-Identifier: Apache-2.0
"""The extender over HTTP: a thin shell that decodes, calls, encodes and measures.

kube-scheduler takes any status but 200 for a failure of the whole extender, so what is wrong with one call is told in
the answer's `Error`. Only `prioritize` and `preempt`, whose answers have no such field, say 400 or 503.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable
from typing import Any, Final

import orjson
from flask import Flask, Response, request
from werkzeug.exceptions import HTTPException

from scheduler.agents import Agents
from scheduler.binder import Binder
from scheduler.eviction import Evictor
from scheduler.extender import filter_nodes, preempt, prioritize_nodes
from scheduler.metrics import Metrics
from scheduler.nudge import Nudger
from scheduler.policy import POLICIES
from scheduler.reclaimer import Reclaimer
from scheduler.state import State
from scheduler.watches import Watches
from scheduler.wire import (
    BadRequest,
    binding_result,
    decode_args,
    decode_binding,
    decode_preemption,
    filter_result,
)
from slicekeeper import threads
from slicekeeper.clock import Clock
from slicekeeper.errors import SlicekeeperError
from slicekeeper.kube.client import KubeClient
from slicekeeper.kube.leader import LeaderElection
from slicekeeper.settings import Settings

log = logging.getLogger(__name__)

MAX_BODY: Final = 32 << 20
LEASE: Final = "slicekeeper-reclaimer"

REQUEST_SECONDS: Final = 60.0
"""kube-apiserver's default --request-timeout: a binding that was not carried out by then never will be."""

REAL_SECONDS: Final = 2.0
"""A hold lasts at least this long in real time, however fast the clock runs: HTTP calls don't run faster with it."""


class NotSynced(SlicekeeperError):
    """A call came before both lists were read."""

    code = "not-synced"


class Scheduler:
    """Everything that lives as long as the process: client, state, watches, binder, metrics."""

    def __init__(self, settings: Settings, clock: Clock) -> None:
        self.settings = settings
        self.clock = clock
        self.client = KubeClient(settings.kubernetes)
        self.stopped = threading.Event()
        policy = POLICIES[settings.scheduler.policy]
        hold = max(settings.scheduler.assume_seconds, REAL_SECONDS * settings.clock.speed)
        lost = max(settings.scheduler.assume_seconds, REQUEST_SECONDS * settings.clock.speed)
        self.state = State(settings.resources, policy, clock, hold_seconds=hold, lost_seconds=lost)
        self.metrics = Metrics(self.state)
        self.watches = Watches(self.client, self.state, lambda name: self.metrics.watch_errors.labels(name).inc())
        agents = Agents(clock, lambda answer: self.metrics.agent_answers.labels(answer).inc())
        self.binder = Binder(self.client, self.state, clock, agents)
        self.leader = LeaderElection(
            self.client,
            clock,
            namespace=settings.scheduler.lease_namespace,
            name=LEASE,
            identity=f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}",
            duration_seconds=settings.scheduler.lease_seconds,
            renew_seconds=settings.scheduler.lease_seconds / 7.5,
        )
        evictor = Evictor(
            self.client, clock, settings.resources,
            reporter=settings.webhook.scheduler_name, hold_seconds=hold,
            count=lambda outcome: self.metrics.evictions.labels(outcome).inc(),
        )  # fmt: skip
        nudger = Nudger(self.client, clock, pause_seconds=settings.scheduler.reclaim_after_seconds)
        self.reclaimer = Reclaimer(settings, clock, self.state, policy, self.leader, evictor, nudger, hold_seconds=hold)

    def start(self) -> None:
        """Start the watches, the thread that looks after bindings, and the reclaimer."""
        self.watches.start()
        threads.keep("overdue", self._look, self.stopped.is_set)
        threads.keep("reclaimer", self._reclaim, self.stopped.is_set)

    def check_synced(self) -> None:
        """Raise NotSynced where the state is not whole yet."""
        if not self.watches.synced:
            raise NotSynced("the scheduler has not read the cluster's state yet; try again")

    def stop(self) -> None:
        """Stop all threads, and let another process reclaim at once."""
        self.stopped.set()
        self.watches.stop()
        self.leader.stop()

    def _reclaim(self) -> None:
        # Nobody is evicted by a process that does not know who is there.
        self.watches.wait(self.stopped)
        self.leader.start()
        self.reclaimer.run(self.stopped)

    def _look(self) -> None:
        pause = max(1.0, 0.05 * self.settings.clock.speed)
        while not self.clock.wait(self.stopped, pause):
            try:
                self.binder.look_at_overdue()
            except Exception:
                log.exception("overdue bindings could not be looked at")


def make_app(scheduler: Scheduler) -> Flask:
    """Return the WSGI application of a scheduler that has been started."""
    app = Flask("scheduler")
    app.config["MAX_CONTENT_LENGTH"] = MAX_BODY
    state, watches = scheduler.state, scheduler.watches

    @app.post("/filter")
    def filter_() -> Response:
        return _answer(
            scheduler,
            lambda body: filter_nodes(state, *decode_args(body)),
            lambda error, _: (filter_result([], {}, {}, error), 200),
        )

    @app.post("/prioritize")
    def prioritize() -> Response:
        return _answer(
            scheduler,
            lambda body: prioritize_nodes(state, *decode_args(body)),
            lambda error, status: ({"Error": error}, status),
        )

    @app.post("/preempt")
    def preempt_() -> Response:
        return _answer(
            scheduler,
            lambda body: preempt(state, *decode_preemption(body)),
            lambda error, status: ({"Error": error}, status),
        )

    @app.post("/bind")
    def bind() -> Response:
        return _answer(
            scheduler,
            lambda body: binding_result(scheduler.binder.bind(decode_binding(body))),
            lambda error, _: (binding_result(error), 200),
        )

    @app.get("/healthz")
    def healthz() -> Response:
        wrong = threads.trouble()
        return Response(f"{wrong}\n" if wrong else "ok\n", 503 if wrong else 200, mimetype="text/plain")

    @app.get("/readyz")
    def readyz() -> Response:
        missing = ", ".join(watches.missing)
        return Response(f"the list of {missing} has not been read\n" if missing else "ok\n", 503 if missing else 200)

    return app


def _answer(
    scheduler: Scheduler, call: Callable[[bytes], Any], failed: Callable[[str, int], tuple[Any, int]]
) -> Response:
    """Return what `call` makes of the body, or what `failed` makes of an error and its HTTP status."""
    start, verb, metrics = time.perf_counter(), request.path[1:], scheduler.metrics
    status = 200
    try:
        data = request.get_data()
        scheduler.check_synced()
        body = call(data)
        told = isinstance(body, dict) and body.get("Error")
    except Exception as error:  # noqa: BLE001 - whatever it is, kube-scheduler gets an answer that it can read
        told, status = _blame(error, verb)
        body, status = failed(told, status)
    metrics.calls.labels(verb, "error" if told else "ok").inc()
    metrics.seconds.labels(verb).observe(time.perf_counter() - start)
    return Response(orjson.dumps(body), status, mimetype="application/json")


def _blame(error: Exception, verb: str) -> tuple[str, int]:
    """Return an error in words for kube-scheduler, and its HTTP status."""
    if isinstance(error, BadRequest):
        return str(error), 400
    if isinstance(error, HTTPException):  # a body too large or cut off
        return f"the body could not be read: {error.description}", 400
    if isinstance(error, NotSynced):
        return str(error), 503
    log.error("%s failed", verb, exc_info=error)
    return "internal error of the scheduler, see its log", 500
