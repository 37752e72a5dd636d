# SPDX-License-Identifier: Apache-2.0
"""Translate errors into problem documents, all of them here. A message never shows an internal error."""

from __future__ import annotations

import logging
from typing import Final

from flask import Flask, Response, request
from sqlalchemy.exc import SQLAlchemyError
from werkzeug.exceptions import HTTPException

from slicekeeper.errors import ServiceError, Unavailable
from slicekeeper.net.problem_document import MEDIA_TYPE, encode
from slicekeeper.net.tls import CLIENT
from timekeeper.core.refusal import InvalidValue, LedgerError, Unknown, VersionMismatch
from timekeeper.store.db.failures import out_of_room

log = logging.getLogger(__name__)

RETRY_AFTER: Final = "5"
"""Seconds after which a request that could not be served now may be sent again."""


class Problem(Exception):
    """A request that cannot be served; `code` is stable, `field` names the wrong part of it, if there is one."""

    def __init__(self, status: int, code: str, detail: str, field: str = "") -> None:
        super().__init__(detail)
        self.status = status
        self.code = code
        self.detail = detail
        self.field = field


def response(problem: Problem) -> Response:
    """Return a problem as an answer."""
    body = encode(
        status=problem.status, code=problem.code, detail=problem.detail, path=request.path, field=problem.field
    )
    answer = Response(body, problem.status, content_type=MEDIA_TYPE)
    if problem.status == 401:
        answer.headers["WWW-Authenticate"] = "Bearer"
        if request.environ.get(CLIENT) is not None:
            answer.headers["Connection"] = "close"  # the API server reconnects with its current certificate
    if problem.status == 503:
        answer.headers["Retry-After"] = RETRY_AFTER
    return answer


def register(app: Flask) -> None:
    """Make the application answer every error with a problem document."""
    app.register_error_handler(Problem, response)
    app.register_error_handler(LedgerError, _refused)
    app.register_error_handler(ServiceError, _service)
    app.register_error_handler(SQLAlchemyError, _database)
    app.register_error_handler(HTTPException, _http)
    app.register_error_handler(Exception, _unexpected)


def _refused(error: LedgerError) -> Response:
    """Translate a refusal of the ledger."""
    statuses = {InvalidValue: 422, Unknown: 404, VersionMismatch: 412}
    status = next((status for kind, status in statuses.items() if isinstance(error, kind)), 409)
    return response(Problem(status, error.code, str(error), error.field))


def _service(error: ServiceError) -> Response:
    """Answer that the API server failed; its own message goes only to the log."""
    if isinstance(error, Unavailable):
        log.warning("%s %s: %s", request.method, request.path, error)
        return response(Problem(503, "kubernetes-unavailable", "the API server does not answer; try again"))
    log.error("%s %s: %s", request.method, request.path, error)
    return response(Problem(502, "kubernetes-refused", "the API server refused a call that this needs; see the log"))


def _database(error: SQLAlchemyError) -> Response:
    log.error("%s %s: database: %s", request.method, request.path, error)
    if out_of_room(error):
        return response(Problem(503, "storage-full", "the database's disk is full; free some space"))
    return response(Problem(503, "database-unavailable", "the database does not answer; try again"))


def _http(error: HTTPException) -> Response:
    status = error.code or 500
    codes = {400: "request-invalid", 404: "not-found", 405: "method-not-allowed", 413: "body-too-large"}
    detail = error.description or error.name
    if status == 413:
        detail = f"a body may have at most {request.max_content_length} bytes; send less at once"
    answer = response(Problem(status, codes.get(status, "request-refused"), detail))
    for name, value in error.get_headers():
        if name == "Allow":
            answer.headers[name] = value
    return answer


def _unexpected(error: Exception) -> Response:
    log.error("%s %s", request.method, request.path, exc_info=error)
    return response(Problem(500, "internal-error", "an internal error occurred; see the server's log"))
