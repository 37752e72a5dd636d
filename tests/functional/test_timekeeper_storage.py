# SPDX-License-Identifier: Apache-2.0
"""PostgreSQL's own disk is full, its log included: refusals that say so, nothing half-done, on by itself afterwards."""

from __future__ import annotations

import json
import urllib.error
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from sqlalchemy.exc import DBAPIError
from support.databases import Postgres, postgres
from support.small_disk import fill_up, small_disk
from support.timekeeper_process import Site, oracle, process_site
from support.waiting import wait_for

from slicekeeper import names

DISK_MIB = 160
CLIENTS = 8


def test_the_disk_of_postgresql_and_its_log_is_full(tmp_path: Path) -> None:
    with (
        small_disk(DISK_MIB) as disk,
        postgres(folder=disk) as server,
        process_site(tmp_path, server.url(server.make())) as site,
    ):
        assert site.run("timekeeper", "migrate").returncode == 0
        site.start()
        wait_for(site.ready, "the server is ready")
        for number in range(4):
            site.create(f"pod-{number}", "rich")
        wait_for(lambda: len(site.get("/api/v1/workloads")["items"]) == 4, "all are known")
        assert _grant(site, "before") == (201, "")
        fill_up(disk)
        _use_up_the_log(server)
        for number in range(2):
            site.finish(f"pod-{number}", "rich")
        site.create("pod-4", "rich")
        # All get an answer in time: none waits until earlier ones have been given up.
        with ThreadPoolExecutor(CLIENTS) as clients:
            told = list(clients.map(lambda n: _grant(site, f"full-{n}"), range(CLIENTS)))
        assert {status for status, _ in told} == {503}
        assert {code for _, code in told} <= {"storage-full", "database-unavailable"}
        assert not site.paid("pod-0", "rich"), "what is not booked is not let go"

        (disk / "filler").unlink()
        wait_for(lambda: _looked_after(server) and _grant(site, "full-0") in ((200, ""), (201, "")), "room again")
        assert all(_grant(site, f"full-{n}") in ((200, ""), (201, "")) for n in range(CLIENTS))
        assert [_grant(site, f"full-{n}") for n in range(CLIENTS)] == [(200, "")] * CLIENTS
        for number in range(2, 5):
            site.finish(f"pod-{number}", "rich")
        wait_for(lambda: all(names.FINALIZER not in p["metadata"]["finalizers"] for p in site.all()), "all are paid")
        assert site.get("/api/v1/budgets/rich")["grantedMs"] == CLIENTS + 1
        found = {w["podName"]: (w["chargedMs"], w["overBudgetMs"]) for w in site.get("/api/v1/workloads")["items"]}
        assert found == oracle(list(site.pods.values()), 36_000_000)
        assert site.process is not None
        assert site.process.poll() is None, "nobody had to start it again"
        verified = site.run("timekeeper", "verify", "-o", "json")
        assert json.loads(verified.stdout)["differences"] == []
        site.let_go()


def _use_up_the_log(server: Postgres) -> None:
    """Have the server need a new file for its log, until it gets none: that ends it, or its sessions."""
    for _ in range(50):
        try:
            server.execute("SELECT pg_logical_emit_message(true, 'x', 'y')")
            server.execute("SELECT pg_switch_wal()")
        except DBAPIError:
            return
    raise AssertionError("the disk is full, and the log still grows")


def _looked_after(server: Postgres) -> bool:
    """Start the server again if it has ended, as it does if it cannot write its log: at once, or after a while."""
    if not server.runs:
        server.start()
    return True


def _grant(site: Site, key: str) -> tuple[int, str]:
    """Return the status and the problem's code, if there is one."""
    try:
        return site.post("/api/v1/budgets/rich/grants", {"amountMs": 1, "reason": "room"}, key), ""
    except urllib.error.HTTPError as refused:
        headers, document = refused.headers, json.load(refused)
        refused.close()
    assert headers["Content-Type"] == "application/problem+json"
    assert headers["Retry-After"]
    return document["status"], document["code"]
