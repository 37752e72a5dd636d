# SPDX-License-Identifier: Apache-2.0
"""kopf itself beside a simulated API server: it tells of what changes, and writes nothing."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import kopf
from support.budget_objects import ORGANISATION, TEAM, served
from support.custom_objects import apply, apply_policy, policies_served
from support.waiting import wait_for

from objects.object_watch import kopf_settings, registry_of
from objects.operator_loop import OperatorLoop
from simulator.api import Api, ApiServer
from simulator.cluster import Cluster
from slicekeeper.clock import Clock
from slicekeeper.config.settings import KubernetesSettings
from slicekeeper.errors import Unavailable
from slicekeeper.kube.client import NAMESPACES
from slicekeeper.kube.policy_watch import GPU_POLICIES

GROUP, CRDS = "slicekeeper.io", "apiextensions.k8s.io"
SPEC = {"amount": "2h", "period": "month"}


def _resource(plural: str, kind: str, *, namespaced: bool) -> dict[str, Any]:
    verbs = ["create", "delete", "get", "list", "patch", "update", "watch"]
    return {"name": plural, "singularName": plural[:-1], "namespaced": namespaced, "kind": kind, "verbs": verbs}


def _group(name: str, version: str) -> dict[str, Any]:
    versions = {"groupVersion": f"{name}/{version}", "version": version}
    return {"name": name, "versions": [versions], "preferredVersion": versions}


def discovery() -> dict[str, Any]:
    """Return what an API server tells of the kinds that it serves."""
    core = [_resource("namespaces", "Namespace", namespaced=False), _resource("events", "Event", namespaced=True)]
    ours = [
        _resource("gpubudgets", "GpuBudget", namespaced=True),
        _resource("clustergpubudgets", "ClusterGpuBudget", namespaced=False),
        _resource("gpupolicies", "GpuPolicy", namespaced=False),
    ]
    crd = _resource("customresourcedefinitions", "CustomResourceDefinition", namespaced=False)
    return {
        "/api": {"versions": ["v1"]},
        "/api/v1": {"resources": core},
        "/apis": {"groups": [_group(GROUP, "v1alpha1"), _group(CRDS, "v1")]},
        f"/apis/{GROUP}/v1alpha1": {"resources": ours},
        f"/apis/{CRDS}/v1": {"resources": [crd]},
    }


@contextmanager
def operating(url: str, changed: Any) -> Iterator[None]:
    """Run the operator as `objects serve` does."""
    stop = threading.Event()
    registry = registry_of(KubernetesSettings(server=url), changed)

    def run() -> None:
        asyncio.run(
            kopf.operator(
                registry=registry, settings=kopf_settings(), standalone=True, clusterwide=True, stop_flag=stop
            )
        )

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(60)
        assert not thread.is_alive()


def test_every_new_spec_and_every_deletion_is_told_and_no_object_is_written() -> None:
    told: list[None] = []
    cluster = Cluster(Clock())
    with served(), policies_served():
        server = ApiServer(Api(cluster), extra={path: lambda body=body: body for path, body in discovery().items()})
        server.start()
        store = cluster.store
        store.create(NAMESPACES, {"metadata": {"name": "team"}})
        apply(store, TEAM, "team", "default", SPEC)
        try:
            with operating(server.url, lambda: told.append(None)):
                wait_for(lambda: len(told) == 1, "the object that was there")
                apply(store, ORGANISATION, "", "physics", {**SPEC, "kind": "team"})
                wait_for(lambda: len(told) == 2, "the new one")
                version = store.version
                apply(store, TEAM, "team", "default", {**SPEC, "amount": "3h"})
                wait_for(lambda: len(told) == 3, "the changed one")
                store.update(TEAM, "default", "team", lambda o: {**o, "status": {"state": "ok"}}, subresource="status")
                store.delete(ORGANISATION, "physics")
                wait_for(lambda: len(told) == 4, "the deleted one, and not the status")
                assert store.version == version + 3
                apply_policy(store, "teams", "team-*")
                wait_for(lambda: len(told) == 5, "a policy")
                store.update(GPU_POLICIES, "teams", "", lambda o: {**o, "status": {"n": 1}}, subresource="status")
                apply_policy(store, "teams", "team-*", ceiling=50)
                wait_for(lambda: len(told) == 6, "its change, and not its status")
                assert "finalizers" not in store.get(TEAM, "default", "team")["metadata"]
        finally:
            server.stop()


def test_what_kopf_logs_of_an_object_is_one_line_of_json() -> None:
    code = (
        "import kopf, logging; from slicekeeper import log;"
        "from objects.object_watch import kopf_settings, tame_logs;"
        "log.configure(); tame_logs(); tame_logs();"
        "from kopf._core.actions.loggers import LocalObjectLogger as Logger;"
        "logger = Logger(body={'kind': 'GpuBudget', 'metadata': {'name': 'default'}}, settings=kopf_settings());"
        "logger.info('handled'); logger.error('failed')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    [line] = done.stderr.splitlines()
    told = json.loads(line)
    assert (told["message"], told["k8s_ref"]["name"], "settings" in told) == ("failed", "default", False)


class _Keeper:
    def __init__(self) -> None:
        self.looked = threading.Semaphore(0)
        self.wrong = ""

    def keep(self) -> None:
        self.looked.release()
        if self.wrong:
            raise Unavailable(self.wrong)


def test_looks_go_on_after_one_that_failed_and_the_probe_says_which() -> None:
    keeper = _Keeper()
    keeper.wrong = "down"
    other = _Keeper()
    looks = OperatorLoop(lambda: True, keeper.keep, other.keep)
    assert looks.health.wrong == "not looked yet"
    looks.start()
    try:
        assert other.looked.acquire(timeout=60), "the error of one affects no other"
        wait_for(lambda: looks.health.wrong == "down", "why it is not ready")
        keeper.wrong = ""
        looks.wake.set()
        wait_for(lambda: looks.health.wrong == "", "ready again")
        assert looks.health.alive() == ""
    finally:
        looks.stop()


def test_one_that_does_not_lead_is_ready_and_looks_at_nothing() -> None:
    keeper = _Keeper()
    looks = OperatorLoop(lambda: False, keeper.keep)
    looks.start()
    try:
        wait_for(lambda: looks.health.wrong == "", "ready")
        assert not keeper.looked.acquire(blocking=False)
    finally:
        looks.stop()
