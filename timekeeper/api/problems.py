# SPDX-License-Identifier: Apache-2.0
"""Errors on the wire: RFC 9457 problem documents with stable types, translated here and nowhere else.

`type` is `urn:slicekeeper:problem:<code>`; `code` is the same code by itself. A message never shows an inner error.
"""

from __future__ import annotations

import logging
from http import HTTPStatus
from typing import Final

import msgspec
from flask import Flask, Response, request
from sqlalchemy.exc import SQLAlchemyError
from werkzeug.exceptions import HTTPException

from slicekeeper.errors import ServiceError, Unavailable
from timekeeper.store.db.failures import out_of_room

log = logging.getLogger(__name__)

RETRY_AFTER: Final = "5"
"""Seconds after which a request that could not be served now may be sent again."""

MEDIA_TYPE: Final = "application/problem+json"


class Problem(Exception):
    """A request that cannot be served; `code` is stable, `field` names what is wrong where something is."""

    def __init__(self, status: int, code: str, detail: str, field: str = "") -> None:
        super().__init__(detail)
        self.status = status
        self.code = code
        self.detail = detail
        self.field = field


class ProblemDocument(msgspec.Struct, omit_defaults=True):
    """What is sent."""

    type: str
    title: str
    status: int
    detail: str
    code: str
    instance: str
    field: str = ""


def response(problem: Problem) -> Response:
    """Return a problem as an answer."""
    document = ProblemDocument(
        type=f"urn:slicekeeper:problem:{problem.code}",
        title=HTTPStatus(problem.status).phrase,
        status=problem.status,
        detail=problem.detail,
        code=problem.code,
        instance=request.path,
        field=problem.field,
    )
    answer = Response(msgspec.json.encode(document), problem.status, content_type=MEDIA_TYPE)
    if problem.status == 401:
        answer.headers["WWW-Authenticate"] = "Bearer"
    if problem.status == 503:
        answer.headers["Retry-After"] = RETRY_AFTER
    return answer


def register(app: Flask) -> None:
    """Have the application answer every error with a problem document."""
    app.register_error_handler(Problem, response)
    app.register_error_handler(ServiceError, _service)
    app.register_error_handler(SQLAlchemyError, _database)
    app.register_error_handler(HTTPException, _http)
    app.register_error_handler(Exception, _unexpected)


def _service(error: ServiceError) -> Response:
    """Translate our own errors; what another server said stays in the log."""
    if isinstance(error, Unavailable):
        log.warning("%s %s: %s", request.method, request.path, error)
        return response(Problem(503, "kubernetes-unavailable", "the API server does not answer; try again"))
    if error.status in (401, 403, 404, 409, 412) and error.reason in _OWN:
        return response(Problem(error.status, error.reason, str(error), error.field or _FIELDS.get(error.reason, "")))
    log.error("%s %s: %s", request.method, request.path, error)
    return response(Problem(502, "kubernetes-refused", "the API server refused what was needed for this; see the log"))


_OWN: Final = frozenset(
    {
        "unauthenticated",
        "forbidden",
        "hierarchy-cycle",
        "hierarchy-too-deep",
        "parent-refused",
        "parent-unknown",
        "namespace-unknown",
        "version-mismatch",
        "grant-begun",
        "grant-unknown",
        "idempotency-key-reused",
        "amount-overflow",
        "balance-insufficient",
        "budget-closed",
        "interval-implausible",
        "period-not-over",
        "pod-running",
        "pod-unknown",
        "rate-exists",
        "refund-above-charge",
        "reservation-of-pod",
        "reservation-unknown",
        "transfer-refused",
    }
)


_FIELDS: Final = {
    "amount-overflow": "amountMs",
    "balance-insufficient": "amountMs",
    "grant-begun": "grant",
    "grant-unknown": "grant",
    "hierarchy-cycle": "parent",
    "hierarchy-too-deep": "parent",
    "idempotency-key-reused": "Idempotency-Key",
    "namespace-unknown": "namespace",
    "parent-refused": "parent",
    "parent-unknown": "parent",
    "period-not-over": "until",
    "pod-running": "podUid",
    "pod-unknown": "podUid",
    "rate-exists": "effectiveAt",
    "refund-above-charge": "amountMs",
    "reservation-of-pod": "reservation",
    "reservation-unknown": "reservation",
    "transfer-refused": "to",
    "version-mismatch": "If-Match",
}
"""What of a request is wrong by the code alone."""


def _database(error: SQLAlchemyError) -> Response:
    log.error("%s %s: database: %s", request.method, request.path, error)
    if out_of_room(error):
        return response(Problem(503, "storage-full", "the database's disk is full; make room, nothing else is needed"))
    return response(Problem(503, "database-unavailable", "the database does not answer; try again"))


def _http(error: HTTPException) -> Response:
    status = error.code or 500
    codes = {400: "request-invalid", 404: "not-found", 405: "method-not-allowed", 413: "body-too-large"}
    told = error.description or error.name
    if status == 413:
        told = f"a body has at most {request.max_content_length} bytes; send less at once"
    answer = response(Problem(status, codes.get(status, "request-refused"), told))
    for name, value in error.get_headers():
        if name == "Allow":
            answer.headers[name] = value
    return answer


def _unexpected(error: Exception) -> Response:
    log.error("%s %s", request.method, request.path, exc_info=error)
    return response(Problem(500, "internal-error", "an error of the server; its log says which"))
