# SPDX-License-Identifier: Apache-2.0
"""The HTTP shell: `/mutate`, `/validate`, `/healthz`, `/readyz`. It parses, calls the review, counts and answers.

Starlette on the event loop, and not Flask as the other servers, for as long as a review here is answered sooner than
by a Flask view that does nothing (`benchmarks/webhook/README.md`).
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from time import perf_counter
from typing import Final

import orjson
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from slicekeeper import clock, threads
from slicekeeper.config.policy import PolicyBook
from slicekeeper.config.policy_file import PolicyFile
from slicekeeper.config.settings import Settings
from slicekeeper.kube.client import KubeClient
from slicekeeper.kube.policy_watch import PolicyObjects
from slicekeeper.net import problem_document
from slicekeeper.net.serving.bodies import Bodies, BodyRefused
from slicekeeper.net.timekeeper_client import TimekeeperClient
from webhook import metrics
from webhook.admission import Admission
from webhook.admission_review import Answer, BadReview, Reviewer
from webhook.cluster_watches import watches_of
from webhook.decision_refresh import Decisions
from webhook.large_reviews import LARGE_BYTES, ForkedLock, LargeReviews, TooComplex
from webhook.limit_range_watch import LimitRanges
from webhook.priority_class_watch import PriorityClasses
from webhook.review_inputs import Case
from webhook.shared_decisions import SharedDecisions

log = logging.getLogger(__name__)

FIRST_LOOK_SECONDS: Final = 5.0
"""Maximum wait at the start for each of decisions, classes, LimitRanges and GpuPolicies, for the first reviews."""

_CODES: Final = {404: "not-found", 405: "method-not-allowed"}


def make_app(
    settings: Settings,
    shared: SharedDecisions | None = None,
    book: PolicyBook | None = None,
    turn: ForkedLock | None = None,
) -> Starlette:
    """Return a worker's application with its threads running: decisions, PriorityClasses, policy.

    `shared` and `turn` are the same for all workers. `book` is the policy that the server started with: a worker
    that replaces another must start even if the file is now broken.
    """
    policies = PolicyFile(settings.policy, book)
    classes, limit_ranges = PriorityClasses(settings.classes), LimitRanges()
    watches = watches_of(classes, limit_ranges, settings.kubernetes)
    decisions = Decisions(
        TimekeeperClient(settings.timekeeper_client),
        clock.from_settings(settings.clock),
        settings.webhook,
        speed=settings.clock.speed,
        shared=shared,
        on_refresh=lambda: _show_state(decisions, policies),
    )
    policies.start()
    if settings.policy.objects:
        PolicyObjects(KubeClient(settings.kubernetes), policies).start()
    decisions.start()
    for watch in watches:
        watch.start()
    for watch in watches:
        watch.synced.wait(FIRST_LOOK_SECONDS)
    decisions.tried.wait(FIRST_LOOK_SECONDS)
    policies.complete.wait(FIRST_LOOK_SECONDS)
    if settings.webhook.metrics_bind:
        metrics.serve(settings.webhook.metrics_bind, settings.serving)

    def case_of(namespace: str) -> Case:
        policy = policies.of(namespace)
        return Case(namespace, policy, decisions.standing(namespace, policy), decisions.gpus)

    reviewer = Reviewer(Admission(settings, classes, limit_ranges), case_of)
    return make_shell(reviewer, settings.webhook.max_body_bytes, lambda: _state(decisions, policies), turn)


def make_shell(
    reviewer: Reviewer, max_body_bytes: int, state: Callable[[], dict[str, object]], turn: ForkedLock | None = None
) -> Starlette:
    """Return the routes of a reviewer; `state` returns the answer of /readyz."""
    bodies = Bodies(max_body_bytes, revocable=True)
    large = LargeReviews(turn or ForkedLock())

    def endpoint(name: str, review: Callable[[bytes | bytearray], Answer]) -> Callable[[Request], Awaitable[Response]]:
        counters = metrics.EndpointMetrics(name)

        async def view(request: Request) -> Response:
            async with bodies.received(request.scope, request.receive) as body:
                begin = perf_counter()
                answer = review(body) if len(body) < LARGE_BYTES else await large.judge(review, body)
            violations = answer.verdict.violations
            counters.count(answer.outcome, perf_counter() - begin, violations[0].code if violations else "")
            if violations:
                _log_refusal(name, answer)
            return Response(answer.body, media_type="application/json")

        return view

    async def healthy(_request: Request) -> Response:
        wrong = threads.trouble()
        return Response(wrong or "ok", 503 if wrong else 200, media_type="text/plain")

    async def ready(_request: Request) -> Response:
        return Response(orjson.dumps(state()), media_type="application/json")

    app = Starlette(
        routes=[
            Route("/mutate", endpoint("mutate", reviewer.mutate), methods=["POST"]),
            Route("/validate", endpoint("validate", reviewer.validate), methods=["POST"]),
            Route("/healthz", healthy),
            Route("/readyz", ready),
        ],
        exception_handlers=dict.fromkeys(
            (BadReview, BodyRefused, TooComplex, HTTPException, ClientDisconnect, Exception), _problem
        ),
    )
    app.router.redirect_slashes = False
    return app


def _state(decisions: Decisions, policies: PolicyFile) -> dict[str, object]:
    """Return the state for operators. Nothing in it makes the webhook unready: it can answer by its stale modes."""
    age = decisions.age_seconds
    known = "never fetched" if age is None else "stale" if decisions.stale else "fresh"
    objects = policies.objects_trouble() or ("known" if policies.complete.is_set() else "not listed yet")
    return {"status": "ready", "decisions": known, "policyFile": policies.error or "in force", "policyObjects": objects}


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


async def _problem(request: Request, error: Exception) -> Response:
    """Return an error as a problem document."""
    headers = None
    if isinstance(error, BadReview | BodyRefused | TooComplex):
        status, code, detail = error.status, error.code, str(error)
        if isinstance(error, BodyRefused) and status == HTTPStatus.REQUEST_ENTITY_TOO_LARGE:
            detail += "; that is webhook.maxBodyBytes"
        metrics.count_bad_request(code)
    elif isinstance(error, HTTPException):
        status, code, detail, headers = error.status_code, _CODES[error.status_code], error.detail, error.headers
    elif isinstance(error, ClientDisconnect):
        status, code, detail = 400, "bad-request", "The connection ended before the body."
    else:
        log.error("a request failed", exc_info=error)
        status, code, detail = 500, "internal-server-error", "The webhook failed; its log says why."
    body = problem_document.encode(status=status, code=code, detail=detail, path=request.scope["path"])
    return Response(body, status, headers, problem_document.MEDIA_TYPE)
