# SPDX-License-Identifier: Apache-2.0
"""The extender over HTTP: a thin layer that decodes, calls, encodes and measures.

It is plain ASGI on the event loop, not Flask as in other servers: an empty Flask view takes longer than everything that
is computed here (`benchmarks/scheduler/README.md`). Quick calls are computed on the loop itself; calls that may take
longer, or wait for others, have threads.

kube-scheduler treats every status except 200 as a failure of the whole extender, so the error of a single call is in
the answer's `Error`. Only `prioritize` and `preempt`, whose answers have no such field, use 400 or 503.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import orjson
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from scheduler.extender import filter_nodes, gpu_pod, preempt, prioritize_nodes
from scheduler.extender_requests import (
    BadRequest,
    decode_args,
    decode_binding,
    decode_preemption,
    filter_result,
)
from scheduler.gangs import WAITERS
from scheduler.pods import KnownPod
from scheduler.scheduler_process import NotSynced, Scheduler
from slicekeeper import threads
from slicekeeper.errors import SlicekeeperError
from slicekeeper.net.serving.bodies import Bodies, BodyRefused
from slicekeeper.wire.extender import BindingResult

log = logging.getLogger(__name__)

Body = bytes | bytearray

MAX_BODY: Final = 32 << 20
BIND_THREADS: Final = 32


Work = tuple[Callable[[], bytes], ThreadPoolExecutor | None]
"""The remaining work, and the threads that do it; None: the event loop does it."""


class NotBound(SlicekeeperError):
    """A pod was not bound; the message says why."""


@dataclass(frozen=True)
class Verb:
    """A call of kube-scheduler: `begin` decodes its body, `failed` turns an error into an answer."""

    name: str
    begin: Callable[[Body], Work]
    failed: Callable[[str], bytes]
    always_200: bool


def make_app(scheduler: Scheduler) -> ASGIApp:
    """Return the application of a scheduler that has been started."""
    bodies, probes = Bodies(MAX_BODY), _probes(scheduler)
    calls: dict[Any, ASGIApp] = {
        ("POST", f"/{verb.name}"): _endpoint(scheduler, bodies, verb) for verb in _verbs(scheduler)
    }

    # Not Starlette's routes: these calls come with every pod, and one look-up is enough.
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await calls.get((scope.get("method"), scope.get("path")), probes)(scope, receive, send)

    return app


def _verbs(scheduler: Scheduler) -> tuple[Verb, ...]:
    """Return the calls of kube-scheduler.

    Quick ones run in the event loop. Bindings have threads of their own, because those of a gang wait for each other.
    """
    state, gangs = scheduler.state, scheduler.gangs
    slow = ThreadPoolExecutor(scheduler.settings.scheduler.threads, thread_name_prefix="request")
    binds = ThreadPoolExecutor(BIND_THREADS + WAITERS, thread_name_prefix="bind")

    def nodes(answer: Callable[..., bytes]) -> Callable[[Body], Work]:
        def begin(body: Body) -> Work:
            obj, names = decode_args(body)
            pod = gpu_pod(state, obj)
            return partial(answer, state, gangs, pod, names), None if pod is None or _is_quick(pod) else slow

        return begin

    def begin_preempt(body: Body) -> Work:
        obj, victims = decode_preemption(body)
        return lambda: orjson.dumps(preempt(state, gangs, gpu_pod(state, obj), victims)), slow

    def begin_bind(body: Body) -> Work:
        args = decode_binding(body)

        def bind() -> bytes:
            why_not = scheduler.binder.bind(args)
            if why_not:
                raise NotBound(why_not)
            return _error("")

        return bind, binds

    def no_nodes(error: str) -> bytes:
        return filter_result(b"[]", error=error)

    return (
        Verb("filter", nodes(filter_nodes), no_nodes, always_200=True),
        Verb("place", nodes(partial(filter_nodes, best_alone=True)), no_nodes, always_200=True),
        Verb("prioritize", nodes(prioritize_nodes), _error, always_200=False),
        Verb("preempt", begin_preempt, _error, always_200=False),
        Verb("bind", begin_bind, _error, always_200=True),
    )


def _probes(scheduler: Scheduler) -> Starlette:
    """Return the application of kubelet's probes, which also answers all other paths with 404."""

    async def healthz(_request: Request) -> Response:
        wrong = threads.trouble()
        return PlainTextResponse(f"{wrong}\n" if wrong else "ok\n", 503 if wrong else 200)

    async def readyz(_request: Request) -> Response:
        missing = ", ".join(scheduler.watches.missing)
        return PlainTextResponse(
            f"the list of {missing} has not been read\n" if missing else "ok\n", 503 if missing else 200
        )

    probes = Starlette(routes=[Route("/healthz", healthz), Route("/readyz", readyz)])
    probes.router.redirect_slashes = False
    return probes


def _is_quick(pod: KnownPod) -> bool:
    """Whether a pod is placed quickly: without a gang, and without a search for unequal containers."""
    return pod.gang is None and not pod.demand.is_unequal


def _endpoint(scheduler: Scheduler, bodies: Bodies, verb: Verb) -> ASGIApp:
    ok, failed = (scheduler.metrics.calls.labels(verb.name, outcome) for outcome in ("ok", "error"))
    seconds = scheduler.metrics.seconds.labels(verb.name)

    async def view(scope: Scope, receive: Receive, send: Send) -> None:
        start, status = time.perf_counter(), 200
        try:
            async with bodies.received(scope, receive) as body:
                scheduler.check_synced()
                work, pool = verb.begin(body)
                answer = work() if pool is None else await asyncio.get_running_loop().run_in_executor(pool, work)
            ok.inc()
        except Exception as error:  # noqa: BLE001 - kube-scheduler must get an answer that it can read
            reason, status = _blame(error, verb.name)
            answer, status = verb.failed(reason), 200 if verb.always_200 else status
            failed.inc()
        seconds.observe(time.perf_counter() - start)
        headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(answer))]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": answer})
        scheduler.state.look_ahead()

    return view


def _error(message: str) -> bytes:
    """Return the answer of `bind`, or that of another call if it fails and has no answer of its own for that."""
    return orjson.dumps(BindingResult(Error=message))


def _blame(error: Exception, verb: str) -> tuple[str, int]:
    """Return an error in words for kube-scheduler, and its HTTP status."""
    if isinstance(error, BadRequest):
        return str(error), 400
    if isinstance(error, BodyRefused):
        return f"the body could not be read: {error}", 400
    if isinstance(error, NotSynced):
        return str(error), 503
    if isinstance(error, NotBound):
        return str(error), 200
    log.error("%s failed", verb, exc_info=error)
    return "internal error of the scheduler, see its log", 500
