# SPDX-License-Identifier: Apache-2.0
"""How a pod's place is explained: what chose the node, and what was free there before."""

from support.scheduler_state import fitting, new_state, node, pod, read

from scheduler.pods import chosen_hold


def test_a_place_says_what_led_there_and_what_was_free(clock):
    state = new_state(clock, node("n0", 2), node("n1", 2))

    def why(obj, on):
        return state.bindings.choose(read(obj), on).why

    assert why(pod("a"), "n0") == "kube-scheduler's own rules; GPU before: idle"
    fitting(state, pod("b", 40))
    assert why(pod("b", 40), "n1") == (
        "kube-scheduler's own rules; best-fit would have taken node n0; GPU before: idle"
    )
    state.intake.set_node(node("n3", 2))
    state.intake.set_node(node("n4", 2))
    fitting(state, pod("f"), "n3", "n4")
    assert why(pod("f"), "n4") == "best-fit, as good as node n3; kube-scheduler chose between them; GPU before: idle"
    fitting(state, pod("c", 40))
    assert why(pod("c", 40), "n0") == (
        "best-fit, the cheapest of 2 nodes with room; GPU before: 40 percent and 7168 MiB free"
    )
    state.intake.set_node(node("n2", 2))
    fitting(state, pod("d", 200, 0), "n0", "n2")
    assert why(pod("d", 200, 0), "n2") == "the only node with room; GPU before: 2 times idle"
    state.intake.set_pod(pod("e", 10))
    found = chosen_hold(read(pod("e", 10)), "n1", ["n1-0"])[0]
    assert state.reserve([(read(pod("e", 10)), found)], 1 << 62)
    assert why(pod("e", 10), "n1").startswith("room was made or kept for it; GPU before: 60 percent")
