# SPDX-License-Identifier: Apache-2.0
"""Webhooks, guards and API services that are missing or without effect."""

from __future__ import annotations

from support.checked_cluster import API_SERVICE, Server, check


def test_an_api_that_is_not_available_is_named_for_what_it_holds_up(server: Server) -> None:
    server.install()
    condition = {"type": "Available", "status": "False", "reason": "MissingEndpoints", "message": "no endpoints"}
    server.objects[API_SERVICE] = {"status": {"conditions": [condition]}}
    done = check(server)
    assert done.exit_code == 1
    assert "is not available, so no namespace in the cluster can be deleted: no endpoints" in done.output
