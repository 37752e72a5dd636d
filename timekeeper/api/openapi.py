# SPDX-License-Identifier: Apache-2.0
"""The OpenAPI 3.1 document, generated from the route table and the types that handlers parse and serialise."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from slicekeeper import __version__
from slicekeeper.net.problem_document import MEDIA_TYPE, ProblemDocument
from timekeeper.api.paging import MOST_PER_PAGE
from timekeeper.api.routes import ROUTES, Route

_NAMESPACE = {"type": "string", "pattern": "^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$"}
_PATH: dict[str, dict[str, Any]] = {
    "namespace": _NAMESPACE,
    "parent": _NAMESPACE,
    "reservation": {"type": "integer", "minimum": 1, "maximum": 2**53},
    "grant": {"type": "integer", "minimum": 1, "maximum": 2**53},
}
_QUERY: dict[str, dict[str, Any]] = {
    "cursor": {"type": "string"},
    "limit": {"type": "integer", "minimum": 1, "maximum": MOST_PER_PAGE, "default": 100},
    "namespace": _NAMESPACE,
    "parent": _NAMESPACE,
    "from": {"type": "string", "format": "date-time"},
    "to": {"type": "string", "format": "date-time"},
    "bucket": {"type": "string", "enum": ["hour", "day", "month"], "default": "hour"},
    "state": {"type": "string", "enum": ["all", "running", "closed"], "default": "all"},
    "groupBy": {"type": "string", "enum": ["namespace", "workload", "model"], "default": "namespace"},
    "timeZone": {"type": "string", "maxLength": 64, "default": "UTC"},
    "uid": {"type": "string", "maxLength": 64},
    "podUid": {"type": "string", "maxLength": 64},
    "format": {"type": "string", "enum": ["json", "csv"], "default": "json"},
    "model": {"type": "string", "maxLength": 253},
    "reason": {"type": "string", "maxLength": 1024},
    "object": {"type": "string", "maxLength": 64},
}
_HEADERS: dict[str, dict[str, Any]] = {
    "If-None-Match": {"type": "string"},
    "If-Match": {"type": "string"},
    "Idempotency-Key": {"type": "string", "minLength": 1, "maxLength": 255},
}
_REFUSALS = {
    400: "Not JSON",
    401: "The token is missing or not valid",
    403: "Not allowed",
    404: "Not found",
    409: "Conflict",
    412: "It has changed since it was read",
    413: "Too large",
    415: "Not application/json",
    422: "A value in the request is not valid",
    502: "The API server refused a call that this needs",
    503: "Unavailable; try again later",
}


def document() -> dict[str, Any]:
    """Return the document."""
    kinds = {kind for route in ROUTES for kind in (route.answer, route.body) if kind} | {ProblemDocument}
    ordered = sorted(kinds, key=lambda kind: kind.__name__)
    references, components = msgspec.json.schema_components(ordered, ref_template="#/components/schemas/{name}")
    schemas = dict(zip(ordered, references, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for route in ROUTES:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, schemas)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Slicekeeper timekeeper",
            "version": __version__,
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "security": [{"bearer": []}],
        "paths": paths,
        "components": {"schemas": components, "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}}},
    }


def _operation(route: Route, schemas: dict[Any, dict[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {
        "operationId": f"{route.method.lower()}{''.join(re.findall('[a-z]+', route.path.title(), re.I))}",
        "summary": route.summary,
        "responses": _responses(route, schemas),
    }
    parameters = [
        {"name": name, "in": "path", "required": True, "schema": _PATH[name]}
        for name in re.findall(r"{(\w+)}", route.path)
    ]
    parameters += [{"name": name, "in": "query", "schema": _QUERY[name]} for name in route.query]
    parameters += [
        {
            "name": name,
            "in": "header",
            "schema": _HEADERS[name],
            "required": name == "Idempotency-Key" and route.needs_key,
        }
        for name in route.headers
    ]
    if parameters:
        found["parameters"] = parameters
    if route.body is not None:
        found["requestBody"] = {"required": True, "content": {"application/json": {"schema": schemas[route.body]}}}
    if route.public:
        found["security"] = []
    return found


def _responses(route: Route, schemas: dict[Any, dict[str, Any]]) -> dict[str, Any]:
    responses: dict[str, Any] = {}
    for status in route.status:
        responses[str(status)] = {"description": "Not modified" if status == 304 else "Done"}
        if route.answer is not None and status != 304:
            responses[str(status)]["content"] = {"application/json": {"schema": schemas[route.answer]}}
            if "format" in route.query:
                responses[str(status)]["content"]["text/csv"] = {"schema": {"type": "string"}}
    # Probes fail in the form of their answer.
    kind, media_type = (route.answer, "application/json") if route.public else (ProblemDocument, MEDIA_TYPE)
    for status in sorted(_statuses(route)):
        content = {media_type: {"schema": schemas[kind]}}
        responses[str(status)] = {"description": _REFUSALS[status], "content": content}
    return responses


def _statuses(route: Route) -> set[int]:
    statuses = set(route.problems)
    if not route.public:
        statuses |= {401, 403, 422, 502, 503}
    if route.body is not None:
        statuses |= {400, 413, 415}
    return statuses
