# SPDX-License-Identifier: Apache-2.0
"""Two servers on one PostgreSQL, each a process of its own: killed in turn, and cut off in the middle of a look."""

from __future__ import annotations

import threading
import time
import urllib.error
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPException
from pathlib import Path

import pytest
from sqlalchemy import Connection, create_engine, text
from support.databases import Postgres
from support.timekeeper_process import PATIENCE, Site, oracle, process_site
from support.waiting import wait_for

from slicekeeper import names
from slicekeeper.kube.client import PODS

BUDGETS = {"rich": 36_000_000, "poor": 2_000}
LEADER = "SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND classid = 20942 AND granted"
"""The session that holds the controller's lock."""

WAITING = "SELECT count(DISTINCT pid) FROM pg_locks WHERE NOT granted"

SESSIONS = "SELECT count(*) FROM pg_stat_activity WHERE application_name = :url"
"""A server's sessions. PostgreSQL ends those of a killed one a while later: until then they hold their locks."""


@pytest.fixture
def url(server: Postgres) -> Iterator[str]:
    with server.made() as made:
        yield made


@pytest.fixture
def both(url: str, tmp_path: Path) -> Iterator[tuple[Site, Site]]:
    """Give two servers that are ready."""
    with process_site(tmp_path, url) as first:
        assert first.run("timekeeper", "migrate").returncode == 0
        second = first.twin()
        for one in (first, second):
            one.start()
        try:
            wait_for(lambda: first.ready() and second.ready(), "both are ready")
            yield first, second
            first.let_go()
        finally:
            second.kill()


def check(site: Site) -> None:
    """Wait until all pods are paid, and compare the ledger with their records."""
    wait_for(lambda: all(names.FINALIZER not in p["metadata"]["finalizers"] for p in site.all()), "all are paid")
    found = {w["podName"]: w for w in site.get("/api/v1/workloads?limit=500")["items"]}
    assert set(found) == {p["metadata"]["name"] for p in site.pods.values()}
    for namespace, budget in BUDGETS.items():
        wanted = oracle([p for p in site.pods.values() if p["metadata"]["namespace"] == namespace], budget)
        mine = {n: (w["chargedMs"], w["overBudgetMs"]) for n, w in found.items() if w["namespace"] == namespace}
        assert mine == wanted
    assert site.run("timekeeper", "verify").returncode == 0


def namespace_of(number: int) -> str:
    return ("rich", "poor")[number % 2]


def test_replicas_are_killed_in_turn(both: tuple[Site, Site]) -> None:
    site, second = both
    for step in range(8):
        dying, other = both[step % 2], both[1 - step % 2]
        site.create(f"pod-{step}", namespace_of(step))
        dying.kill()
        grant = {"amountMs": 1, "reason": "while one is away"}
        for _ in range(2):  # once, whoever is asked
            other.post("/api/v1/budgets/watched/grants", grant, f"key-{step}")
        site.all()
        dying.start()
        wait_for(dying.ready, "the killed one is back")
        dying.post("/api/v1/budgets/watched/grants", grant, f"key-{step}")
        if step % 3 == 2:
            site.finish(f"pod-{step}", namespace_of(step))
    for step in range(8):
        if step % 3 != 2:
            site.finish(f"pod-{step}", namespace_of(step))
    check(second)
    assert site.get("/api/v1/budgets/watched")["grantedMs"] == 8


def test_a_rolling_update_loses_no_request_and_books_none_twice(both: tuple[Site, Site]) -> None:
    site, _ = both
    over, answered = threading.Event(), [0] * 3

    def client(number: int) -> None:
        """Ask one replica after the other, as a Service does, under the same key until one has accepted it."""
        turn = number
        while not over.is_set():
            key, deadline = f"client-{number}-{answered[number]}", time.monotonic() + PATIENCE
            while not taken(both[turn % 2], key):
                assert time.monotonic() < deadline, f"nobody took {key}"
                turn += 1
                time.sleep(0.05)
            answered[number] += 1
            turn += 1

    def more() -> None:
        before = list(answered)
        wait_for(lambda: all(now > was + 2 for now, was in zip(answered, before, strict=True)), "requests are answered")

    for number in range(4):
        site.create(f"pod-{number}", namespace_of(number))
    with ThreadPoolExecutor(len(answered)) as threads:
        clients = [threads.submit(client, number) for number in range(len(answered))]
        try:
            for turn, replaced in enumerate(both):
                more()
                replaced.end()
                site.finish(f"pod-{turn}", namespace_of(turn))
                more()
                replaced.start()
                wait_for(replaced.ready, "the new one is ready")
            more()
        finally:
            over.set()
        for one in clients:
            one.result(PATIENCE)
    for number in (2, 3):
        site.finish(f"pod-{number}", namespace_of(number))
    check(site)
    assert site.get("/api/v1/budgets/watched")["grantedMs"] == sum(answered)


def taken(site: Site, key: str) -> bool:
    """Send a grant; return whether it was acknowledged. Raise if it was refused for good."""
    try:
        site.post("/api/v1/budgets/watched/grants", {"amountMs": 1, "reason": "while replicas are replaced"}, key)
    except urllib.error.HTTPError as refused:
        refused.close()
        if refused.code != 503:
            raise
        return False
    except (OSError, HTTPException):
        return False
    return True


def cut(connection: Connection) -> int:
    """End the leader's session, and with it its right to lead; return which it was."""
    pid = int(connection.execute(text(LEADER)).scalar_one())
    assert connection.execute(text("SELECT pg_terminate_backend(:pid)"), {"pid": pid}).scalar_one()
    return pid


def test_the_leaders_session_is_cut_in_the_middle_of_a_look(both: tuple[Site, Site], url: str) -> None:
    site, second = both
    for number in range(8):
        site.create(f"pod-{number}", namespace_of(number))
    wait_for(lambda: len(site.get("/api/v1/workloads")["items"]) == 8, "all are known")
    engine = create_engine(url)
    with engine.connect() as holder, engine.connect().execution_options(isolation_level="AUTOCOMMIT") as watcher:

        def waiting() -> int:
            return int(watcher.execute(text(WAITING)).scalar_one())

        for turn in range(2):
            holder.execute(text("SELECT id FROM namespace FOR UPDATE")).all()  # a look that books waits from now on
            for number in range(4 * turn, 4 * turn + 4):
                site.finish(f"pod-{number}", namespace_of(number))
            wait_for(lambda: waiting() == 1, "the leader is in the middle of a look")
            gone = cut(watcher)
            # The first has not noticed, and is about to book what the other one is about to book too.
            wait_for(lambda: waiting() == 2, "the other leads, and is in the middle of the same look")
            assert watcher.execute(text(LEADER)).scalars().all() != [gone]
            holder.rollback()
            wait_for(lambda: waiting() == 0, "both are through")
    check(site)

    second.kill()
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as watcher:
        wait_for(lambda: not watcher.execute(text(SESSIONS), {"url": second.url}).scalar_one(), "the end of the killed")
        wait_for(lambda: watcher.execute(text(LEADER)).scalars().all(), "the one that is left leads")
        gone = cut(watcher)
        wait_for(lambda: watcher.execute(text(LEADER)).scalars().all() not in ([], [gone]), "the same one leads again")
    engine.dispose()
    site.create("last", "rich")
    wait_for(lambda: any(w["podName"] == "last" for w in site.get("/api/v1/workloads")["items"]), "it is known")
    site.finish("last", "rich")
    check(site)


def test_no_replica_hears_a_pod_that_is_gone(both: tuple[Site, Site]) -> None:
    site, _ = both
    site.create("a", "rich")
    wait_for(lambda: site.get("/api/v1/workloads")["items"], "a is known")
    pod = site.kube.get(PODS, "a", "rich")
    token = site.cluster.tokens.issue(pod, "timekeeper")
    report = {
        "namespace": "rich",
        "podName": "a",
        "podUid": pod["metadata"]["uid"],
        "container": "main",
        "epoch": 1,
        "seq": 1,
        "usedMs": 1,
        "monotonicNs": 1,
    }
    assert [told(one, token, report) for one in both] == [200, 200]
    site.finish("a", "rich")
    check(site)
    site.let_go()
    site.cluster.store.delete(PODS, "a", "rich", grace=0)
    for one in both:  # the one that leads, and the one that does not
        wait_for(lambda one=one: told(one, token, report) == 401, "its token is good no more")


def told(site: Site, token: str, report: dict[str, object]) -> int:
    """Return the status of a pod's report."""
    try:
        return site.post("/api/v1/reports", {"reports": [report]}, "", token)
    except urllib.error.HTTPError as refused:
        refused.close()
        return refused.code
