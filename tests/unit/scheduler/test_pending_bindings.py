# SPDX-License-Identifier: Apache-2.0
"""The place of a pod that is being bound: kept until its end is known, and freed if it was refused."""

import pytest
from support.scheduler_state import HOLD, LOST, fitting, free, new_state, node, placed, pod, read

from scheduler.held_places import HoldKind
from scheduler.pending_bindings import NoPlace


def test_a_pod_that_arrives_where_it_was_expected_changes_no_price(state):
    assert placed(state, pod("a")) == ["n0"]
    version, changes = state.version(), state.changes()
    state.changed_nodes(everything=True)
    state.bindings.choose(read(pod("a")), "n0")
    assert state.changed_nodes(everything=False).keys() == {"n0"}, "the reclaimer learns of it"
    state.bindings.bound("uid-a", "n0")
    state.intake.set_pod(pod("a", on="n0", gpus="n0-0"))
    assert state.counts() == {HoldKind.BOUND: 1}
    assert state.version() == version
    assert state.changes() > changes
    assert placed(state, pod("b")) == ["n1"]


def test_the_expected_place_is_not_taken_if_its_node_has_changed_since(clock):
    state = new_state(clock, node("n0", 2))
    assert placed(state, pod("a"), "n0") == ["n0"]
    state.intake.set_pod(pod("foreign", on="n0", gpus="n0-0", phase="Running"))
    assert state.bindings.choose(read(pod("a")), "n0").gpus["c"] == ("n0-1",)
    assert placed(state, pod("b", 30), "n0") == ["n0"]
    state.intake.set_node(node("n0", 1))
    with pytest.raises(NoPlace):
        state.bindings.choose(read(pod("b", 50)), "n0")
    assert state.bindings.choose(read(pod("b", 30)), "n0").gpus["c"] == ("n0-0",)


def test_the_expected_place_is_not_taken_for_another_request(state):
    assert placed(state, pod("a", 30)) == ["n0"]
    place = state.bindings.choose(read(pod("a", 100, None)), "n0")
    assert [(share.core, share.whole) for share in place.hold.shares] == [(100, True)]


def test_a_tentative_hold_ends_with_time_and_bind_is_checked_anew(state, clock):
    assert fitting(state, pod("a"), "n0") == ["n0"]
    clock.advance(HOLD * 1000 + 1)
    assert fitting(state, pod("b"), "n0") == ["n0"]
    state.bindings.choose(read(pod("b")), "n0")
    with pytest.raises(NoPlace, match="not enough is free for 60 percent"):
        state.bindings.choose(read(pod("a")), "n0")


def test_bind_spares_others_tentative_places_and_takes_them_only_if_it_must(clock):
    state = new_state(clock, node("n0", gpus=2))
    fitting(state, pod("a"), "n0")
    first = state.bindings.choose(read(pod("b")), "n0")
    assert first.gpus == {"c": ("n0-1",)}
    second = state.bindings.choose(read(pod("c")), "n0")
    assert second.gpus == {"c": ("n0-0",)}
    assert state.counts()[HoldKind.TENTATIVE] == 0
    with pytest.raises(NoPlace):
        state.bindings.choose(read(pod("a")), "n0")


def test_a_bound_place_waits_for_the_watch_and_is_never_dropped_by_time(state, clock):
    a = pod("a")
    fitting(state, a)
    place = state.bindings.choose(read(a), "n0")
    state.bindings.bound("uid-a", "n0")
    clock.advance(10 * HOLD * 1000)
    assert fitting(state, pod("b"), "n0") == []
    assert [p.uid for p in state.bindings.overdue()] == ["uid-a"]
    state.intake.set_pod(a)  # an old event: not bound yet
    assert fitting(state, pod("b"), "n0") == []
    state.intake.set_pod(pod("a", on="n0", gpus=",".join(place.gpus["c"])))
    state.intake.set_pod(a)  # an old event again
    assert state.pod("uid-a").node == "n0"
    assert state.bindings.overdue() == []
    assert state.counts() == {HoldKind.BOUND: 1}


def test_a_list_that_is_older_than_a_binding_does_not_free_it(state):
    state.intake.set_pod(pod("a"))
    state.bindings.choose(read(pod("a")), "n0")
    state.bindings.bound("uid-a", "n0")
    state.intake.set_pods([])
    assert fitting(state, pod("b"), "n0") == []


def test_a_lost_answer_keeps_the_place_and_a_second_try_gets_the_same(clock):
    state = new_state(clock, node("n0", gpus=4), node("n1"))
    first = state.bindings.choose(read(pod("a")), "n0")
    with pytest.raises(NoPlace, match="under way"):
        state.bindings.choose(read(pod("a")), "n0")
    state.bindings.lost("uid-a", "n0")
    assert state.bindings.choose(read(pod("a")), "n0").gpus == first.gpus
    state.bindings.refused("uid-a", "n0")  # the second try; the first may still come through
    assert state.counts()[HoldKind.BINDING] == 1
    state.bindings.choose(read(pod("a")), "n1")
    assert state.counts()[HoldKind.BINDING] == 2
    state.bindings.bound("uid-a", "n1")
    assert state.counts()[HoldKind.BINDING] == 1
    assert fitting(state, pod("b", 100, None), "n1") == []


def test_a_refused_first_try_frees_the_place(state):
    state.bindings.choose(read(pod("a")), "n0")
    state.bindings.refused("uid-a", "n0")
    assert free(state) == 200


@pytest.mark.parametrize(
    ("answer", "left"),
    [
        (None, 0),
        (pod("a") | {"metadata": {"name": "a", "uid": "another"}}, 0),
        (pod("a", on="n0", gpus="n0-0", phase="Succeeded"), 0),
        (pod("a", on="n0", gpus="n0-0"), 1),
        (pod("a"), 0),
    ],
)
def test_an_overdue_place_is_judged_by_the_pod_itself(state, clock, answer, left):
    state.bindings.choose(read(pod("a")), "n0")
    assert state.bindings.overdue() == []
    state.bindings.lost("uid-a", "n0")
    clock.advance(LOST * 1000 - 1)
    assert state.bindings.overdue() == []
    clock.advance(1)
    assert len(state.bindings.overdue()) == 1
    state.bindings.looked("uid-a", answer)
    assert state.counts()[HoldKind.BINDING] == left
    state.bindings.looked("uid-a", None)
    assert free(state) == 200


def test_a_deleted_pod_that_was_being_bound_stays_gone(state):
    state.bindings.choose(read(pod("a")), "n0")
    state.intake.drop_pod("uid-a")
    state.bindings.bound("uid-a", "n0")
    assert free(state) == 200
