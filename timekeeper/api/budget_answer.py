# SPDX-License-Identifier: Apache-2.0
"""Answer requests that read or change a budget: with the budget as it is then."""

from __future__ import annotations

from flask import Response, request

from timekeeper.api import requests
from timekeeper.api.budget_owner import BudgetOwner


def answer(owner: BudgetOwner, status: int = 200) -> Response:
    """Return a budget as it is, or 304 to a reader who has that version."""
    budget, etag = owner.current()
    # RFC 9110 §13.1.2 defines If-None-Match for writes as well, but as a condition, and none of ours offers it.
    unchanged = requests.not_modified(etag) if request.method in ("GET", "HEAD") else None
    return unchanged or requests.answer(budget, status, etag=etag)


def changed(owner: BudgetOwner, *, made: bool = False) -> Response:
    """Wake the controller, and return a budget after a change, with status 201 if it was `made`."""
    owner.context.controller.nudge()
    return answer(owner, 201 if made else 200)
