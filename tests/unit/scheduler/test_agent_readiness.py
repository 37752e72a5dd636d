# SPDX-License-Identifier: Apache-2.0
"""Asking a node's agent before a bind: what each answer means, for how long, and that none stops the cluster."""

import asyncio
import socket
import time
from collections import Counter
from contextlib import closing, contextmanager
from threading import Thread

import pytest
from support.manual_clock import ManualClock

from scheduler.agent_readiness import BELIEVED_SECONDS, LONGEST_PAUSE_SECONDS, NodeAgents, ask
from slicekeeper.config.settings import ServingSettings
from slicekeeper.kube.agent_address import STOPPING, encode
from slicekeeper.net import probes


@contextmanager
def agent(wrong, ip="127.0.0.1"):
    """An agent's probes; `wrong()` is what is wrong with it. Gives its address."""
    server = probes.serve(f"[{ip}]:0" if ":" in ip else f"{ip}:0", ServingSettings(), ready=wrong)
    try:
        yield encode(ip, server.port)
    finally:
        server.close()


@contextmanager
def listener(answer=None):
    """A server that listens and never answers, or gives every client the same answer."""
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        if answer is None:
            yield encode(*server.getsockname())
            return

        def serve():
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                with connection:
                    connection.recv(1000)
                    connection.sendall(answer)

        Thread(target=serve, daemon=True).start()
        yield encode(*server.getsockname())


def nobody():
    """Return an address on which no process listens."""
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        return encode(*server.getsockname())


class Met:
    """Agents, a clock, and what was counted."""

    def __init__(self):
        self.clock = ManualClock()
        self.counted = Counter()
        self.agents = NodeAgents(self.clock, lambda answer: self.counted.update([answer]))

    def why_not(self, value, node="n0"):
        """The answer that a bind gets; an answer that it does not wait for is there for the next one."""
        told = self.agents.why_not(node, value)
        known = self.agents._known.get(node)
        while known is not None and known.asked is not None:
            time.sleep(0.001)
        return told

    def after(self, seconds):
        self.clock.advance(int(seconds * 1000))


@pytest.fixture
def met():
    made = Met()
    yield made
    made.agents.stop()


@pytest.fixture(autouse=True)
def _patient(monkeypatch):
    monkeypatch.setattr("scheduler.agent_readiness.ANSWER_SECONDS", 30.0)
    monkeypatch.setattr("scheduler.agent_readiness.WAIT_SECONDS", 30.0)


@pytest.fixture
def _hasty(_patient, monkeypatch):
    monkeypatch.setattr("scheduler.agent_readiness.ANSWER_SECONDS", 0.1)


@pytest.mark.parametrize("ip", ["127.0.0.1", "::1"])
def test_a_ready_agent_is_bound_to_and_one_that_is_not_says_why(ip, met):
    if ip == "::1":
        try:
            socket.create_server((ip, 0), family=socket.AF_INET6).close()
        except OSError:
            pytest.skip("no IPv6 here")
    wrong = []
    with agent(lambda: ", ".join(wrong), ip) as address:
        assert met.why_not(address) == ""
        wrong.append("seats not registered with kubelet")
        assert "node agent is not ready: seats not registered with kubelet" in met.why_not(address)
        wrong.clear()
        assert met.why_not(address) == ""
    assert met.counted == {"ready": 2, "not-ready": 1}


def test_where_nothing_is_published_nobody_is_asked(met):
    assert met.why_not("") == ""
    assert not met.counted


def test_an_agent_that_does_not_run_or_is_replaced_keeps_pods_out(met):
    assert "does not run" in met.why_not(nobody())
    assert "is being replaced" in met.why_not(STOPPING)


@pytest.mark.parametrize("stopping", [True, False])
def test_after_a_minute_kubelets_own_word_counts(met, stopping):
    value = STOPPING if stopping else nobody()
    for _ in range(6):
        assert met.why_not(value)
        met.after(BELIEVED_SECONDS / 6)
    assert met.why_not(value) == ""


def test_trouble_that_was_long_ago_does_not_count(met):
    address = nobody()
    assert met.why_not(address)
    met.after(BELIEVED_SECONDS * 10)
    assert met.why_not(address)


def test_the_next_agents_address_starts_afresh(met):
    for _ in range(2):
        assert met.why_not(nobody())
        met.after(BELIEVED_SECONDS - 1)
    with agent(lambda: "") as address:
        assert met.why_not(address) == ""


@pytest.mark.parametrize("value", ["node-1:8446", "10.1.2.3", "169.254.169.254:80", "http://10.1.2.3:80/"])
def test_odd_values_are_not_asked_and_keep_nobody_out(met, value):
    assert met.why_not(value) == ""
    assert met.counted == {"silent": 1}


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.0 404 Not Found\r\n\r\nready", b"SSH-2.0-x\r\n", b"\xff" * 9000])
def test_somebody_else_at_that_address_keeps_nobody_out(met, answer):
    with listener(answer) as address:
        assert met.why_not(address) == ""
    assert met.counted == {"silent": 1}


@pytest.mark.usefixtures("_hasty")
def test_one_that_never_answered_keeps_nobody_out_and_is_asked_ever_more_seldom(met, caplog):
    with listener() as address:
        pauses = []
        for _ in range(3):
            assert met.why_not(address) == ""
            asked, waited = met.counted["silent"], 0
            while met.counted["silent"] == asked and waited <= LONGEST_PAUSE_SECONDS:
                met.after(1)
                waited += 1
                assert met.why_not(address) == ""
            pauses.append(waited)
    assert pauses[0] < pauses[1] < pauses[2]
    assert caplog.text.count("bound to node n0 without asking") == 1


@pytest.mark.usefixtures("_hasty")
def test_one_that_answered_before_and_is_silent_keeps_pods_out_for_a_minute(met):
    silent = []
    with agent(lambda: "") as address:
        while met.why_not(address) or not met.counted["ready"]:
            met.after(300)  # this machine is slow
    with closing(socket.create_server(("127.0.0.1", int(address.rpartition(":")[2])), reuse_port=False)):
        while met.why_not(address):
            silent.append(met.clock.monotonic_ns())
            met.after(20)
    assert (met.clock.monotonic_ns() - silent[0]) / 1e9 == BELIEVED_SECONDS


def test_a_node_whose_agent_stays_silent_is_not_kept_empty_again_after_each_pause(met, monkeypatch):
    """Only trouble that nothing was heard of for a minute begins a new minute, and a pause is no such time."""
    address = nobody()
    assert met.why_not(address)
    monkeypatch.setattr("scheduler.agent_readiness.ANSWER_SECONDS", 0.1)
    with closing(socket.create_server(("127.0.0.1", int(address.rpartition(":")[2])))):
        for _ in range(600):
            met.after(1)
            kept_out = met.why_not(address)
            assert not kept_out or met.clock.monotonic_ns() < BELIEVED_SECONDS * 1e9


def test_a_bind_does_not_wait_for_an_agent_that_was_silent_when_it_was_asked_last(met, monkeypatch):
    """It gets the last answer, and the next bind the new one."""
    address = nobody()
    assert "does not run" in met.why_not(address)
    with listener() as silent:
        monkeypatch.setattr("scheduler.agent_readiness.ANSWER_SECONDS", 0.1)
        met.agents._known["n0"].value = silent
        assert "does not answer" in met.why_not(silent)
        monkeypatch.setattr("scheduler.agent_readiness.ANSWER_SECONDS", 300.0)
        monkeypatch.setattr("scheduler.agent_readiness.WAIT_SECONDS", 300.0)
        met.after(2)
        assert "does not answer" in met.agents.why_not("n0", silent)
        assert met.agents._known["n0"].asked, "it is being asked"


@pytest.mark.parametrize(("seconds", "told"), [(1, ""), (3, "has not answered for 0 s")])
def test_what_a_ready_agent_said_a_moment_ago_counts_where_it_says_nothing_now(met, monkeypatch, seconds, told):
    with listener() as silent:
        with agent(lambda: "") as address:
            assert met.why_not(address) == ""
        met.agents._known["n0"].value = silent
        monkeypatch.setattr("scheduler.agent_readiness.ANSWER_SECONDS", 300.0)
        monkeypatch.setattr("scheduler.agent_readiness.WAIT_SECONDS", 0.0)
        met.after(seconds)
        assert told in met.agents.why_not("n0", silent)
        assert bool(met.agents.why_not("n0", silent)) == bool(told)


@pytest.mark.usefixtures("_hasty")
def test_a_burst_does_not_wait_for_a_silent_agent_pod_by_pod(met):
    with listener() as address:
        for _ in range(50):
            assert met.why_not(address) == ""
    assert met.counted == {"silent": 1}


@pytest.mark.usefixtures("_hasty")
def test_a_slow_drip_is_given_up():
    """Each byte comes in time, their sum never does."""
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        ended = []

        def drip():
            connection, _ = server.accept()
            with connection:
                try:
                    while True:
                        connection.sendall(b"H")
                        ended.append(connection.recv(1))
                except OSError:
                    return

        Thread(target=drip, daemon=True).start()
        assert asyncio.run(ask(encode(*server.getsockname())))[0] == "silent"
