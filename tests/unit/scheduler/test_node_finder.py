# SPDX-License-Identifier: Apache-2.0
"""What is priced ahead for the pod that comes next."""

import pytest
from support.scheduler_state import node, placed, pod, read

from scheduler.node_finder import NodeFinder


@pytest.mark.parametrize(("second", "ahead"), [(20, True), (30, False)])
def test_a_search_for_unequal_containers_is_never_made_ahead(state, monkeypatch, second, ahead):
    limits = [{"tencent.com/vcuda-core": str(core), "tencent.com/vcuda-memory": "4"} for core in (20, second)]
    containers = [{"name": name, "resources": {"limits": one}} for name, one in zip("cd", limits, strict=True)]
    for name in "ab":
        assert placed(state, pod(name, spec={"containers": containers})) == ["n0"]
    state.intake.set_node(node("n1", 2))
    judged_ahead = []
    monkeypatch.setattr(NodeFinder, "cheapest", lambda _self, _fleet, demand, _policy: judged_ahead.append(demand))
    state.look_ahead()
    assert bool(judged_ahead) is ahead


def test_looking_ahead_survives_that_another_thread_expects_nothing_any_more(state, monkeypatch):
    expected = iter([read(pod("a")).demand])
    monkeypatch.setattr(NodeFinder, "_next", property(lambda _finder: next(expected, None)), raising=False)
    state.look_ahead()
