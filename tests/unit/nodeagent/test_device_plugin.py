# SPDX-License-Identifier: Apache-2.0
"""What the plugin says of itself: registered is that kubelet has the seats, neither before nor after."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
from support.small_cluster import wait_for

from nodeagent.device_plugin import PodResources


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


def test_whose_seats_they_are_is_asked_for_all_together(
    bench: Any, arrivals: type[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """kubelet answers 10 questions at once, and refuses the others."""
    monkeypatch.setattr("nodeagent.device_plugin.CALL_SECONDS", 60.0)
    bench.kubelet.owners = {f"seat-{n:04}": [("team", f"pod-{n}", "train")] for n in range(200)}
    kubelet = PodResources(bench.folder / "plugins/pods.sock", "slicekeeper.io/seat")
    came, before = arrivals(kubelet._by_seat), bench.kubelet.lists
    bench.kubelet.answers.clear()
    with ThreadPoolExecutor(200) as pool:
        asked = [pool.submit(kubelet.owners, f"seat-{number:04}") for number in range(200)]
        wait_for(lambda: came.callers(calls=1) == 200, "all have asked, and one of them kubelet")
        bench.kubelet.answers.set()
        assert [one.result(60) for one in asked] == [[("team", f"pod-{n}", "train")] for n in range(200)]
    assert bench.kubelet.lists == before + 2


def test_a_list_that_kubelet_refuses_for_now_is_asked_for_again(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who else asks on the node takes from the same number of answers."""
    bench.kubelet.owners = {"seat-0000": [("team", "one", "train")]}
    bench.kubelet.others = {"nvidia.com/gpu": ["GPU-1"]}
    kubelet = PodResources(bench.folder / "plugins/pods.sock", "slicekeeper.io/seat")
    bench.kubelet.refusals = 3
    assert kubelet.owners("seat-0000") == [("team", "one", "train")]
    assert bench.kubelet.refusals == 0
    bench.kubelet.refusals = 3
    assert kubelet.devices(("nvidia.com/gpu",)) == {"GPU-1"}
    bench.kubelet.refusals = 1000
    # An hour passes between two looks at the clock.
    monkeypatch.setattr(
        "nodeagent.device_plugin.time", SimpleNamespace(monotonic=count(0, 3600).__next__, sleep=time.sleep)
    )
    with pytest.raises(grpc.RpcError, match="rejected by rate limit"):
        kubelet.owners("seat-0000")
