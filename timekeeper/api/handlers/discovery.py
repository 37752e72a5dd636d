# SPDX-License-Identifier: Apache-2.0
"""Answer the discovery that the API server requests from each aggregated API. It needs no identity.

One resource is listed: client-go treats an empty list as an error, and every kubectl would show it.
"""

from __future__ import annotations

from flask import Response

from slicekeeper import names
from timekeeper.api import answers
from timekeeper.api.handler_context import HandlerContext
from timekeeper.api.schemas.discovery import ApiResource, ResourceList


def resources(_context: HandlerContext) -> Response:
    """Return the list of resources."""
    return answers.json(ResourceList((ApiResource("budgets", "Budget"),)))


def openapi_v2(_context: HandlerContext) -> Response:
    """Return a document that describes nothing: ours is OpenAPI 3.1, of routes that are no objects."""
    info = {"title": names.API, "version": "v1"}
    return answers.json({"swagger": "2.0", "info": info, "paths": {}})


def openapi_v3(_context: HandlerContext) -> Response:
    """Return an index of no documents."""
    return answers.json({"paths": {}})
