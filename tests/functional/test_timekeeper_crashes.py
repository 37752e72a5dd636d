# SPDX-License-Identifier: Apache-2.0
"""The server as a process of its own, killed again and again, against an oracle that knows only the pods' records."""

from __future__ import annotations

import http.client
import json
import random
import time
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import pytest
from support.timekeeper_process import Site, oracle, process_site
from support.waiting import wait_for

from slicekeeper import names
from slicekeeper.kube.client import EVENTS, NAMESPACES, PODS
from slicekeeper.units import format_instant, parse_instant


@pytest.fixture
def site(tmp_path: Path, database_url: str) -> Iterator[Site]:
    with process_site(tmp_path, database_url) as made:
        yield made


def test_whoever_sends_too_much_is_told_so_and_may_go_on(site: Site) -> None:
    site.start()
    wait_for(site.ready, "the server is ready")
    place, good = site.url.removeprefix("https://"), b'{"amountMs": 1, "reason": "r"}'
    for token, chunked in product(("secret", "nobody's"), (False, True)):
        connection = http.client.HTTPSConnection(place, context=site.trust, timeout=60)
        headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json", "Idempotency-Key": "k"}
        large = iter([good, *[b" " * (1 << 20)] * 9]) if chunked else good.ljust(9 << 20)
        wanted = [(413, "body-too-large"), (200, "")] if token == "secret" else [(401, "unauthenticated")] * 2
        for body, expected in zip((large, good), wanted, strict=True):
            connection.request("POST", "/api/v1/budgets/rich/grants", body, headers, encode_chunked=chunked)
            answer = connection.getresponse()
            code = json.loads(answer.read()).get("code", "")
            assert (200 if answer.status == 201 else answer.status, code) == expected
        connection.close()
    assert site.get("/api/v1/budgets/rich")["grantedMs"] == 1


def test_killed_at_any_moment_the_ledger_is_what_the_pods_records_say(site: Site) -> None:
    chance = random.Random(7)
    site.start()
    wait_for(site.ready, "the server is ready")
    alive: list[tuple[str, str]] = []
    for step in range(40):
        namespace = ("rich", "poor")[step % 2]
        if step < 24:
            more = {names.GPU_CLASS: names.BACKGROUND} if step % 5 == 0 else None
            bind = step not in (6, 13)
            site.create(f"pod-{step}", namespace, bind=bind, more=more)
            alive.append((f"pod-{step}", namespace))
        for pod in list(alive):
            if chance.random() < 0.15:
                alive.remove(pod)
                if chance.random() < 0.5:
                    site.kube.delete(PODS, *pod)
                site.finish(*pod)
        site.all()
        time.sleep(chance.uniform(0.02, 0.25))
        if step % 6 == 3:
            site.kill()
            time.sleep(chance.uniform(0.0, 0.3))
            site.start()
            time.sleep(chance.uniform(0.0, 1.8))
    for pod in alive:
        site.finish(*pod)
    wait_for(site.ready, "the server is ready")
    wait_for(
        lambda: all(names.FINALIZER not in (p["metadata"].get("finalizers") or []) for p in site.all()), "all are paid"
    )
    records = list(site.pods.values())
    assert len(records) == 24
    found = {w["podName"]: w for w in site.get("/api/v1/workloads?limit=500")["items"]}
    for namespace, budget in (("rich", 36_000_000), ("poor", 2_000)):
        wanted = oracle([p for p in records if p["metadata"]["namespace"] == namespace], budget)
        mine = {n: (w["chargedMs"], w["overBudgetMs"]) for n, w in found.items() if w["namespace"] == namespace}
        assert mine == wanted
        assert all(found[name]["state"] == "closed" for name in wanted)
    assert sum(over for _, over in oracle([p for p in records if p["metadata"]["namespace"] == "poor"], 2_000).values())
    assert "pod-6" not in found  # never bound: nothing is owed, and its finalizer went too
    verified = site.run("timekeeper", "verify", "-o", "json")
    assert verified.returncode == 0, verified.stdout
    assert json.loads(verified.stdout)["differences"] == []
    site.let_go()


def test_states_flip_when_a_budget_runs_out_and_back_with_a_grant_or_a_new_policy(site: Site) -> None:
    site.start()
    wait_for(site.ready, "the server is ready")
    site.create("a", "poor")
    site.create("b", "rich")
    site.create("c", "watched")
    wait_for(lambda: site.state_of("a", "poor") == names.OVER_BUDGET, "poor has run out")
    decision = site.get("/api/v1/decisions/poor")
    bound = parse_instant(site.kube.get(PODS, "a", "poor")["metadata"]["annotations"][names.BOUND_AT])
    assert decision["since"] == format_instant(bound + 2 * 2_000 - 1)  # half a GPU, rounded half up
    assert decision["priorityClassName"] == "gpu-lower-priority"
    assert site.run("budget", "grant", "poor", "1h", "--reason", "a test").returncode == 0
    wait_for(lambda: site.state_of("a", "poor") == names.IN_BUDGET, "the grant has come")
    wait_for(lambda: site.get("/api/v1/decisions/watched")["state"] == "exhausted", "watched has run out")
    assert site.state_of("c", "watched") == names.IN_BUDGET
    assert site.state_of("b", "rich") == names.IN_BUDGET
    (site.folder / "policy.yaml").write_text("default: {budget: {amount: 1ms, period: none}}")
    wait_for(lambda: site.state_of("b", "rich") == names.OVER_BUDGET, "the new policy holds")
    wait_for(lambda: site.state_of("c", "watched") == names.OVER_BUDGET, "watched is enforced now")
    events = {("a", "BudgetExhausted"), ("a", "BudgetAvailable"), ("b", "BudgetExhausted")}
    # An event follows the pod's change.
    wait_for(
        lambda: events <= {(e["involvedObject"]["name"], e["reason"]) for e in site.kube.list(EVENTS)[0]},
        "the events are there",
    )
    assert len(site.all()) == 3


def test_deleted_pods_wait_until_they_are_paid_and_foreign_finalizers_stay(site: Site) -> None:
    site.create("a", "rich")
    site.kube.delete(PODS, "a", "rich")
    site.finish("a", "rich")
    time.sleep(0.3)
    assert not site.paid("a", "rich")  # no timekeeper runs that could book it
    site.start()
    wait_for(lambda: site.paid("a", "rich"), "a is paid")
    assert site.kube.get(PODS, "a", "rich")["metadata"]["finalizers"] == ["example.com/keeps"]
    site.create("never-bound", "rich", bind=False)
    site.kube.delete(PODS, "never-bound", "rich")
    wait_for(lambda: site.paid("never-bound", "rich"), "the pod that never held anything goes")
    (site.folder / "policy.yaml").write_text("default: {mode: 'off', budget: {amount: 7ms}}")
    site.kube.create(NAMESPACES, {"metadata": {"name": "fresh"}})
    wait_for(lambda: site.get("/api/v1/budgets/fresh")["amountMs"] == 7, "the new policy holds")
    site.create("b", "rich")
    site.finish("b", "rich")
    wait_for(lambda: site.paid("b", "rich"), "the unmetered pod goes")
    workloads = {w["podName"]: w for w in site.get("/api/v1/workloads")["items"]}
    assert list(workloads) == ["a"]
    assert workloads["a"]["flags"] == ["unobserved"]


def test_a_pod_that_vanishes_without_our_finalizer_is_closed_and_flagged(site: Site) -> None:
    site.start()
    wait_for(site.ready, "the server is ready")
    site.create("a", "rich")
    wait_for(lambda: site.get("/api/v1/workloads")["items"], "a is known")
    site.kill()
    site.kube.patch(PODS, "a", {"metadata": {"finalizers": None}}, "rich")
    site.cluster.store.delete(PODS, "a", "rich", grace=0)
    site.start()
    wait_for(lambda: site.ready() and site.get("/api/v1/workloads")["items"][0]["state"] == "closed", "a is closed")
    (workload,) = site.get("/api/v1/workloads")["items"]
    assert "end-last-confirmed" in workload["flags"]
    assert site.run("timekeeper", "verify").returncode == 0
