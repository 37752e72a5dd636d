# SPDX-License-Identifier: Apache-2.0
"""What is held while kube-scheduler chooses: by one pod at a time, for as long as it should be, by any thread."""

import random
import threading

import pytest
from support.scheduler_state import GPU_MIB, HOLD, fitting, free, new_state, node, placed, pod, points, read

from scheduler.held_places import HoldKind
from scheduler.pending_bindings import NoPlace
from scheduler.pods import Hold, Share, chosen_hold
from slicekeeper import names
from slicekeeper.gpu import inventory


def test_two_sixty_percent_pods_never_share_a_gpu(state):
    assert fitting(state, pod("a")) == ["n0", "n1"]
    assert fitting(state, pod("b")) == ["n1"]
    assert fitting(state, pod("c")) == []
    assert state.counts()[HoldKind.TENTATIVE] == 2


def test_a_place_that_is_only_kept_longer_is_no_change(state):
    waiting = read(pod("a"))
    hold, _ = chosen_hold(waiting, "n0", ["n0-0"])
    state.intake.set_pod(pod("a"))
    assert state.reserve([(waiting, hold)], HOLD * 10**9)
    changes = state.changes()
    assert state.reserve([(waiting, hold)], 2 * HOLD * 10**9)
    state.release("uid-unknown")
    assert state.changes() == changes


def test_a_second_filter_replaces_the_first_hold(state):
    for _ in range(3):
        assert fitting(state, pod("a")) == ["n0", "n1"]
    assert state.counts()[HoldKind.TENTATIVE] == 1
    assert free(state) == 140


def test_prioritize_moves_the_hold_to_the_best_of_the_nodes_that_are_left(state):
    fitting(state, pod("a"))
    assert points(state, pod("a"), "n1") == {"n1": 10}
    assert fitting(state, pod("b")) == ["n0"]


def test_one_node_alone_has_the_highest_score(clock):
    state = new_state(clock, *[node(f"n{i}") for i in range(5)], node("used"))
    state.intake.set_pod(pod("x", 30, on="used", gpus="used-0", phase="Running"))
    scores = points(state, pod("a"), *[f"n{i}" for i in range(5)], "used")
    assert scores.pop("used") == 10
    assert all(0 < score <= 9 for score in scores.values()), "a node left out has none"


def of_group(name, group="group"):
    return pod(name, spec={"schedulingGroup": {"podGroupName": group}})


def test_a_group_that_is_tried_again_has_no_places_of_the_try_before(state):
    for name in ("a", "b"):
        placed(state, of_group(name))
    assert placed(state, of_group("a")), "kube-scheduler has given both up"
    assert state.counts()[HoldKind.TENTATIVE] == 1
    assert placed(state, of_group("b"))
    assert state.counts()[HoldKind.TENTATIVE] == 2


def test_a_group_that_was_given_up_keeps_no_other_pod_from_its_gpus(state, clock):
    placed(state, of_group("a"))
    placed(state, of_group("b"))
    placed(state, of_group("c", "other"))
    assert state.counts()[HoldKind.TENTATIVE] == 2, "it may still be binding them"
    clock.advance(2_000)
    assert placed(state, pod("d", core=10)) == ["n0"]
    assert state.counts()[HoldKind.TENTATIVE] == 1


def test_places_of_a_group_stay_while_its_other_pods_are_asked_about(state, clock):
    placed(state, of_group("a"))
    clock.advance(3_000)
    assert placed(state, of_group("b"))
    assert state.counts()[HoldKind.TENTATIVE] == 2


def test_exclusive_holds_the_gpu_whatever_the_share(state):
    a = pod("a", 10, annotations={names.SHARING: "exclusive"})
    place = state.bindings.choose(read(a), "n0")
    assert place.hold.alone
    assert fitting(state, pod("b", 10), "n0") == []
    state.bindings.bound("uid-a", "n0")
    state.intake.set_pod(pod("a", 10, on="n0", gpus="n0-0", annotations={names.SHARING_MODE: "exclusive: asked for"}))
    assert fitting(state, pod("b", 10), "n0") == []
    assert free(state) == 100


def test_affinity_holds_between_filter_and_bind(state):
    wish = {names.GPU_AFFINITY: "x"}
    assert fitting(state, pod("a", 30, annotations=wish)) == ["n0", "n1"]
    assert fitting(state, pod("b", 30, annotations=wish)) == ["n0"]
    state.bindings.choose(read(pod("b", 30, annotations=wish)), "n1")  # kube-scheduler may know better
    with pytest.raises(NoPlace, match="affinity x"):
        state.bindings.choose(read(pod("a", 30, annotations=wish)), "n0")


def nothing(state):
    state.intake.set_node({"metadata": {"name": "n0", "annotations": {names.NODE_GPUS: "?"}}})


def another_gpu(state):
    value = inventory.encode([inventory.Gpu("other", "A100", GPU_MIB)])
    state.intake.set_node(node("n0", **{names.NODE_GPUS: value}))


@pytest.mark.parametrize("lose", [nothing, another_gpu, lambda state: state.intake.drop_node("n0")])
def test_a_label_is_on_one_gpu_even_if_that_gpu_is_not_in_sight(state, lose):
    wish = {names.GPU_AFFINITY: "x"}
    state.intake.set_pod(pod("a", 30, on="n0", gpus="n0-0", annotations=wish))
    lose(state)
    assert fitting(state, pod("b", 30, annotations=wish)) == []
    with pytest.raises(NoPlace, match="affinity x"):
        state.bindings.choose(read(pod("b", 30, annotations=wish)), "n1")
    state.intake.set_node(node("n0"))
    assert fitting(state, pod("b", 30, annotations=wish)) == ["n0"]
    lose(state)
    state.intake.drop_pod("uid-a")
    assert fitting(state, pod("b", 30, annotations=wish), "n1") == ["n1"]


def test_double_booking_by_others_leaves_nothing_and_never_less(state):
    for name in "abc":
        state.intake.set_pod(pod(name, on="n0", gpus="n0-0", phase="Running"))
    assert free(state) == 100


def test_reservations_keep_others_out_and_let_the_owner_in(state, clock):
    w = pod("w")
    state.intake.set_pod(w)
    assert fitting(state, w, "n0") == ["n0"]
    hold = state.bindings.choose(read(w), "n0").hold
    state.bindings.refused("uid-w", "n0")
    assert state.reserve([(read(w), hold)], HOLD * 10**9)
    assert fitting(state, pod("b"), "n0") == []
    with pytest.raises(NoPlace):
        state.bindings.choose(read(pod("b")), "n0")
    assert fitting(state, w, "n0") == ["n0"]
    clock.advance(HOLD * 1000 + 1)
    assert fitting(state, pod("b"), "n0") == ["n0"]
    state.release("uid-w")
    state.intake.set_pod(pod("w", on="n1", gpus="n1-0"))
    assert not state.reserve([(read(w), hold)], HOLD * 10**9)


def test_who_joins_a_reserved_gpu_does_not_keep_out_the_pod_whose_label_is_expected_there(state):
    w = pod("w", 60, annotations={names.GPU_AFFINITY: "x"})
    state.intake.set_pod(w)
    hold = Hold("n0", (Share("n0-0", 60, 1024, whole=False),), affinity="team-a/x")
    assert state.reserve([(read(w), hold)], HOLD * 10**9)
    state.bindings.choose(read(pod("b", 30)), "n0")
    assert fitting(state, w) == ["n0"]
    assert state.bindings.choose(read(w), "n0").gpus == {"c": ("n0-0",)}


def test_threads_never_give_a_gpu_twice(clock):
    """Sixteen threads filter, bind, lose answers and end pods; an independent sum is checked all along."""
    state = new_state(clock, *[node(f"n{i}", 2) for i in range(3)])
    among = ["n0", "n1", "n2"]
    held: dict[str, int] = {}
    lock = threading.Lock()
    errors: list[str] = []
    bound = [0]

    def work(number):
        rng = random.Random(number)
        for turn in range(40):
            name, core = f"p{number}-{turn}", rng.choice([20, 40, 60, 100])
            obj = pod(name, core)
            nodes = rng.choice([fitting, placed])(state, obj, *among)
            if not nodes:
                continue
            where = rng.choice(nodes)
            try:
                place = state.bindings.choose(read(obj), where)
            except NoPlace:
                continue
            gpu = place.gpus["c"][0]
            with lock:
                held[gpu] = held.get(gpu, 0) + core
                bound[0] += 1
                if held[gpu] > 100:
                    errors.append(f"{gpu} holds {held[gpu]}")
            if rng.random() < 0.3:
                state.bindings.lost(f"uid-{name}", where)
                assert state.bindings.choose(read(obj), where).gpus["c"][0] == gpu
            state.bindings.bound(f"uid-{name}", where)
            state.intake.set_pod(pod(name, core, on=where, gpus=gpu, phase="Running"))
            with lock:
                held[gpu] -= core
            state.intake.drop_pod(f"uid-{name}")

    threads = [threading.Thread(target=work, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert bound[0] > 50
    clock.advance((HOLD + 1) * 1000)
    assert fitting(state, pod("last", 200, None), *among) == among
    state.intake.drop_pod("uid-last")
    assert free(state) == 600


def test_a_place_that_was_expected_and_not_taken_at_once_lets_others_in(state, clock):
    assert fitting(state, pod("a"), "n0") == ["n0"]
    assert fitting(state, pod("b"), "n0") == []
    clock.advance(2_001)
    assert fitting(state, pod("b"), "n0") == ["n0"]
    assert fitting(state, pod("a"), "n0") == [], "now b expects it"
