# SPDX-License-Identifier: Apache-2.0
"""Two timekeepers on PostgreSQL, each killed while it leads, under load: nothing lost, doubled or guessed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from cluster.harness import install
from cluster.harness.binaries import say
from cluster.harness.charges import charge_of
from cluster.harness.cluster import Cluster
from cluster.harness.install import NAMESPACE
from cluster.harness.kubectl import Object, wait_for
from cluster.harness.namespaces import NODE_IP, POD_CIDR
from cluster.harness.role_bindings import role_binding, service_account
from cluster.harness.site import Site, gpu_container, job, pod
from sqlalchemy import create_engine, text
from support.databases import Postgres, postgres

from slicekeeper import names
from slicekeeper.wire.timekeeper import Budget

VALUES = install.suite(postgresql=True)
TIMEKEEPER = "deployment/timekeeper"
SECRET = "timekeeper-database"
PASSWORD = "pods-know-it"
VERIFY = ("/usr/local/bin/slicekeeper", "timekeeper", "verify", "-o", "json")
KEPT = "suite.example/record"
"""A finalizer of the test's: a deleted pod's last record stays to be read."""

_LEADER = """SELECT host(a.client_addr) FROM pg_locks l JOIN pg_stat_activity a USING (pid)
    WHERE l.locktype = 'advisory' AND l.classid = 20942 AND l.granted"""


_HEARD = """SELECT count(*) FILTER (WHERE w.used_ms > 0), count(*) FILTER (WHERE coalesce(w.used_ms, 0) = 0)
    FROM watermark w JOIN workload p USING (pod_uid)
    JOIN namespace n ON n.id = p.namespace_id WHERE n.name = :team"""
"""The hammers, which say that they work, and the sidecars of pods that do not."""


class Ledger:
    """The database, as an auditor reads it."""

    def __init__(self, server: Postgres, name: str) -> None:
        self._engine = create_engine(server.url(name))

    def rows(self, query: str, **values: Any) -> list[tuple[Any, ...]]:
        with self._engine.connect() as connection:
            return [tuple(row) for row in connection.execute(text(query), values)]

    def leader(self) -> str:
        """Return the address of the pod whose session holds the controller's lock, empty if none does."""
        return next((address for (address,) in self.rows(_LEADER)), "")

    def close(self) -> None:
        self._engine.dispose()


@pytest.fixture
def ledger(site: Site, cluster: Cluster) -> Iterator[Ledger]:
    """Have the timekeeper run as the component `postgresql` has it, and as before afterwards."""
    with postgres(network=cluster.first_process()) as server:
        server.let_in(POD_CIDR, PASSWORD)
        name = server.make()
        url = f"postgresql://timekeeper:{PASSWORD}@{NODE_IP}:{server.port}/{name}"
        metadata = {"name": SECRET, "namespace": NAMESPACE}
        site.kubectl.apply({"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "stringData": {"url": url}})
        opened = Ledger(server, name)
        _stop(site)
        try:
            install.install(site.kubectl, VALUES)
            yield opened
        finally:
            opened.close()
            _stop(site)
            for left in ("poddisruptionbudget/timekeeper", f"secret/{SECRET}"):
                site.kubectl("delete", left, "-n", NAMESPACE, "--ignore-not-found")
            install.install(site.kubectl)


def _stop(site: Site) -> None:
    site.rollout(TIMEKEEPER, 0)
    wait_for(lambda: not _replicas(site), "end of the timekeeper")


def _replicas(site: Site) -> dict[str, Object]:
    """Return the timekeeper's pods by their address."""
    return {p["status"].get("podIP", ""): p for p in site.pods(NAMESPACE, "app.kubernetes.io/name=timekeeper")}


def _is_ready(site: Site, one: Object, restarts: int) -> bool:
    (status,) = site.pod(NAMESPACE, one["metadata"]["name"])["status"]["containerStatuses"]
    return bool(status["ready"] and status["restartCount"] > restarts)


def test_replicas_are_killed_in_turn_under_load(site: Site, cluster: Cluster, ledger: Ledger) -> None:
    team, other = site.namespace("crowd"), site.namespace("crowd")
    with site.timekeeper() as client:
        for name in (team, other):
            client.set_budget(Budget, name, {"amountMs": 1_000_000_000, "period": "none", "timeZone": "UTC"})
    steady = [_kept(pod(f"steady-{n}", gpu_container(core=5, blocks=4))) for n in range(2)]
    with _kept_records(site, team), _hammers(site, team, other) as hammers:
        site.kubectl.create(*steady, namespace=team)
        wait_for(lambda: _running(site, team) == 4, "pods of the load", seconds=120)
        # Of the hammers, and of all four sidecars: a pod's first word may come before the ledger knows the pod.
        wait_for(lambda: ledger.rows(_HEARD, team=team) == [(2, 4)], "reports", seconds=120, pause=1)
        for turn, going in enumerate(steady):
            booked = _bookings(ledger)
            wait_for(lambda booked=booked: _bookings(ledger) > booked + 20, "load before the kill", seconds=120)
            replicas = _replicas(site)
            assert len(replicas) == 2
            address = wait_for(ledger.leader, "a leader")
            leading = replicas.pop(address)
            (heir,) = replicas
            wave = _kept(job(f"wave-{turn}", gpu_container(script="sleep 2", core=5, blocks=4), count=3))
            site.kubectl.create(wave, namespace=team)
            (status,) = leading["status"]["containerStatuses"]
            cluster.kill_container(status["containerID"])
            site.kubectl("delete", "pod", going["metadata"]["name"], "-n", team, "--wait=false")
            wait_for(lambda heir=heir: ledger.leader() == heir, "the other to lead")
            booked = _bookings(ledger)
            wait_for(lambda booked=booked: _bookings(ledger) > booked + 20, "load on the one that is left", seconds=120)
            restarts = status["restartCount"]
            wait_for(
                lambda p=leading, r=restarts: _is_ready(site, p, r), "the killed one's return", seconds=120, pause=1
            )
        accounts = _stop_hammers(site, team, hammers)
        records = wait_for(lambda: _paid(site, team, 10), "charge of every pod", seconds=180, pause=1)

    say(f"acknowledged beside two kills: {accounts}")
    workloads = site.workloads(team)
    assert {w.pod_uid: w.charged_ms for w in workloads.values()} == {
        p["metadata"]["uid"]: charge_of(p) for p in records
    }
    assert not any(w.over_budget_ms for w in workloads.values())

    _nothing_is_moved_twice(site, team, other, accounts, sum(w.charged_ms for w in workloads.values()))
    for uid, account in accounts.items():
        assert workloads[uid].used_ms == account["used_ms"], "each report counts once"
    idle = "SELECT pod_uid, count(*) FROM watermark WHERE coalesce(used_ms, 0) = 0 GROUP BY pod_uid"
    epochs = dict(ledger.rows(idle))
    heard = {p["metadata"]["name"]: epochs.get(p["metadata"]["uid"], 0) for p in records}
    assert set(heard.values()) <= {0, 1}, "one run of each sidecar, whoever heard it"
    assert all(heard[name] for name in ("hammer-0", "hammer-1", "steady-0", "steady-1")), heard
    told = site.kubectl("exec", TIMEKEEPER, "-n", NAMESPACE, "--", *VERIFY)
    assert json.loads(told)["differences"] == []


def _nothing_is_moved_twice(
    site: Site, team: str, other: str, accounts: dict[str, dict[str, Any]], charged: int
) -> None:
    """Compare what was acknowledged with what is booked: neither more nor less."""
    for account in accounts.values():
        assert account["refused"] == []
        assert account["grants"] > 10
        assert account["transfers"] > 10
    granted, moved = (sum(a[key] for a in accounts.values()) for key in ("granted_ms", "moved_ms"))
    with site.timekeeper() as client:
        mine, others = client.budget(Budget, team), client.budget(Budget, other)
    assert mine.balance_ms == 1_000_000_000 + granted - moved - charged
    assert others.balance_ms == 1_000_000_000 + moved
    assert mine.used_ms == charged


def _bookings(ledger: Ledger) -> int:
    return int(ledger.rows("SELECT count(*) FROM txn")[0][0])


def _kept(made: Object) -> Object:
    """Have a Job's pods, or a pod, bear the test's finalizer."""
    carrier = made["spec"]["template"] if made["kind"] == "Job" else made
    carrier["metadata"]["finalizers"] = [KEPT]
    return made


@contextmanager
def _kept_records(site: Site, team: str) -> Iterator[None]:
    """Take the test's finalizer off afterwards, so that what is deleted goes."""
    try:
        yield
    finally:
        for one in site.pods(team):
            site.kubectl.patch("pod", one["metadata"]["name"], {"metadata": {"finalizers": None}}, team)


def _paid(site: Site, team: str, count: int) -> list[Object]:
    """Return the last records of all pods once they have ended and are paid; until then nothing."""
    found = site.pods(team)
    paid = [p for p in found if _has_ended(p) and names.FINALIZER not in p["metadata"]["finalizers"]]
    return paid if len(paid) == len(found) == count else []


def _running(site: Site, team: str) -> int:
    return sum(p["status"].get("phase") == "Running" for p in site.pods(team))


def _has_ended(one: Object) -> bool:
    statuses = one["status"].get("containerStatuses", [])
    return one["status"].get("phase") in ("Succeeded", "Failed") and all("terminated" in s["state"] for s in statuses)


@contextmanager
def _hammers(site: Site, team: str, other: str) -> Iterator[dict[str, Object]]:
    """Run two GPU pods that grant, transfer and report without pause; give them by UID."""
    script = Path(install.__file__).with_name("timekeeper_load.py").read_text()
    binding = role_binding("hammer", "slicekeeper-budget-manager", service_account("default", team), everywhere=True)
    metadata = {"name": "hammer", "namespace": team}
    site.kubectl.apply(
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"hammer.py": script}}, binding
    )
    made = [_hammer(f"hammer-{n}", other) for n in range(2)]
    site.kubectl.create(*made, namespace=team)
    try:
        yield {p["metadata"]["uid"]: p for p in (site.pod(team, one["metadata"]["name"]) for one in made)}
    finally:
        site.kubectl("delete", "clusterrolebinding", "hammer")


def _hammer(name: str, other: str) -> Object:
    field = {"namespace": "metadata.namespace", "name": "metadata.name", "uid": "metadata.uid"}
    container = gpu_container(core=5, blocks=4) | {
        "image": install.IMAGES.of("timekeeper"),
        "command": ["/usr/local/bin/python3", "/script/hammer.py", "$(namespace)", other, "$(name)", "$(uid)"],
        "env": [{"name": key, "valueFrom": {"fieldRef": {"fieldPath": path}}} for key, path in field.items()],
        "volumeMounts": [
            {"name": "script", "mountPath": "/script"},
            {"name": "secrets", "mountPath": "/var/run/secrets/hammer"},
        ],
    }
    sources = [
        {"serviceAccountToken": {"audience": "timekeeper", "path": "token", "expirationSeconds": 3600}},
        {"configMap": {"name": names.CA_CONFIG_MAP, "items": [{"key": names.CA_KEY, "path": "ca.crt"}]}},
    ]
    volumes = [
        {"name": "script", "configMap": {"name": "hammer"}},
        {"name": "secrets", "projected": {"sources": sources}},
    ]
    return _kept(pod(name, container, volumes=volumes))


def _stop_hammers(site: Site, team: str, hammers: dict[str, Object]) -> dict[str, dict[str, Any]]:
    """End the hammers; return the answers that each got, by pod."""
    touch = ("--", "/usr/local/bin/python3", "-c", "open('/tmp/stop', 'w')")
    for one in hammers.values():
        site.kubectl("exec", one["metadata"]["name"], "-n", team, "-c", "train", *touch)
    accounts = {}
    for uid, one in hammers.items():
        name = one["metadata"]["name"]
        site.wait_phase(team, name, "Succeeded", seconds=120)
        accounts[uid] = json.loads(site.kubectl("logs", name, "-n", team, "-c", "train").splitlines()[-1])
    return accounts
