# SPDX-License-Identifier: Apache-2.0
"""Readiness, health and metrics of the server."""

from __future__ import annotations

import pytest
from support.timekeeper_service import HOUR, World

from timekeeper.store.db import migrate


def test_a_server_on_a_database_of_another_revision_is_not_ready(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    found = migrate.head()
    monkeypatch.setattr(migrate, "head", lambda: "9999")
    answer = world.call("GET", "/readyz")
    assert answer.status_code == 503
    assert f"at revision {found}: this release needs 9999" in answer.json["reason"]


def test_metrics_have_their_names(world: World) -> None:
    world.pod("a")
    world.clock.advance(HOUR)
    text = world.metrics()
    assert 'gpu_budget_limit_seconds{namespace="team"} 9000.0' in text
    assert 'gpu_budget_remaining_seconds{namespace="team"} 5400.0' in text
    assert 'gpu_budget_exhausted{namespace="team"} 0.0' in text
    for name in ("gpu_budget_reserved_seconds", "gpu_budget_charged_seconds_total", "timekeeper_report_lag_seconds"):
        assert f"\n{name}" in text
    world.end("a")
    text = world.metrics()
    assert 'timekeeper_unobserved_seconds{namespace="team"} 3600.0' in text
    assert 'gpu_budget_charged_seconds_total{account="charged",namespace="team"} 3600.0' in text
    world.clock.advance(25 * HOUR)
    assert "timekeeper_unobserved_seconds{" not in world.metrics()


def test_a_controller_that_is_stuck_makes_the_server_unhealthy(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    assert world.get("/healthz") == {"status": "ok", "reason": ""}
    later = world.service.controller._looked + 61
    monkeypatch.setattr("timekeeper.cluster.reconcile_loop.time.monotonic", lambda: later)
    answer = world.call("GET", "/healthz")
    assert (answer.status_code, answer.json["status"]) == (503, "failing")
    assert answer.json["reason"] == "the controller has not finished a look for 61 s"
