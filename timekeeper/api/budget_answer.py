# SPDX-License-Identifier: Apache-2.0
"""The current budget, as the answer to requests that read or change it."""

from __future__ import annotations

from flask import Response, request

from timekeeper.api import requests
from timekeeper.api.holder import Holder


def answer(whose: Holder, status: int = 200) -> Response:
    """Return a budget as it is."""
    budget, etag = whose.current()
    unchanged = requests.not_modified(etag) if request.method == "GET" and "If-None-Match" in request.headers else None
    return unchanged or requests.answer(budget, status, etag=etag)


def changed(whose: Holder, *, made: bool = False) -> Response:
    """Wake the controller, and return a budget after a change, with status 201 if it was `made`."""
    whose.it.controller.nudge()
    return answer(whose, 201 if made else 200)
