# SPDX-License-Identifier: Apache-2.0
"""Answer requests: with any value as JSON, or with a budget as it is then."""

from __future__ import annotations

import msgspec
from flask import Response, request
from werkzeug.http import unquote_etag

from timekeeper.api.budget_owner import BudgetOwner


def json(value: object, status: int = 200, *, etag: str = "") -> Response:
    """Return a value as JSON."""
    made = Response(msgspec.json.encode(value), status, content_type="application/json")
    if etag:
        made.headers["ETag"] = etag
    return made


def not_modified(etag: str) -> Response | None:
    """Return 304 if the caller has the current version; tags are compared weakly."""
    if not request.if_none_match.contains_weak(unquote_etag(etag)[0]):
        return None
    made = Response(status=304)
    made.headers["ETag"] = etag
    return made


def budget(owner: BudgetOwner, status: int = 200) -> Response:
    """Return a budget as it is, or 304 to a reader who has that version."""
    found, etag = owner.current()
    # RFC 9110 §13.1.2 defines If-None-Match for writes as well, but as a condition, and none of ours offers it.
    unchanged = not_modified(etag) if request.method in ("GET", "HEAD") else None
    return unchanged or json(found, status, etag=etag)


def changed(owner: BudgetOwner, *, made: bool = False, location: str = "") -> Response:
    """Wake the controller, and return a budget after a change, with status 201 if it was `made`, at `location`."""
    owner.context.controller.nudge()
    answer = budget(owner, 201 if made else 200)
    if location:
        answer.headers["Location"] = location
    return answer
