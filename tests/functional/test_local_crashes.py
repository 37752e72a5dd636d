# SPDX-License-Identifier: Apache-2.0
"""Parts are killed at random while pods come, end and are deleted: the ledger is what the pods' own records say."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from contextlib import suppress
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from support.charge_oracle import charges, instant, interval
from support.local_cluster import PATIENCE, delete_all, kill, namespace, pod, pods, records, start
from support.waiting import wait_for

from simulator.api_errors import ObjectNotFound
from simulator.initial_objects import MODELS
from simulator.local import LocalCluster
from slicekeeper import names
from slicekeeper.errors import ServiceError
from slicekeeper.kube.client import PODS
from slicekeeper.kube.pod import has_ended
from slicekeeper.net.json_client import JsonClient
from slicekeeper.wire.timekeeper import Budget

POLICY = """
namespaces:
  - match: tight
    budget: {amount: 30s, period: none}
    backgroundRate: 1/3
  - match: free
    budget: {amount: 1000h, period: none}
    backgroundRate: 2/7
"""
AMOUNTS = {"tight": 30_000, "free": 3_600_000_000}
BACKGROUND = {"tight": Fraction(1, 3), "free": Fraction(2, 7)}
CHAOS_SECONDS = 13.0
ENOUGH = 12
"""Pods that must have held GPUs at least, however slow the machine."""
MODEL = "A100"


@pytest.fixture
def local(tmp_path: Path) -> Iterator[LocalCluster]:
    local = start(tmp_path, POLICY, nodes=2, gpus=2, model=MODEL, speed=120)
    yield local
    local.stop()


THINGS = {"create": 44, "delete": 25, "kill timekeeper": 3, "kill scheduler": 3, "kill sidecar": 14, "grant": 5}


class Chaos:
    """Does one random thing after another, and counts what it did."""

    def __init__(self, local: LocalCluster, seed: int) -> None:
        self.local = local
        self.random = random.Random(seed)
        self.client = local.kube_client()
        self.timekeeper = local.timekeeper_client()
        self.done: dict[str, int] = {}
        self.number = 0

    def step(self) -> None:
        thing = self.random.choices(list(THINGS), list(THINGS.values()))[0]
        with suppress(ServiceError, ObjectNotFound, LookupError):  # what was hit is away, or gone already
            getattr(self, thing.split()[0])(*thing.split()[1:])
            self.done[thing] = self.done.get(thing, 0) + 1

    def create(self) -> None:
        if sum(not has_ended(p) for p in pods(self.local).values()) > 16:
            return
        pick = self.random
        self.number += 1
        core = pick.choice((100, 200, *range(5, 60)))
        blocks = pick.randint(1, 70) if core < 100 else 1
        annotations = {"slicekeeper.io/gpu-class": "background"} if pick.random() < 0.25 else {}
        where = pick.choice(("tight", "tight", "free"))
        pod(self.client, where, f"p{self.number}", core, blocks, pick.randint(20, 500), **annotations)

    def delete(self) -> None:
        name, found = self.random.choice(list(pods(self.local).items()))
        grace = self.random.choice((None, None, 0))
        self.local.cluster.store.delete(PODS, name, found["metadata"]["namespace"], grace=grace)

    def kill(self, what: str) -> None:
        ids: dict[str, Any] = self.local.processes()
        victims = list(ids["sidecars"].values()) if what == "sidecar" else [ids["parts"][what]]
        kill(self.random.choice(victims))

    def grant(self) -> None:
        amount = self.random.randint(1, 40_000)
        self.timekeeper.grant(Budget, "tight", amount, "chaos", f"grant-{self.number}-{amount}")


@pytest.mark.parametrize("seed", [1, 2])
def test_the_ledger_equals_an_oracle_after_kills_at_random_moments(local: LocalCluster, seed: int) -> None:
    for name in AMOUNTS:
        namespace(local.kube_client(), name)
    chaos = Chaos(local, seed)
    deadline = time.monotonic() + CHAOS_SECONDS
    while time.monotonic() < deadline or len(chaos.done) < len(THINGS) or bound(local) <= ENOUGH:
        chaos.step()
        time.sleep(chaos.random.uniform(0.0, 0.15))
    time.sleep(1.0)  # a last kill is noticed
    wait_for(lambda: _answers(chaos), "the timekeeper's return", 120)
    delete_all(local)

    settings = local.settings.timekeeper_client
    http = JsonClient(settings.url, token_file=settings.token_file, timeout=PATIENCE)
    seen = 0
    for name, amount in AMOUNTS.items():
        own = [p for p in records(local) if p["metadata"]["namespace"] == name]
        held = [i for p in own if (i := interval(p, MODELS[MODEL], BACKGROUND[name])) is not None]
        given = http.json("GET", f"/api/v1/budgets/{name}/grants", query={"limit": "500"})["items"]
        wanted = charges(held, amount, sorted((instant(g["validFrom"]), g["amountMs"]) for g in given))
        booked = {w.pod_uid: (w.charged_ms, w.over_budget_ms) for w in chaos.timekeeper.workloads(name)}
        assert booked == wanted
        assert entries_by_pod(http, name) == {uid: both for uid, both in wanted.items() if any(both)}
        seen += len(held)
        if name == "tight":
            assert sum(over for _, over in wanted.values()) > 0, "the budget has run out"
    assert seen > ENOUGH


def bound(local: LocalCluster) -> int:
    """Return how many pods have been given GPUs so far."""
    return sum(names.BOUND_AT in p["metadata"].get("annotations", {}) for p in records(local))


def _answers(chaos: Chaos) -> bool:
    with suppress(ServiceError):
        chaos.timekeeper.decisions()
        return True
    return False


def entries_by_pod(http: JsonClient, name: str) -> dict[str, tuple[int, int]]:
    """Return what the ledger's entries moved to both accounts by pod; every transaction sums to zero."""
    sums: dict[int, int] = {}
    moved: dict[str, list[int]] = {}
    query = {"limit": "500"}
    while True:
        page = http.json("GET", f"/api/v1/budgets/{name}/entries", query=query)
        for entry in page["items"]:
            sums[entry["transaction"]] = sums.get(entry["transaction"], 0) + entry["amountMs"]
            if entry["account"] in ("charged", "over-budget"):
                both = moved.setdefault(entry["subject"], [0, 0])
                both[entry["account"] == "over-budget"] += entry["amountMs"]
        if not page["nextCursor"]:
            break
        query["cursor"] = page["nextCursor"]
    assert set(sums.values()) <= {0}
    return {uid: (charged, over) for uid, (charged, over) in moved.items() if charged or over}
