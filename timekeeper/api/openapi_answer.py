# SPDX-License-Identifier: Apache-2.0
"""Serves the OpenAPI document, which is made once when the application is."""

from __future__ import annotations

from flask import Response, current_app

DOCUMENT = "timekeeper-openapi"


def shown() -> Response:
    """Return the document."""
    return Response(current_app.extensions[DOCUMENT], content_type="application/json")
