# SPDX-License-Identifier: Apache-2.0
"""The interface's own description: it names every route, and the server keeps to it."""

from __future__ import annotations

from typing import Any

import schemathesis
from schemathesis.specs.openapi.checks import positive_data_acceptance
from support.databases import Databases
from support.timekeeper_service import OPERATOR, World

from timekeeper.api.routes import ROUTES


def test_the_document_describes_every_route(world: World) -> None:
    document = world.get("/api/v1/openapi.json")
    assert document["openapi"].startswith("3.1")
    described = {(m.upper(), path) for path, methods in document["paths"].items() for m in methods}
    assert described == {(route.method, route.path) for route in ROUTES}


def test_schemathesis_finds_nothing(world: World, databases: Databases) -> None:
    world.pod("a")
    schema = schemathesis.openapi.from_wsgi("/api/v1/openapi.json", world.app)
    examples = 12 if databases.kind == "sqlite" else 4  # the requests are the same, a server takes longer for each
    schema.config.generation.update(max_examples=examples)
    for result in schema.get_all_operations():
        operation = result.ok()
        if operation.path not in ("/readyz", "/healthz"):  # nothing follows a cluster here: they tell so with 503
            _exercise(operation, examples)


def _exercise(operation: Any, examples: int) -> None:
    from hypothesis import HealthCheck, given, settings

    @settings(max_examples=examples, deadline=None, suppress_health_check=list(HealthCheck), database=None)
    @given(case=operation.as_strategy())
    def run(case: Any) -> None:
        # Cursors, zones and instants have a meaning that no schema tells, so a valid one may still be refused.
        case.call_and_validate(headers=OPERATOR, excluded_checks=[positive_data_acceptance])

    run()
