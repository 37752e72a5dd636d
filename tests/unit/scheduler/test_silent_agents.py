# SPDX-License-Identifier: Apache-2.0
"""Agents that accept and never answer: the calls about other nodes go on while binds wait for them."""

import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest
from support.small_cluster import binding, small_cluster
from support.waiting import wait_for

from scheduler.app import make_app
from scheduler.scheduler_process import Scheduler
from slicekeeper import names
from slicekeeper.clock import Clock
from slicekeeper.config.settings import KubernetesSettings, ServingSettings, Settings
from slicekeeper.kube import agent_address
from slicekeeper.kube.client import NODES
from slicekeeper.net import probes
from slicekeeper.net.json_client import JsonClient
from slicekeeper.net.serving.background import BackgroundServer

LIMITS = {"tencent.com/vcuda-core": "60", "tencent.com/vcuda-memory": "4", "slicekeeper.io/seat": "1"}
CONTAINERS = [{"name": "c", "image": "x", "resources": {"limits": LIMITS}}]


class Silent:
    """One that accepts every connection and says nothing, until it is closed."""

    def __init__(self):
        self.connections = []
        self._socket = socket.create_server(("127.0.0.1", 0), backlog=512)
        self.address = agent_address.encode(*self._socket.getsockname())
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while True:
            try:
                self.connections.append(self._socket.accept()[0])
            except OSError:
                return

    def close(self):
        self._socket.close()
        for connection in self.connections:
            connection.close()


@pytest.fixture
def silent():
    with closing(Silent()) as made:
        yield made


@pytest.fixture
def cluster(silent):
    """A node whose agent answers, and 200 whose agents do not."""
    agent = probes.serve("127.0.0.1:0", ServingSettings(), ready=lambda: "")
    with small_cluster() as made:
        for name in ["n0", *(f"s{i}" for i in range(200))]:
            made.node(name)
            address = agent_address.encode("127.0.0.1", agent.port) if name == "n0" else silent.address
            made.client.patch(NODES, name, {"metadata": {"annotations": {names.NODE_AGENT: address}}})
        yield made
    agent.close()


@pytest.fixture
def extender(cluster):
    scheduler = Scheduler(Settings(kubernetes=KubernetesSettings(server=cluster.server.url)), Clock())
    scheduler.watches.start()
    wait_for(lambda: scheduler.watches.synced, "ready")
    server = BackgroundServer("127.0.0.1:0", make_app(scheduler), ServingSettings())
    yield JsonClient(f"http://127.0.0.1:{server.port}", timeout=120)
    server.close()
    scheduler.watches.stop()
    scheduler.binder.stop()


def bind(cluster, extender, name, node):
    return extender.json("POST", "/bind", body=binding(cluster.pod(name, containers=CONTAINERS), node))["Error"]


def test_binds_that_wait_for_agents_hold_up_neither_filter_nor_bind(cluster, extender, silent, monkeypatch):
    monkeypatch.setattr("scheduler.agent_readiness.ANSWER_SECONDS", 300.0)
    monkeypatch.setattr("scheduler.agent_readiness.WAIT_SECONDS", 300.0, raising=False)
    with ThreadPoolExecutor(20) as callers:
        waiting = [callers.submit(bind, cluster, extender, f"p{i}", f"s{i}") for i in range(20)]
        try:
            wait_for(lambda: len(silent.connections) == 20, "all 20 are asked")
            args = {"Pod": cluster.pod("a", containers=CONTAINERS), "NodeNames": ["n0"]}
            assert extender.json("POST", "/filter", body=args)["NodeNames"] == ["n0"]
            assert extender.json("POST", "/prioritize", body=args) == [{"Host": "n0", "Score": 10}]
            assert extender.json("POST", "/bind", body=binding(args["Pod"], "n0"))["Error"] == ""
            assert not any(call.done() for call in waiting)
        finally:
            silent.close()
    assert cluster.get("a")["spec"]["nodeName"] == "n0"


def test_binds_wait_for_a_moment_however_many_agents_are_silent(cluster, extender, silent, monkeypatch):
    monkeypatch.setattr("scheduler.agent_readiness.ANSWER_SECONDS", 300.0)
    with ThreadPoolExecutor(50) as callers:
        calls = [callers.submit(bind, cluster, extender, f"p{i}", f"s{i}") for i in range(200)]
        assert {call.result(120) for call in calls} == {
            f"node s{i}: its node agent has not answered for 0.25 s; the pod is tried again" for i in range(200)
        }
    wait_for(lambda: len(silent.connections) == 200, "all are being asked")
    again = binding(cluster.pod("a", containers=CONTAINERS), "n0")
    wait_for(lambda: extender.json("POST", "/bind", body=again)["Error"] == "", "a slow machine's agent answers")
