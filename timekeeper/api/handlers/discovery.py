# SPDX-License-Identifier: Apache-2.0
"""Answer the discovery that the API server requests from each aggregated API."""

from __future__ import annotations

from flask import Response, request

from timekeeper.api import answers
from timekeeper.api.handler_context import HandlerContext
from timekeeper.api.schemas.discovery import DOCUMENTS


def shown(_context: HandlerContext) -> Response:
    """Return the document of the requested path."""
    return answers.json(DOCUMENTS[request.path])
