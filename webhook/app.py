# SPDX-License-Identifier: Apache-2.0
"""The HTTP shell: `/mutate`, `/validate`, `/healthz`, `/readyz`, `/metrics`. It parses, asks, counts and answers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from time import perf_counter
from typing import Final

import orjson
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from slicekeeper import clock
from slicekeeper.namespace_policy import PolicyBook, PolicyFile
from slicekeeper.settings import Settings
from slicekeeper.timekeeper_client import TimekeeperClient
from webhook import metrics
from webhook.classes import watch_classes
from webhook.decisions import Decisions
from webhook.facts import Case
from webhook.flips import FlipBoard
from webhook.policy import Admission
from webhook.review import Answer, BadReview, Reviewer

log = logging.getLogger(__name__)

FIRST_LOOK_SECONDS: Final = 5.0
"""Longest wait at the start for the first decisions and classes, so that the first reviews know them."""

BODY_SECONDS: Final = 10.0
"""Longest wait for a body as a whole."""

LARGE_BYTES: Final = 128 << 10
"""Size from which a review, which then takes milliseconds, is judged in a thread and holds up no other."""

_CODES: Final = {404: "not-found", 405: "method-not-allowed", 408: "request-timeout", 413: "request-entity-too-large"}


def make_app(settings: Settings, board: FlipBoard | None = None, book: PolicyBook | None = None) -> Starlette:
    """Return a worker's application with its threads running: decisions, PriorityClasses, policy file.

    `book` is the policy that the server started with: a worker that replaces another must come up though the file
    has been broken meanwhile.
    """
    policies = PolicyFile(settings.policy, book)
    classes, watch = watch_classes(settings.kubernetes, settings.classes)
    decisions = Decisions(
        TimekeeperClient(settings.timekeeper_client),
        clock.from_settings(settings.clock),
        settings.webhook,
        speed=settings.clock.speed,
        board=board,
        on_refresh=lambda: _show_state(decisions, policies),
    )
    policies.start()
    decisions.start()
    if watch is not None:
        watch.start()
        watch.synced.wait(FIRST_LOOK_SECONDS)
    decisions.tried.wait(FIRST_LOOK_SECONDS)
    if settings.webhook.metrics_bind:
        metrics.serve(settings.webhook.metrics_bind)

    def case_of(namespace: str) -> Case:
        policy = policies.of(namespace)
        return Case(namespace, policy, decisions.standing(namespace, policy))

    reviewer = Reviewer(Admission(settings, classes), case_of)
    return make_shell(reviewer, settings.webhook.max_body_bytes, lambda: _state(decisions, policies))


def make_shell(reviewer: Reviewer, max_body_bytes: int, state: Callable[[], dict[str, object]]) -> Starlette:
    """Return the routes over a reviewer; `state` is what /readyz tells."""

    def endpoint(name: str, review: Callable[[bytes], Answer]) -> Callable[[Request], Awaitable[Response]]:
        counters = metrics.EndpointMetrics(name)

        async def view(request: Request) -> Response:
            body = await _body(request, max_body_bytes)
            begin = perf_counter()
            answer = review(body) if len(body) < LARGE_BYTES else await run_in_threadpool(review, body)
            violations = answer.verdict.violations
            counters.count(answer.outcome, perf_counter() - begin, violations[0].code if violations else "")
            if violations:
                _log_refusal(name, answer)
            return Response(answer.body, media_type="application/json")

        return view

    async def healthy(_request: Request) -> Response:
        return Response("ok", media_type="text/plain")

    async def ready(_request: Request) -> Response:
        return Response(orjson.dumps(state()), media_type="application/json")

    def exposition(_request: Request) -> Response:  # not async, so it runs in a thread: it takes milliseconds
        return Response(metrics.exposition(), headers={"content-type": metrics.CONTENT_TYPE})

    app = Starlette(
        routes=[
            Route("/mutate", endpoint("mutate", reviewer.mutate), methods=["POST"]),
            Route("/validate", endpoint("validate", reviewer.validate), methods=["POST"]),
            Route("/healthz", healthy),
            Route("/readyz", ready),
            Route("/metrics", exposition),
        ],
        exception_handlers=dict.fromkeys((BadReview, HTTPException, ClientDisconnect, Exception), _problem),
    )
    app.router.redirect_slashes = False
    return app


async def _body(request: Request, limit: int) -> bytes:
    """Return the body, of which no more than `limit` bytes are read; raise HTTPException where it is larger or slow."""
    if int(request.headers.get("content-length", 0)) > limit:
        raise _too_large(limit)
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_SECONDS):
            async for chunk in request.stream():
                body += chunk
                if len(body) > limit:
                    raise _too_large(limit)
    except TimeoutError as error:
        raise HTTPException(408, f"The body did not come within {BODY_SECONDS:g} s.") from error
    return bytes(body)


def _too_large(limit: int) -> HTTPException:
    return HTTPException(413, f"The body is larger than webhook.maxBodyBytes, which is {limit}.")


def _state(decisions: Decisions, policies: PolicyFile) -> dict[str, object]:
    """Return what an operator wants to know. None of it makes the webhook unready: it answers by its stale modes."""
    age = decisions.age_seconds
    known = "never fetched" if age is None else "stale" if decisions.stale else "fresh"
    return {"status": "ready", "decisions": known, "policyFile": policies.error or "in force"}


def _show_state(decisions: Decisions, policies: PolicyFile) -> None:
    age = decisions.age_seconds
    metrics.decisions_age.set(-1 if age is None else age)
    metrics.decisions_stale.set(decisions.stale)
    metrics.policy_refused.set(bool(policies.error))


def _log_refusal(endpoint: str, answer: Answer) -> None:
    if log.isEnabledFor(logging.INFO):
        asked, first = answer.request, answer.verdict.violations[0]
        log.info(
            "refused %s",
            first.code,
            extra={
                "endpoint": endpoint,
                "uid": asked.uid,
                "namespace": asked.namespace,
                "kind": asked.kind,
                "field": first.field,
            },
        )


async def _problem(_request: Request, error: Exception) -> Response:
    """Return an error as an RFC 9457 problem."""
    status, headers = 400, None
    if isinstance(error, BadReview):
        code, detail = error.code, str(error)
        metrics.count_bad_request(code)
    elif isinstance(error, HTTPException):
        status, code, detail, headers = error.status_code, _CODES[error.status_code], error.detail, error.headers
    elif isinstance(error, ClientDisconnect):
        code, detail = "bad-request", "The connection ended before the body."
    else:
        log.error("a request failed", exc_info=error)
        status, code, detail = 500, "internal-server-error", "The webhook failed; its log says why."
    body = orjson.dumps({"type": "about:blank", "status": status, "code": code, "detail": detail})
    return Response(body, status, headers, "application/problem+json")
