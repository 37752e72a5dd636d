# SPDX-License-Identifier: Apache-2.0
"""The HTTP shell: `/mutate`, `/validate`, `/healthz`, `/readyz`, `/metrics`. It parses, asks, counts and answers."""

from __future__ import annotations

import logging
from collections.abc import Callable
from time import perf_counter

import orjson
from flask import Flask, Response, request
from werkzeug.exceptions import HTTPException

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

FIRST_LOOK_SECONDS = 5.0
"""Longest wait at the start for the first decisions and classes, so that the first reviews know them."""


def make_app(settings: Settings, board: FlipBoard | None = None, book: PolicyBook | None = None) -> Flask:
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


def make_shell(reviewer: Reviewer, max_body_bytes: int, state: Callable[[], dict[str, object]]) -> Flask:
    """Return the routes over a reviewer; `state` is what /readyz tells."""
    app = Flask(__name__, static_folder=None)
    app.config["MAX_CONTENT_LENGTH"] = max_body_bytes

    def endpoint(name: str, review: Callable[[bytes], Answer]) -> Callable[[], Response]:
        counters = metrics.EndpointMetrics(name)

        def view() -> Response:
            begin = perf_counter()
            answer = review(request.get_data(cache=False))
            violations = answer.verdict.violations
            counters.count(answer.outcome, perf_counter() - begin, violations[0].code if violations else "")
            if violations:
                _log_refusal(name, answer)
            return Response(answer.body, mimetype="application/json")

        return view

    def ready() -> Response:
        return Response(orjson.dumps(state()), mimetype="application/json")

    routes: tuple[tuple[str, str, Callable[[], Response]], ...] = (
        ("POST", "/mutate", endpoint("mutate", reviewer.mutate)),
        ("POST", "/validate", endpoint("validate", reviewer.validate)),
        ("GET", "/healthz", lambda: Response("ok", mimetype="text/plain")),
        ("GET", "/readyz", ready),
        ("GET", "/metrics", lambda: Response(metrics.exposition(), content_type=metrics.CONTENT_TYPE)),
    )
    for method, path, view in routes:
        app.add_url_rule(path, path.removeprefix("/"), view, methods=[method])
    app.register_error_handler(BadReview, _bad_review)
    app.register_error_handler(HTTPException, _http_error)
    return app


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


def _problem(status: int, code: str, detail: str) -> Response:
    """Return an RFC 9457 problem."""
    body = orjson.dumps({"type": "about:blank", "status": status, "code": code, "detail": detail})
    return Response(body, status, mimetype="application/problem+json")


def _bad_review(error: BadReview) -> Response:
    metrics.count_bad_request(error.code)
    return _problem(400, error.code, str(error))


def _http_error(error: HTTPException) -> Response:
    status = error.code or 500
    code = (error.name or "error").lower().replace(" ", "-")
    response = _problem(status, code, error.description or error.name)
    for name, value in error.get_headers():
        if name.lower() == "allow":
            response.headers[name] = value
    return response
