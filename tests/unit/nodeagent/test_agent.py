# SPDX-License-Identifier: Apache-2.0
"""A whole agent between a kubelet and an API server: when it says that it is ready, and how it goes."""

from __future__ import annotations

import http.client
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support.ports import free_port
from support.small_cluster import NAMESPACE, SmallCluster, small_cluster
from support.waiting import wait_for

from nodeagent.agent import Agent
from nodeagent.run_folder import RunFolderRemoved
from nodeagent.seat_refused import SeatRefused
from slicekeeper.clock import Clock
from slicekeeper.config.policy import NamespacePolicy, PolicyBook
from slicekeeper.config.settings import KubernetesSettings, PolicySettings, Settings, WebhookSettings
from slicekeeper.gpu import node_setup
from slicekeeper.gpu.node_setup import NodeSetup
from slicekeeper.kube import agent_address
from slicekeeper.kube.client import NODES, PODS


def test_what_serves_probes_and_scrapes_is_not_imported_before_the_shares_are_compared() -> None:
    """Those imports would delay what a restarted agent is for."""
    probe = (
        "import sys, nodeagent.commands\n"
        "loaded = {'gunicorn', 'prometheus_client', 'http.server'} & set(sys.modules)\n"
        "assert not loaded, loaded\n"
    )
    subprocess.run([sys.executable, "-c", probe], check=True, timeout=60)


def settings(folder: Path, server: str, port: int) -> Settings:
    mine = msgspec.structs.replace(
        Settings().node_agent,
        node_name="node-1",
        seats=4,
        plugin_dir=str(folder / "plugins"),
        pod_resources_socket=str(folder / "plugins/pods.sock"),
        cdi_dir=str(folder / "cdi"),
        state_dir=str(folder / "state"),
        run_dir=str(folder / "run"),
        metrics_bind=f"127.0.0.1:{port}",
        pod_ip="127.0.0.1",
    )
    # Without an arbiter: that one's being away is no matter here.
    return Settings(
        kubernetes=KubernetesSettings(server=server), node_agent=mine, webhook=WebhookSettings(injection="seats")
    )


class Running:
    """An agent in a thread."""

    def __init__(self, small: SmallCluster, folder: Path, source: Any) -> None:
        port = free_port()
        self.small, self.port, self.stop = small, port, threading.Event()
        self.agent = Agent(settings(folder, small.server.url, port), Clock(), source)
        self.thread = threading.Thread(target=self.agent.run, args=(self.stop,), daemon=True)
        self.thread.start()

    def ready(self) -> tuple[int, str]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            connection.request("GET", "/readyz")
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        except ConnectionRefusedError:
            return 0, ""
        finally:
            connection.close()

    def published(self) -> str:
        return agent_address.of_node(self.small.client.get(NODES, "node-1"))


def test_it_is_ready_while_kubelet_has_the_seats_and_goes_when_kubelet_has_its_pods(
    fake_kubelet: type[Any], made: Any, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nodeagent.agent.LINGER_SECONDS", 0.5)
    monkeypatch.setattr("nodeagent.agent.LONGEST_LINGER_SECONDS", 300.0)
    folder = tmp_path_factory.mktemp("a")
    for name in ("plugins", "cdi", "run", "state"):
        (folder / name).mkdir()
    kubelet = fake_kubelet(folder / "plugins")
    with small_cluster() as small:
        small.client.create(NODES, {"metadata": {"name": "node-1"}, "status": {}})
        one = Running(small, folder, made(1))
        wait_for(lambda: one.ready() == (503, "seats not registered with kubelet\n"), "it waits for kubelet")
        for _ in range(2):
            kubelet.start()
            wait_for(lambda: one.ready()[0] == 200, "kubelet has the seats")
            kubelet.stop()
            wait_for(lambda: one.ready()[0] == 503, "kubelet is gone")
        kubelet.start()
        wait_for(lambda: one.ready()[0] == 200, "kubelet has the seats")
        (folder / "state/seats/.room").mkdir()  # as good as a full disk
        assert one.ready() == (503, "no seat can be saved: Is a directory\n")
        (folder / "state/seats/.room").rmdir()
        assert one.ready()[0] == 200
        assert one.published() == f"127.0.0.1:{one.port}"
        found = node_setup.of_node(small.client.get(NODES, "node-1"))
        assert found == NodeSetup(driver="550.54.14"), "whether a runtime reads the CDI folder is not known so soon"

        small.pod("late")
        binding = {"metadata": {"name": "late"}, "target": {"kind": "Node", "name": "node-1"}}
        small.client.create(PODS, binding, NAMESPACE, name="late", subresource="binding")
        wait_for(one.agent._pods.arriving, "its watch shows the pod")
        one.stop.set()
        wait_for(lambda: one.ready() == (503, "it is about to stop\n"), "it takes no more pods")
        wait_for(lambda: one.published() == agent_address.STOPPING, "and says so")
        kubelet.allocate("seat-0000")
        one.thread.join(1.5)
        assert one.thread.is_alive(), "kubelet has not taken the pod in yet"
        started = {"status": {"startTime": "2026-01-01T00:00:00Z"}}
        small.client.patch(PODS, "late", started, NAMESPACE, subresource="status")
        one.thread.join(60)
        assert not one.thread.is_alive()
        kubelet.stop()


def test_it_ends_if_the_folder_of_the_seats_was_removed(
    fake_kubelet: type[Any], made: Any, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path_factory.mktemp("a")
    (folder / "plugins").mkdir()
    kubelet = fake_kubelet(folder / "plugins")
    kubelet.start()
    with small_cluster() as small:
        small.client.create(NODES, {"metadata": {"name": "node-1"}, "status": {}})
        agent = Agent(settings(folder, small.server.url, free_port()), Clock(), made(1))

        monkeypatch.setattr(agent, "_serve", lambda: None)  # this process has another agent's metrics

        def remove() -> None:
            agent._plugin.registered.wait(60)
            shutil.rmtree(folder / "run")

        threading.Thread(target=remove, daemon=True).start()
        with pytest.raises(RunFolderRemoved):
            agent.run(threading.Event())
        wait_for(lambda: not agent._plugin.registered.is_set(), "kubelet's stream, which would keep the process, ends")
    kubelet.stop()


@pytest.mark.parametrize("error", [SeatRefused("no CDI specification"), OSError(28, "No space left on device")])
def test_what_keeps_gpus_from_containers_is_told_and_ends_nothing(
    made: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fail(_source: Any, _uuids: Any) -> None:
        raise error

    monkeypatch.setattr(made, "edits", fail)
    agent = Agent(settings(tmp_path, "http://127.0.0.1:1", 1), Clock(), made(1))
    assert agent._node_setup() == NodeSetup(driver="550.54.14", device_trouble=str(error))


def test_another_policy_reaches_the_arbiter_at_once(made: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A ceiling that changed while the agent was away counts only once the namespace's policy is known."""
    compared, known = threading.Event(), threading.Event()
    file = tmp_path / "policy.yaml"
    file.write_text("default: {ceiling: 50}")
    policy = PolicySettings(file=str(file), objects=True)
    agent = Agent(msgspec.structs.replace(settings(tmp_path, "http://127.0.0.1:1", 1), policy=policy), Clock(), made(1))

    def compare() -> None:
        compared.set()
        if agent._ceiling_of(NAMESPACE) == 50:
            known.set()

    monkeypatch.setattr("nodeagent.shares.COMPARE_SECONDS", 3600.0)
    monkeypatch.setattr(agent._shares, "compare", compare)
    agent._shares.start(agent._pods)
    try:
        assert compared.wait(60)
        agent._policy.apply_over(lambda book: book)
        assert known.wait(60)
    finally:
        agent._shares.stop()


def test_the_audit_evicts_nothing_before_the_policy_is_known(made: Any, tmp_path: Path) -> None:
    file = tmp_path / "policy.yaml"
    file.write_text("default: {audit: evict}")
    policy = PolicySettings(file=str(file), objects=True)
    agent = Agent(msgspec.structs.replace(settings(tmp_path, "http://127.0.0.1:1", 1), policy=policy), Clock(), made(1))
    assert not agent._audit_policy(NAMESPACE).audit_evicts
    agent._policy.apply_over(lambda book: book)
    assert agent._audit_policy(NAMESPACE).audit_evicts


def test_the_audit_evicts_nothing_while_the_file_is_broken_from_the_start(made: Any, tmp_path: Path) -> None:
    file = tmp_path / "policy.yaml"
    file.write_text("default: {audit: evict, ceilling: 5}")
    policy = PolicySettings(file=str(file), objects=True)
    agent = Agent(msgspec.structs.replace(settings(tmp_path, "http://127.0.0.1:1", 1), policy=policy), Clock(), made(1))
    evicts = NamespacePolicy(audit="evict")
    agent._policy.apply_over(lambda book: PolicyBook(evicts, exempt=book.exempt))
    assert not agent._audit_policy(NAMESPACE).audit_evicts, "the file may forbid it"
    file.with_suffix(".new").write_text("default: {audit: evict}")
    file.with_suffix(".new").replace(file)
    assert agent._policy.refresh()
    assert agent._audit_policy(NAMESPACE).audit_evicts
