# SPDX-License-Identifier: Apache-2.0
"""What is asked of kubelet, which answers few questions a second."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
from support.waiting import wait_for

from nodeagent.pod_resources import PodResources


def test_whose_seats_they_are_is_asked_for_all_together(
    bench: Any, arrivals: type[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """kubelet answers 10 questions at once, and refuses the others."""
    monkeypatch.setattr("nodeagent.kubelet_protocol.CALL_SECONDS", 60.0)
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
        "nodeagent.pod_resources.time", SimpleNamespace(monotonic=count(0, 3600).__next__, sleep=time.sleep)
    )
    with pytest.raises(grpc.RpcError, match="rejected by rate limit"):
        kubelet.owners("seat-0000")
