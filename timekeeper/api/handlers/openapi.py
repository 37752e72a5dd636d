# SPDX-License-Identifier: Apache-2.0
"""Serve the OpenAPI document, which is generated once with the application."""

from __future__ import annotations

from flask import Response, current_app

from timekeeper.api.handler_context import HandlerContext

DOCUMENT = "timekeeper-openapi"


def shown(_context: HandlerContext) -> Response:
    """Return the document."""
    return Response(current_app.extensions[DOCUMENT], content_type="application/json")
