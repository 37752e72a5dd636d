# SPDX-License-Identifier: Apache-2.0
"""What the plugin says of itself: registered is that kubelet has the seats, neither before nor after."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from support.waiting import wait_for


def test_it_is_registered_once_kubelet_has_been_sent_the_seats(bench: Any) -> None:
    assert bench.plugin.registered.wait(60)
    assert len(bench.kubelet.offered) == 4


def test_a_killed_kubelet_is_noticed_by_the_end_of_its_stream(bench: Any) -> None:
    """Its socket stays behind, as when a process is killed, so only the stream tells."""
    assert bench.plugin.registered.wait(60)
    bench.kubelet.stop()
    wait_for(lambda: not bench.plugin.registered.is_set(), "it knows that kubelet is gone")
    assert (bench.folder / "plugins/kubelet.sock").exists()


def test_a_new_kubelet_is_registered_with_and_gets_the_seats(bench: Any) -> None:
    for _ in range(3):
        assert bench.plugin.registered.wait(60)
        bench.kubelet.stop()
        wait_for(lambda: not bench.plugin.registered.is_set(), "it knows that kubelet is gone")
        bench.kubelet.offered = []
        bench.kubelet.start()
        assert bench.kubelet.came.wait(60)
        assert bench.plugin.registered.wait(60)
        assert bench.kubelet.offered[0] == "seat-0000"
    bench.kubelet.allocate("seat-0000")


def test_a_kubelet_that_has_the_seats_is_not_asked_again(bench: Any) -> None:
    assert bench.plugin.registered.wait(60)
    bench.kubelet.allocate("seat-0000")
    bench.kubelet.allocate("seat-0001")
    assert len(bench.kubelet.registered) == 1


def test_a_kubelet_that_does_not_follow_is_asked_again(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nodeagent.device_plugin.CALL_SECONDS", 0.5)
    assert bench.plugin.registered.wait(60)
    bench.kubelet.stop()
    follow, asked = bench.kubelet._follow, threading.Event()
    bench.kubelet._follow = lambda _life: asked.set()
    bench.kubelet.start()
    assert asked.wait(60)
    assert not bench.plugin.registered.is_set()
    bench.kubelet._follow = follow
    assert bench.plugin.registered.wait(60)


def test_it_stops_while_kubelet_follows(bench: Any) -> None:
    assert bench.plugin.registered.wait(60)
    bench.plugin.stop()
    wait_for(lambda: not bench.plugin.registered.is_set(), "it knows that it has stopped")
